"""A pipeline in a database of its own, writers that know every id that they sent, and the questions that a deployment must answer."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from chmv_assets.core.deploy.changes import Plan, Risk
from chmv_assets.core.deploy.codec import decode_plan, encode_plan
from chmv_assets.core.errors import ServerError
from chmv_assets.core.windows import Window
from chmv_assets.deploy import make_plan, open_applier
from chmv_assets.live import build_live_catalog, find_disagreements
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Endpoint, Server
from resources.deploy import Applied, Progress
from resources.reconcile import Reconciler

WRITERS = 4
MONTHS = Window(datetime(2026, 7, 1, tzinfo=timezone.utc), datetime(2026, 9, 1, tzinfo=timezone.utc))
HISTORY_ROWS = 30_000
ALL: tuple[Risk, ...] = ("rewrites data", "destructive")
DEDUP = "SETTINGS non_replicated_deduplication_window = 10000"

BASE = {
    "10_source": """
CREATE TABLE {db}.src
(
    id UInt64, ts DateTime('UTC'), country LowCardinality(String), kind UInt8, amount UInt32,
    arrived DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000;
""",
    "20_names": """
CREATE TABLE {db}.names (country String, continent String, version UInt32) ENGINE = ReplacingMergeTree(version) ORDER BY country;
CREATE DICTIONARY {db}.names_dict (country String, continent String DEFAULT 'none') PRIMARY KEY country
SOURCE(CLICKHOUSE(DB '{db}' TABLE 'names')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0);
""",
    "30_daily": """
CREATE TABLE {db}.daily (day Date, country LowCardinality(String), events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM {db}.src GROUP BY day, country;
""",
    "40_monthly": """
CREATE TABLE {db}.monthly (month Date, country LowCardinality(String), events SimpleAggregateFunction(sum, UInt64), amount SimpleAggregateFunction(sum, UInt64))
ENGINE = AggregatingMergeTree ORDER BY (month, country) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.monthly_mv TO {db}.monthly AS
SELECT toStartOfMonth(day) AS month, country, sum(events) AS events, sum(amount) AS amount FROM {db}.daily GROUP BY month, country;
""",
    "50_large": """
CREATE TABLE {db}.large (id UInt64, ts DateTime('UTC'), amount UInt32)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.large_mv TO {db}.large AS SELECT id, ts, amount FROM {db}.src WHERE amount > 500;
""",
    "60_continents": """
CREATE TABLE {db}.continents (day Date, continent String, events UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY (day, continent) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.continents_mv TO {db}.continents AS
SELECT toDate(ts) AS day, dictGetOrDefault('{db}.names_dict', 'continent', tuple(country), 'none') AS continent, count() AS events
FROM {db}.src GROUP BY day, continent;
""",
}


@dataclass
class Stage:
    """One case: its folder, its server, its writers."""

    endpoint: Endpoint
    server: Server
    folder: Path
    database: str = field(default_factory=lambda: f"deploy_{secrets.token_hex(4)}")
    files: dict[str, str] = field(default_factory=lambda: dict(BASE))
    sent: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    _next: int = 10_000_000
    _guard: threading.Lock = field(default_factory=threading.Lock)

    # --- the folder ------------------------------------------------------------------------------------------------

    def write(self) -> Pipeline:
        for old in self.folder.glob("*.sql"):
            old.unlink()
        for name, text in self.files.items():
            (self.folder / f"{name}.sql").write_text(text.replace("{db}", self.database), encoding="utf-8")
        return load_pipeline(self.folder)

    def edit(self, name: str, *pairs: tuple[str, str]) -> None:
        """Replace texts in a file; each must be there."""
        for before, after in pairs:
            assert before in self.files[name], before
            self.files[name] = self.files[name].replace(before, after)

    # --- deploying -------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        plan = make_plan(self.server, self.write())
        assert decode_plan(encode_plan(plan)) == plan  # what is written down is what was made
        return plan

    def apply(
        self,
        plan: Plan,
        on_progress: Callable[[Progress], None] = lambda _progress: None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> Applied:
        return open_applier(self.server, log, on_progress).apply(plan, ALL)

    def resume(self) -> Applied:
        return open_applier(self.server, lambda _line: None).resume()

    def prepare(self) -> None:
        """Everything made by a first deployment, with some days of history."""
        self.apply(self.plan())
        self.server.command(
            f"INSERT INTO {self.database}.names SELECT arrayElement(['DE', 'FR', 'US', 'JP'], number + 1), "
            "arrayElement(['Europe', 'Europe', 'America', 'Asia'], number + 1), 1 FROM numbers(4)"
        )
        self.server.command(f"SYSTEM RELOAD DICTIONARY {self.database}.names_dict")
        self.server.command(
            f"INSERT INTO {self.database}.src (id, ts, country, kind, amount) SELECT number, "
            "toDateTime('2026-07-30 00:00:00', 'UTC') + number * 10, arrayElement(['DE', 'FR', 'US', 'JP'], intHash32(number) % 4 + 1), number % 3, "
            f"intHash32(number + 1) % 1000 FROM numbers({HISTORY_ROWS})"
        )
        self.sent |= set(range(HISTORY_ROWS))

    # --- writers and readers ---------------------------------------------------------------------------------------

    @contextmanager
    def writers(self, reads: str = "daily", pause: float = 0.01) -> Iterator[None]:
        """Four writers and a reader for the length of a block; who is turned away sends the same again."""
        stop = threading.Event()
        threads = [threading.Thread(target=self._write, args=(pause, stop)) for _ in range(WRITERS)]
        threads.append(threading.Thread(target=self._read, args=(reads, stop)))
        for thread in threads:
            thread.start()
        try:
            time.sleep(0.3)
            yield
            time.sleep(0.3)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)

    def _write(self, pause: float, stop: threading.Event) -> None:
        with Server(self.endpoint) as server:
            while not stop.is_set():
                with self._guard:
                    first = self._next
                    self._next += 10
                ids = range(first, first + 10)
                countries = ("DE", "FR", "US", "JP")
                rows = ", ".join(
                    f"({one}, '2026-08-0{1 + one % 3} 0{one % 10}:00:00', '{countries[one % 4]}', {one % 3}, {one % 1000})"
                    for one in ids
                )
                sql = f"INSERT INTO {self.database}.src (id, ts, country, kind, amount) VALUES {rows}"
                if self._send(server, sql, f"{self.database} {first}"):
                    with self._guard:
                        self.sent |= set(ids)
                time.sleep(pause)

    def _send(self, server: Server, sql: str, token: str) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                server.command(sql, settings={"insert_deduplication_token": token, "async_insert": 0})
                return True
            except ServerError as error:
                if error.code not in (469, 774):
                    self.errors.append(str(error))
                    return False
                time.sleep(0.02)
        self.errors.append(f"{token}: turned away for a minute")
        return False

    def _read(self, table: str, stop: threading.Event) -> None:
        """Readers see rows of the history all the time."""
        with Server(self.endpoint) as server:
            while not stop.is_set():
                try:
                    rows = server.rows(f"SELECT count() FROM {self.database}.{table}")
                    if not int(rows[0][0]):
                        self.holes.append("no rows")
                except ServerError as error:
                    if not error.is_missing:  # a table that the plan drops
                        self.holes.append(str(error))
                time.sleep(0.02)

    # --- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing lost, nothing doubled, every target equal, every hook there, nothing left to do."""
        pipeline = self.write()
        assert not self.errors, self.errors[:3]
        assert not self.holes, self.holes[:3]
        ids, rows = self.server.rows(f"SELECT groupUniqArray(id), count() FROM {self.database}.src")[0]
        assert set(ids) == self.sent and rows == len(self.sent)
        again = make_plan(self.server, pipeline)
        assert again.is_empty and not again.untold, [(str(one.name), one.why, one.differences) for one in again.changes]
        targets = {made.target for made in pipeline.catalog.objects.values() if made.kind == "materialized_view"}
        for name in sorted(one for one in targets if one is not None):
            made = pipeline.catalog.objects[name]
            found = Reconciler(self.server, pipeline.catalog, "UTC").run(made, MONTHS if made.ttl else None)
            assert found.status == "equal" and found.keys, (str(name), found.sentence())
        live, objects = build_live_catalog(self.server, [self.database])
        assert find_disagreements(live, objects) == ()
        left = self.server.rows(
            "SELECT name FROM system.tables WHERE database = 'chmv' AND (startsWith(name, {scratch:String}) OR startsWith(name, 'trial.'))",
            {"scratch": f"scratch.{self.database}."},  # other tests on this server may have died on purpose
        )
        assert left == []
        assert "__chmv_fence" not in self.server.rows(
            f"SELECT create_table_query FROM system.tables WHERE database = '{self.database}' AND name = 'src'"
        )[0][0]  # fmt: skip

    def drop(self) -> None:
        self.server.command(f"DROP DATABASE IF EXISTS {self.database} SYNC")
