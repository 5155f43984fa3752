"""Ingestion through Dagster, on the real server with real Spark: a source's asset, `ingest_job`, and what their events tell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import RANGE, Site, open_site
from pyspark.sql import SparkSession

from chmv_assets.jobs import ingest_run_config
from resources.engine import EngineInfo
from resources.spark import SparkResource

FIRST = datetime(2026, 11, 9, 10, 0, tzinfo=timezone.utc)
SECOND = FIRST + timedelta(days=1)
DDL = """
CREATE TABLE {db}.hits (at DateTime64(3, 'UTC'), page LowCardinality(String), ms UInt16,
    arrived DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at
    SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE {db}.daily (day Date, page LowCardinality(String), hits UInt64) ENGINE = SummingMergeTree
    PARTITION BY toYYYYMMDD(day) ORDER BY (day, page) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS
    SELECT toDate(at) AS day, page, count() AS hits FROM {db}.hits GROUP BY day, page;
"""
SETTINGS = """
version: 1
start: "2026-11-01"
sources:
  {db}.hits:
    event_time: at
    arrival: arrived
    landing: {path: landing/hits, format: jsonl, tolerated_bad_rate: 0.5}
"""


class LandingSite(Site):
    """A location with one landing."""

    @property
    def landing(self) -> Path:
        return self.folder.parent / "landing" / "hits"

    def materialize(self, table: str, **options: Any) -> dict[str | None, Mapping[str, Any]]:
        """Run one asset; gives the metadata of each materialization, by partition."""
        return _by_partition(self.run(table, raise_on_error=True, **options))

    def ingest(self) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_job_def("ingest_job")
        return job.execute_in_process(instance=self.instance, run_config=ingest_run_config(f"{self.database}.hits"))

    def write(self, name: str, *rows: dict[str, object] | str) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        self.landing.mkdir(parents=True, exist_ok=True)
        (self.landing / name).write_text("\n".join(lines) + "\n")

    def rows_per_day(self) -> dict[str, int]:
        found = self.rows("SELECT toString(toDate(at)) AS day, count() FROM {db}.hits GROUP BY day")
        return {str(day): int(rows) for day, rows in found}


def _by_partition(result: dg.ExecuteInProcessResult) -> dict[str | None, Mapping[str, Any]]:
    events = [e.materialization for e in result.filter_events(lambda e: e.is_step_materialization)]
    return {event.partition: {name: _plain(found) for name, found in event.metadata.items()} for event in events}


def _plain(found: Any) -> Any:
    return [dict(record.data) for record in found.records] if isinstance(found, dg.TableMetadataValue) else found.value


@pytest.fixture
def site(
    configured: EngineInfo, clickhouse: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LandingSite]:
    monkeypatch.setenv("CHMV_LANDING_ROOT", str(tmp_path))
    with open_site(LandingSite, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        yield made


def hit(at: datetime, lateness_seconds: float = 10, **more: object) -> dict[str, object]:
    arrived = at + timedelta(seconds=lateness_seconds)
    return {"at": at.isoformat(), "page": "p", "ms": 5, "arrived": arrived.isoformat(), **more}


def test_materializing_a_source_partition_loads_its_files_once(
    site: LandingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write("first.jsonl", hit(FIRST), hit(FIRST, 400), hit(FIRST, 4000), "{broken")
    site.write("second.jsonl", hit(SECOND))
    ((key, found),) = site.materialize("hits", partition_key="2026-11-09").items()
    assert key == "2026-11-09"
    assert site.rows_per_day() == {"2026-11-09": 3}, "the file of the other day was left alone"
    numbers = {name: found[f"chmv/{name}"] for name in (
        "files_new", "rows_read", "rows_on_time", "rows_late", "rows_quarantined", "rows_loaded", "rows_loaded_late",
        "rows_loaded_elsewhere", "watermark_status", "last_processed_ts",
    )}  # fmt: skip
    assert numbers == {
        "files_new": 1, "rows_read": 4, "rows_on_time": 2, "rows_late": 1, "rows_quarantined": 1, "rows_loaded": 3,
        "rows_loaded_late": 1, "rows_loaded_elsewhere": 0, "watermark_status": "processed",
        "last_processed_ts": FIRST.isoformat(),
    }  # fmt: skip
    assert found["dagster/partition_row_count"] == 3
    assert [one for one in found["chmv/lateness"] if one["rows"]] == [
        {"arrived after": "< 1m", "rows": 1}, {"arrived after": "5m – 15m", "rows": 1}, {"arrived after": "1h – 6h", "rows": 1},
    ]  # fmt: skip
    assert found["chmv/quarantine_reasons"] == [{"reason": "not a readable record", "rows": 1}]
    assert len(found["chmv/batches"]) == 1

    with monkeypatch.context() as patch:  # nothing to load: no session is asked for
        patch.setattr(SparkResource, "spark_session", property(lambda _self: pytest.fail("a session was started")))
        (site.landing / "second.jsonl").rename(site.landing / "second.jsonl.tmp")
        again = site.materialize("hits", partition_key="2026-11-09")["2026-11-09"]
        (site.landing / "second.jsonl.tmp").rename(site.landing / "second.jsonl")
    assert again["chmv/ingest"] == "no new files"
    assert (again["chmv/files_known"], again["chmv/rows_loaded"], again["dagster/partition_row_count"]) == (1, 0, 3)

    both = site.materialize("hits", tags={RANGE + "start": "2026-11-09", RANGE + "end": "2026-11-10"})
    assert {key: (one["chmv/rows_loaded"], one["dagster/partition_row_count"]) for key, one in both.items()} == {
        "2026-11-09": (0, 3),
        "2026-11-10": (1, 1),
    }
    assert site.rows_per_day() == {"2026-11-09": 3, "2026-11-10": 1}


def test_missing_landing_folder_is_an_observation(site: LandingSite) -> None:
    site.command("INSERT INTO {db}.hits (at, page, ms) VALUES ('2026-11-09 10:00:00', 'p', 1)")
    found = site.materialize("hits", partition_key="2026-11-09")["2026-11-09"]
    assert found["chmv/ingest"] == "no new files: there is no such folder"
    assert found["dagster/partition_row_count"] == 1


def test_ingest_job_fills_every_partition_that_received_rows(site: LandingSite) -> None:
    site.write("mixed.jsonl", hit(FIRST), hit(FIRST, 4000), hit(SECOND))
    site.write("old.jsonl", hit(datetime(2020, 1, 1, tzinfo=timezone.utc)))  # before the first partition
    result = site.ingest()
    told = _by_partition(result)
    assert {key: (one["chmv/rows_loaded"], one["chmv/rows_loaded_late"]) for key, one in told.items()} == {
        "2026-11-09": (2, 1),
        "2026-11-10": (1, 0),
    }
    assert told["2026-11-09"]["dagster/partition_row_count"] == 2
    assert told["2026-11-09"]["chmv/watermark_status"] == "processed"
    filled = site.instance.get_materialized_partitions(site.key("hits"))
    assert filled == {"2026-11-09", "2026-11-10"}
    (output,) = result.filter_events(lambda event: event.is_successful_output)
    assert output.step_output_data.metadata["chmv/files_new"].value == 2
    assert _by_partition(site.ingest()) == {}, "nothing new, nothing told"
    assert site.rows_per_day() == {"2020-01-01": 1, "2026-11-09": 2, "2026-11-10": 1}


def test_target_partition_shows_its_watermark(site: LandingSite) -> None:
    site.write("first.jsonl", hit(FIRST), hit(FIRST + timedelta(hours=2)))
    site.ingest()
    found = site.materialize("daily", partition_key="2026-11-09")["2026-11-09"]
    assert found["chmv/watermark_status"] == "processed"
    assert found["chmv/last_processed_ts"] == (FIRST + timedelta(hours=2)).isoformat()
    assert [one["source"] for one in found["chmv/watermarks"]] == [f"{site.database}.hits"]


def test_landing_that_is_refused_fails_the_run_with_the_reason(site: LandingSite) -> None:
    site.write("bad.jsonl", "{broken", "{broken", hit(FIRST))
    with pytest.raises(dg.Failure, match=r"2 of 3 rows .* are bad but wanted at most 50\.00%"):
        site.ingest()
    assert site.rows_per_day() == {}
