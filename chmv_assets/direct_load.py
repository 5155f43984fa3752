"""Load a Parquet batch without staging: survey, write down what each chunk holds, insert chunk by chunk (`spark_jobs.direct`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.chunks import direct_chunk_rows, plan_chunks
from chmv_assets.core.landing import require_tolerated
from chmv_assets.core.manifest import QUARANTINE
from chmv_assets.core.watermarks import from_micros
from chmv_assets.load import Columns, LoadSite, Ready, Taken, stamps_of
from chmv_assets.watermark_moves import HourCount
from resources.journal.manifest import read_quarantined
from spark_jobs.direct import ChunkSurvey, DirectJob, bad_rows, insert_chunks, survey_chunks
from spark_jobs.landing_reader import LandingColumn
from spark_jobs.parquet_files import open_parquet
from spark_jobs.parquet_judge import is_plain

Footers = Sequence[tuple[str, pa.Schema, tuple[int, ...]]]  # url, columns, rows per row group


def read_footers(site: LoadSite, taken: Taken) -> Footers:
    """What the files of a batch say of themselves; in order of content, which no renaming changes."""
    found = []
    for file in sorted(taken.batch.files, key=lambda file: file.checksum):
        url = site.url(file.path)
        with open_parquet(url) as opened:
            groups = tuple(opened.metadata.row_group(at).num_rows for at in range(opened.metadata.num_row_groups))
            found.append((url, opened.schema_arrow, groups))
    return found


def can_go_direct(site: LoadSite, columns: Columns, taken: Taken, footers: Footers) -> bool:
    """Whether no value of any file can fail on the server once it is judged here."""
    paths = {site.url(file.path): columns[file.path] for file in taken.batch.files}
    return all(
        is_plain(column, schema.field(column.name).type)
        for url, schema, _ in footers
        for column in site.loaded_columns(paths[url])
    )


def plan_direct(site: LoadSite, taken: Taken, columns: Columns, footers: Footers, chunk_rows: int) -> DirectJob:
    """The batch as work for the executors."""
    loaded: dict[str, LandingColumn] = {}
    for file in taken.batch.files:
        loaded |= {column.name: column for column in site.loaded_columns(columns[file.path])}
    order = [column.name for column in site.source.columns]
    return DirectJob(
        source=site.source.name,
        batch=taken.batch.id,
        chunks=plan_chunks([(url, groups) for url, _, groups in footers], chunk_rows),
        chunk_rows=chunk_rows,
        columns=tuple(sorted(loaded.values(), key=lambda column: order.index(column.name))),
        stamps=stamps_of(site, taken, columns[taken.batch.files[0].path]),
        event_time=site.policy.event_time,
        arrival=site.policy.arrival,
        arrived_at=taken.arrived_at,
        tolerance_seconds=site.policy.lateness_tolerance_seconds,
    )


def survey_batch(site: LoadSite, job: DirectJob, tasks: int) -> Ready:
    """Judge every row, quarantine the bad ones, write down what each chunk holds."""
    surveys = survey_chunks(site.spark(), job, tasks) if job.chunks else []
    reasons = _quarantine(site, job, [one for one in surveys if one.bad])
    read = sum(one.read for one in surveys)
    require_tolerated(site.source.name, read, sum(reasons.values()), site.landing.tolerated_bad_rate)
    site.journal.note_batch(site.source.name, job.batch, "planned")
    slices = [one.slice for one in surveys]
    record = site.journal.note_batch(site.source.name, job.batch, "staged", slices=slices)
    return Ready(record=record, rows_read=read, reasons=reasons, hours=_hours(surveys))


def resume_direct(
    site: LoadSite, record: BatchRecord, taken: Taken, columns: Columns, footers: Footers, tasks: int
) -> tuple[DirectJob, Ready]:
    """Survey a batch once more, cut as it was cut; what differs from what is written down is refused at the insert."""
    job = plan_direct(site, taken, columns, footers, direct_chunk_rows(record))
    surveys = survey_chunks(site.spark(), job, tasks)
    reasons = read_quarantined(site.journal, site.source.name, record.batch)
    return job, Ready(record=record, rows_read=sum(one.read for one in surveys), reasons=reasons, hours=_hours(surveys))


def commit_direct(site: LoadSite, job: DirectJob, ready: Ready, before_mark: Callable[[], None], tasks: int) -> None:
    """Insert the chunks; `before_mark` runs once they are all in and before the batch counts as done."""
    if ready.record.rows:
        insert_chunks(site.spark(), site.connection, job, ready.record, tasks)
    before_mark()
    present = site.journal.read_batch(site.source.name, job.batch)
    if present is None or present.status != "committed":  # else another driver was as far as we are, and faster
        site.journal.note_batch(site.source.name, job.batch, "committed")


def _quarantine(site: LoadSite, job: DirectJob, bad: Sequence[ChunkSurvey]) -> dict[str, int]:
    if not bad:
        return {}
    frame = bad_rows(site.spark(), job, [one.slice.task for one in bad]).select(
        F.lit(str(site.source.name)).alias("source"), F.lit(job.batch).alias("batch_id"), "file", "reason", "row"
    )
    site.write(frame, QUARANTINE, f"{job.batch}-quarantine", hold=False)
    return dict(read_quarantined(site.journal, site.source.name, job.batch))


def _hours(surveys: Sequence[ChunkSurvey]) -> tuple[HourCount, ...]:
    """What each hour receives from all chunks together."""
    found: dict[int, HourCount] = {}
    for survey in surveys:
        for start, rows, late, event, arrival, *histogram in survey.hours:
            one = HourCount(
                start=from_micros(start),
                rows=rows,
                late=late,
                newest_event=from_micros(event),
                newest_arrival=from_micros(arrival),
                histogram=tuple(histogram),
            )
            found[start] = found[start] + one if start in found else one
    return tuple(found[start] for start in sorted(found))
