"""The check `target_matches_source`: which windows a run has to compare, the verdict for Dagster, and the seals that follow from it.

It looks at the partitions of its run; in a run without partitions at the newest window that has ended, and says so. A watermark is
sealed only if its window is equal, older than the lateness tolerance, untouched since before the comparison, and sealed in every target
that stands between it and the source. How windows are compared is in `resources.reconcile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

import dagster as dg

from chmv_assets.check_steps import Judgement
from chmv_assets.core.deficits import CHECK, DIFFERENT, EQUAL, dump_window
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import Watermark, seal
from chmv_assets.core.window_text import name_window
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.journal import Journal, open_journal
from resources.journal.store import Decide
from resources.reconcile import Reconciled, Reconciler
from resources.reconcile_windows import newest_closed

MATCHES = CHECK
DESCRIPTION = "The target holds what its views' queries give over their sources, for the partitions of the run."
_PARTITION, _RANGE = "dagster/partition", "dagster/asset_partition_range_"
_MAX_SAMPLES = 20
Log = Callable[[str], None]


def judge_target(
    pipeline: Pipeline, server: Server, target: Object, tags: Mapping[str, str], log: Log, *, was_materialized: bool
) -> Judgement:
    """Compare the windows of a run, seal what is equal, and put it in words."""
    windows, chosen = choose_windows(pipeline, server, target, tags)
    journal = open_journal(server)
    marks = _read_marks(journal, target, log)
    reconciler = Reconciler(server, pipeline.catalog, pipeline.settings.timezone, cluster=journal.cluster)
    found: list[Reconciled] = []
    for window in windows:
        found.append(reconciler.run(target, window))
        log(
            f"{target.name} {name_window(window, pipeline.settings.timezone)}: {found[-1].sentence()} ({len(found)} of {len(windows)} windows)"
        )
    sealed = _seal(journal, pipeline, target, found, marks, log)
    return build_judgement(found, sealed, chosen, was_materialized=was_materialized)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def choose_windows(
    pipeline: Pipeline, server: Server, target: Object, tags: Mapping[str, str]
) -> tuple[list[Window | None], str]:
    """The windows of a run, or the newest that has ended and a sentence that says so."""
    if windows := windows_of_tags(pipeline, target, tags):
        return windows, ""
    newest = newest_closed(pipeline.catalog, target, _now(), pipeline.settings.timezone, server.timezone)
    return [newest], f"The run names no partition: only {newest}, the newest that has ended. " if newest else ""


def windows_of_tags(pipeline: Pipeline, target: Object, tags: Mapping[str, str]) -> list[Window | None]:
    """The windows that a run's tags name; none if it names none. A target without time partitions is one whole."""
    calendar = pipeline.rebuild_calendar(target.name)
    views = pipeline.catalog.views_into(target.name)
    if calendar is None or any(view.kind == "refreshable_view" for view in views):
        return [None]
    first = tags.get(_PARTITION) or tags.get(f"{_RANGE}start")
    last = tags.get(_PARTITION) or tags.get(f"{_RANGE}end")
    if not first or not last:
        return []
    start, end = calendar.window(first), calendar.window(last)
    return list(calendar.periods(Window(start.start, end.end)))


def build_judgement(found: Sequence[Reconciled], sealed: int, chosen: str, *, was_materialized: bool) -> Judgement:
    """One result of many windows: the worst of them counts.

    What an opaque view wrote earlier may rightly differ from what it gives now; right after a rebuild it may not.
    """
    different = [one for one in found if one.status == "different"]
    untold = [one for one in found if one.status == "cannot tell"]
    is_defect = any(was_materialized or not one.opaque for one in different)
    severity = dg.AssetCheckSeverity.ERROR if is_defect or not found else dg.AssetCheckSeverity.WARN
    worst = [*different, *untold]
    words = "; ".join(f"{_shown(one.window)}: {one.sentence()}" for one in worst[:5])
    if len(worst) > 5:
        words += f"; and {len(worst) - 5} more windows"
    if not worst:
        words = f"{len(found)} window(s) equal, {sum(one.keys for one in found)} keys"
    return Judgement(
        passed=not worst, severity=severity, description=f"{chosen}{words}.", metadata=_metadata(found, sealed)
    )


def _shown(window: Window | None) -> str:
    return "whole table" if window is None else str(window)


def _metadata(found: Sequence[Reconciled], sealed: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "chmv/windows": len(found),
        "chmv/keys": sum(one.keys for one in found),
        "chmv/deficit_keys": sum(one.deficit for one in found),
        "chmv/excess_keys": sum(one.excess for one in found),
        "chmv/changed_keys": sum(one.changed for one in found),
        "chmv/seconds": round(sum(one.seconds for one in found), 3),
        "chmv/sealed_watermarks": sealed,
        "chmv/verdicts": dg.MetadataValue.table([_record(one) for one in found]),
    }
    for name, status in ((DIFFERENT, "different"), (EQUAL, "equal")):  # for the view health sensor
        if windows := [dump_window(one.window) for one in found if one.status == status]:
            metadata[name] = dg.MetadataValue.json(windows)
    if samples := [record for one in found for record in _sample_records(one)]:
        metadata["chmv/samples"] = dg.MetadataValue.table(samples[:_MAX_SAMPLES])
    left_out = dict.fromkeys((left.column, left.reason) for one in found for left in one.left_out)
    if left_out:
        rows = [dg.TableRecord({"column": column, "reason": reason}) for column, reason in left_out]
        metadata["chmv/not_compared"] = dg.MetadataValue.table(rows)
    return metadata


def _record(one: Reconciled) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "window": _shown(one.window), "status": one.status, "keys": one.keys, "deficit": one.deficit,
            "excess": one.excess, "changed": one.changed, "tries": one.tries, "seconds": round(one.seconds, 3),
        }
    )  # fmt: skip


def _sample_records(one: Reconciled) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "window": _shown(one.window), "kind": sample.kind, "key": _pairs(sample.key),
                "expected": _pairs(sample.expected), "in the target": _pairs(sample.actual),
            }
        )
        for sample in one.samples
    ]  # fmt: skip


def _pairs(values: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values)[:500]


# --- seals ---------------------------------------------------------------------------------------------------------


def _read_marks(journal: Journal, target: Object, log: Log) -> list[Watermark]:
    """As they are before the comparison. A journal that gives no answer costs the seals, not the verdict."""
    try:
        return journal.read_watermarks(target=target.name)
    except ChmvError as error:
        log(f"{target.name}: no watermark is sealed, the journal gave no answer: {error}")
        return []


def _seal(
    journal: Journal,
    pipeline: Pipeline,
    target: Object,
    found: Sequence[Reconciled],
    marks: Sequence[Watermark],
    log: Log,
) -> int:
    """Seal the watermarks of windows that are equal; gives how many."""
    equal = [one.window for one in found if one.status == "equal" and one.window is not None]
    by_source: dict[QName, dict[Window, Decide]] = {}
    read = cache(journal.read_watermarks)
    try:
        for mark in marks:
            window = Window(mark.window_start, mark.window_end)
            inside = any(one.start <= window.start and window.end <= one.end for one in equal)
            if inside and mark.status not in ("sealed", "stale") and _sealed_before(read, pipeline, target, mark):
                tolerance = timedelta(seconds=pipeline.settings.policy(mark.source_id).lateness_tolerance_seconds)
                by_source.setdefault(mark.source_id, {})[window] = _decide(mark, tolerance)
        moved = [
            mark
            for source, windows in by_source.items()
            for mark in journal.move_watermarks(source, {target.name: windows})
        ]
    except ChmvError as error:
        log(f"{target.name}: watermarks were not sealed: {error}")
        return 0
    return sum(mark.status == "sealed" for mark in moved)


def _decide(seen: Watermark, tolerance: timedelta) -> Decide:
    def decide(mark: Watermark, version: int) -> Watermark:
        if mark.version != seen.version:  # rows came in after it was read: they may not have been compared
            return mark
        return seal(mark, _now(), version, reconciled=True, tolerance=tolerance)

    return decide


def _sealed_before(
    read: Callable[[QName, QName], list[Watermark]], pipeline: Pipeline, target: Object, mark: Watermark
) -> bool:
    """Whether every table between the source and the target is sealed there: the target was compared with that table only."""
    window = Window(mark.window_start, mark.window_end)
    for view in pipeline.catalog.views_into(target.name):
        between = pipeline.catalog.trigger_of(view.name)
        if between is None or between == mark.source_id:
            continue
        marks = read(mark.source_id, between)
        if any(one.status != "sealed" and Window(one.window_start, one.window_end).overlaps(window) for one in marks):
            return False
    return True
