"""Load a batch through Spark and staging: text formats, and Parquet whose types need a cast by meaning."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.landing import LandingRefused, require_tolerated
from chmv_assets.core.manifest import QUARANTINE
from chmv_assets.load import Columns, LoadSite, Ready, Taken, stamps_of
from chmv_assets.watermark_moves import count_hours
from resources.journal.manifest import read_quarantined
from resources.journal.recovery import finish_batch
from resources.landing import count_records
from spark_jobs.landing_reader import FILE, RAW, REASON, read_landing
from spark_jobs.types import map_type


def stage_batch(site: LoadSite, taken: Taken, columns: Columns) -> Ready:
    """Judge every row; bad ones go to quarantine, good ones to staging with their winners written down."""
    batch, source = taken.batch, site.source.name
    frame = read_batch(site, taken, columns)
    read = sum(count_records(site.root, file, site.landing.format) for file in batch.files)
    bad = frame.where(F.col(REASON).isNotNull()).select(
        F.lit(str(source)).alias("source"),
        F.lit(batch.id).alias("batch_id"),
        F.col(FILE).alias("file"),
        F.col(REASON).alias("reason"),
        F.coalesce(F.col(RAW), F.lit("")).alias("row"),
    )
    site.write(bad, QUARANTINE, f"{batch.id}-quarantine", hold=False)
    reasons = read_quarantined(site.journal, source, batch.id)
    quarantined = sum(reasons.values())
    require_tolerated(source, read, quarantined, site.landing.tolerated_bad_rate)
    site.write(frame.where(F.col(REASON).isNull()).drop(REASON, RAW, FILE), source, batch.id, hold=True)
    record = site.journal.read_batch(source, batch.id)
    assert record is not None, "a saved batch is in the journal"
    if read != record.rows + quarantined:
        raise LandingRefused(
            f"batch {batch.id} of {source}: the files have {read} rows but {record.rows} are staged and {quarantined} "
            "quarantined. Rows would be missing or double. Nothing was committed; look at the files, then ingest again."
        )
    return _ready(site, record, taken)


def resume_staged(site: LoadSite, record: BatchRecord, taken: Taken) -> Ready:
    """A batch that an earlier ingest has staged: all that is left is to commit it."""
    return _ready(site, record, taken)


def _ready(site: LoadSite, record: BatchRecord, taken: Taken) -> Ready:
    reasons = read_quarantined(site.journal, site.source.name, record.batch)
    hours = count_hours(site.journal.server, site.source, site.policy, record, taken.arrived_at)
    return Ready(record=record, rows_read=record.rows + sum(reasons.values()), reasons=reasons, hours=hours)


def commit_staged(site: LoadSite, ready: Ready, before_mark: Callable[[], None], parallelism: int) -> None:
    """Bring the staged rows into the source; `before_mark` runs once they are all in and before the batch counts as done."""
    finish_batch(site.journal, site.source.name, ready.record.batch, before_mark=before_mark, parallelism=parallelism)


def read_batch(site: LoadSite, taken: Taken, columns: Columns) -> DataFrame:
    """All files of a batch as one stamped frame; files with the same columns are read together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in taken.batch.files:
        groups.setdefault(columns[file.path], []).append(site.url(file.path))
    frames = [
        read_landing(site.spark(), paths, site.landing.format, found, site.loaded_columns(found))
        for found, paths in groups.items()
    ]
    whole = frames[0]
    for frame in frames[1:]:  # what only some files have is Nullable (`shape_of`)
        whole = whole.unionByName(frame, allowMissingColumns=True)
    for stamp in stamps_of(site, taken, columns[taken.batch.files[0].path]):
        kind = map_type(stamp.name, stamp.clickhouse_type).spark
        whole = whole.withColumn(stamp.name, F.lit(stamp.value).cast(kind))
    return whole
