"""A merge backlog on the real server: it is seen, one partition is merged, a source is diverted and drained exactly once."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from backlog_site import BacklogSite, now_ms

from chmv_assets import ingest_asset
from chmv_assets.core.diversions import holds_commits
from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.rebuild_journal import RebuildRecord, lease_name, write_rebuild
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.recovery import Ask
from chmv_assets.recovery import backlog
from resources.backlog import read_backlog
from resources.clickhouse import Server
from resources.journal import Journal
from resources.journal.diversions import note_diversion, read_diversion
from resources.serving import Router
from sensors.merge_backlog import watched_sources
from sensors.merge_backlog_verdict import Cursor, decide
from sensors.verdict import Verdict


@pytest.fixture
def router(site: BacklogSite) -> Router:
    return Router(site.server, Journal(site.server), site.pipeline.catalog, max_age_seconds=3_600)


def routes_of(router: Router, site: BacklogSite) -> dict[str, str]:
    return {name.table: found.route for name, found in router.read_routes().items() if name.database == site.database}


def tick(site: BacklogSite, cursor: Cursor | None = None) -> Verdict[Cursor]:
    watched = watched_sources(site.pipeline)
    tables = {table for one in watched for table in one.tables}
    limits = site.pipeline.settings.limits
    return decide(
        read_backlog(site.server, tables), watched, cursor or Cursor(), now=time.time(), limits=limits, zone="UTC"
    )


def pour(site: BacklogSite, inserts: int) -> None:
    """Small inserts with merges stopped; the server's own delay is switched off for them, so that the test does not wait."""
    for table in ("events", "added", "latest", "named", "monthly"):
        site.run(f"SYSTEM STOP MERGES {{db}}.{table}")
    for number in range(inserts):
        site.server.command(
            f"INSERT INTO {site.database}.events (id, at, kind, n) SELECT {number}, now64(3), 1, 1",
            settings={"parts_to_delay_insert": 100_000},
        )


def ask(site: BacklogSite, damage: str, subject: str = "events", evidence: str = "since 1") -> Ask:
    return Ask(kind="backlog", subject=site.name(subject), damage=damage, evidence=evidence, detected_ms=now_ms())


def test_three_queries_see_every_table_with_its_own_limits(site: BacklogSite) -> None:
    pour(site, 5)
    asked: list[str] = []

    class Counting(Server):
        def rows(self, sql: str, *more: object, **options: object) -> list[tuple[object, ...]]:  # type: ignore[override]
            asked.append(sql)
            return super().rows(sql, *more, **options)  # type: ignore[arg-type]

    with Counting(site.server.endpoint) as server:
        seen = read_backlog(server, [site.name(name) for name in ("events", "added", "kinds", "nothing")])
    assert len(asked) == 3
    events, added = seen.fullest[site.name("events")], seen.fullest[site.name("added")]
    assert (events.parts, events.parts_to_delay, events.parts_to_throw) == (5, 20, 60)
    assert (added.parts, added.parts_to_delay, added.parts_to_throw) == (5, 1000, 3000)
    assert site.name("nothing") not in seen.fullest
    assert seen.pool_size > 0


def test_stopped_merges_are_seen_and_one_partition_is_merged(site: BacklogSite) -> None:
    site.run("SYSTEM STOP MERGES {db}.events")
    site.insert("now() - INTERVAL 2 DAY")
    site.insert("now() - INTERVAL 2 DAY", first=9)
    pour(site, 17)
    verdict = tick(site)
    (found,) = verdict.asks
    assert (found.damage, found.subject) == ("optimize", site.name("events"))
    outcome = site.repair(found)
    assert (outcome.before, outcome.after) == ({"parts": "17"}, {"parts": "1"})
    assert tick(site, verdict.cursor).asks == ()
    assert "nothing to merge" in " ".join(site.repair(found).steps)


def test_of_a_large_partition_the_server_chooses_what_to_merge(
    site: BacklogSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "WHOLE_BYTES", 0)
    pour(site, 17)
    with suppress(RecoveryFailed):  # it may choose nothing at this moment; then the repair is tried again
        site.repair(tick(site).asks[0])
    site.run("SYSTEM FLUSH LOGS")
    found = site.rows(
        "SELECT query FROM system.query_log WHERE query LIKE 'OPTIMIZE TABLE%{db}%' AND type = 'QueryStart'"
    )
    assert found and not any("FINAL" in str(query) for (query,) in found)


def test_a_table_whose_merges_a_running_rebuild_holds_is_left_alone(site: BacklogSite) -> None:
    pour(site, 17)
    (found,) = tick(site).asks
    journal = Journal(site.server)
    journal.prepare()
    record = RebuildRecord(
        rebuild_id=secrets.token_hex(4), target=site.name("added"), window="w", protocol="gated", status="running",
        steps=(Step("hold merges", site.name("events")), Step("publish", site.name("added"))), step=1,
        version=journal.versions.next(), owner=journal.owner,
    )  # fmt: skip
    with journal.locks.hold(lease_name(site.name("added")), journal.owner, lease_seconds=30):
        journal.run(write_rebuild(record))
        outcome = site.repair(found)
        assert "left" in outcome.steps[0] and outcome.after == {"parts": "17"}
    journal.run(write_rebuild(replace(record, status="published", version=journal.versions.next(above=record.version))))
    assert site.repair(found).after == {"parts": "1"}


def test_a_diverted_source_is_drained_exactly_once_and_readers_go_and_come_back(
    site: BacklogSite, router: Router
) -> None:
    router.refresh_snapshots([site.pipeline.catalog.objects[site.name(name)] for name in ("added", "latest", "named")])
    pour(site, 30)
    verdict = tick(site)
    divert = next(one for one in verdict.asks if one.damage == "divert")
    site.repair(divert)
    present = read_diversion(Journal(site.server), site.name("events"))
    assert present is not None and present.status == "diverted" and "30 parts" in present.reason
    assert routes_of(router, site) == dict.fromkeys(("added", "latest", "named"), "snapshot")
    assert site.rows("SELECT sum(n) FROM serving.added") == [(0,)]  # as it was when the snapshot was taken
    assert "stay with the primary" in " ".join(site.logged)
    assert [one.damage for one in tick(site, verdict.cursor).asks if one.subject == site.name("events")] == ["optimize"]
    for batch in ("b1", "b2"):
        site.stage(f"{batch}{site.database}")
    for one in verdict.asks:
        if one.damage == "optimize":
            site.repair(one)
    calm = tick(site, verdict.cursor)
    (drain,) = [one for one in calm.asks if one.damage == "drain"]
    outcome = site.repair(drain)
    assert outcome.before["batches in staging"] == "2" and outcome.after["batches in staging"] == "0"
    assert site.totals() == dict.fromkeys(("events", "added", "named", "monthly"), 50)
    assert outcome.reconciled > 0
    assert set(routes_of(router, site).values()) == {"primary"}
    assert site.rows("SELECT sum(n) FROM serving.added") == [(50,)]
    assert not holds_commits(read_diversion(Journal(site.server), site.name("events")))
    marks = Journal(site.server).read_watermarks(source=site.name("events"), target=site.name("added"))
    assert [mark.status for mark in marks] == ["processed"]
    assert site.repair(drain).steps == (f"{site.name('events')} is not diverted any more",)
    assert site.totals()["added"] == 50


def test_a_drain_that_died_half_way_is_done_again_without_doubling(
    site: BacklogSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, source = Journal(site.server), site.name("events")
    note_diversion(journal, source, "diverted", "test", since_ms=1)
    for batch in ("x1", "x2", "x3"):
        site.stage(f"{batch}{site.database}")
    real, left = backlog.move_watermarks, [1]

    def dies(*args: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("killed")
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(backlog, "move_watermarks", dies)
    with pytest.raises(RuntimeError, match="killed"):
        site.repair(ask(site, "drain"))
    present = read_diversion(journal, source)
    assert present is not None and (present.status, present.since_ms) == ("draining", 1)
    assert [one.damage for one in tick(site).asks] == ["drain"]
    monkeypatch.setattr(backlog, "move_watermarks", real)
    site.repair(ask(site, "drain"))
    assert site.totals() == dict.fromkeys(("events", "added", "named", "monthly"), 30)


def test_a_drain_stops_before_the_server_refuses_inserts(site: BacklogSite) -> None:
    journal, source = Journal(site.server), site.name("events")
    note_diversion(journal, source, "diverted", "test", since_ms=1)
    site.stage(f"y{site.database}")
    pour(site, 55)
    with pytest.raises(RecoveryFailed, match="wanted room for a batch"):
        site.repair(ask(site, "drain"))
    assert holds_commits(read_diversion(journal, source))
    recorded = site.rows(f"SELECT status, detail FROM chmv.recoveries FINAL WHERE subject = '{source}'")
    assert recorded[0][0] == "failed" and "wanted room" in str(json.loads(str(recorded[0][1]))["steps"])


def test_a_batch_that_waits_in_its_files_is_left_to_an_ingest(
    site: BacklogSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, source = Journal(site.server), site.name("events")
    note_diversion(journal, source, "diverted", "test", since_ms=1)
    site.stage(f"z{site.database}", attempt="direct:100")
    called: list[object] = []
    monkeypatch.setattr(ingest_asset, "ingest_landing", lambda *args: called.append(args[1].name))
    site.repair(ask(site, "drain"))
    assert called == [source] and site.totals()["events"] == 0
    assert not holds_commits(read_diversion(journal, source))  # the ingest may commit


def test_an_unknown_damage_is_refused(site: BacklogSite) -> None:
    with pytest.raises(RecoveryFailed, match="wanted optimize, divert or drain"):
        site.repair(ask(site, "mystery"))
