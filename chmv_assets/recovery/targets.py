"""Bringing back targets and their partitions: from what the server still has, from their views, from the snapshot, in this order.

UNDROP is exact, for while a target was missing inserts were refused. A target made anew is filled from its views, newest windows
first; partitions whose source rows are gone come back from the snapshot, by links.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from chmv_assets.core.errors import RecoveryFailed, ServerError
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.recovery import Ask, Outcome
from chmv_assets.core.serving import snapshot_name
from chmv_assets.core.windows import Window
from chmv_assets.recovery.arrivals import drain_inserts, find_windows, window_of_partition
from chmv_assets.recovery.mending import create_declared, mend_view
from chmv_assets.recovery.outage_book import close_outages, open_outage
from chmv_assets.recovery.routes import open_router
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.windows import repair_windows
from resources.introspect import fetch_existing, fetch_partitions


def restore_target(site: RecoverySite, ask: Ask, target: Object) -> Outcome:
    """Bring back a target that was dropped."""
    open_outage(site, ask)
    is_there = target.name in fetch_existing(site.server, [target.name])
    undropped = not is_there and _undrop(site, target)
    if is_there:
        site.did(f"{target.name} is there again; its windows are compared with their source")
    elif not undropped:
        create_declared(site, target)
    _mend_views(site, target)
    drain_inserts(site)
    if undropped:
        outcome = Outcome(tier=1, steps=tuple(site.steps), before={"target": "dropped"}, after={"target": "undropped"})
    else:
        outcome = refill(site, target)
    close_outages(site, target.name)
    return outcome


def refill(site: RecoverySite, target: Object) -> Outcome:
    """Fill a target from its views, and what they cannot give from its snapshot."""
    windows = _all_windows(site, target)
    restored = restore_from_snapshot(site, target, None)
    if not windows:
        site.did(f"the sources of {target.name} hold no rows, so there is nothing to rebuild")
        return Outcome(tier=1, steps=tuple(site.steps), after={"partitions restored": str(restored)})
    done = repair_windows(site, target, windows)
    return Outcome(
        tier=2, steps=tuple(site.steps), rebuilt=tuple(done.rebuilt), reconciled=done.reconciled,
        before={"rows": str(done.rows_before)}, after={"rows": str(done.rows_after), "partitions restored": str(restored)},
    )  # fmt: skip


def repair_partitions(site: RecoverySite, ask: Ask, target: Object) -> Outcome:
    """Bring back partitions that a target has lost: those that its sources still hold are computed, the others linked from the snapshot."""
    lost = [str(one) for one in json.loads(ask.seen.get("partitions", "[]"))]
    held = _all_windows(site, target)
    windows, unknown = _windows_of(site, target, lost)
    wanted = held if unknown else [one for one in held if any(one.overlaps(window) for window in windows)]
    gone = [] if unknown else [window for window in windows if not any(window.overlaps(one) for one in held)]
    restored = restore_from_snapshot(site, target, lost) if gone or not wanted else 0
    if not wanted:
        site.did(
            f"the sources of {target.name} hold no rows of {len(lost)} lost partition(s); {restored} came from the snapshot"
        )
        there = {state.partition_id for state in fetch_partitions(site.server, [target.name]).get(target.name, ())}
        if absent := [one for one in lost if one not in there]:
            raise RecoveryFailed(
                f"target {target.name}: {len(absent)} of {len(lost)} lost partition(s) could not be restored ({', '.join(absent[:5])}) but wanted all. "
                "Neither its sources nor its snapshot hold them. If they were dropped on purpose, set `recovery: off` for it."
            )
        return Outcome(tier=1, steps=tuple(site.steps), after={"partitions restored": str(restored)})
    drain_inserts(site)
    done = repair_windows(site, target, wanted)
    return Outcome(
        tier=2, steps=tuple(site.steps), rebuilt=tuple(done.rebuilt), reconciled=done.reconciled,
        before={"rows": str(done.rows_before), "partitions lost": str(len(lost))},
        after={"rows": str(done.rows_after), "partitions lost": "0"},
    )  # fmt: skip


def repair_deficit(site: RecoverySite, ask: Ask, target: Object) -> Outcome:
    """Rebuild the windows of which the comparison said that they differ, and compare them again."""
    windows = list(ask.windows) or _all_windows(site, target)
    drain_inserts(site)
    done = repair_windows(site, target, windows)
    return Outcome(
        tier=2, steps=tuple(site.steps), rebuilt=tuple(done.rebuilt), reconciled=done.reconciled,
        before={"rows": str(done.rows_before), "windows that differ": ask.seen.get("windows that differ", "")},
        after={"rows": str(done.rows_after), "windows that differ": "0"},
    )  # fmt: skip


def restore_from_snapshot(site: RecoverySite, target: Object, only: Sequence[str] | None) -> int:
    """Link partitions from the snapshot that the target does not have (some of them, or all); gives how many."""
    snapshot = snapshot_name(target.name)
    states = fetch_partitions(site.server, [snapshot, target.name])
    there = {state.partition_id for state in states.get(target.name, ())}
    missing = [
        state for state in states.get(snapshot, ())
        if state.partition_id not in there and (only is None or state.partition_id in only)
    ]  # fmt: skip
    for state in missing:
        site.executor.replace_partition(target.name, state.partition_id, snapshot)
        site.did(f"restored partition {state.partition} of {target.name} from the snapshot: {state.rows} rows")
    if missing:  # only now, for until here readers were shown the copy
        open_router(site).release(target.name, [state.partition_id for state in missing])
    return len(missing)


def _undrop(site: RecoverySite, target: Object) -> bool:
    try:
        site.executor.run_ddl(f"undrop {target.name}", f"UNDROP TABLE {target.name.sql}")
    except ServerError as error:
        site.did(f"{target.name} cannot be undropped: {str(error)[:200]}")
        return target.name in fetch_existing(site.server, [target.name])
    site.did(f"undropped {target.name}: it has the rows of before, and inserts were refused meanwhile")
    return True


def _mend_views(site: RecoverySite, target: Object) -> None:
    """Views that write into it, and those that it fires."""
    catalog = site.pipeline.catalog
    for view in (*catalog.views_into(target.name), *catalog.fired_by(target.name)):
        if view.kind in VIEW_KINDS:
            mend_view(site, view)


def _all_windows(site: RecoverySite, target: Object) -> list[Window]:
    views: Iterable[Object] = site.pipeline.catalog.views_into(target.name)
    return sorted({window for view in views for window in find_windows(site, view, None)}, reverse=True)


def _windows_of(site: RecoverySite, target: Object, partition_ids: Sequence[str]) -> tuple[list[Window], bool]:
    """The windows of partition ids, and whether some of them do not tell theirs."""
    scheme = site.pipeline.catalog.schemes.get(target.name)
    if scheme is None:
        return [], True
    zone, server_zone = site.pipeline.settings.timezone, site.server.timezone
    found = [window_of_partition(scheme, one, zone, server_zone) for one in partition_ids]
    return [one for one in found if one is not None], any(one is None for one in found)
