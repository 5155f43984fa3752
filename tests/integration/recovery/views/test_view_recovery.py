"""Damaged views and targets on the real server, under a writer: each is seen, repaired, and every target equals its query in the end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from view_site import ViewSite, insert

from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.serving_journal import Guard, write_guards
from chmv_assets.recovery import windows
from chmv_assets.recovery.arrivals import find_windows
from chmv_assets.recovery.mending import Standing, mend_view
from chmv_assets.recovery.outage_book import read_open
from chmv_assets.recovery.site import RecoverySite
from resources.clickhouse import Server
from resources.journal import Journal

DAMAGES = {
    "dropped": ("DROP TABLE {db}.daily_mv", "daily_mv", "dropped"),
    "detached": ("DETACH TABLE {db}.latest_mv", "latest_mv", "detached"),
    "detached for good": ("DETACH TABLE {db}.both_a_mv PERMANENTLY", "both_a_mv", "detached"),
    "changed": (
        "ALTER TABLE {db}.both_b_mv MODIFY QUERY SELECT toDate(ts) AS day, count() * 7 AS n FROM {db}.events WHERE kind = 'b' GROUP BY day",
        "both_b_mv",
        "changed",
    ),
    "chained": ("DROP TABLE {db}.monthly_mv", "monthly_mv", "dropped"),
    "target": ("DROP TABLE {db}.daily", "daily", "target dropped"),
    "target for good": ("DROP TABLE {db}.both SYNC", "both", "target dropped"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damage_is_seen_and_repaired_under_a_writer(site: ViewSite, case: str) -> None:
    sql, subject, damage = DAMAGES[case]
    with site.writer():
        time.sleep(0.3)
        site.run(sql)
        time.sleep(0.7)
        asks = site.tick().asks
        assert [(str(ask.subject), ask.damage) for ask in asks] == [(f"{site.database}.{subject}", damage)]
        outcome = site.repair(asks[0])
        time.sleep(0.3)
        assert site.tick().asks == ()
    assert site.differences() == []
    assert outcome.status == "repaired" and outcome.steps
    assert site.tick().asks == ()


@pytest.mark.parametrize("again", (False, True))
def test_a_row_that_another_broken_view_misses_is_left_to_that_one(
    site: ViewSite, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Two views of one target are gone. While the first is repaired a row for both arrives between the publication and the comparison."""
    site.run("DROP TABLE {db}.both_a_mv SYNC")
    site.run("DROP TABLE {db}.both_b_mv SYNC")
    site.insert_both()
    first, second = site.tick().asks
    compare = windows.verify_windows

    def late(*given: Any) -> int:
        if again:
            site.run("DROP TABLE {db}.both_a_mv SYNC")
        site.insert_both()
        return compare(*given)

    monkeypatch.setattr(windows, "verify_windows", late)
    if again:
        with pytest.raises(RecoveryFailed, match="differ from their query"):
            site.repair(first)
        monkeypatch.undo()
        site.repair(first)
    else:
        outcome = site.repair(first)
        monkeypatch.undo()
        left = f"Left to the repair of {site.database}.both_b_mv, which is dropped now"
        assert len([step for step in outcome.steps if step.endswith(left)]) == 1
        assert outcome.reconciled == len(outcome.rebuilt) - 1
    assert [(ask.subject, ask.damage) for ask in site.tick().asks] == [(second.subject, "dropped")]
    site.repair(second)
    assert site.differences() == []
    assert site.tick().asks == ()


def test_the_other_views_of_a_target_are_looked_at_once_for_all_its_windows(
    site: ViewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run("DROP TABLE {db}.both_a_mv SYNC")
    site.run("DROP TABLE {db}.both_b_mv SYNC")
    for at in (11, 12, 13):
        site.run(
            f"INSERT INTO {{db}}.events (ts, id, kind, value) VALUES ('2026-11-{at} 12:00:00', {10 * next(site.numbers)}, 'b', 1)"
        )
    asks = site.tick().asks
    own = site.own()
    looked: list[QName] = []
    look = windows.look_at

    def count(at: RecoverySite, view: Object) -> Standing:
        looked.append(view.name)
        return look(at, view)

    monkeypatch.setattr(windows, "look_at", count)
    catalog = site.pipeline.catalog
    mended = catalog.objects[site.name("both_a_mv")]
    mend_view(own, mended)
    target = catalog.objects[site.name("both")]
    held = windows.align(site.pipeline, target, find_windows(own, catalog.objects[site.name("both_b_mv")], None))
    windows.verify_windows(own, [(target.name, window) for window in held], mended)
    left = [step for step in own.steps if "Left to the repair of" in step]
    assert len(left) >= 3
    assert sorted(looked) == [site.name("both_a_mv"), site.name("both_b_mv")]
    for ask in asks:
        site.repair(ask)
    assert site.differences() == []


def test_what_was_repaired_by_hand_has_missed_rows(site: ViewSite) -> None:
    create = site.rows("SELECT create_table_query FROM system.tables WHERE database = '{db}' AND name = 'latest_mv'")[
        0
    ][0]
    with site.writer():
        site.run("DROP TABLE {db}.latest_mv SYNC")
        time.sleep(0.4)
        assert [ask.damage for ask in site.tick().asks] == ["dropped"]
        site.run(str(create))
        asks = site.tick().asks
        assert [ask.damage for ask in asks] == ["rows missed"]
        site.repair(asks[0])
    assert site.differences() == []
    assert site.tick().asks == ()


def test_the_same_repair_twice_does_no_harm(site: ViewSite) -> None:
    with site.writer():
        site.run("DROP TABLE {db}.both_a_mv SYNC")
        time.sleep(0.4)
        (ask,) = site.tick().asks
        site.repair(ask)
        site.repair(ask)
    assert site.differences() == []


def test_a_guarded_partition_that_is_lost_is_computed_again(site: ViewSite, server: Server) -> None:
    insert(server, site.database, 6_000_000, [])
    rows = site.rows(
        "SELECT partition_id, max(max_block_number), (SELECT toString(uuid) FROM system.tables WHERE database = '{db}' AND name = 'daily') "
        "FROM system.parts WHERE active AND database = '{db}' AND table = 'daily' GROUP BY partition_id"
    )
    guards = [
        Guard(target=site.name("daily"), partition_id=str(one), max_block=int(str(block)), table_uuid=str(uuid), version=1)
        for one, block, uuid in rows
    ]  # fmt: skip
    Journal(server).run(write_guards(guards))
    assert site.tick().asks == ()
    with site.writer():
        site.run("ALTER TABLE {db}.daily DROP PARTITION 20261115")
        (ask,) = site.tick().asks
        assert (ask.damage, ask.seen["partitions"]) == ("partition lost", '["20261115"]')
        outcome = site.repair(ask)
    assert {name.table for name, _ in outcome.rebuilt} == {"daily", "monthly"} and outcome.tier == 2
    assert site.differences() == []
    site.run("TRUNCATE TABLE chmv.guards")


def test_a_view_that_throws_is_isolated_and_comes_back(site: ViewSite, server: Server) -> None:
    site.run("ALTER TABLE {db}.strictness UPDATE strict = 1 WHERE 1 SETTINGS mutations_sync = 2")
    with site.writer() as errors:
        for at in range(3):
            with pytest.raises(Exception, match="poison"):
                site.run(
                    f"INSERT INTO {{db}}.events (ts, id, kind, value) SETTINGS insert_deduplication_token = 'p{at}', async_insert = 0 "
                    f"VALUES ('2026-11-16 01:00:00', 9000000{at}, 'a', -666)"
                )
        asks = site.tick().asks
        assert [ask.damage for ask in asks] == ["throws"]
        isolated = site.repair(asks[0])
        assert isolated.status == "isolated"
        for at in range(3):  # writers send again what failed, and now it goes through
            site.run(
                f"INSERT INTO {{db}}.events (ts, id, kind, value) SETTINGS insert_deduplication_token = 'p{at}', async_insert = 0 "
                f"VALUES ('2026-11-16 01:00:00', 9000000{at}, 'a', -666)"
            )
        assert site.tick().asks == ()
        before = len(errors)
        time.sleep(0.3)
        assert len(errors) == before  # siblings and ingestion go on
    assert site.differences() == ["risky"]
    with site.writer():
        journal = RecoverySite(site.pipeline, server, Journal(server), site.logged.append)
        outage = read_open(journal, site.name("risky_mv"))
        assert outage is not None and outage.status == "isolated"
        probe = Ask(kind="view", subject=site.name("risky_mv"), damage="probe", evidence="1", since_ms=outage.opened_ms)
        assert site.repair(probe).status == "isolated"
        site.run("ALTER TABLE {db}.strictness UPDATE strict = 0 WHERE 1 SETTINGS mutations_sync = 2")
        assert site.repair(probe).status == "repaired"
        assert read_open(journal, site.name("risky_mv")) is None
    assert site.differences() == []
    assert site.tick().asks == ()


def test_failures_that_passed_are_not_isolated(site: ViewSite, server: Server) -> None:
    ask = Ask(
        kind="view", subject=site.name("risky_mv"), damage="throws", evidence="x", since_ms=int(time.time() * 1000), detected_ms=1
    )  # fmt: skip
    insert(server, site.database, 7_000_000, [])
    assert site.repair(ask).status == "repaired"
    assert site.differences() == []


def test_merges_between_two_looks_hide_no_window(site: ViewSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that arrived may be merged before they are read: what is new must not be found by its part's name."""
    now_ms = int(time.time() * 1000)
    for number in range(5_000_000, 5_000_003):
        insert(site.server, site.database, number, [])
    looked = Server.rows

    def look_and_merge(server: Server, sql: str, *rest: object, **more: object) -> list[tuple[object, ...]]:
        found = looked(server, sql, *rest, **more)  # type: ignore[arg-type]
        if "system.parts" in sql:
            site.run("OPTIMIZE TABLE {db}.events FINAL")
        return found

    monkeypatch.setattr(Server, "rows", look_and_merge)
    recovery = RecoverySite(site.pipeline, site.server, Journal(site.server), site.logged.append)
    for view in ("daily_mv", "monthly_mv"):
        windows = find_windows(recovery, site.pipeline.catalog.objects[site.name(view)], now_ms)
        assert {f"{window.start:%Y-%m-%d}" for window in windows} >= {"2026-11-14", "2026-11-15", "2026-11-16"}, view


def test_a_partition_that_was_dropped_is_seen_even_if_its_blocks_do_not_tell(site: ViewSite, server: Server) -> None:
    """Merged with the empty part that a DROP leaves for a moment, new rows look as old as those that are gone; the log of parts knows."""
    insert(server, site.database, 8_000_000, [])
    daily, today = site.name("daily"), "20261116"
    ((uuid,),) = site.rows(
        f"SELECT toString(uuid) FROM system.tables WHERE database = '{site.database}' AND name = 'daily'"
    )
    guard = Guard(
        target=daily, partition_id=today, max_block=2**62, table_uuid=str(uuid), copied_ms=int(time.time() * 1000), version=1
    )  # fmt: skip
    statement = write_guards([guard])
    server.run(statement)
    assert daily not in site.read().lost
    site.run(f"ALTER TABLE {{db}}.daily DROP PARTITION ID '{today}'")
    insert(server, site.database, 8_000_001, [])
    assert [one.partition_id for one in site.read().lost[daily]] == [today]
    (ask,) = site.tick().asks
    assert (ask.subject, ask.damage) == (daily, "partition lost")
    assert site.repair(ask).status == "repaired"
    assert site.differences() == []
    assert daily not in site.read().lost


def test_rows_whose_arrival_is_not_when_they_came_are_not_missed(site: ViewSite) -> None:
    """Whoever restores rows with their old arrival while a view is out: only the comparison of the window tells."""
    assert site.tick().asks == ()
    site.run("DETACH TABLE {db}.daily_mv SYNC")
    site.run(
        "INSERT INTO {db}.events (ts, id, kind, value, arrived) SETTINGS async_insert = 0 VALUES "
        "('2026-11-10 02:00:00', 99000001, 'c', 5, '2026-11-10 02:00:01')"
    )
    (ask,) = site.tick().asks
    outcome = site.repair(ask)
    assert any("differs although nothing arrived" in line for line in outcome.steps), outcome.steps
    assert site.differences() == []
