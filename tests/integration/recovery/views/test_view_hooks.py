"""Views that are there and that inserts do not fire: seen, hooked again, fired, and their shape is what was declared."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from view_site import ViewSite

from chmv_assets.pipeline import load_pipeline
from chmv_assets.recovery import mending
from chmv_assets.recovery.mending import look_at, mend_view
from chmv_assets.recovery.site import RecoverySite
from resources.clickhouse import Server
from resources.journal import Journal


def test_views_that_lost_their_hook_are_hooked_again(site: ViewSite) -> None:
    rename_away(site)
    with site.writer():
        time.sleep(0.5)
        asks = site.tick().asks
        assert {(ask.subject.table, ask.damage) for ask in asks} == {
            (name, "unhooked") for name in ("daily_mv", "latest_mv", "both_a_mv", "both_b_mv", "risky_mv")
        }
        for ask in asks:
            site.repair(ask)
    assert site.differences() == []
    assert site.tick().asks == ()


@pytest.mark.parametrize("seen", ("unhooked", "dropped"))
def test_a_view_that_is_listed_as_hooked_is_fired(site: ViewSite, seen: str) -> None:
    """26.7 keeps the hook of an altered view by its UUID when its source is renamed away; a view of that name is then listed but never fired."""
    select = site.rows("SELECT as_select FROM system.tables WHERE database = '{db}' AND name = 'latest_mv'")[0][0]
    site.run(f"ALTER TABLE {{db}}.latest_mv MODIFY QUERY {select}")
    rename_away(site)
    if seen == "unhooked":
        for ask in site.tick().asks:
            site.repair(ask)
    site.run("DROP TABLE {db}.latest_mv SYNC")
    site.insert_both()
    for ask in site.tick().asks:
        site.repair(ask)
    site.insert_both()
    assert site.differences() == []
    assert site.tick().asks == ()


def test_a_view_is_fired_if_its_repair_broke_off_before_it_was_hooked(
    site: ViewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try finds it there, listed as hooked, and as declared."""
    select = site.rows("SELECT as_select FROM system.tables WHERE database = '{db}' AND name = 'latest_mv'")[0][0]
    site.run(f"ALTER TABLE {{db}}.latest_mv MODIFY QUERY {select}")
    rename_away(site)
    site.run("DROP TABLE {db}.latest_mv SYNC")

    def die(_site: RecoverySite, _view: object) -> None:
        raise KeyboardInterrupt

    for ask in site.tick().asks:
        if ask.subject.table == "latest_mv":
            assert ask.damage == "dropped"
            with monkeypatch.context() as patched:
                patched.setattr(mending, "_modify_query", die)
                with pytest.raises(KeyboardInterrupt):
                    site.repair(ask)
        else:
            site.repair(ask)
    assert look_at(site.own(), site.pipeline.catalog.objects[site.name("latest_mv")]).damage == ""
    again = [ask for ask in site.tick().asks if ask.subject.table == "latest_mv"]
    assert [ask.damage for ask in again] == ["rows missed"]
    site.repair(again[0])
    site.insert_both()
    assert site.differences() == []
    assert site.tick().asks == ()


@pytest.mark.parametrize("damage", ("dropped", "unhooked"))
def test_columns_that_were_declared_by_hand_are_the_same_after_a_repair(
    server: Server, tmp_path: Path, damage: str
) -> None:
    """MODIFY QUERY, which hooks a view for sure, gives it the columns of its query."""
    database = f"columns_{damage}"
    text = (
        "CREATE TABLE {db}.src (at DateTime, n UInt64) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n;\n"
        "CREATE TABLE {db}.tgt (at DateTime, n Int64) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n;\n"
        "CREATE MATERIALIZED VIEW {db}.src_mv TO {db}.tgt (at DateTime, n UInt8) AS SELECT at, n FROM {db}.src;\n"
    )
    (tmp_path / "a.sql").write_text(text.replace("{db}", database))
    pipeline = load_pipeline(tmp_path).require_sound()
    server.command(f"CREATE DATABASE {database}")
    for statement in filter(str.strip, text.replace("{db}", database).split(";")):
        server.command(statement)
    shape = f"SELECT create_table_query FROM system.tables WHERE database = '{database}' AND name = 'src_mv'"
    declared = server.rows(shape)
    if damage == "dropped":
        server.command(f"DROP TABLE {database}.src_mv SYNC")
    else:
        server.command(f"RENAME TABLE {database}.src TO {database}.away")
        server.command(f"CREATE TABLE {database}.src AS {database}.away")
    own = RecoverySite(pipeline, server, Journal(server), lambda _line: None, run_id="columns")
    view = pipeline.catalog.get(f"{database}.src_mv")
    assert look_at(own, view).damage == damage
    assert mend_view(own, view)
    assert server.rows(shape) == declared
    server.command(f"INSERT INTO {database}.src VALUES ('2026-11-01 00:00:00', 1)", settings={"async_insert": 0})
    assert server.rows(f"SELECT n FROM {database}.tgt") == [(1,)]
    server.command(f"DROP DATABASE {database} SYNC")


def rename_away(site: ViewSite) -> None:
    """Hooks go with the renamed table, and then fire for neither."""
    site.run("RENAME TABLE {db}.events TO {db}.away")
    site.run("CREATE TABLE {db}.events AS {db}.away")
    for (partition,) in site.rows("SELECT DISTINCT _partition_id FROM {db}.away"):
        site.run(f"ALTER TABLE {{db}}.events ATTACH PARTITION ID '{partition}' FROM {{db}}.away")
    site.run("DROP TABLE {db}.away SYNC")
