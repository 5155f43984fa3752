"""From staged rows to committed ones: the journal's compare-and-set, the slices, the count. Needs no Spark.

Invariants: the winners are in the journal before the first slice is committed; who comes second (another driver, a restart)
commits the winners that are written down, never its own; staging goes only after the batch is marked committed.
A move in the journal carries a token made of the version it follows, so of two drivers that saw the same row one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

from clickhouse_connect.driver.client import Client

from chmv_assets.core.batches import (
    ATTEMPT_COLUMN,
    BATCHES,
    TASK_COLUMN,
    BatchRecord,
    Slice,
    count_staged,
    decode_batch,
    plan_commit,
    read_batch,
    staging_name,
    write_batch,
)
from chmv_assets.core.errors import ChmvError, WriteRefused
from chmv_assets.core.journal_schema import render_foundation
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import Statement
from chmv_assets.process_identity import VERSIONS
from spark_jobs.connection import Retry, fetch_rows, plain, run_retrying, run_statement
from spark_jobs.tables import fetch_columns

CONNECTIONS = 4
_JOURNAL_WINDOW = 10_000


def prepare_journal(client: Client, cluster: str = "") -> None:
    """Create the table of batches where it is missing, and let it refuse a second move from the same row.

    One that is there as it should be is left alone: an account that may only ingest has no right to create it.
    """
    windows = _fetch_windows(client)
    if not windows:
        for sql in (*render_foundation(cluster), BATCHES.render_create(cluster)):
            run_statement(client, plain(sql))
        windows = _fetch_windows(client)
    if not cluster and not windows[0][0]:
        change = f"MODIFY SETTING non_replicated_deduplication_window = {_JOURNAL_WINDOW}"
        run_statement(client, plain(f"ALTER TABLE {BATCHES.sql} {change}"))


def _fetch_windows(client: Client) -> list[tuple[Any, ...]]:
    """One row if there is a table of batches: whether it has a window of deduplication."""
    return fetch_rows(
        client,
        plain(
            "SELECT position(engine_full, 'non_replicated_deduplication_window') FROM system.tables "
            "WHERE database = {database:String} AND name = {table:String}",
            database=BATCHES.name.database,
            table=BATCHES.name.table,
        ),
    )


def fetch_batch(client: Client, source: QName, batch: str, cluster: str = "") -> BatchRecord | None:
    """What the journal knows of a batch."""
    rows = fetch_rows(client, read_batch(source, batch, cluster))
    return decode_batch(rows[0]) if rows else None


def move_batch(
    client: Client, before: BatchRecord | None, after: BatchRecord, cluster: str = "", retry: Retry | None = None
) -> BatchRecord:
    """Write a batch's next row unless somebody else has moved it since; gives the row that counts now."""
    seen = before.version if before else 0
    record = replace(after, version=VERSIONS.next(above=seen))
    statement = write_batch(record, cluster, follows=seen)
    run_retrying(lambda: run_statement(client, statement), retry or Retry())
    return fetch_batch(client, record.source, record.batch, cluster) or record


def record_winners(
    client: Client, before: BatchRecord, slices: Sequence[Slice], cluster: str = "", retry: Retry | None = None
) -> BatchRecord:
    """Check that staging holds what the tasks reported, then write the winners down; gives what counts now."""
    check_staged(client, before.source, before.batch, slices)
    rows = sum(one.rows for one in slices)
    staged = replace(before, status="staged", slices=tuple(sorted(slices)), rows=rows, detail="")
    return move_batch(client, before, staged, cluster, retry)


def check_staged(client: Client, source: QName, batch: str, slices: Sequence[Slice]) -> None:
    """Refuse to go on when staging does not hold exactly what the winning attempts reported."""
    counted = fetch_rows(client, count_staged(source, batch))
    found = {(int(task), str(attempt)): int(rows) for task, attempt, rows in counted}
    wrong = [one for one in slices if found.get((one.task, one.attempt), 0) != one.rows]
    defects = [
        f"task {one.task} staged {found.get((one.task, one.attempt), 0)} rows but wanted {one.rows}"
        for one in wrong[:3]
    ]
    if len({one.task for one in slices}) != len(slices):
        defects.append("found two winners of one task but wanted one")
    if defects:
        raise WriteRefused(
            f"batch {batch} of {source}: {'; '.join(defects)}. The source would get other rows than the input. "
            "Nothing was committed by this run; save the batch again."
        )


def commit_batch(
    client: Client, record: BatchRecord, *, connect: Callable[[], Client], cluster: str = "", retry: Retry | None = None
) -> BatchRecord:
    """Commit the winners that the journal names, mark the batch, drop its staging; as often as you like."""
    if record.status == "staged":
        try:
            _commit_slices(client, record, connect, retry or Retry())
        except ChmvError:
            now = fetch_batch(client, record.source, record.batch, cluster)
            if now is None or now.status != "committed":
                raise
            record = now  # another driver finished the same winners and took staging away from under us
        else:
            record = move_batch(client, record, replace(record, status="committed"), cluster, retry)
    if record.status == "committed":
        drop_staging(client, record.source, record.batch)
    return record


def _commit_slices(client: Client, record: BatchRecord, connect: Callable[[], Client], retry: Retry) -> None:
    names = [column.name for column in fetch_columns(client, staging_name(record.source, record.batch))]
    columns = [name for name in names if name not in (TASK_COLUMN, ATTEMPT_COLUMN)]
    check_staged(client, record.source, record.batch, record.slices)
    run_slices(plan_commit(record.source, record.batch, columns, record.slices), connect, retry)


def run_slices(statements: Sequence[Statement], connect: Callable[[], Client], retry: Retry) -> None:
    """Run all slices on several connections; the first error stops what has not begun."""

    def run(statement: Statement) -> None:
        with closing(connect()) as client:
            run_statement(client, statement)

    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        running = [pool.submit(run_retrying, lambda one=one: run(one), retry) for one in statements]
        try:
            for future in running:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def drop_staging(client: Client, source: QName, batch: str) -> None:
    """Remove a batch's staging table, if there is one."""
    run_statement(client, plain(f"DROP TABLE IF EXISTS {staging_name(source, batch).sql} SYNC"))


def fail_batch(client: Client, source: QName, batch: str, detail: str, cluster: str = "") -> None:
    """Give up an attempt: only a batch whose winners are not written down loses its staging."""
    record = fetch_batch(client, source, batch, cluster)
    if record is not None and record.status == "planned":
        record = move_batch(client, record, replace(record, status="failed", detail=detail), cluster)
    if record is None or record.status == "failed":
        drop_staging(client, source, batch)


def plan_batch(client: Client, source: QName, batch: str, owner: str, cluster: str = "") -> BatchRecord:
    """The batch as the journal has it; a new or failed one is planned (again)."""
    record = fetch_batch(client, source, batch, cluster)
    if record is not None and record.status != "failed":
        return record
    fresh = BatchRecord(batch=batch, source=source, status="planned", version=0, owner=owner)
    return move_batch(client, record, fresh, cluster)


def resume_batch(
    client: Client,
    source: QName,
    batch: str,
    *,
    connect: Callable[[], Client],
    cluster: str = "",
    retry: Retry | None = None,
) -> BatchRecord:
    """Finish a batch whose driver died after its winners were written down; a no-op for a committed one."""
    record = fetch_batch(client, source, batch, cluster)
    if record is None or record.status not in ("staged", "committed"):
        raise WriteRefused(
            f"batch {batch} of {source}: found it {record.status if record else 'unknown'} but wanted it staged. Its winners are not "
            "known, so none of its rows are in the source. Save the batch again."
        )
    return commit_batch(client, record, connect=connect, cluster=cluster, retry=retry)
