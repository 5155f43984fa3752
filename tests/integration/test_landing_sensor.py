"""The landing sensor as the daemon evaluates it: real folders, real cursors, a real instance; no server is asked for anything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from chmv_assets.definitions import build_definitions
from chmv_assets.jobs import ingest_run_config
from chmv_assets.pipeline import load_pipeline

DDL = """
CREATE TABLE s.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE TABLE s.clicks (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE TABLE s.daily (day Date, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
CREATE MATERIALIZED VIEW s.hits_mv TO s.daily AS SELECT toDate(at) AS day, count() AS hits FROM s.hits GROUP BY day;
CREATE MATERIALIZED VIEW s.clicks_mv TO s.daily AS SELECT toDate(at) AS day, count() AS hits FROM s.clicks GROUP BY day;
"""
SETTINGS = """
version: 1
start: "2026-10-01"
sources:
  s.hits: {event_time: at, landing: {path: in/hits, format: csv}}
  s.clicks: {event_time: at, landing: {path: in/clicks, format: jsonl}}
"""


@dataclass
class Site:
    """A location with two landings, and the cursor of its sensor."""

    folder: Path
    definitions: dg.Definitions
    instance: dg.DagsterInstance
    cursor: str | None = None

    def tick(self) -> Any:
        """Evaluate as the daemon does; the cursor is kept."""
        sensor = self.definitions.resolve_sensor_def("landing_sensor")
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, definitions=self.definitions
        ) as context:
            data = sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return data

    def land(self, path: str, text: str = "at,page\n", age_seconds: float = 60) -> None:
        file = self.folder / "in" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        moment = time.time() - age_seconds
        os.utime(file, (moment, moment))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("CHMV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.delenv("CHMV_LANDING_ROOT", raising=False)
    ddl = tmp_path / "ddl"
    ddl.mkdir()
    (ddl / "all.sql").write_text(DDL)
    (ddl / "chmv.yaml").write_text(SETTINGS)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Site(ddl, build_definitions(load_pipeline(ddl)), instance)


def sources(data: Any) -> list[str]:
    return [request.tags["chmv/source"] for request in data.run_requests or []]


def test_landed_files_ask_for_one_run_per_source_and_only_once(site: Site) -> None:
    assert sources(site.tick()) == []
    site.land("hits/a.csv")
    site.land("hits/b.csv")
    first = site.tick()
    assert sources(first) == ["s.hits"]
    (request,) = first.run_requests
    assert site.definitions.resolve_sensor_def("landing_sensor").job_name == "ingest_job"
    assert request.run_config == {"ops": {"ingest": {"config": {"source": "s.hits"}}}}
    assert request.run_key.startswith("s.hits:")
    assert request.tags["chmv/landing_files"] == "2"
    second = site.tick()
    assert sources(second) == []
    assert "s.hits" in second.skip_message and "2 files, nothing new" in second.skip_message
    site.land("clicks/c.jsonl")
    site.land("hits/a.csv", "at,page\n2026-10-01 00:00:00,p\n")
    assert sorted(sources(site.tick())) == ["s.clicks", "s.hits"]


def test_missing_folders_are_named(site: Site) -> None:
    data = site.tick()
    assert f"s.clicks ({site.folder / 'in' / 'clicks'}): there is no such folder" in data.skip_message
    assert f"s.hits ({site.folder / 'in' / 'hits'}): there is no such folder" in data.skip_message


def test_file_that_may_still_be_written_waits(site: Site) -> None:
    site.land("hits/a.csv", age_seconds=0)
    data = site.tick()
    assert sources(data) == []
    assert "1 younger than 2 s wait" in data.skip_message
    site.land("hits/a.csv", age_seconds=3)
    assert sources(site.tick()) == ["s.hits"]


def test_listing_that_fails_is_told_and_the_others_go_on(site: Site, tmp_path: Path) -> None:
    site.land("clicks/c.jsonl")
    (tmp_path / "secret.csv").write_text("x")
    (site.folder / "in" / "hits").mkdir()
    (site.folder / "in" / "hits" / "x.csv").symlink_to(tmp_path / "secret.csv")
    assert sources(site.tick()) == ["s.clicks"]
    assert "cannot be listed, LandingRefused" in site.tick().skip_message


def test_landing_root_of_the_environment_counts(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_LANDING_ROOT", str(tmp_path / "data"))
    assert f"({tmp_path / 'data' / 'in' / 'hits'})" in site.tick().skip_message


def test_foreign_cursor_is_started_afresh(site: Site) -> None:
    site.land("hits/a.csv")
    site.cursor = '{"version": 99}'
    assert sources(site.tick()) == ["s.hits"]
    assert sources(site.tick()) == []


def test_failed_run_is_asked_for_again_after_a_while(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land("hits/a.csv")
    (request,) = site.tick().run_requests
    job = site.definitions.resolve_job_def("ingest_job")
    failed = job.execute_in_process(  # a source without a landing is refused
        instance=site.instance, run_config=ingest_run_config("s.daily"), tags=dict(request.tags), raise_on_error=False
    )
    assert not failed.success
    assert "the last ingest failed, the next try comes in" in site.tick().skip_message
    monkeypatch.setattr("sensors.landing_verdict.RETRY_SECONDS", 0.0)
    (again,) = site.tick().run_requests
    assert again.run_key == f"{request.run_key}:1"


def test_queued_run_is_not_asked_for_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.land("hits/a.csv")
    monkeypatch.setattr("sensors.landing.read_queued", lambda _instance: {"s.hits"})
    assert "a run is queued and will see them" in site.tick().skip_message
    monkeypatch.undo()
    assert sources(site.tick()) == ["s.hits"]


@pytest.mark.parametrize(("value", "status"), [("on", "RUNNING"), ("", "STOPPED")])
def test_sensors_run_by_themselves_only_where_the_environment_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, value: str, status: str
) -> None:
    monkeypatch.setenv("CHMV_SENSORS", value)
    definitions = build_definitions(load_pipeline(site.folder))
    sensor = definitions.resolve_sensor_def("landing_sensor")
    assert sensor.default_status.value == status
    assert sensor.minimum_interval_seconds == 30


def test_location_without_landings_has_no_landing_sensor(site: Site) -> None:
    (site.folder / "chmv.yaml").write_text('version: 1\nstart: "2026-10-01"\n')
    sensors = build_definitions(load_pipeline(site.folder)).sensors or []
    assert "landing_sensor" not in {sensor.name for sensor in sensors}
