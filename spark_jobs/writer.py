"""Spark's side of an exactly-once write: tasks stage Arrow blocks, the driver commits what won.

Invariant: a task only ever adds rows under its own attempt, so the rows of failed, speculative and zombie attempts never leave
staging: only attempts that reported to the driver are committed. Where a task is cut into slices depends on row numbers alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chmv_assets.core.batches import (
    ATTEMPT_COLUMN,
    MAX_SLICE_ROWS,
    TASK_COLUMN,
    Slice,
    render_create_staging,
    staging_name,
)
from chmv_assets.core.errors import TypeRefused, WriteRefused
from chmv_assets.core.names import QName
from chmv_assets.process_identity import this_owner
from spark_jobs.commit import (
    commit_batch,
    drop_staging,
    fail_batch,
    fetch_batch,
    plan_batch,
    prepare_journal,
    record_winners,
)
from spark_jobs.connection import DRIVER_ERRORS, Connection, Retry, plain, run_retrying, run_statement, server_error
from spark_jobs.preflight import fetch_capability
from spark_jobs.tables import TableColumn, fetch_columns
from spark_jobs.types import TypeMap, accepts, map_type, to_clickhouse

BLOCK_ROWS = 200_000
SLICES_PER_TASK = 1000
_SETTINGS = {
    "async_insert": 0,
    "deduplicate_insert": "enable",
    "input_format_null_as_default": 0,
    "input_format_arrow_allow_missing_columns": 0,
    "min_insert_block_size_rows": MAX_SLICE_ROWS,
    "min_insert_block_size_bytes": 0,
}


@dataclass(frozen=True)
class StagedSlices(WriterCommitMessage):
    """What one task attempt has staged."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """One batch on its way into one source; goes to the executors, so it holds no secret and no connection."""

    connection: Connection
    source: QName
    batch: str
    owner: str
    cluster: str
    columns: tuple[tuple[str, str], ...]  # name and ClickHouse type, in the order of the data frame
    staging: bool  # False: the journal has the winners already, nothing is to be staged
    hold: bool = False  # True: stop once the winners are written down; somebody else commits them


def start_write(
    connection: Connection, source: QName, batch: str, schema: StructType, *, owner: str = "", cluster: str = ""
) -> WriteJob:
    """Check source and schema, note the batch, make its staging table; refuses before anything is written."""
    with closing(connection.connect()) as client:
        columns = match_columns(source, fetch_columns(client, source), schema)
        fetch_capability(client, source).require()
        prepare_journal(client, cluster)
        record = plan_batch(client, source, batch, owner or this_owner(), cluster)
        staging = record.status == "planned"
        if staging and not _make_staging(client, source, batch, columns, record.owner):
            fail_batch(client, source, batch, "begun again with other columns", cluster)
            record = plan_batch(client, source, batch, owner or this_owner(), cluster)
            _make_staging(client, source, batch, columns, record.owner)
    return WriteJob(
        connection=connection,
        source=source,
        batch=batch,
        owner=record.owner,
        cluster=cluster,
        columns=columns,
        staging=staging,
    )


def _make_staging(client: Client, source: QName, batch: str, columns: Sequence[tuple[str, str]], owner: str) -> bool:
    """Create the staging table; False if there is one of other columns, which an earlier attempt left.

    A column that is only in staging would get its type's default there, and carry that into the source.
    """
    run_statement(client, plain(render_create_staging(source, batch, columns, owner)))
    held = [(column.name, column.type) for column in fetch_columns(client, staging_name(source, batch))]
    return [pair for pair in held if pair[0] not in (TASK_COLUMN, ATTEMPT_COLUMN)] == list(columns)


def match_columns(source: QName, columns: Sequence[TableColumn], schema: StructType) -> tuple[tuple[str, str], ...]:
    """The source's columns for the frame's, by name; types that would change values are refused."""
    by_name = {column.name: column for column in columns}
    for field in schema.fields:
        column = by_name.get(field.name)
        if column is None or column.computed:
            found = "computed by the server" if column else "not there"
            raise WriteRefused(
                f"source {source}: column {field.name} is {found} but wanted to be written. Its values would be lost. "
                f"Drop it from the data frame; the source takes {', '.join(c.name for c in columns if not c.computed)}."
            )
        if not accepts(map_type(column.name, column.type), field.dataType):
            raise TypeRefused(
                field.name,
                f"{field.dataType.simpleString()} into {column.type}",
                "Values could change on the way",
                "Cast the column in Spark first",
            )
    return tuple((field.name, by_name[field.name].type) for field in schema.fields)


def cut_blocks(
    batches: Iterable[pa.RecordBatch], block_rows: int = BLOCK_ROWS, slice_rows: int = MAX_SLICE_ROWS
) -> Iterator[tuple[int, pa.Table]]:
    """Blocks of at least `block_rows` rows (the last of a slice may be smaller), each with the number of its slice."""
    held: list[pa.RecordBatch] = []
    rows = done = 0
    for batch in batches:
        while batch.num_rows:
            room = slice_rows - done % slice_rows - rows
            head, batch = batch.slice(0, room), batch.slice(room)
            held.append(head)
            rows += head.num_rows
            if rows >= block_rows or head.num_rows == room:
                yield done // slice_rows, pa.Table.from_batches(held)
                done, held, rows = done + rows, [], 0
    if rows:
        yield done // slice_rows, pa.Table.from_batches(held)


def stage_task(
    client: Client, job: WriteJob, partition: int, attempt: str, batches: Iterable[pa.RecordBatch], retry: Retry
) -> tuple[Slice, ...]:
    """Stage one task attempt's rows; gives its slices."""
    kinds = {name: map_type(name, kind) for name, kind in job.columns}
    rows: dict[int, int] = {}
    for number, (part, block) in enumerate(cut_blocks(batches)):
        if part >= SLICES_PER_TASK:
            raise WriteRefused(
                f"task {partition} of batch {job.batch}: found over {SLICES_PER_TASK * MAX_SLICE_ROWS} rows but wanted fewer. "
                "Slices are numbered in that range. Repartition the data frame into more tasks."
            )
        task = partition * SLICES_PER_TASK + part
        body = encode_block(block, kinds, task, attempt)
        run_retrying(lambda body=body, name=f"{task}:{attempt}:{number}": _send(client, job, body, name), retry)  # type: ignore[misc]
        rows[task] = rows.get(task, 0) + block.num_rows
    return tuple(Slice(task, attempt, count) for task, count in rows.items())


def encode_block(block: pa.Table, kinds: dict[str, TypeMap], task: int, attempt: str) -> bytes:
    """One Arrow stream of one record batch, tagged with task and attempt."""
    whole = block.combine_chunks().to_batches(max_chunksize=block.num_rows)[0]
    zeros = pa.nulls(block.num_rows, pa.int32()).fill_null(0)
    arrays = [
        pa.DictionaryArray.from_arrays(zeros, pa.array([task], pa.uint32())),
        pa.DictionaryArray.from_arrays(zeros, pa.array([attempt])),
        *(
            to_clickhouse(name, column, kinds[name])
            for name, column in zip(whole.schema.names, whole.columns, strict=True)
        ),
    ]
    sent = pa.RecordBatch.from_arrays(arrays, names=[TASK_COLUMN, ATTEMPT_COLUMN, *whole.schema.names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sent.schema) as stream:
        stream.write_batch(sent)
    return bytes(sink.getvalue())


def _send(client: Client, job: WriteJob, body: bytes, token: str) -> None:
    names = [TASK_COLUMN, ATTEMPT_COLUMN, *(name for name, _ in job.columns)]
    settings = {**_SETTINGS, "insert_deduplication_token": token}
    try:
        client.raw_insert(staging_name(job.source, job.batch).sql, names, body, settings, "ArrowStream")
    except DRIVER_ERRORS as error:
        raise server_error(error) from error


class ClickHouseWriter(DataSourceArrowWriter):
    """Stages on the executors, commits on the driver."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage this task's rows under an attempt name that no other attempt has."""
        if not self.job.staging:
            for _ in iterator:  # Spark expects its input to be read
                pass
            return StagedSlices(())
        context = TaskContext.get()
        assert context is not None, "Spark calls write inside a task"
        attempt = f"{context.taskAttemptId()}-{secrets.token_hex(4)}"
        with closing(self.job.connection.connect()) as client:
            return StagedSlices(stage_task(client, self.job, context.partitionId(), attempt, iterator, Retry()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the winners down, then commit them; what is committed or staged already is not staged again."""
        job = self.job
        with closing(job.connection.connect()) as client:
            record = fetch_batch(client, job.source, job.batch, job.cluster)
            if record is None or record.status == "failed":
                drop_staging(client, job.source, job.batch)
                raise WriteRefused(
                    f"batch {job.batch} of {job.source}: found it {record.status if record else 'unknown'} but wanted it planned. "
                    "Somebody gave it up while we were writing. Save it again."
                )
            if record.status == "planned":
                record = record_winners(client, record, winners(job, messages), job.cluster)
            if job.hold:
                return
            commit_batch(client, record, connect=job.connection.connect, cluster=job.cluster)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop this attempt's staging unless the winners are written down: then the batch is to be resumed."""
        with closing(self.job.connection.connect()) as client:
            fail_batch(client, self.job.source, self.job.batch, "Spark gave up the write", self.job.cluster)


def winners(job: WriteJob, messages: Sequence[WriterCommitMessage | None]) -> tuple[Slice, ...]:
    """The slices of all tasks; every task has to have answered."""
    staged = [message for message in messages if isinstance(message, StagedSlices)]
    if len(staged) != len(messages):
        raise WriteRefused(
            f"batch {job.batch} of {job.source}: {len(messages) - len(staged)} task(s) did not report but wanted all. "
            "Rows would be missing. Save it again."
        )
    return tuple(one for message in staged for one in message.slices)
