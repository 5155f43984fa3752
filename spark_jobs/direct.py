"""Parquet files straight into the source, exactly once: tasks read fixed chunks themselves and insert them under fixed tokens.

Two passes over the files. The survey judges every row and says what each chunk holds (count, digest, hours); the driver writes
that down. Only then are chunks inserted, each by whichever task comes, as often as tasks come: one chunk is one block of always
the same rows under always the same token, so all but the first are no-ops in the source and in every target. Rows never pass
through the JVM. What a worker reads must be what was written down, else it refuses (`core.chunks`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.client import Client
from pyspark.sql import DataFrame, SparkSession

from chmv_assets.core.batches import BatchRecord, Slice
from chmv_assets.core.chunks import CHUNK_SETTINGS, Chunk, chunk_token, require_same, surveyed
from chmv_assets.core.landing import LATENESS_BUCKETS_SECONDS
from chmv_assets.core.names import QName
from spark_jobs.connection import DRIVER_ERRORS, Connection, Retry, run_retrying, server_error
from spark_jobs.landing_reader import LandingColumn
from spark_jobs.parquet_files import Files
from spark_jobs.parquet_judge import judge_rows
from spark_jobs.types import INSTANT, map_type, to_clickhouse

_ANSWER = "answer string"
_BAD_ROWS = "file string, reason string, row string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A column that the files do not have and the ingest fills with one value per batch."""

    name: str
    clickhouse_type: str
    value: datetime | int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectJob:
    """One batch on its way from its files into its source; goes to the executors, so it holds no secret and no connection."""

    source: QName
    batch: str
    chunks: tuple[Chunk, ...]
    chunk_rows: int
    columns: tuple[LandingColumn, ...]
    stamps: tuple[Stamp, ...] = ()
    event_time: str | None = None
    arrival: str | None = None  # a column or a stamp
    arrived_at: datetime
    tolerance_seconds: int = 0

    @property
    def shape(self) -> str:
        """What besides the files decides the rows."""
        return repr((self.columns, self.stamps))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSurvey:
    """What one chunk holds."""

    slice: Slice
    read: int
    hours: tuple[tuple[int, ...], ...]  # start µs, rows, late, newest event µs, newest arrival µs, then the histogram

    @property
    def bad(self) -> int:
        return self.read - self.slice.rows


def survey_chunks(spark: SparkSession, job: DirectJob, tasks: int) -> list[ChunkSurvey]:
    """Judge every row of a batch on the executors; inserts nothing."""
    tasks = min(tasks, len(job.chunks))

    def survey(at: int) -> Iterator[str]:
        with Files() as files:
            for chunk in _share(job.chunks, at, tasks):
                yield _encode(survey_chunk(job, chunk, files))

    answers = _run(spark, tasks, survey)
    return sorted((_decode(answer) for answer in answers), key=lambda one: one.slice.task)


def insert_chunks(spark: SparkSession, connection: Connection, job: DirectJob, record: BatchRecord, tasks: int) -> None:
    """Insert every chunk that the journal names; a no-op for chunks that are in."""
    chunks = [job.chunks[one.task] for one in record.slices if one.rows]
    tasks = min(tasks, len(chunks))

    def insert(at: int) -> Iterator[str]:
        with closing(connection.connect()) as client, Files() as files:
            for chunk in _share(chunks, at, tasks):
                insert_chunk(client, job, record, chunk, files, Retry())
                yield str(chunk.number)

    _run(spark, tasks, insert)


def bad_rows(spark: SparkSession, job: DirectJob, numbers: Sequence[int]) -> DataFrame:
    """The bad rows of the chunks that have any: file, reason and the row as JSON."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from _bad_rows(job, job.chunks[numbers[at]])

    return spark.range(0, len(numbers), 1, len(numbers)).mapInArrow(read, _BAD_ROWS)


def _share(chunks: Sequence[Chunk], at: int, tasks: int) -> Sequence[Chunk]:
    """A task's run of neighbours: they may share a row group."""
    return chunks[len(chunks) * at // tasks : len(chunks) * (at + 1) // tasks]


def _run(spark: SparkSession, tasks: int, work: Callable[[int], Iterable[str]]) -> list[str]:
    """Run `work(0)` … `work(tasks - 1)`, one Spark task each, and collect what they answer."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_arrays([pa.array(list(work(at)), pa.string())], names=["answer"])

    return [row.answer for row in spark.range(0, tasks, 1, tasks).mapInArrow(run, _ANSWER).collect()]


def survey_chunk(job: DirectJob, chunk: Chunk, files: Files) -> ChunkSurvey:
    """Judge one chunk."""
    digest = files.digest(chunk, job.shape)
    rows = _good(files.read(chunk, job.columns), job.columns)
    found = surveyed(chunk.number, job.chunk_rows, digest, rows.num_rows)
    return ChunkSurvey(slice=found, read=chunk.rows, hours=count_hours(job, rows))


def insert_chunk(client: Client, job: DirectJob, record: BatchRecord, chunk: Chunk, files: Files, retry: Retry) -> None:
    """Send one chunk as one block, if it still holds what was written down."""
    noted = record.slices[chunk.number]
    require_same(record, surveyed(chunk.number, job.chunk_rows, files.digest(chunk, job.shape), noted.rows))
    rows = files.read(chunk, job.columns)
    if noted.rows < chunk.rows:
        rows = _good(rows, job.columns)
    require_same(record, replace(noted, rows=rows.num_rows))
    body = encode_rows(job, rows)
    names = [column.name for column in job.columns] + [stamp.name for stamp in job.stamps]
    settings = {**CHUNK_SETTINGS, "insert_deduplication_token": chunk_token(job.batch, chunk.number)}

    def send() -> None:
        try:
            client.raw_insert(job.source.sql, names, body, settings, "ArrowStream")
        except DRIVER_ERRORS as error:
            raise server_error(error) from error

    run_retrying(send, retry)


def _good(rows: pa.Table, columns: Sequence[LandingColumn]) -> pa.Table:
    judged = judge_rows(rows, columns)
    return judged.rows if judged.reasons is None else judged.rows.filter(pc.is_null(judged.reasons))


def encode_rows(job: DirectJob, rows: pa.Table) -> bytes:
    """One Arrow stream of one record batch, in the table's types, stamped."""
    whole = rows.combine_chunks().to_batches(max_chunksize=max(rows.num_rows, 1))
    block = whole[0] if whole else pa.RecordBatch.from_pylist([], rows.schema)
    arrays = [
        to_clickhouse(column.name, _undictionary(block.column(at)), map_type(column.name, column.clickhouse_type))
        for at, column in enumerate(job.columns)
    ]
    arrays += [_stamped(stamp, block.num_rows) for stamp in job.stamps]
    names = [column.name for column in job.columns] + [stamp.name for stamp in job.stamps]
    sent = pa.RecordBatch.from_arrays(arrays, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sent.schema) as stream:
        stream.write_batch(sent)
    return bytes(sink.getvalue().to_pybytes())


def _undictionary(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _stamped(stamp: Stamp, rows: int) -> pa.Array:
    kind = map_type(stamp.name, stamp.clickhouse_type).arrow
    return pa.repeat(pa.scalar(stamp.value, kind), rows)


def count_hours(job: DirectJob, rows: pa.Table) -> tuple[tuple[int, ...], ...]:
    """What each hour of event time receives; nothing if the source has no event time."""
    if job.event_time is None or not rows.num_rows:
        return ()
    event = rows.column(job.event_time).cast(INSTANT)
    if job.arrival is not None and job.arrival in rows.column_names:
        arrival = rows.column(job.arrival).cast(INSTANT)
    else:
        arrival = pa.chunked_array([pa.repeat(pa.scalar(job.arrived_at, INSTANT), rows.num_rows)])
    late_by = pc.seconds_between(event, arrival)
    borders = [pc.greater_equal(late_by, border) for border in LATENESS_BUCKETS_SECONDS]
    columns = {
        "hour": pc.floor_temporal(event, unit="hour").cast(pa.int64()),
        "late": pc.greater(late_by, job.tolerance_seconds).cast(pa.int64()),
        "event": event.cast(pa.int64()),
        "arrival": arrival.cast(pa.int64()),
        **{f"b{at}": border.cast(pa.int64()) for at, border in enumerate(borders)},
    }
    sums = [(f"b{at}", "sum") for at in range(len(borders))]
    found = pa.table(columns).group_by("hour", use_threads=False).aggregate(
        [("late", "count"), ("late", "sum"), ("event", "max"), ("arrival", "max"), *sums]
    )  # fmt: skip
    order = [
        "hour",
        "late_count",
        "late_sum",
        "event_max",
        "arrival_max",
        *(f"b{at}_sum" for at in range(len(borders))),
    ]
    lines = zip(*(found.column(name).to_pylist() for name in order), strict=True)
    return tuple(sorted((*line[:5], *_histogram(line[1], line[5:])) for line in lines))


def _histogram(rows: int, at_least: Sequence[int]) -> tuple[int, ...]:
    """Rows per bucket from rows at or above each border.

    >>> _histogram(10, [4, 1])
    (6, 3, 1)
    """
    steps = (rows, *at_least, 0)
    return tuple(before - after for before, after in itertools.pairwise(steps))


def _bad_rows(job: DirectJob, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    with Files() as files:
        for piece in chunk.pieces:
            judged = judge_rows(files.read(replace(chunk, pieces=(piece,)), job.columns), job.columns)
            if judged.reasons is None:
                continue
            bad = pc.is_valid(judged.reasons)
            rows = files.read_whole(piece).filter(bad).to_pylist()
            lines = [json.dumps(row, default=str, ensure_ascii=False) for row in rows]
            reasons = judged.reasons.filter(bad).combine_chunks()
            arrays = [pa.repeat(pa.scalar(piece.path), len(lines)), reasons, pa.array(lines, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=["file", "reason", "row"])


def _encode(survey: ChunkSurvey) -> str:
    one = survey.slice
    return json.dumps([one.task, one.attempt, one.rows, survey.read, survey.hours])


def _decode(text: str) -> ChunkSurvey:
    task, attempt, rows, read, hours = json.loads(text)
    return ChunkSurvey(slice=Slice(task, attempt, rows), read=read, hours=tuple(tuple(hour) for hour in hours))
