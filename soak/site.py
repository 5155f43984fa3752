"""A pipeline with the real server, daemon and web server: what `make soak` and `tests/e2e/test_recovery.py` break.

Here are its objects, its first rows and its processes. Who writes and reads is in `clients`, what is done to it in `faults` and `deploys`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from chmv_assets.core.errors import EngineError
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.pipeline import Pipeline, load_pipeline
from chmv_assets.recovery.routes import open_router
from chmv_assets.recovery.site import RecoverySite
from resources.clickhouse import Endpoint, Server
from resources.dagster_ui import DagsterUi, prepare_home
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine
from resources.engine.lifecycle import connection_env
from resources.engine.ports import free_ports
from resources.journal import Journal

ROOT = Path(__file__).parents[1]
WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
DELAY_PARTS = 60
DDL = f"""
CREATE DATABASE IF NOT EXISTS shop;
CREATE TABLE shop.events (id UInt64, user UInt32, kind LowCardinality(String), amount UInt32, at DateTime('UTC'),
  arrived DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY (user, at) {WINDOW};
CREATE TABLE shop.users (user UInt32, country LowCardinality(String)) ENGINE = ReplacingMergeTree ORDER BY user {WINDOW};
CREATE TABLE shop.hourly (hour DateTime('UTC'), kind LowCardinality(String), n UInt64, amount UInt64)
  ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(hour) ORDER BY (hour, kind) {WINDOW}, parts_to_delay_insert = {DELAY_PARTS};
CREATE MATERIALIZED VIEW shop.hourly_mv TO shop.hourly AS SELECT toStartOfHour(at) AS hour, kind, count() AS n, sum(amount) AS amount
  FROM shop.events GROUP BY hour, kind;
CREATE TABLE shop.monthly (month Date, kind LowCardinality(String), n SimpleAggregateFunction(sum, UInt64))
  ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(month) ORDER BY (month, kind) {WINDOW};
CREATE MATERIALIZED VIEW shop.monthly_mv TO shop.monthly AS SELECT toStartOfMonth(hour) AS month, kind, sum(n) AS n
  FROM shop.hourly GROUP BY month, kind;
CREATE TABLE shop.latest (day Date, user UInt32, amount UInt32, id UInt64)
  ENGINE = ReplacingMergeTree(id) PARTITION BY toYYYYMMDD(day) ORDER BY (day, user) {WINDOW};
CREATE MATERIALIZED VIEW shop.latest_mv TO shop.latest AS SELECT toDate(at) AS day, user, amount, id FROM shop.events;
CREATE TABLE shop.by_country (day Date, country LowCardinality(String), n UInt64, amount UInt64)
  ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country) {WINDOW};
CREATE MATERIALIZED VIEW shop.by_country_mv TO shop.by_country AS SELECT toDate(e.at) AS day, u.country AS country, count() AS n,
  sum(e.amount) AS amount FROM shop.events AS e LEFT ANY JOIN shop.users AS u ON u.user = e.user GROUP BY day, country;
CREATE TABLE shop.strictness (strict UInt8) ENGINE = MergeTree ORDER BY tuple();
CREATE TABLE shop.checked (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day {WINDOW};
CREATE MATERIALIZED VIEW shop.checked_mv TO shop.checked AS SELECT toDate(at) AS day, count() AS n FROM shop.events
  WHERE throwIf((SELECT max(strict) FROM shop.strictness) > 0, 'every row is refused') = 0 GROUP BY day;
"""
TARGETS = ("hourly", "monthly", "latest", "by_country", "checked")
DAYS, BASE_ROWS = 5, 5000
LATE_AGAIN = 60  # seconds until a window is repaired for late rows again
_STARTS = 5  # of a server that was killed
USERS = 200
READS = {
    "hourly": "SELECT toString(toDate(hour)), sum(n) FROM serving.hourly GROUP BY 1",
    "monthly": "SELECT 'month', sum(n) FROM serving.monthly",
    "latest": "SELECT toString(day), count() FROM serving.latest GROUP BY 1",
    "by_country": "SELECT toString(day), sum(n) FROM serving.by_country GROUP BY 1",
    "checked": "SELECT toString(day), sum(n) FROM serving.checked GROUP BY 1",
}


def settings_text(today: datetime, sources: str = "") -> str:
    start = (today - timedelta(days=today.day - 1 + 31)).replace(day=1)
    return f"""
version: 1
default_database: shop
start: "{start:%Y-%m-%d}"
sources:
  shop.events: {{event_time: at, arrival: arrived, landing: {{path: landing, format: jsonl}}}}
{sources}thresholds: {{sensor_every: 5, peak_starts: 0, peak_ends: 0, probe_after: 5, retry_after: 5, snapshot_every: 60, late_again: {LATE_AGAIN}}}
"""


@dataclass
class Site:
    """The running system."""

    folder: Path
    engine: EngineInfo
    ui: DagsterUi
    pipeline: Pipeline
    environ: dict[str, str]

    def server(self) -> Server:
        return Server(Endpoint(url=self.engine.url, user=self.engine.user or "default"))

    def run(self, sql: str) -> None:
        with self.server() as server:
            server.command(sql, settings={"async_insert": 0})

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.server() as server:
            return server.rows(sql)

    def land(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A file of rows for Spark to ingest, put in place at once."""
        landing = self.folder / "ddl" / "landing"
        part = landing.parent / f"{name}.part"
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        part.rename(landing / f"{name}.jsonl")

    def kill_engine(self) -> None:
        """SIGKILL, and a supervisor that starts it again, a few times if it has to."""
        assert self.engine.pid is not None
        os.kill(self.engine.pid, signal.SIGKILL)
        ports = {"http_port": self.engine.http_port, "tcp_port": self.engine.tcp_port or 0}
        for left in reversed(range(_STARTS)):
            try:
                self.engine = start_engine(EngineOptions(data_dir=self.folder / "engine", **ports))
                return
            except EngineError as error:
                if not left:
                    raise
                sys.stderr.write(f"the server did not start, once more: {error}\n")
                time.sleep(2)


def base_rows(now: datetime) -> Iterator[tuple[int, datetime]]:
    """Of each of the first days: its first id and its midnight; BASE_ROWS rows each."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    yield from ((day * 100_000, midnight - timedelta(days=day)) for day in range(DAYS))


@contextmanager
def running_site(folder: Path, ddl: str = DDL, sources: str = "") -> Iterator[Site]:
    """Engine, objects, data of some days, Dagster with its sensors on; all of it ends with the block."""
    now = datetime.now(timezone.utc)
    engine = start_engine(EngineOptions(data_dir=folder / "engine"))
    declared = folder / "ddl"
    (declared / "landing").mkdir(parents=True)
    (declared / "all.sql").write_text(ddl, encoding="utf-8")
    (declared / "chmv.yaml").write_text(settings_text(now, sources), encoding="utf-8")
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("CHMV_", "DAGSTER_"))},
        **connection_env(engine),
        "CHMV_DDL_DIR": str(declared), "CHMV_SENSORS": "on", "CHMV_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    ui = DagsterUi(prepare_home(folder / "home"), ROOT / "workspace.yaml", free_ports(1)[0], environ)
    site = Site(folder, engine, ui, load_pipeline(declared, cache=folder / "cache"), environ)
    try:
        for statement in split_statements(SourceFile(path="all.sql", text=ddl))[0]:
            site.run(statement.text)
        site.run(f"INSERT INTO shop.users SELECT number, ['DE', 'FR', 'ES'][number % 3 + 1] FROM numbers({USERS})")
        for first, at in base_rows(now):
            site.run(
                f"INSERT INTO shop.events (id, user, kind, amount, at, arrived) SELECT {first} + number, number % {USERS}, "
                f"concat('k', toString(number % 3)), number % 97 + 1, toDateTime({int(at.timestamp())}) + number % 3600 AS t, t FROM numbers({BASE_ROWS})"
            )
        with site.server() as server:  # as `snapshot_job` does it every minute; nobody need wait for its first time
            journal = Journal(server)
            journal.prepare()
            open_router(RecoverySite(site.pipeline, server, journal, lambda _line: None)).refresh_snapshots()
        ui.start()
        ui.wait()
        yield site
    finally:
        with suppress(Exception):
            ui.stop()
        stop_engine(folder / "engine")
