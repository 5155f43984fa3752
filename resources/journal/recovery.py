"""Finish what a dead driver left, and clear away what nobody will finish.

Invariants: a batch is marked committed only after all of its slices are in; its staging is dropped only after that mark;
staging of a staged batch is never collected, since it is the only copy of rows that may be half committed.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from chmv_assets.core.batches import (
    ATTEMPT_COLUMN,
    TASK_COLUMN,
    BatchRecord,
    Slice,
    count_staged,
    plan_commit,
    staging_name,
)
from chmv_assets.core.errors import JournalRefused, LockRefused
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, Statement
from resources.clickhouse import Server
from resources.introspect import fetch_columns
from resources.journal.store import Journal
from resources.retry import call_with_retry

# Renewed before every slice. Short, because a rerun right after a kill waits for it; a slice that takes longer may be
# committed by two drivers, which its token makes a no-op.
_LEASE_SECONDS = 20.0
_WAIT_SECONDS = 1.25 * _LEASE_SECONDS


def finish_batch(
    journal: Journal,
    source: QName,
    batch: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    lease_seconds: float = _LEASE_SECONDS,
    wait_seconds: float = _WAIT_SECONDS,
    before_mark: Callable[[], None] = lambda: None,
    parallelism: int = 1,
) -> BatchRecord:
    """Commit a staged batch once more, or find that it is committed; a no-op for rows that are in already.

    `before_mark` runs when all rows are in and before the batch counts as committed: what it does is done at least once.
    The lock keeps two drivers from doing the same work; that rows are in once does not depend on it, the tokens see to that.
    """
    journal.prepare()
    name = _lock_name(source, batch)
    with journal.locks.hold(name, journal.owner, lease_seconds=lease_seconds, wait_seconds=wait_seconds) as held:
        record = journal.read_batch(source, batch)
        if record is None or record.status not in ("staged", "committed"):
            raise JournalRefused(
                f"batch {batch} of {source}: found it {record.status if record else 'unknown'} but wanted it staged. Its winning "
                "attempts are not known, so none of its rows are in the source. Run the ingest again."
            )
        if record.status == "staged":
            _commit(journal, record, lambda: journal.locks.renew(held, lease_seconds), sleep, parallelism)
            before_mark()
            detail = "; ".join(filter(None, (record.detail, "finished from staging")))
            record = journal.note_batch(source, batch, "committed", detail=detail)
        drop_staging(journal, source, batch)
    journal.locks.forget(name)  # nobody needs to wait for a batch that is done
    return record


def drop_leftovers(journal: Journal, source: QName) -> list[StagingTable]:
    """Drop staging tables of batches that are committed: their driver died between the mark and the drop."""
    left = [table for table in fetch_staging(journal) if table.source == source]
    done = {table.name: journal.read_batch(source, table.batch) for table in left}
    dropped = [table for table in left if (record := done[table.name]) is not None and record.status == "committed"]
    for table in dropped:
        journal.server.command(f"DROP TABLE IF EXISTS {table.name.sql} SYNC")
    return dropped


def _commit(
    journal: Journal,
    record: BatchRecord,
    renew: Callable[[], None],
    sleep: Callable[[float], None],
    parallelism: int,
) -> None:
    """Commit all slices, several at a time on connections of their own; the lease is renewed between the rounds."""
    columns = _staged_columns(journal, record)
    _verify_counts(journal, record)
    statements = plan_commit(record.source, record.batch, columns, record.slices)
    lanes = min(parallelism, len(statements))
    if lanes <= 1:
        for statement in statements:
            renew()
            _run_slice(journal.server, statement, sleep)
        return
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(journal.server.endpoint)) for _ in range(lanes)]
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=lanes))
        for start in range(0, len(statements), lanes):
            renew()
            chosen = statements[start : start + lanes]
            list(pool.map(_run_slice, servers, chosen, itertools.repeat(sleep)))


def _run_slice(server: Server, statement: Statement, sleep: Callable[[float], None]) -> None:
    def run() -> None:
        server.run(statement)

    call_with_retry(run, sleep=sleep)


def _staged_columns(journal: Journal, record: BatchRecord) -> Sequence[str]:
    """The columns to commit: those of the staging table in its order, which is what the driver used as well."""
    staging = staging_name(record.source, record.batch)
    found = [name for name, _, _ in fetch_columns(journal.server, staging)]
    if not found:
        raise JournalRefused(
            f"batch {record.batch} of {record.source}: found no staging table {staging} but wanted the {record.rows} rows that "
            "it held. Somebody has dropped it. Compare the source with the landing files, then ingest them as a new batch."
        )
    return [name for name in found if name not in (TASK_COLUMN, ATTEMPT_COLUMN)]


def _verify_counts(journal: Journal, record: BatchRecord) -> None:
    statement = count_staged(record.source, record.batch)
    staged = {(int(task), str(attempt)): int(rows) for task, attempt, rows in journal.server.rows(statement.sql)}
    wrong = [one for one in record.slices if staged.get((one.task, one.attempt), 0) != one.rows]
    if wrong:
        first: Slice = wrong[0]
        raise JournalRefused(
            f"batch {record.batch} of {record.source}: found {staged.get((first.task, first.attempt), 0)} staged rows of task "
            f"{first.task} but wanted {first.rows} ({len(wrong)} slice(s) differ). Staging does not hold what was written down. "
            "Nothing was committed by this run; compare the source with the landing files before you ingest them again."
        )


def drop_staging(journal: Journal, source: QName, batch: str) -> None:
    journal.server.command(f"DROP TABLE IF EXISTS {staging_name(source, batch).sql} SYNC")


def _lock_name(source: QName, batch: str) -> str:
    return f"batch {source} {batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTable:
    """A staging table as found on the server."""

    name: QName
    source: QName
    batch: str
    owner: str
    idle_seconds: int  # since it was made or last written to


def fetch_staging(journal: Journal) -> list[StagingTable]:
    """All staging tables with one query; a table whose comment is not ours is not in the answer."""
    rows = journal.server.rows(
        """
        SELECT tables.name, tables.comment,
               toInt64(dateDiff('second', greatest(tables.metadata_modification_time, parts.written), now()))
        FROM system.tables AS tables
        LEFT JOIN
        (
            SELECT table, max(modification_time) AS written FROM system.parts
            WHERE database = {database:String} AND startsWith(table, 'stage.') GROUP BY table
        ) AS parts ON parts.table = tables.name
        WHERE tables.database = {database:String} AND startsWith(tables.name, 'stage.') ORDER BY tables.name
        """,
        {"database": OWN_DATABASE},
    )
    found = [_staging_table(str(name), str(comment), int(idle)) for name, comment, idle in rows]
    return [table for table in found if table is not None]


def _staging_table(name: str, comment: str, idle_seconds: int) -> StagingTable | None:
    try:
        document = json.loads(comment)
        source, batch, owner = parse_qname(document["source"], ""), str(document["batch"]), str(document["owner"])
    except (ValueError, KeyError, TypeError):
        return None
    return StagingTable(
        name=QName(OWN_DATABASE, name), source=source, batch=batch, owner=owner, idle_seconds=idle_seconds
    )


def collect_garbage(journal: Journal, *, older_than: timedelta, owners: Collection[str] = ()) -> list[StagingTable]:
    """Drop staging tables that nobody will finish: idle for longer than that, and not of one of the (living) owners.

    Staged batches keep theirs whatever their age; planned ones are marked failed, so that they can be sent again. Who holds a batch's lock is
    at work on it.
    """
    journal.prepare()
    dropped: list[StagingTable] = []
    for table in fetch_staging(journal):
        if table.owner in owners or table.idle_seconds < older_than.total_seconds():
            continue
        try:
            if _drop_orphan(journal, table):
                dropped.append(table)
        except LockRefused:
            continue
    return dropped


def _drop_orphan(journal: Journal, table: StagingTable) -> bool:
    with journal.locks.hold(_lock_name(table.source, table.batch), journal.owner):
        record = journal.read_batch(table.source, table.batch)
        if record is not None and record.status == "staged":
            return False
        if record is not None and record.status == "planned":
            journal.note_batch(table.source, table.batch, "failed", detail=f"orphaned by {table.owner}")
        journal.server.command(f"DROP TABLE IF EXISTS {table.name.sql} SYNC")
    return True
