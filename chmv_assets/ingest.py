"""Ingest: landing files → rows of a source, exactly once, with late and bad rows counted.

The order makes it exact: files are taken in the manifest before they are read; bad rows go to quarantine as a batch of their own;
good rows are staged by Spark with their winners written down; the sum is checked; only then is the batch committed and do
watermarks move. A crash anywhere is finished by the next ingest. The pure rules live in `core.landing`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.landing import (
    Batch,
    IngestSummary,
    LandingFile,
    LandingRefused,
    fit_columns,
    plan_batches,
    require_tolerated,
    shape_of,
)
from chmv_assets.core.manifest import QUARANTINE
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Landing
from chmv_assets.pipeline import Pipeline
from chmv_assets.watermark_moves import HourCount, count_hours, move_watermarks
from resources.capabilities import probe_capability
from resources.journal import Journal
from resources.journal.manifest import read_quarantined, read_taken_batches, take_files
from resources.journal.recovery import finish_batch
from resources.landing import count_records, found_columns, list_files
from spark_jobs.clickhouse_source import ClickHouseDataSource
from spark_jobs.landing_reader import FILE, RAW, REASON, LandingColumn, read_landing
from spark_jobs.types import map_type

_ARROW_ROWS = "100000"  # Spark hands rows to Python in pieces of this size; its default of 10,000 costs a third more
_ALL_BATCHES = 1_000_000
Columns = Mapping[str, tuple[str, ...]]  # path → columns of that file


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """One ingest, told in numbers."""

    summary: IngestSummary
    batches: tuple[str, ...]
    resumed: tuple[str, ...]  # batches of an earlier ingest that were staged and are committed now
    unreadable: tuple[tuple[str, str], ...]  # file and why
    reasons: Mapping[str, int]  # why rows were quarantined
    hours: tuple[HourCount, ...]  # what each hour of event time received
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    rows_read: int
    rows_quarantined: int
    reasons: Mapping[str, int]
    hours: tuple[HourCount, ...]
    rows: int


@dataclass
class Ingester:
    """Ingests one source on one server."""

    pipeline: Pipeline
    source: Object
    landing: Landing
    journal: Journal
    spark: Callable[[], SparkSession]
    now: Callable[[], datetime]
    log: Callable[[str], None] = field(default=lambda _line: None)
    clock: Callable[[], float] = time.monotonic

    def run(self, root: str) -> IngestReport:
        """Finish what an earlier ingest left, then load every new file below the root."""
        started = self.clock()
        probe_capability(self.journal.server, self.source.name).require()
        resumed = self._resume()
        files = list_files(root, self.landing.format)
        columns, unreadable = self._columns_of(root, files)
        for found in columns.values():
            fit_columns(self.source, found, self.landing.extra_columns)  # refused before anything is taken
        batches, duplicates, known = self._plan([file for file in files if file.path in columns], columns)
        done = [self._load(root, batch, columns) for batch in batches]
        hours = tuple(itertools.chain.from_iterable(one.hours for one in done))
        late = sum(hour.late for hour in hours)
        reasons: dict[str, int] = {}
        for one in done:
            for reason, rows in one.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + rows
        return IngestReport(
            summary=IngestSummary(
                files=sum(len(batch.files) for batch in batches),
                files_known=known,
                files_duplicate=duplicates,
                rows_read=sum(one.rows_read for one in done),
                rows_on_time=sum(one.rows for one in done) - late,
                rows_late=late,
                rows_quarantined=sum(one.rows_quarantined for one in done),
            ).require_sum(),
            batches=tuple(batch.id for batch in batches),
            resumed=resumed,
            unreadable=unreadable,
            reasons=reasons,
            hours=hours,
            seconds=self.clock() - started,
        )

    def _resume(self) -> tuple[str, ...]:
        """Commit batches whose rows are staged: their driver died before it could."""
        staged = [record for record in self._batches() if record.status == "staged"]
        for record in staged:
            self.log(f"{self.source.name}: finishing batch {record.batch} of {record.owner}, {record.rows} rows")
            self._commit(record)
        return tuple(record.batch for record in staged)

    def _batches(self) -> list[BatchRecord]:
        return [record for record in self.journal.read_batches(_ALL_BATCHES) if record.source == self.source.name]

    def _columns_of(self, root: str, files: Sequence[LandingFile]) -> tuple[Columns, tuple[tuple[str, str], ...]]:
        columns: dict[str, tuple[str, ...]] = {}
        unreadable: list[tuple[str, str]] = []
        for file in files:
            try:
                columns[file.path] = found_columns(root, file, self.landing.format)
            except LandingRefused as error:
                unreadable.append((file.path, str(error)))
        return columns, tuple(unreadable)

    def _plan(self, files: Sequence[LandingFile], columns: Columns) -> tuple[list[Batch], int, int]:
        """Batches that were taken but never staged come again under their old ids, then what is new."""
        taken = read_taken_batches(self.journal, self.source.name)
        by_checksum = {file.checksum: file for file in reversed(files)}
        done = {r.batch for r in self._batches() if r.status in ("staged", "committed")}
        open_batches: dict[str, list[LandingFile]] = {}
        for checksum, (_, batch) in taken.items():
            if batch not in done and checksum in by_checksum:
                open_batches.setdefault(batch, []).append(by_checksum[checksum])
        again = {file.path for group in open_batches.values() for file in group}
        paths = {checksum: path for checksum, (path, _) in taken.items()}
        shapes = {path: shape_of(self.source, found) for path, found in columns.items()}
        fresh = [file for file in files if file.path not in again]
        plan = plan_batches(self.source.name, fresh, paths, shapes=shapes)
        old = [Batch(id=batch, files=tuple(group)) for batch, group in sorted(open_batches.items())]
        return [*old, *plan.batches], len(plan.duplicates), plan.known

    def _load(self, root: str, batch: Batch, columns: Columns) -> _Loaded:
        take_files(self.journal, self.source.name, batch)
        frame = self._frame(root, batch, columns)
        read = sum(count_records(root, file, self.landing.format) for file in batch.files)
        bad = frame.where(F.col(REASON).isNotNull()).select(
            F.lit(str(self.source.name)).alias("source"),
            F.lit(batch.id).alias("batch_id"),
            F.col(FILE).alias("file"),
            F.col(REASON).alias("reason"),
            F.coalesce(F.col(RAW), F.lit("")).alias("row"),
        )
        self._write(bad, QUARANTINE, f"{batch.id}-quarantine", hold=False)
        reasons = read_quarantined(self.journal, self.source.name, batch.id)
        quarantined = sum(reasons.values())
        require_tolerated(self.source.name, read, quarantined, self.landing.tolerated_bad_rate)
        self._write(frame.where(F.col(REASON).isNull()).drop(REASON, RAW, FILE), self.source.name, batch.id, hold=True)
        record = self.journal.read_batch(self.source.name, batch.id)
        assert record is not None, "a saved batch is in the journal"
        if read != record.rows + quarantined:
            raise LandingRefused(
                f"batch {batch.id} of {self.source.name}: the files have {read} rows but {record.rows} are staged and {quarantined} "
                "quarantined. Rows would be missing or double. Nothing was committed; look at the files, then ingest again."
            )
        hours = self._commit(record)
        self.log(
            f"{self.source.name}: batch {batch.id}, {len(batch.files)} files, {record.rows} rows, {quarantined} quarantined"
        )
        return _Loaded(rows_read=read, rows_quarantined=quarantined, reasons=reasons, hours=hours, rows=record.rows)

    def _frame(self, root: str, batch: Batch, columns: Columns) -> DataFrame:
        """All files of a batch as one frame; files with the same columns are read together."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for file in batch.files:
            groups.setdefault(columns[file.path], []).append(f"{root.rstrip('/')}/{file.path}")
        frames = []
        for found, paths in groups.items():
            fit = fit_columns(self.source, found, self.landing.extra_columns)
            frames.append(self._read(paths, found, fit.loaded))
        whole = frames[0]
        for frame in frames[1:]:  # what only some files have is Nullable (`shape_of`)
            whole = whole.unionByName(frame, allowMissingColumns=True)
        return whole

    def _read(self, paths: Sequence[str], found: Sequence[str], names: Sequence[str]) -> DataFrame:
        types = {column.name: column.type for column in self.source.columns}
        columns = [LandingColumn(name, types[name], map_type(name, types[name]).spark) for name in names]
        return read_landing(self.spark(), paths, self.landing.format, found, columns)

    def _write(self, frame: DataFrame, table: QName, batch: str, *, hold: bool) -> None:
        spark = self.spark()
        spark.dataSource.register(ClickHouseDataSource)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ARROW_ROWS)
        writer = frame.write.format("clickhouse").mode("append")
        options = {
            "url": self.journal.server.endpoint.url,
            "user": self.journal.server.endpoint.user,
            "table": str(table),
        }
        writer.options(**options, batch=batch, hold=str(hold).lower(), cluster=self.journal.cluster).save()

    def _commit(self, record: BatchRecord) -> tuple[HourCount, ...]:
        """Count what is staged by hour, commit it, then move watermarks; the counts are of exactly the committed rows."""
        policy = self.pipeline.settings.policy(self.source.name)
        hours = count_hours(self.journal.server, self.source, policy, record, self.now())
        finish_batch(self.journal, self.source.name, record.batch)
        move_watermarks(self.journal, self.pipeline, self.source.name, record.batch, hours)
        return hours
