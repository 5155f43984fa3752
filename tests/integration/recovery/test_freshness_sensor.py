"""The freshness sensor as the daemon evaluates it: a real server, a real journal, written by the journal's own statements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client

from chmv_assets.core.diversions import Diversion, write_diversion
from chmv_assets.core.outages import Outage, write_outage
from chmv_assets.core.recovery import load_ask
from chmv_assets.core.serving_journal import RouteRecord, write_route
from chmv_assets.core.watermarks import Watermark, write_watermarks
from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.engine import EngineInfo
from resources.journal import Journal
from sensors.freshness import NAME, build_freshness_sensor

DDL = """
CREATE TABLE {db}.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE TABLE {db}.daily (day Date, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
CREATE TABLE {db}.monthly (month Date, hits UInt64) ENGINE = SummingMergeTree ORDER BY month;
CREATE TABLE {db}.top (page String, hits UInt64) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS SELECT toDate(at) AS day, count() AS hits FROM {db}.hits GROUP BY day;
CREATE MATERIALIZED VIEW {db}.monthly_mv TO {db}.monthly AS SELECT toStartOfMonth(day) AS month, sum(hits) AS hits FROM {db}.daily GROUP BY month;
CREATE MATERIALIZED VIEW {db}.top_mv REFRESH EVERY 1 HOUR TO {db}.top AS SELECT page, count() AS hits FROM {db}.hits GROUP BY page;
"""


@dg.op
def recover() -> None:
    """Nothing: what is asked for is looked at, not done."""


@dg.job(name=RECOVERY_JOB)
def recovery_job() -> None:
    recover()


@dataclass
class Site:
    """A pipeline on the server, its journal, the sensor with a clock that the test moves."""

    pipeline: Pipeline
    database: str
    journal: Journal
    instance: dg.DagsterInstance
    clock: float = field(default_factory=time.time)
    cursor: str | None = None
    said: str = ""

    def tick(self) -> list[tuple[str, str]]:
        sensor = build_freshness_sensor(self.pipeline, running=True, now=lambda: self.clock)
        resources = {"clickhouse": ClickHouseResource()}
        definitions = dg.Definitions(jobs=[recovery_job], sensors=[sensor], resources=resources)
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, definitions=definitions, resources=resources
        ) as context:
            data: Any = definitions.resolve_sensor_def(NAME).evaluate_tick(context)
        self.cursor, self.said = data.cursor, data.skip_message or ""
        self.clock += 30
        asks = [load_ask(request.run_config["ops"]["recover"]["config"]["ask"]) for request in data.run_requests or ()]
        return sorted((ask.subject.table, ask.damage) for ask in asks)

    def name(self, table: str) -> Any:
        return self.pipeline.catalog.get(f"{self.database}.{table}").name

    def outage(self, outage: Outage) -> Outage:
        written = replace(outage, version=self.journal.versions.next())
        self.journal.run(write_outage(written))
        return written

    def route(self, table: str, route: Any, reason: str) -> None:
        version = self.journal.versions.next()
        record = RouteRecord(target=self.name(table), route=route, reason=reason, version=version)
        self.journal.run(write_route(record))


@pytest.fixture
def site(
    clickhouse: Client,
    configured: EngineInfo,
    server: Server,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    monkeypatch.setenv("CHMV_CACHE_DIR", str(tmp_path / "cache"))
    ddl = tmp_path / "ddl"
    ddl.mkdir()
    name = f"{database}_{tmp_path.name[-1]}x{time.monotonic_ns() % 1_000_000}"
    (ddl / "all.sql").write_text(DDL.replace("{db}", name))
    clickhouse.command(f"CREATE DATABASE {name}")
    for statement in DDL.replace("{db}", name).split(";\n"):
        if statement.strip():
            clickhouse.command(statement)
    clickhouse.command(f"SYSTEM WAIT VIEW {name}.top_mv")
    journal = Journal(server)
    journal.prepare()
    with dg.DagsterInstance.ephemeral() as instance:
        yield Site(load_pipeline(ddl).require_sound(), name, journal, instance)
    clickhouse.command(f"DROP DATABASE {name} SYNC")


def test_an_outage_sends_readers_away_and_its_end_brings_them_back(site: Site) -> None:
    assert site.tick() == []
    assert "all targets are up to date" in site.said
    opened = int(site.clock * 1000) - 290_000
    outage = site.outage(Outage(view=site.name("daily_mv"), opened_ms=opened, damage="dropped", status="open"))
    assert site.tick() == []
    assert "for 290 s, SLA 300 s" in site.said
    assert site.tick() == [("daily", "to snapshot"), ("monthly", "to snapshot")]
    for table in ("daily", "monthly"):
        site.route(table, "snapshot", "freshness")
    assert site.tick() == []
    site.outage(replace(outage, status="closed", closed_ms=int(site.clock * 1000)))
    assert site.tick() == []
    assert "one more tick" in site.said
    assert site.tick() == [("daily", "to primary"), ("monthly", "to primary")]


def test_every_kind_of_lag_is_read_from_its_table(site: Site) -> None:
    now = datetime.fromtimestamp(site.clock, timezone.utc)
    version = site.journal.versions.next()
    site.journal.run(
        write_diversion(
            Diversion(
                source=site.name("hits"), status="diverted", reason="too many parts", since_ms=1_000, version=version
            )
        )
    )
    assert site.tick() == [("daily", "to snapshot"), ("monthly", "to snapshot")]
    version = site.journal.versions.next()
    site.journal.run(
        write_diversion(Diversion(source=site.name("hits"), status="clear", reason="", since_ms=1_000, version=version))
    )
    assert site.tick() == []
    mark = Watermark(
        source_id=site.name("daily"), target_table=site.name("monthly"), window_start=now - timedelta(days=40),
        window_end=now - timedelta(days=10), status="stale", version=site.journal.versions.next(),
    )  # fmt: skip
    site.journal.run(write_watermarks([mark]))
    site.clock = time.time() + 250
    assert site.tick() == []
    site.clock += 100
    assert site.tick() == [("monthly", "to snapshot")]


def test_a_refresh_that_is_overdue_sends_readers_away(site: Site) -> None:
    assert site.tick() == []
    site.clock = time.time() + 3_600 + 400
    assert site.tick() == [("top", "to snapshot")]


def test_a_person_is_not_overruled(site: Site) -> None:
    site.route("daily", "snapshot", "by hand: audit")
    for _ in range(4):
        assert site.tick() == []
    assert "left alone: by hand: audit" in site.said


def test_a_server_that_does_not_answer_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.tick()
    kept = site.cursor
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    assert site.tick() == []
    assert site.said.startswith("the server could not be asked")
    assert site.cursor in (kept, None)
