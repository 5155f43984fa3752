"""Finish what a dead driver left, and clear away what nobody will finish.

Invariants: a batch is marked committed only after all of its slices are in; its staging is dropped only after that mark;
staging of a staged batch is never collected, since it is the only copy of rows that may be half committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from chmv_assets.core.batches import (
    ATTEMPT_COLUMN,
    TASK_COLUMN,
    BatchRecord,
    Slice,
    Statement,
    count_staged,
    plan_commit,
    staging_name,
)
from chmv_assets.core.errors import JournalRefused
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE
from resources.introspect import fetch_columns
from resources.journal.locks import DEFAULT_LEASE_SECONDS
from resources.journal.store import Journal
from resources.retry import call_with_retry

_WAIT_SECONDS = 1.25 * DEFAULT_LEASE_SECONDS  # a rerun right after a kill waits for the dead driver's lease


def finish_batch(
    journal: Journal,
    source: QName,
    batch: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    lease_seconds: float = DEFAULT_LEASE_SECONDS,
    wait_seconds: float = _WAIT_SECONDS,
) -> BatchRecord:
    """Commit a staged batch once more, or find that it is committed; a no-op for rows that are in already.

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
            _commit(journal, record, lambda: journal.locks.renew(held, lease_seconds), sleep)
            record = journal.note_batch(source, batch, "committed", detail="finished from staging")
        drop_staging(journal, source, batch)
    return record


def finish_all(journal: Journal, *, sleep: Callable[[float], None] = time.sleep) -> list[BatchRecord]:
    """Checkpoint replay: finish every batch that is staged, oldest first."""
    staged = journal.read_batches(limit=100_000, status="staged")
    return [finish_batch(journal, record.source, record.batch, sleep=sleep) for record in reversed(staged)]


def _commit(journal: Journal, record: BatchRecord, renew: Callable[[], None], sleep: Callable[[float], None]) -> None:
    columns = _staged_columns(journal, record)
    _verify_counts(journal, record)
    for statement in plan_commit(record.source, record.batch, columns, record.slices):
        renew()
        _run_slice(journal, statement, sleep)


def _run_slice(journal: Journal, statement: Statement, sleep: Callable[[float], None]) -> None:
    call_with_retry(lambda: journal.run(statement), sleep=sleep)


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

    Staged batches keep theirs whatever their age; planned ones are marked failed, so that they can be sent again.
    """
    journal.prepare()
    dropped: list[StagingTable] = []
    for table in fetch_staging(journal):
        if table.owner in owners or table.idle_seconds < older_than.total_seconds():
            continue
        with journal.locks.hold(_lock_name(table.source, table.batch), journal.owner):
            record = journal.read_batch(table.source, table.batch)
            if record is not None and record.status == "staged":
                continue
            if record is not None and record.status == "planned":
                journal.note_batch(table.source, table.batch, "failed", detail=f"orphaned by {table.owner}")
            journal.server.command(f"DROP TABLE IF EXISTS {table.name.sql} SYNC")
        dropped.append(table)
    return dropped
