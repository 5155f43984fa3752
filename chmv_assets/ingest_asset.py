"""Materializing a source with a landing: ingest its new files, then say what each partition received.

Here is the step between Dagster and `ingest`: the root of the landing, the span of a run's windows, and the report as
metadata. The same metadata serves the source's asset and `ingest_job`. Ingesting itself (files, batches, exactness) lives in
`ingest`, which is imported when there is something to do: it brings pyspark along.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from chmv_assets.core.landing import LATENESS_BUCKETS_SECONDS, LandingRefused
from chmv_assets.core.model import Object
from chmv_assets.core.settings import Landing
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.journal import open_journal
from resources.landing_root import resolve_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chmv_assets.ingest import IngestReport
    from chmv_assets.watermark_moves import HourCount

NO_NEW_FILES = "no new files"
INGEST_POOL = "chmv_ingest"  # one ingest at a time on an instance, unless its limit is raised: each may start a JVM


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What an ingest found and did; without a report there was no landing folder to look into."""

    root: str
    report: IngestReport | None

    @property
    def hours(self) -> tuple[HourCount, ...]:
        return self.report.hours if self.report is not None else ()

    def hours_of(self, window: Window) -> tuple[HourCount, ...]:
        """The hours of event time that lie in a window and received rows."""
        return tuple(hour for hour in self.hours if window.start <= hour.start < window.end)


def declared_landing(pipeline: Pipeline, node: Object) -> Landing:
    """The landing of a source, or a sentence that it has none."""
    landing = pipeline.settings.policy(node.name).landing
    if landing is None:
        declared = sorted(str(name) for name, said in pipeline.settings.sources if said.landing is not None)
        raise LandingRefused(
            f"source {node.name}: found no landing in chmv.yaml but wanted one. There is nothing to read. "
            f"Declare `landing: {{path: …, format: …}}` for it; sources that have one: {', '.join(declared) or 'none'}."
        )
    return landing


def span_of(windows: Sequence[Window]) -> Window | None:
    """One window from the first start to the last end; None for an unpartitioned source.

    >>> span_of([]) is None
    True
    """
    if not windows:
        return None
    return Window(min(window.start for window in windows), max(window.end for window in windows))


def ingest_landing(
    pipeline: Pipeline,
    node: Object,
    server: Server,
    spark: Callable[[], SparkSession],
    window: Window | None,
    log: Callable[[str], None],
) -> Ingested:
    """Load the new files of a source; with a window, those that have a row in it. A missing folder is an empty one."""
    from resources.landing import is_missing

    landing = declared_landing(pipeline, node)
    root = resolve_root(landing.path, pipeline.ddl_dir, os.environ)
    if is_missing(root):
        log(f"{node.name}: {NO_NEW_FILES}, there is no folder {root}")
        return Ingested(root=root, report=None)
    from chmv_assets.ingest import Ingester

    ingester = Ingester(
        pipeline=pipeline,
        source=node,
        landing=landing,
        journal=open_journal(server),
        spark=spark,
        log=log,
    )
    report = ingester.run(root, window)
    if not report.summary.files:
        log(f"{node.name}: {NO_NEW_FILES} in {root}, {report.summary.files_known} known")
    return Ingested(root=root, report=report)


def run_metadata(done: Ingested) -> dict[str, Any]:
    """What the whole run did."""
    if done.report is None:
        return {"chmv/landing": done.root, "chmv/ingest": f"{NO_NEW_FILES}: there is no such folder"}
    report, summary = done.report, done.report.summary
    found: dict[str, Any] = {
        "chmv/landing": done.root,
        "chmv/ingest": f"{summary.files} new files" if summary.files else NO_NEW_FILES,
        "chmv/files_new": summary.files,
        "chmv/files_known": summary.files_known,
        "chmv/files_duplicate": summary.files_duplicate,
        "chmv/files_unreadable": len(report.unreadable),
        "chmv/rows_read": summary.rows_read,
        "chmv/rows_on_time": summary.rows_on_time,
        "chmv/rows_late": summary.rows_late,
        "chmv/rows_quarantined": summary.rows_quarantined,
        "chmv/ingest_seconds": round(report.seconds, 3),
        "chmv/batches": dg.MetadataValue.json(list(report.batches)),
        "chmv/batches_resumed": dg.MetadataValue.json(list(report.resumed)),
    }
    if report.reasons:
        found["chmv/quarantine_reasons"] = _table("reason", "rows", report.reasons)
    if report.held:
        found["chmv/diverted"] = f"{len(report.held)} batches wait in staging"
    if report.unfinished:
        found["chmv/batches_unfinished"] = _table("batch", "why", dict(report.unfinished))
    if report.unreadable:
        found["chmv/unreadable_files"] = _table("file", "why", dict(report.unreadable))
    return found


def received_metadata(hours: Iterable[HourCount]) -> dict[str, Any]:
    """What one partition received: rows, how many of them late, and how late."""
    counted = list(hours)
    found: dict[str, Any] = {
        "chmv/rows_loaded": sum(hour.rows for hour in counted),
        "chmv/rows_loaded_late": sum(hour.late for hour in counted),
    }
    if counted:
        found["chmv/lateness"] = _table("arrived after", "rows", lateness_histogram(counted))
    return found


def lateness_histogram(hours: Iterable[HourCount]) -> Mapping[str, int]:
    """Rows per bucket of lateness, all buckets, in order."""
    total: Counter[int] = Counter()
    for hour in hours:
        total.update(dict(enumerate(hour.histogram)))
    return {label: total[at] for at, label in enumerate(bucket_labels())}


def bucket_labels() -> tuple[str, ...]:
    """How the buckets of lateness are called.

    >>> bucket_labels()
    ('< 1m', '1m – 5m', '5m – 15m', '15m – 1h', '1h – 6h', '6h – 1d', '≥ 1d')
    """
    borders = [_duration(seconds) for seconds in LATENESS_BUCKETS_SECONDS]
    between = [f"{low} – {high}" for low, high in itertools.pairwise(borders)]
    return (f"< {borders[0]}", *between, f"≥ {borders[-1]}")


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _table(key: str, value: str, content: Mapping[str, Any]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table([dg.TableRecord({key: name, value: found}) for name, found in content.items()])
