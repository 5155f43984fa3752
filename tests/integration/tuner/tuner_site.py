"""A location with tables to tune, a filler for the merge pool, and a tuner and a sensor that tick by hand."""

from __future__ import annotations

import time
from typing import Any

import dagster as dg
from dagster_site import Site

from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import Action
from chmv_assets.core.tunings import DELAY
from chmv_assets.tuning import Tuner
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.executor import Executor
from resources.journal import Journal
from resources.tuner import TuningStore
from resources.tuning_reads import read_sample
from sensors.tuner import NAME, build_tuner_sensor

DDL = """
CREATE TABLE {db}.events (at DateTime('UTC'), n UInt64) ENGINE = MergeTree ORDER BY n
SETTINGS inactive_parts_to_delay_insert = 5000, parts_to_delay_insert = 40, parts_to_throw_insert = 120;
CREATE TABLE {db}.plain (at DateTime('UTC'), n UInt64) ENGINE = MergeTree ORDER BY n;
CREATE MATERIALIZED VIEW {db}.plain_mv TO {db}.plain AS SELECT at, n FROM {db}.events WHERE n = 0;
"""
SETTINGS = "version: 1\ndefault_database: {db}\nstart: '2026-10-01'\ntuner: MODE\nthresholds: {tuner_watch: 1}\n"


class TunerSite(Site):
    """Ticks the sensor by hand, with a clock of its own."""

    server: Server
    cursor: str | None = None
    moment: float = 0.0

    def name(self, table: str) -> QName:
        return QName(self.database, table)

    def tuner(self, limits: Limits, executor: Executor | None = None, **options: Any) -> Tuner:
        store = TuningStore(executor or Executor(self.server, log=lambda _line: None), Journal(self.server))
        tables = [self.name("events"), self.name("plain")]
        return Tuner(store, limits, tables, lambda _line: None, **options)

    def engine_of(self, table: str = "events") -> str:
        """What the server keeps of a table, settings and all."""
        return str(self.rows(f"SELECT create_table_query FROM system.tables WHERE database = '{{db}}' AND name = '{table}'")[0][0])  # fmt: skip

    def tunings(self) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT subject, setting, if(was_set, previous, NULL), value, status FROM chmv.tunings FINAL "
            "WHERE startsWith(subject, '{db}.') ORDER BY version"
        )

    def halve(self, table: str = "events", expected: int = 40) -> Action:
        return Action(
            subject=self.name(table), setting=DELAY, expected=expected, base=expected, value=expected // 2, reason="a test says so"
        )  # fmt: skip

    def fill_pool(self) -> None:
        """Mutations that sleep take every place of the merge pool and no processor: merges have to wait.

        A granule is one row here, and a mutation looks between granules whether it was stopped: each holds its place for 40 s, unless told.
        Many short ones would not do: a table that finds the pool full asks again later and later, and the pool runs empty meanwhile.
        """
        self.command(
            "CREATE TABLE {db}.filler (p UInt16, x Int64, slept UInt8) ENGINE = MergeTree PARTITION BY p ORDER BY x SETTINGS index_granularity = 1"
        )
        self.command("INSERT INTO {db}.filler SELECT number % 16, number, 0 FROM numbers(16 * 200)")
        self.command(
            "ALTER TABLE {db}.filler UPDATE slept = slept + sleepEachRow(0.1) WHERE 1 SETTINGS mutations_sync = 0"
        )
        deadline = time.monotonic() + 30
        while read_sample(self.server, [], 0.0).pool_share < 1:
            assert time.monotonic() < deadline, "the pool does not fill"
            time.sleep(0.05)

    def empty_pool(self) -> None:
        """Every place is free within a second; a mutation that is killed and not stopped goes on to its end."""
        self.command("SYSTEM STOP MERGES {db}.filler")
        self.command("KILL MUTATION WHERE database = '{db}' AND table = 'filler'")

    def tick(self, seconds: float = 30.0) -> Any:
        """One tick, some seconds after the last."""
        self.moment += seconds
        resources = {"clickhouse": ClickHouseResource()}
        sensor = build_tuner_sensor(self.pipeline, running=True, now=lambda: self.moment)
        job = self.definitions.resolve_job_def("tuner_job")
        definitions = dg.Definitions(jobs=[job], sensors=[sensor], resources=resources)
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, definitions=definitions, resources=resources
        ) as context:
            data: Any = definitions.resolve_sensor_def(NAME).evaluate_tick(context)
        self.cursor = data.cursor or self.cursor
        return data
