"""An ingest of a diverted source stages and commits nothing; and the two sensors as the daemon evaluates them, on a real instance."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from backlog_site import BacklogSite

from chmv_assets import ingest
from chmv_assets.core.batches import staging_name
from chmv_assets.core.tuner import Action
from chmv_assets.core.tunings import PARALLELISM
from chmv_assets.ingest import Ingester
from chmv_assets.ingest_asset import Ingested, run_metadata
from chmv_assets.load import LoadSite, Taken
from chmv_assets.recovery_job import build_recovery_job
from resources.clickhouse_resource import ClickHouseResource
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.journal import Journal, fetch_staging
from resources.journal.diversions import note_diversion
from resources.tuner import TuningStore
from sensors.late_data import build_late_data_sensor
from sensors.merge_backlog import build_merge_backlog_sensor


def ingester(site: BacklogSite) -> Ingester:
    node = site.pipeline.catalog.objects[site.name("events")]
    landing = site.pipeline.settings.policy(node.name).landing
    assert landing is not None

    def no_spark() -> Any:
        raise AssertionError("no JVM is needed here")

    return Ingester(
        pipeline=site.pipeline, source=node, landing=landing, journal=Journal(site.server), spark=no_spark, log=site.logged.append
    )  # fmt: skip


def test_a_diverted_source_stages_its_batches_and_the_next_ingest_after_it_commits_them(
    site: BacklogSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    (folder / "one.jsonl").write_text(json.dumps({"id": 1, "at": "2026-07-05 10:00:00", "kind": 1, "n": 1}) + "\n")

    def stage(_load: LoadSite, taken: Taken, _columns: object) -> None:
        site.stage(taken.batch.id, take=False)

    monkeypatch.setattr(ingest, "stage_batch", stage)
    source = site.name("events")
    note_diversion(Journal(site.server), source, "diverted", "test", since_ms=1)
    report = ingester(site).run(str(folder))
    assert report.held == report.batches and len(report.held) == 1
    assert site.logged[-1] == f"{source}: diverted: 1 batches wait in staging"
    assert run_metadata(Ingested(root="x", report=report))["chmv/diverted"] == "1 batches wait in staging"
    assert report.summary.rows_read == 0 and site.totals()["events"] == 0
    again = ingester(site).run(str(folder))
    assert again.held == report.held and not again.batches and site.totals()["events"] == 0
    note_diversion(Journal(site.server), source, "clear", "test")
    last = ingester(site).run(str(folder))
    assert (last.held, last.resumed) == ((), report.held)
    assert site.totals() == dict.fromkeys(("events", "added", "named", "monthly"), 10)


def test_an_ingest_drops_staging_that_nobody_writes_to_any_more(
    site: BacklogSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    source = site.name("events")
    journal = Journal(site.server, owner="dead")
    journal.prepare()
    comment = json.dumps({"source": str(source), "batch": "lost", "owner": "dead"})
    site.server.command(
        f"CREATE TABLE {staging_name(source, 'lost').sql} (x UInt8) ENGINE = MergeTree ORDER BY x COMMENT '{comment}'"
    )
    journal.note_batch(source, "lost", "planned")

    def staged() -> list[str]:
        return [table.batch for table in fetch_staging(journal) if table.source == source]

    ingester(site).run(str(folder))
    assert staged() == ["lost"], "it is young"
    monkeypatch.setattr(ingest, "_STAGING_KEPT", timedelta(0))
    ingester(site).run(str(folder))
    assert staged() == []
    lost = journal.read_batch(source, "lost")
    assert lost is not None and lost.status == "failed"


@pytest.mark.parametrize(("ceiling", "expected"), [(None, 8), (2, 2), (1, 1)])
def test_an_ingest_runs_no_more_inserts_side_by_side_than_the_tuner_allows(
    site: BacklogSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ceiling: int | None, expected: int
) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    (folder / "one.jsonl").write_text(json.dumps({"id": 1, "at": "2026-07-05 10:00:00", "kind": 1, "n": 1}) + "\n")
    if ceiling is not None:
        slower = Action(
            subject=site.name("events"), setting=PARALLELISM, expected=8, base=8, value=ceiling, reason="test"
        )
        assert TuningStore(Executor(site.server), Journal(site.server)).apply(slower, 60)[0] is not None
    found: list[int] = []

    def commit(_load: LoadSite, _ready: object, _mark: object, parallelism: int) -> None:
        found.append(parallelism)
        raise InterruptedError

    monkeypatch.setattr(ingest, "stage_batch", lambda *_arguments: None)
    monkeypatch.setattr(ingest, "commit_staged", commit)
    with pytest.raises(InterruptedError):
        ingester(site).run(str(folder))
    assert found == [expected]


def evaluate(site: BacklogSite, sensor: dg.SensorDefinition, cursor: str | None = None) -> Any:
    resources = {"clickhouse": ClickHouseResource()}
    definitions = dg.Definitions(jobs=[build_recovery_job(site.pipeline, [])], sensors=[sensor], resources=resources)
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(
            instance=instance, cursor=cursor, definitions=definitions, resources=resources
        ) as context,
    ):
        return definitions.resolve_sensor_def(sensor.name).evaluate_tick(context)


def test_the_backlog_sensor_asks_for_one_run_however_often_the_tick_is_evaluated(
    site: BacklogSite, configured: EngineInfo
) -> None:
    site.run("SYSTEM STOP MERGES {db}.events")
    for number in range(18):
        site.insert("now()", first=number)
    sensor = build_merge_backlog_sensor(site.pipeline, running=True)
    first, second = evaluate(site, sensor), evaluate(site, sensor)
    assert len(first.run_requests) == 1
    assert [one.run_key for one in first.run_requests] == [one.run_key for one in second.run_requests]
    assert first.run_requests[0].tags["chmv/damage"] == "optimize"


def test_the_late_sensor_keeps_its_place_and_tells_numbers(site: BacklogSite, configured: EngineInfo) -> None:
    sensor = build_late_data_sensor(site.pipeline, running=True)
    first = evaluate(site, sensor)
    assert "0 new late rows" in first.skip_message and first.cursor
    site.insert("now() - INTERVAL 3 DAY", rows=5)
    second = evaluate(site, sensor, first.cursor)
    assert [one.tags["chmv/damage"] for one in second.run_requests] == ["late rows"]
    again = evaluate(site, sensor, first.cursor)
    assert [one.run_key for one in again.run_requests] == [one.run_key for one in second.run_requests]


@pytest.mark.parametrize("build", [build_merge_backlog_sensor, build_late_data_sensor])
def test_a_server_that_does_not_answer_is_told(site: BacklogSite, monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    ticked = evaluate(site, build(site.pipeline, running=False), "kept")
    assert not ticked.run_requests and "could not be asked" in ticked.skip_message
