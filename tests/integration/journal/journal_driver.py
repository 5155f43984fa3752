"""A driver of batches that can be killed at any statement, and what its rows should look like afterwards.

The pipeline: a source, and three targets behind it, one of them behind another target.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from chmv_assets.core.batches import ATTEMPT_COLUMN, TASK_COLUMN, Slice, render_create_staging, staging_name
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import BatchOutcome
from chmv_assets.core.windows import Window
from resources.clickhouse import Server
from resources.journal import Journal, finish_batch

UTC = timezone.utc


WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"


PIPELINE = """
CREATE TABLE {db}.source (batch String, id UInt64, day Date, amount UInt64)
ENGINE = MergeTree PARTITION BY day ORDER BY id {settings};
CREATE TABLE {db}.daily (day Date, amount UInt64, events UInt64)
ENGINE = SummingMergeTree PARTITION BY day ORDER BY day {settings};
CREATE TABLE {db}.total (k UInt8, amount UInt64, events UInt64) ENGINE = SummingMergeTree ORDER BY k {settings};
CREATE TABLE {db}.copy (batch String, id UInt64) ENGINE = MergeTree ORDER BY id {settings};
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS
SELECT day, sum(amount) AS amount, count() AS events FROM {db}.source GROUP BY day;
CREATE MATERIALIZED VIEW {db}.total_mv TO {db}.total AS
SELECT 1 AS k, sum(amount) AS amount, sum(events) AS events FROM {db}.daily GROUP BY k;
CREATE MATERIALIZED VIEW {db}.copy_mv TO {db}.copy AS SELECT batch, id FROM {db}.source
"""


TASKS, ROWS = 3, 40


COLUMNS = [("batch", "String"), ("id", "UInt64"), ("day", "Date"), ("amount", "UInt64")]


def create_pipeline(server: Server, database: str, settings: str) -> None:
    for statement in PIPELINE.format(db=database, settings=settings).split(";"):
        server.command(statement)


class Killed(BaseException):
    """kill -9: nothing of the process runs after it, no cleanup either."""


class MortalServer:
    """Dies before or after its n-th statement; whatever the dead process still tries to do dies too."""

    def __init__(self, server: Server, dies_at: int, after: bool) -> None:
        self.server, self.left, self.after = server, dies_at, after

    def _live(self, run: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise Killed
        result = run()
        if self.left == 0:
            raise Killed
        return result

    def rows(self, *args: Any) -> Any:
        return self._live(lambda: self.server.rows(*args))

    def command(self, *args: Any) -> Any:
        return self._live(lambda: self.server.command(*args))

    def fetch(self, statement: Any) -> Any:
        return self._live(lambda: self.server.fetch(statement))

    def fetch_if_there(self, statement: Any) -> Any:
        return self._live(lambda: self.server.fetch_if_there(statement))

    def run(self, statement: Any) -> Any:
        return self._live(lambda: self.server.run(statement))


def stage(server: Any, source: QName, batch: str, owner: str, attempt: str) -> list[Slice]:
    """What the workers do; a zombie attempt leaves rows behind as well."""
    server.command(render_create_staging(source, batch, COLUMNS, owner))
    for tag in ("zombie", attempt):
        server.command(
            f"INSERT INTO {staging_name(source, batch).sql} ({TASK_COLUMN}, {ATTEMPT_COLUMN}, batch, id, day, amount) "
            f"SELECT number % {TASKS}, '{tag}', '{batch}', number, toDate('2026-07-01') + number % 4, number * 7 "
            f"FROM numbers({TASKS * ROWS})"
        )
    return [Slice(task, attempt, ROWS) for task in range(TASKS)]


def drive(journal: Journal, source: QName, batch: str, attempt: str) -> None:
    """A whole batch, from plan to commit."""
    journal.note_batch(source, batch, "planned")
    slices = stage(journal.server, source, batch, journal.owner, attempt)
    journal.note_batch(source, batch, "staged", slices=slices)
    finish_batch(journal, source, batch, lease_seconds=0.05, wait_seconds=20)


def recover(journal: Journal, source: QName, batch: str) -> None:
    """What the next run does."""
    record = journal.read_batch(source, batch)
    if record is None or record.status == "planned":
        drive(journal, source, batch, secrets.token_hex(4))
    finish_batch(journal, source, batch, lease_seconds=0.05, wait_seconds=20)


def facts(server: Server, source: QName, batch: str) -> tuple[Any, ...]:
    """Rows of one batch in the source and its copy; then whether the aggregates equal the source as a whole."""
    db = source.database
    return server.rows(
        f"SELECT (SELECT (count(), uniqExact(id)) FROM {db}.source WHERE batch = {{b:String}}), "
        f"(SELECT (count(), uniqExact(id)) FROM {db}.copy WHERE batch = {{b:String}}), "
        f"(SELECT (sum(amount), sum(events)) FROM {db}.daily) = (SELECT (sum(amount), count()) FROM {db}.source), "
        f"(SELECT (sum(amount), sum(events)) FROM {db}.total) = (SELECT (sum(amount), count()) FROM {db}.source)",
        {"b": batch},
    )[0]


EXACT = ((TASKS * ROWS, TASKS * ROWS), (TASKS * ROWS, TASKS * ROWS), 1, 1)


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Run jobs side by side and raise the first error of any."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def window(day: int) -> Window:
    start = datetime(2026, 7, day, tzinfo=UTC)
    return Window(start, start + timedelta(days=1))


def outcome(moment: datetime, *, succeeded: bool = True, late_rows: int = 0) -> BatchOutcome:
    """Of a new batch each time."""
    return BatchOutcome(
        batch_id=secrets.token_hex(4),
        succeeded=succeeded,
        max_event_ts=moment,
        max_arrival_ts=moment,
        late_rows=late_rows,
    )
