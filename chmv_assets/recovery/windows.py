"""Rebuilding damaged windows of a target and of everything computed from it, and comparing them afterwards. What most repairs end with.

Invariant: a repair is done when every window that it touched equals the views' queries, checked. The repair of a view leaves to the repair of
another view what goes past that one even now. Targets are rebuilt in graph order: a published window fires no view, so what is downstream is
rebuilt too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from chmv_assets.core.errors import RecoveryFailed, SourceForgot
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import find_downstream
from chmv_assets.core.window_text import name_window
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from chmv_assets.rebuilders import open_rebuilder
from chmv_assets.recovery.mending import look_at
from chmv_assets.recovery.site import RecoverySite
from resources.reconcile import Reconciled, Reconciler


@dataclass
class Repaired:
    """What was rebuilt and compared."""

    rebuilt: list[tuple[QName, Window | None]] = field(default_factory=list)
    rows_before: int = 0
    rows_after: int = 0
    reconciled: int = 0


def align(pipeline: Pipeline, target: Object, windows: Iterable[Window]) -> list[Window | None]:
    """The periods of a target that some windows touch, newest first; the whole for a target without periods."""
    calendar = pipeline.rebuild_calendar(target.name)
    if calendar is None:
        return [None]
    found = {one for window in windows for one in calendar.periods(window)}
    return [*sorted(found, reverse=True)]


def affected_targets(pipeline: Pipeline, target: Object) -> list[Object]:
    """A target and what is computed from it by views that fire on inserts, in the order of their computation."""
    return [target, *(pipeline.catalog.objects[name] for name in find_downstream(pipeline.catalog, target.name))]


def repair_windows(
    site: RecoverySite, target: Object, windows: Sequence[Window], mended: Object | None = None
) -> Repaired:
    """Rebuild the windows of a target and of all that is downstream, then compare each; raises if one is not equal in the end.

    `mended` is the view that was put right before, if this is the repair of a view. Windows that begin before a source remembers stay as they are and are
    told, if there are others: they would hold up the rest for ever.
    """
    done, zone = Repaired(), site.pipeline.settings.timezone
    origin = f"run {site.run_id}" if site.run_id else ""
    with open_rebuilder(site.pipeline, site.server, site.log, origin, trace=site.trace) as rebuilder:
        for node in affected_targets(site.pipeline, target):
            protocol = site.pipeline.settings.policy(node.name).protocol
            forgotten: list[tuple[Window, SourceForgot]] = []
            for window in align(site.pipeline, node, windows):
                try:
                    result = rebuilder.publish(node, window, protocol)
                except SourceForgot as error:
                    if window is None:
                        raise
                    forgotten.append((window, error))
                    continue
                done.rebuilt.append((node.name, window))
                done.rows_before += result.rows_before
                done.rows_after += result.rows_after
                site.did(
                    f"rebuilt {node.name} {name_window(window, zone)}: rows {result.rows_before} → {result.rows_after}, "
                    f"{result.seconds:.2f} s, {result.protocol}"
                )
            _tell_forgotten(site, node, forgotten, [window for name, window in done.rebuilt if name == node.name])
    done.reconciled = verify_windows(site, done.rebuilt, mended)
    return done


def _tell_forgotten(
    site: RecoverySite,
    node: Object,
    forgotten: Sequence[tuple[Window, SourceForgot]],
    rebuilt: Sequence[Window | None],
) -> None:
    """Say which windows were left, or raise if that is all there was to do."""
    if not forgotten:
        return
    oldest, error = forgotten[-1]
    if not rebuilt:
        raise error
    named = name_window(Window(oldest.start, forgotten[0][0].end), site.pipeline.settings.timezone)
    site.did(
        f"left {node.name} {named} as it is, {len(forgotten)} window(s): what arrived there meanwhile is in its source at best, not in it. {error}"
    )


def verify_windows(
    site: RecoverySite, windows: Sequence[tuple[QName, Window | None]], mended: Object | None = None
) -> int:
    """Compare windows with their views' queries; gives how many are equal, raises if one is different.

    After the repair of a view a difference may be another view's: rows go past it until it is mended too, and its own repair compares them then.
    """
    zone = site.pipeline.settings.timezone
    reconciler = Reconciler(site.server, site.pipeline.catalog, zone, cluster=site.journal.cluster)
    equal, wrong = 0, []

    @cache
    def others_into(target: QName) -> str:
        return "" if mended is None else _find_others(site, target, mended)

    for name, window in windows:
        found: Reconciled = reconciler.run(site.pipeline.catalog.objects[name], window)
        if found.status == "different" and (others := others_into(name)):
            site.did(f"{name} {name_window(window, zone)}: {found.sentence()}. Left to the repair of {others}")
        elif found.status == "different":
            wrong.append(f"{name} {name_window(window, zone)}: {found.sentence()}")
        elif found.status == "equal":
            equal += 1
        else:
            site.log(f"{name} {name_window(window, zone)}: {found.sentence()}")
    if wrong:
        raise RecoveryFailed(
            f"repair: {len(wrong)} of {len(windows)} window(s) differ from their query after the rebuild but wanted all equal: {'; '.join(wrong[:5])}. "
            "The repair is tried again by itself; `chmv reconcile` shows what differs."
        )
    site.did(f"compared {len(windows)} window(s): {equal} equal, {len(windows) - equal} cannot be compared now")
    return equal


def _find_others(site: RecoverySite, target: QName, mended: Object) -> str:
    """The other views into a target that are wrong now, in words; nothing if the mended one is wrong again."""
    views = [view for view in site.pipeline.catalog.views_into(target) if view.kind == "materialized_view"]
    wrong = {view.name: damage for view in views if (damage := look_at(site, view).damage)}
    return "" if mended.name in wrong else ", ".join(f"{name}, which is {wrong[name]} now" for name in sorted(wrong))
