"""A small pipeline on the real server for backlogs and late rows: a source, targets of every class, ticks and repairs without Dagster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from database_site import DatabaseSite

from chmv_assets.core.batches import ATTEMPT_COLUMN, TASK_COLUMN, Slice, render_create_staging, staging_name
from chmv_assets.core.landing import Batch, LandingFile
from chmv_assets.core.recovery import Ask, Outcome
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.pipeline import load_pipeline
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery_job import carry_out, handler_of
from resources.clickhouse import Server
from resources.journal import Journal
from resources.journal.manifest import hold_landing, take_files

DEDUPED = "SETTINGS non_replicated_deduplication_window = 10000"
DDL = f"""
CREATE TABLE {{db}}.events (id UInt64, at DateTime64(3, 'UTC'), arrived DateTime64(6, 'UTC') DEFAULT now64(6), kind UInt32, n UInt64)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY id {DEDUPED}, parts_to_delay_insert = 20, parts_to_throw_insert = 60;
CREATE TABLE {{db}}.kinds (kind UInt32, name String) ENGINE = MergeTree ORDER BY kind;
CREATE TABLE {{db}}.added (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day {DEDUPED};
CREATE MATERIALIZED VIEW {{db}}.added_mv TO {{db}}.added AS SELECT toDate(at) AS day, sum(n) AS n FROM {{db}}.events GROUP BY day;
CREATE TABLE {{db}}.latest (id UInt64, at DateTime64(3, 'UTC'), arrived DateTime64(6, 'UTC'), n UInt64)
ENGINE = ReplacingMergeTree(arrived) PARTITION BY toYYYYMMDD(at) ORDER BY id {DEDUPED};
CREATE MATERIALIZED VIEW {{db}}.latest_mv TO {{db}}.latest AS SELECT id, at, arrived, n FROM {{db}}.events;
CREATE TABLE {{db}}.named (day Date, name String, n UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, name) {DEDUPED};
CREATE MATERIALIZED VIEW {{db}}.named_mv TO {{db}}.named AS
SELECT toDate(e.at) AS day, k.name AS name, sum(e.n) AS n FROM {{db}}.events AS e LEFT JOIN {{db}}.kinds AS k ON k.kind = e.kind GROUP BY day, name;
CREATE TABLE {{db}}.monthly (month Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(month) ORDER BY month {DEDUPED};
CREATE MATERIALIZED VIEW {{db}}.monthly_mv TO {{db}}.monthly AS
SELECT toStartOfMonth(day) AS month, sum(n) AS n FROM {{db}}.named GROUP BY month;
"""
SETTINGS = """
version: 1
default_database: {db}
sources:
  {db}.events: {{event_time: at, arrival: arrived, landing: {{path: in, format: jsonl}}}}
thresholds: {{peak_starts: 0, peak_ends: 0, late_again: 0, parts_warn: 4}}
"""
COLUMNS = [
    ("id", "UInt64"),
    ("at", "DateTime64(3, 'UTC')"),
    ("arrived", "DateTime64(6, 'UTC')"),
    ("kind", "UInt32"),
    ("n", "UInt64"),
]


@dataclass
class BacklogSite(DatabaseSite):
    """Events in several targets, with a landing."""

    def site(self) -> RecoverySite:
        return RecoverySite(self.pipeline, self.server, Journal(self.server), self.logged.append, run_id="test")

    def repair(self, ask: Ask) -> Outcome:
        """What a run of the recovery job does."""
        return carry_out(self.site(), ask, handler_of(ask.kind))[0]

    def insert(self, at: str, *, rows: int = 1, first: int = 0, kind: int = 1) -> None:
        self.run(
            f"INSERT INTO {{db}}.events (id, at, kind, n) SELECT {first} + number, toDateTime64({at}, 3, 'UTC'), {kind}, 1 FROM numbers({rows})"
        )

    def parts(self, table: str) -> int:
        found = self.rows(
            f"SELECT count() FROM system.parts WHERE active AND database = '{{db}}' AND table = '{table}'"
        )
        return int(str(found[0][0]))

    def stage(self, batch: str, rows: int = 10, *, take: bool = True, attempt: str = "a") -> None:
        """A batch of a landing file as an ingest leaves it when the source is diverted: taken, staged, written down."""
        journal, source = Journal(self.server), self.name("events")
        files = (LandingFile(path=f"{batch}.jsonl", bytes=1, checksum=batch),)
        if take:
            with hold_landing(journal, source):
                take_files(journal, source, [Batch(id=batch, files=files)])
        journal.note_batch(source, batch, "planned")
        self.server.command(render_create_staging(source, batch, COLUMNS, journal.owner))
        self.server.command(
            f"INSERT INTO {staging_name(source, batch).sql} ({TASK_COLUMN}, {ATTEMPT_COLUMN}, id, at, arrived, kind, n) "
            f"SELECT number % 2, '{attempt}', number, now64(3), now64(6), 1, 1 FROM numbers({rows})"
        )
        journal.note_batch(source, batch, "staged", slices=[Slice(task, attempt, rows // 2) for task in range(2)])

    def totals(self) -> dict[str, int]:
        """The sum of n, by table; all equal when every target is right."""
        names = ("events", "added", "named", "monthly")
        return {name: int(str(self.rows(f"SELECT sum(n) FROM {{db}}.{name}")[0][0])) for name in names}


def build_site(server: Server, database: str, folder: Path) -> BacklogSite:
    """Make the pipeline's tables in a database and load its catalog."""
    text = DDL.replace("{db}", database)
    (folder / "pipeline.sql").write_text(text)
    (folder / "chmv.yaml").write_text(SETTINGS.format(db=database))
    pipeline = load_pipeline(folder, cache=folder / "cache").require_sound()
    statements, _ = split_statements(SourceFile(path="pipeline.sql", text=text))
    for statement in statements:
        server.command(statement.text)
    server.command(f"INSERT INTO {database}.kinds VALUES (1, 'one'), (2, 'two')")
    return BacklogSite(server, database, pipeline)


def now_ms() -> int:
    return int(time.time() * 1000)
