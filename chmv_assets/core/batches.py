"""Exactly-once batches, as data and SQL text: staging, slices, tokens. Pure; whoever commits runs these statements.

Workers insert into a staging table tagged with task and attempt. The driver writes the winning attempts down **before** the
first commit, then commits slice by slice (one per task) with a token each and settings under which a repeated commit is a
no-op, in the source and in every target. A token alone, or ORDER BY ALL alone, is not exact (docs/measured.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname, quote_identifier, quote_string
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings

BATCHES = OwnTable(
    name=QName(OWN_DATABASE, "batches"),
    key=("source", "batch_id"),
    columns={
        "batch_id": "String", "source": "String", "status": "LowCardinality(String)", "slices": "String", "rows": "UInt64",
        "detail": "String", "owner": "String",
    },
)  # fmt: skip
BatchStatus = Literal["planned", "staged", "committed", "failed"]
TASK_COLUMN = "_chmv_task"
ATTEMPT_COLUMN = "_chmv_attempt"
MAX_SLICE_ROWS = 1_000_000
STAGING_WINDOW = 10_000  # a block that a worker sends twice (connection reset) is staged once
_BLOCK_ROWS = 4_000_000  # above any slice: one slice is one block

# One block per INSERT, from one thread, in a fixed order: a token alone does not make INSERT SELECT repeatable. Measured 24/24 exact
# under kill -9; every value must be the same in a retry, so none of these is configurable.
EXACT_SETTINGS: Mapping[str, Any] = {
    "deduplicate_insert": "enable",
    "deduplicate_insert_select": "force_enable",
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "materialized_views_ignore_errors": 0,
    "async_insert": 0,
    "max_threads": 1,
    "max_insert_threads": 1,
    "optimize_read_in_order": 0,
    "max_block_size": _BLOCK_ROWS,
    "min_insert_block_size_rows": _BLOCK_ROWS,
    "min_insert_block_size_bytes": 0,
    "max_bytes_before_external_sort": 0,
    "max_bytes_ratio_before_external_sort": 0,
    "max_bytes_before_remerge_sort": 0,
}
COMMIT_SETTINGS: Mapping[str, Any] = {**EXACT_SETTINGS, "max_partitions_per_insert_block": 1000}


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """What one task's winning attempt staged."""

    task: int
    attempt: str
    rows: int


def batch_id(source: QName, parts: Iterable[str]) -> str:
    """A deterministic id: the same input of the same source is the same batch, whoever sends it.

    >>> batch_id(QName("d", "s"), ["a", "b"]) == batch_id(QName("d", "s"), ["b", "a"])
    True
    """
    digest = hashlib.sha256(f"{source.database}\0{source.table}".encode())
    for part in sorted(parts):
        digest.update(b"\0" + part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:24]


def staging_name(source: QName, batch: str) -> QName:
    """The table in which a batch waits for its commit."""
    return QName(OWN_DATABASE, f"stage.{source.database}.{source.table}.{batch}")


def token(batch: str, task: int) -> str:
    """The deduplication token of one slice; the same for every attempt to commit it."""
    return f"chmv:{batch}:{task}"


def render_create_staging(source: QName, batch: str, columns: Sequence[tuple[str, str]], owner: str) -> str:
    """The staging table: the given columns of the source as they are, plus task and attempt."""
    held = ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns)
    comment = json.dumps({"owner": owner, "source": str(source), "batch": batch})
    return (
        f"CREATE TABLE IF NOT EXISTS {staging_name(source, batch).sql} "
        f"({TASK_COLUMN} UInt32, {ATTEMPT_COLUMN} String, {held}) "
        f"ENGINE = MergeTree ORDER BY ({TASK_COLUMN}, {ATTEMPT_COLUMN}) "
        f"SETTINGS non_replicated_deduplication_window = {STAGING_WINDOW} COMMENT {quote_string(comment)}"
    )


def plan_commit(source: QName, batch: str, columns: Sequence[str], slices: Sequence[Slice]) -> tuple[Statement, ...]:
    """One INSERT per slice, in order of tasks; run them in any order and as often as you like."""
    names = ", ".join(quote_identifier(name) for name in columns)
    sql = (
        f"INSERT INTO {source.sql} ({names}) SELECT {names} FROM {staging_name(source, batch).sql} "
        f"WHERE {TASK_COLUMN} = {{task:UInt32}} AND {ATTEMPT_COLUMN} = {{attempt:String}} ORDER BY ALL"
    )
    return tuple(
        Statement(
            sql=sql,
            parameters={"task": one.task, "attempt": one.attempt},
            settings={**COMMIT_SETTINGS, "insert_deduplication_token": token(batch, one.task)},
        )
        for one in sorted(slices)
        if one.rows
    )


def count_staged(source: QName, batch: str) -> Statement:
    """Rows per task and attempt in staging, to hold against what the tasks reported."""
    sql = (
        f"SELECT {TASK_COLUMN}, {ATTEMPT_COLUMN}, count() FROM {staging_name(source, batch).sql} "
        f"GROUP BY {TASK_COLUMN}, {ATTEMPT_COLUMN}"
    )
    return Statement(sql=sql, parameters={}, settings={})


def encode_slices(slices: Sequence[Slice]) -> str:
    """Winning attempts as the journal keeps them."""
    return json.dumps([[one.task, one.attempt, one.rows] for one in sorted(slices)])


def decode_slices(text: str) -> tuple[Slice, ...]:
    return tuple(Slice(int(task), str(attempt), int(rows)) for task, attempt, rows in json.loads(text or "[]"))


# A batch only ever moves along these; a failed one may be tried again under the same id, a committed one is done.
_NEXT: Mapping[BatchStatus, tuple[BatchStatus, ...]] = {
    "planned": ("planned", "staged", "failed"),
    "staged": ("staged", "committed", "failed"),
    "committed": ("committed",),
    "failed": ("planned",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One batch as the journal keeps it; `slices` are the winning attempts, known from `staged` on."""

    batch: str
    source: QName
    status: BatchStatus
    version: int
    slices: tuple[Slice, ...] = ()
    rows: int = 0
    detail: str = ""
    owner: str = ""


def may_follow(before: BatchStatus | None, after: BatchStatus) -> bool:
    """Whether a batch may go from one status to the other; None: the journal does not know it yet.

    >>> may_follow("staged", "committed"), may_follow("committed", "failed"), may_follow(None, "staged")
    (True, False, True)
    """
    return after in ("planned", "staged") if before is None else after in _NEXT[before]


def write_batch(record: BatchRecord, cluster: str = "", *, follows: int | None = None) -> Statement:
    """Note a batch; the row of the highest version counts.

    With `follows`, the version of the row that was read before (0: there was none), it is a compare-and-set: of all who
    follow the same row the first one's insert counts and the others' are dropped without a word; read again who it was.
    """
    values = (
        record.batch, str(record.source), record.status, encode_slices(record.slices), record.rows, record.detail, record.owner,
        record.version,
    )  # fmt: skip
    return BATCHES.render_insert(values, cluster, {} if follows is None else _guard(record, follows))


def _guard(record: BatchRecord, follows: int) -> Mapping[str, Any]:
    return {
        "insert_deduplication_token": f"chmv:journal:{record.source}:{record.batch}:{follows}",
        "deduplicate_insert": "enable",
        "deduplicate_insert_select": "force_enable",
    }


def read_batch(source: QName, batch: str, cluster: str = "") -> Statement:
    """The present row of one batch, if there is any."""
    sql = f"SELECT {BATCHES.selected} FROM {BATCHES.sql} FINAL WHERE source = {{source:String}} AND batch_id = {{batch:String}}"
    return Statement(sql=sql, parameters={"source": str(source), "batch": batch}, settings=read_settings(cluster))


def read_batches(
    cluster: str = "", *, source: QName | None = None, status: BatchStatus | None = None, limit: int | None = None
) -> Statement:
    """The present rows of all batches (of one source, of one status), newest first; with `limit` only so many."""
    asked = {"source": str(source) if source else None, "status": status}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    where = " AND ".join(f"{name} = {{{name}:String}}" for name in given)
    sql = f"SELECT {BATCHES.selected} FROM {BATCHES.sql} FINAL" + (f" WHERE {where}" if where else "")
    sql += " ORDER BY updated_at DESC, batch_id"
    if limit is not None:
        sql, given = f"{sql} LIMIT {{limit:UInt64}}", {**given, "limit": limit}
    return Statement(sql=sql, parameters=given, settings=read_settings(cluster))


def decode_batch(row: Sequence[Any]) -> BatchRecord:
    """A row of `read_batch` or `read_batches` as a record."""
    batch, source, status, slices, rows, detail, owner, version = row
    return BatchRecord(
        batch=str(batch), source=parse_qname(str(source), ""), status=status, slices=decode_slices(str(slices)),
        rows=int(rows), detail=str(detail), owner=str(owner), version=int(version),
    )  # fmt: skip
