"""Repairs and rebuilds that live are waited for, those that were killed are not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from view_site import ViewSite

from chmv_assets import recovery_job
from chmv_assets.core.errors import LockRefused
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import RebuildRecord, lease_name, write_rebuild
from chmv_assets.core.recovery import ALIVE_SECONDS, Ask, Outcome, RecoveryRecord
from chmv_assets.process_identity import new_rebuild_id
from chmv_assets.recovery import mending
from chmv_assets.recovery.outage_book import open_outage
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.views import recover
from chmv_assets.recovery_job import carry_out, note
from resources.clickhouse import Server
from resources.journal import Journal
from resources.journal.dead_repairs import bury_repairs

QUERY = "SELECT as_select FROM system.tables WHERE database = '{db}'"


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
