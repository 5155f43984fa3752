"""A small pipeline on the real server with a writer that sends again what fails, and ticks of the view health sensor without Dagster."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from database_site import DatabaseSite

from chmv_assets.core.errors import ServerError
from chmv_assets.core.recovery import Ask, Outcome
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.live_views import find_changed
from chmv_assets.pipeline import load_pipeline
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.views import recover
from chmv_assets.recovery_job import carry_out
from resources.clickhouse import Server
from resources.health import Health, fetch_health
from resources.journal import Journal
from sensors.verdict import Verdict
from sensors.view_health_cursor import Cursor
from sensors.view_health_verdict import LOOK_BACK_MS, decide
from sensors.view_health_watch import watch

DDL = """
CREATE TABLE {db}.events (ts DateTime('UTC'), id UInt64, kind LowCardinality(String), value Int64, arrived DateTime64(3, 'UTC') DEFAULT now64(3))
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE {db}.strictness (strict UInt8) ENGINE = MergeTree ORDER BY tuple();
CREATE TABLE {db}.daily (day Date, kind LowCardinality(String), n UInt64, total Int64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, kind) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS
SELECT toDate(ts) AS day, kind, count() AS n, sum(value) AS total FROM {db}.events GROUP BY day, kind;
CREATE TABLE {db}.monthly (month Date, n UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(month) ORDER BY month SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.monthly_mv TO {db}.monthly AS SELECT toStartOfMonth(day) AS month, sum(n) AS n FROM {db}.daily GROUP BY month;
CREATE TABLE {db}.latest (ts DateTime('UTC'), id UInt64, value Int64, arrived DateTime64(3, 'UTC'))
ENGINE = ReplacingMergeTree(arrived) PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.latest_mv TO {db}.latest AS SELECT ts, id, value, arrived FROM {db}.events;
CREATE TABLE {db}.both (day Date, n UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.both_a_mv TO {db}.both AS SELECT toDate(ts) AS day, count() AS n FROM {db}.events WHERE kind = 'a' GROUP BY day;
CREATE MATERIALIZED VIEW {db}.both_b_mv TO {db}.both AS SELECT toDate(ts) AS day, count() AS n FROM {db}.events WHERE kind = 'b' GROUP BY day;
CREATE TABLE {db}.risky (day Date, n UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.risky_mv TO {db}.risky AS
SELECT toDate(ts) AS day, count() AS n FROM {db}.events
WHERE throwIf(value = -666 AND (SELECT max(strict) FROM {db}.strictness) = 1, 'poison') = 0 GROUP BY day;
"""
SETTINGS = "version: 1\nsources:\n  {db}.events: {{event_time: ts, arrival: arrived}}\n"
# target → what it holds, what it should hold
TRUTH = {
    "daily": (
        "SELECT day, kind, sum(n), sum(total) FROM {db}.daily GROUP BY ALL ORDER BY ALL",
        "SELECT toDate(ts) AS day, kind, count(), sum(value) FROM {db}.events GROUP BY ALL ORDER BY ALL",
    ),
    "monthly": (
        "SELECT month, sum(n) FROM {db}.monthly GROUP BY ALL ORDER BY ALL",
        "SELECT toStartOfMonth(toDate(ts)) AS month, count() FROM {db}.events GROUP BY ALL ORDER BY ALL",
    ),
    "latest": (
        "SELECT id, value FROM {db}.latest FINAL ORDER BY ALL",
        "SELECT id, argMax(value, arrived) FROM {db}.events GROUP BY id ORDER BY ALL",
    ),
    "both": (
        "SELECT day, sum(n) FROM {db}.both GROUP BY ALL ORDER BY ALL",
        "SELECT toDate(ts) AS day, count() FROM {db}.events WHERE kind IN ('a', 'b') GROUP BY ALL ORDER BY ALL",
    ),
    "risky": (
        "SELECT day, sum(n) FROM {db}.risky GROUP BY ALL ORDER BY ALL",
        "SELECT toDate(ts) AS day, count() FROM {db}.events GROUP BY ALL ORDER BY ALL",
    ),
}


@dataclass
class ViewSite(DatabaseSite):
    """Views of every class, and the sensor's memory."""

    cursor: Cursor = field(default_factory=Cursor)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def read(self) -> Health:
        self.run("SYSTEM FLUSH LOGS")
        watched = watch(self.pipeline.catalog, self.pipeline.settings)
        return fetch_health(self.server, watched.databases, int(time.time() * 1000) - LOOK_BACK_MS)

    def tick(self) -> Verdict[Cursor]:
        """One tick; the cursor is kept."""
        health = self.read()
        watched = watch(self.pipeline.catalog, self.pipeline.settings)
        live = [health.views[view.name] for view in watched.views if view.name in health.views]
        changed = find_changed(self.server, self.pipeline.catalog, live)
        verdict = decide(watched, health, changed, self.cursor, self.pipeline.settings.limits)
        self.cursor = verdict.cursor
        return verdict

    def repair(self, ask: Ask) -> Outcome:
        """A run of the recovery job, with a connection of its own."""
        with Server(self.server.endpoint) as server:
            site = RecoverySite(self.pipeline, server, Journal(server), self.logged.append, run_id="test")
            return carry_out(site, ask, recover)[0]

    def differences(self) -> list[str]:
        """Targets that do not hold what they should; what differs is printed."""
        wrong: list[str] = []
        for name, (held, wanted) in TRUTH.items():
            found, right = self.rows(held), self.rows(wanted)
            if found != right:
                wrong.append(name)
                print(
                    name,
                    "missing",
                    sorted(set(right) - set(found))[:10],
                    "excess",
                    sorted(set(found) - set(right))[:10],
                )
        if wrong:
            print(*self.logged[-150:], sep="\n")
        return wrong

    def own(self) -> RecoverySite:
        """What a repair works on, over the connection of the test."""
        return RecoverySite(self.pipeline, self.server, Journal(self.server), self.logged.append)

    def insert_both(self) -> None:
        """A row for either view of the target `both`."""
        at, number = "toDateTime('2026-11-12 12:00:00', 'UTC')", 10 * next(self.numbers)
        self.run(
            f"INSERT INTO {{db}}.events (ts, id, kind, value) VALUES ({at}, {number}, 'a', 1), ({at}, {number + 1}, 'b', 1)"
        )

    @contextmanager
    def writer(self, seconds_between: float = 0.02) -> Iterator[list[str]]:
        """Insert all the time, with tokens, and send again what failed; gives the errors seen."""
        stop = threading.Event()
        errors: list[str] = []

        def write() -> None:
            with Server(self.server.endpoint) as server:
                while not stop.is_set():
                    insert(server, self.database, next(self.numbers), errors)
                    time.sleep(seconds_between)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield errors
        finally:
            stop.set()
            thread.join(60)


def insert(server: Server, database: str, number: int, errors: list[str], value: int = 1) -> None:
    """One insert over three days, until it is done."""
    sql = (
        f"INSERT INTO {database}.events (ts, id, kind, value) SELECT toDateTime('2026-11-16 00:00:00', 'UTC') - INTERVAL (number % 3) DAY, "
        f"{number} * 10 + number, ['a', 'b', 'c'][number % 3 + 1], {value} FROM numbers(6) ORDER BY ALL"
    )
    settings = {"insert_deduplication_token": f"w{number}", "async_insert": 0, "max_threads": 1}
    for _ in range(600):
        try:
            server.command(sql, settings=settings)
            return
        except ServerError as error:
            errors.append(str(error))
            time.sleep(0.1)


def make_site(server: Server, database: str, folder: Path) -> ViewSite:
    text = DDL.replace("{db}", database)
    (folder / "01.sql").write_text(text)
    (folder / "chmv.yaml").write_text(SETTINGS.format(db=database))
    pipeline = load_pipeline(folder, cache=folder / "cache").require_sound()
    for statement in split_statements(SourceFile(path="01.sql", text=text))[0]:
        server.command(statement.text)
    server.command(f"INSERT INTO {database}.strictness VALUES (0)")
    Journal(server).prepare()
    return ViewSite(server, database, pipeline)
