"""Damaged views and targets on the real server, under a writer: each is seen, repaired, and every target equals its query in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from view_site import ViewSite, insert, make_site

from chmv_assets import recovery_job
from chmv_assets.core.errors import LockRefused, RecoveryFailed
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import RebuildRecord, lease_name, write_rebuild
from chmv_assets.core.recovery import ALIVE_SECONDS, Ask, Outcome, RecoveryRecord
from chmv_assets.core.serving_journal import Guard, write_guards
from chmv_assets.pipeline import load_pipeline
from chmv_assets.process_identity import new_rebuild_id
from chmv_assets.recovery import mending, windows
from chmv_assets.recovery.arrivals import find_windows
from chmv_assets.recovery.mending import Standing, look_at, mend_view
from chmv_assets.recovery.outage_book import open_outage, read_open
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.views import recover
from chmv_assets.recovery_job import carry_out, note
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal
from resources.journal.dead_repairs import bury_repairs


@pytest.fixture(scope="module")
def site(
    engine: EngineInfo, server: Server, database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ViewSite]:
    made = make_site(server, database, Path(tmp_path_factory.mktemp("ddl")))
    yield made
    server.command("TRUNCATE TABLE chmv.outages")


@pytest.fixture(autouse=True)
def seen_right(site: ViewSite) -> None:
    """The sensor has seen everything right before each damage; inserts that broke off with a dropped target may be left to repair."""
    for ask in site.tick().asks:
        assert ask.damage == "throws"
        site.repair(ask)
    assert site.tick().asks == ()


QUERY = "SELECT as_select FROM system.tables WHERE database = '{db}'"
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


@pytest.mark.parametrize("again", (False, True))
def test_a_row_that_another_broken_view_misses_is_left_to_that_one(
    site: ViewSite, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Two views of one target are gone. While the first is repaired a row for both arrives between the publication and the comparison."""
    site.run("DROP TABLE {db}.both_a_mv SYNC")
    site.run("DROP TABLE {db}.both_b_mv SYNC")
    insert_both(site)
    first, second = site.tick().asks
    compare = windows.verify_windows

    def late(*given: Any) -> int:
        if again:
            site.run("DROP TABLE {db}.both_a_mv SYNC")
        insert_both(site)
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


def insert_both(site: ViewSite) -> None:
    """A row for either view of the target."""
    at, number = "toDateTime('2026-11-12 12:00:00', 'UTC')", 10 * next(site.numbers)
    site.run(
        f"INSERT INTO {{db}}.events (ts, id, kind, value) VALUES ({at}, {number}, 'a', 1), ({at}, {number + 1}, 'b', 1)"
    )


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
    insert_both(site)
    for ask in site.tick().asks:
        site.repair(ask)
    insert_both(site)
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
    assert look_at(own_site(site), site.pipeline.catalog.objects[site.name("latest_mv")]).damage == ""
    again = [ask for ask in site.tick().asks if ask.subject.table == "latest_mv"]
    assert [ask.damage for ask in again] == ["rows missed"]
    site.repair(again[0])
    insert_both(site)
    assert site.differences() == []
    assert site.tick().asks == ()


def own_site(site: ViewSite) -> RecoverySite:
    return RecoverySite(site.pipeline, site.server, Journal(site.server), site.logged.append)


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
    own = own_site(site)
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


def test_a_repair_that_was_killed_is_not_waited_for(site: ViewSite, server: Server) -> None:
    """The soak found it: a deployment had made the view again, and the outage stayed open for the hour in which the dead repair said that it runs."""
    create = site.rows("SELECT create_table_query FROM system.tables WHERE database = '{db}' AND name = 'latest_mv'")
    with site.writer():
        site.run("DROP TABLE {db}.latest_mv SYNC")
        time.sleep(0.4)
        (ask,) = site.tick().asks
        own = RecoverySite(site.pipeline, server, Journal(server), site.logged.append, run_id="dead")
        open_outage(own, ask)
        note(own, ask, "running", own.now_ms(), 0, None)
        site.run(str(create[0][0]))
        assert site.tick().asks == (), "it says that it runs"
        silent = f"updated_at = now64(6) - {ALIVE_SECONDS + 1}"
        site.run(f"ALTER TABLE chmv.recoveries UPDATE {silent} WHERE status = 'running' SETTINGS mutations_sync = 2")
        (again,) = site.tick().asks
        assert again.damage == "rows missed"
        site.repair(again)

        def buried(now_ms: int) -> list[RecoveryRecord]:
            """Other tests on this server have repairs of their own."""
            return [one for one in bury_repairs(own.journal, now_ms) if one.recovery == ask.key]

        assert buried(own.now_ms()) == [], "by its own clock it has just said so"
        (dead,) = buried(own.now_ms() + ALIVE_SECONDS * 1000 + 10_000)
        assert (dead.subject.table, dead.damage) == ("latest_mv", "dropped")
        found = site.rows(f"SELECT status, detail FROM chmv.recoveries FINAL WHERE recovery = '{ask.key}'")
        assert found[0][0] == "failed" and "it was killed" in str(found[0][1])
    assert site.differences() == []
    assert site.tick().asks == ()


def running_rebuild(journal: Journal, target: QName) -> RebuildRecord:
    """What somebody's rebuild says of itself; whether it lives is told by its lock."""
    journal.prepare()
    return RebuildRecord(
        rebuild_id=new_rebuild_id(), target=target, window="", protocol="gated", status="running", steps=(), step=0,
        version=journal.versions.next(), owner="somebody",
    )  # fmt: skip


def test_a_rebuild_that_was_killed_is_not_waited_for(site: ViewSite, server: Server) -> None:
    """Its row says "running" until somebody clears it away; whether it lives is told by its lock."""
    journal, target = Journal(server), site.name("latest")
    record = running_rebuild(journal, target)
    with site.writer():
        with journal.locks.hold(lease_name(target), "somebody"):
            journal.run(write_rebuild(record))
            site.run("DROP TABLE {db}.latest_mv SYNC")
            time.sleep(0.4)
            assert site.tick().asks == (), "a rebuild works on it"
        (ask,) = site.tick().asks
        site.repair(ask)
    assert [one.status for one in journal.read_rebuilds() if one.rebuild_id == record.rebuild_id] == ["rolled_back"]
    assert site.differences() == []
    assert site.tick().asks == ()


def test_a_query_that_a_living_rebuild_has_narrowed_is_not_given_back(site: ViewSite, server: Server) -> None:
    """A fence keeps rows apart while it stands; the repair was asked for before it did."""
    select = str(site.rows(f"{QUERY} AND name = 'latest_mv'")[0][0])
    ask = Ask(kind="view", subject=site.name("latest_mv"), damage="rows missed", evidence="asked before", since_ms=int(time.time() * 1000))  # fmt: skip
    journal = Journal(server)
    journal.prepare()
    with ThreadPoolExecutor(1) as pool:
        with journal.locks.hold(lease_name(site.name("latest")), "somebody"):
            site.run(f"ALTER TABLE {{db}}.latest_mv MODIFY QUERY {select} WHERE arrived < '2000-01-01'")
            narrowed = site.rows(f"{QUERY} AND name = 'latest_mv'")
            repair = pool.submit(site.repair, ask)
            time.sleep(2)
            assert site.rows(f"{QUERY} AND name = 'latest_mv'") == narrowed and not repair.done()
            site.run(f"ALTER TABLE {{db}}.latest_mv MODIFY QUERY {select}")
        assert "is as declared" in " ".join(repair.result(timeout=60).steps)
    assert site.differences() == []
    assert site.tick().asks == ()


def test_a_view_is_mended_only_when_its_targets_rebuild_is_over(
    site: ViewSite, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "HOLD_SECONDS", 0.5)
    site.run("DROP TABLE {db}.latest_mv SYNC")
    (ask,) = site.tick().asks
    journal = Journal(server)
    with journal.locks.hold(lease_name(site.name("latest")), "somebody"):
        with pytest.raises(LockRefused, match="found it held by somebody"):
            site.repair(ask)
        assert site.rows(f"{QUERY} AND name = 'latest_mv'") == []
    site.repair(ask)
    assert site.differences() == []


def test_a_rebuild_that_dies_while_a_repair_waits_for_it_is_cleared_away_first(site: ViewSite, server: Server) -> None:
    journal, target = Journal(server), site.name("latest")
    record = running_rebuild(journal, target)
    site.run("DROP TABLE {db}.latest_mv SYNC")
    (ask,) = site.tick().asks
    journal.run(write_rebuild(record))
    journal.locks.acquire(lease_name(target), "somebody", lease_seconds=3)
    created: list[str] = []

    def looked(line: str) -> None:
        if line.startswith("created "):
            created.extend(one.status for one in journal.read_rebuilds() if one.rebuild_id == record.rebuild_id)

    with Server(server.endpoint) as own:
        recover(RecoverySite(site.pipeline, own, Journal(own), looked, run_id="test"), ask)
    assert created == ["rolled_back"]
    assert site.differences() == []


def test_a_repair_says_that_it_runs_for_as_long_as_it_does(
    site: ViewSite, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_job, "SAY_SECONDS", 0.05)
    ask = Ask(kind="view", subject=site.name("latest_mv"), damage="rows missed", evidence="a test of patience")
    said: list[tuple[object, ...]] = []

    def look() -> list[tuple[object, ...]]:
        sql = f"SELECT status, version, updated_at FROM chmv.recoveries FINAL WHERE recovery = '{ask.key}'"
        return list(server.rows(sql))

    def work(_site: RecoverySite, _ask: Ask) -> Outcome:
        said.extend(look())
        deadline = time.monotonic() + 20
        while said[-1][1] == said[0][1] and time.monotonic() < deadline:
            time.sleep(0.05)
            said.extend(look())
        return Outcome(tier=0, steps=("waited",))

    with Server(server.endpoint) as own:
        carry_out(RecoverySite(site.pipeline, own, Journal(own), site.logged.append, run_id="test"), ask, work)
    assert {status for status, *_ in said} == {"running"} and said[-1][1:] > said[0][1:]
    time.sleep(0.2)
    assert [status for status, *_ in look()] == ["repaired"], "nobody says so afterwards"


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
