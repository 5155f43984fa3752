"""Repairs after late rows: open watermarks again, and rebuild what cannot take such rows by itself.

    late rows   an opaque target: its windows count as stale, are rebuilt with all that is downstream, and compared
    reopen      targets that took the rows by themselves: windows that were sealed are compared again before they are sealed again

Invariant: a watermark changes before the rebuild, never after it, so that a crash in between leaves a stale window, not a sealed one that is
wrong. A window that our own ingest has opened already is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import ViewClass, family
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask, Outcome, moment
from chmv_assets.core.thresholds import in_peak
from chmv_assets.core.watermarks import Watermark, reopen
from chmv_assets.core.windows import Window, ch_partitions
from chmv_assets.recovery.backlog import WHOLE_BYTES, holds_merges
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.windows import affected_targets, repair_windows
from chmv_assets.watermark_moves import reached_targets
from resources.backlog import count_parts, measure_partition
from resources.journal.store import Decide


def recover(site: RecoverySite, ask: Ask) -> Outcome:
    """Carry out what the late data sensor asked for."""
    if not ask.windows or ask.damage not in ("late rows", "reopen"):
        raise RecoveryFailed(
            f"repair {ask.subject}: found the damage {ask.damage!r} with {len(ask.windows)} window(s) but wanted `late rows` or `reopen` with at "
            "least one. Nothing was done. Restart the daemon and the location with the same version of chmv."
        )
    return _rebuild(site, ask) if ask.damage == "late rows" else _reopen(site, ask)


def arrival_of(ask: Ask) -> datetime:
    """When the last of the late rows arrived; when it was seen, if the ask does not say."""
    said = ask.seen.get("latest arrival")
    return datetime.fromisoformat(said) if said else moment(ask.detected_ms)


def _rebuild(site: RecoverySite, ask: Ask) -> Outcome:
    target = site.declared(ask)
    names = [node.name for node in affected_targets(site.pipeline, target)]
    classes: dict[QName, ViewClass] = dict.fromkeys(names, "opaque")
    _move(site, ask, classes)
    done = repair_windows(site, target, ask.windows)
    return Outcome(
        tier=2,
        steps=tuple(site.steps),
        rebuilt=tuple(done.rebuilt),
        before={"rows": str(done.rows_before)},
        after={"rows": str(done.rows_after)},
        reconciled=done.reconciled,
    )


def _reopen(site: RecoverySite, ask: Ask) -> Outcome:
    reached = reached_targets(site.pipeline.catalog, ask.subject)
    plain = {name: found for name, found in reached.items() if found != "opaque"}
    opened = _move(site, ask, plain, source=ask.subject)
    merged = sum(_merge_replacing(site, name, ask.windows) for name, found in plain.items() if found == "replacing")
    before, after = {"sealed windows": str(opened)}, {"sealed windows": "0", "partitions merged": str(merged)}
    return Outcome(tier=1, steps=tuple(site.steps), before=before, after=after)


def _move(site: RecoverySite, ask: Ask, classes: Mapping[QName, ViewClass], source: QName | None = None) -> int:
    """Open the watermarks of targets that overlap the ask's windows; gives how many changed."""
    arrival = arrival_of(ask)
    changes: dict[QName, dict[QName, dict[Window, Decide]]] = {}
    already = moved = 0
    for target, view_class in classes.items():
        for mark in site.journal.read_watermarks(source, target):
            if not _touches(mark, ask.windows):
                continue
            if mark.status in ("open", "stale") or (mark.status != "sealed" and view_class != "opaque"):
                already += 1
                continue
            windows = changes.setdefault(mark.source_id, {}).setdefault(target, {})
            windows[Window(mark.window_start, mark.window_end)] = _decide(arrival, view_class)
            moved += 1
    for name, targets in changes.items():
        site.journal.move_watermarks(name, targets)
    if already:
        site.did(
            f"{already} watermark(s) of these windows are open already: our own ingest knows of the rows, or nothing was sealed"
        )
    if moved:
        site.did(f"opened {moved} watermark(s) again: they are compared before they count as done")
    return moved


def _touches(mark: Watermark, windows: Sequence[Window]) -> bool:
    own = Window(mark.window_start, mark.window_end)
    return any(own.overlaps(window) for window in windows)


def _decide(arrival: datetime, view_class: ViewClass) -> Decide:
    return lambda mark, version: reopen(mark, arrival, view_class, version)


def _merge_replacing(site: RecoverySite, target: QName, windows: Sequence[Window]) -> int:
    """Merge the touched partitions of a replacing target, so that readers without FINAL see one row per key; off peak only."""
    pipeline = site.pipeline
    scheme = pipeline.catalog.schemes.get(target)
    if scheme is None or family(pipeline.catalog.objects[target].engine) != "replacing":
        return 0
    if in_peak(site.clock(), pipeline.settings.timezone, pipeline.settings.limits):
        site.did(f"left {target} unmerged: peak hours, and FINAL gives the right rows meanwhile")
        return 0
    if holder := holds_merges(site, target):
        site.did(f"left {target} unmerged: {holder} holds its parts")
        return 0
    ids = {
        part.partition_id
        for window in windows
        for part in ch_partitions(window, scheme, pipeline.settings.timezone, server_timezone=site.server.timezone)
        if part.partition_id is not None
    }
    merged = 0
    for partition in sorted(ids):
        before, size = measure_partition(site.server, target, partition)
        if before > 1 and size <= WHOLE_BYTES:
            site.executor.optimize_partition(target, partition)
            site.did(
                f"merged {target} partition {partition}: {before} → {count_parts(site.server, target, partition)} parts"
            )
            merged += 1
    return merged
