"""Repairs of kind "view": what `view_health_sensor` asks for. Each looks again first, mends in place, and then rebuilds what was missed.

    dropped, detached, unhooked, changed, rows missed → mend, then the windows of what arrived meanwhile
    throws, isolate → try on the side: works → as above; fails → isolated        probe → the same for a view that is isolated
    target dropped, partition lost, deficit → `targets`        refresh failed → refreshed

Invariant: an outage is closed only when its windows were compared. Detaching or re-creating alone would lose rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.outages import Outage
from chmv_assets.core.recovery import Ask, Outcome
from chmv_assets.core.window_text import name_window
from chmv_assets.core.windows import Window
from chmv_assets.recovery.arrivals import MARGIN_MS, drain_inserts, find_windows
from chmv_assets.recovery.isolation import dry_run, isolate, route_readers, take_off, told_isolated
from chmv_assets.recovery.mending import has_inner_table, hook, is_made_anew, look_at, mend_view
from chmv_assets.recovery.outage_book import close_outages, note_damage, open_outage, read_open, strike
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.targets import refill, repair_deficit, repair_partitions, restore_target
from chmv_assets.recovery.windows import align, repair_windows
from resources.introspect import fetch_existing
from resources.rebuild.recovery import recover_rebuilds
from resources.reconcile import Reconciler
from resources.refresh import refresh_view


def recover(site: RecoverySite, ask: Ask) -> Outcome:
    """Carry out what the view health sensor asked for. A rebuild that was killed is cleared away first: a fence that it left keeps rows apart, and to give the
    view back its query would double them."""
    recover_rebuilds(site.executor, site.journal)
    made = site.declared(ask)
    if made.kind not in VIEW_KINDS:
        return _recover_target(site, ask, made)
    if made.target is not None and _is_missing(site, made):
        raise RecoveryFailed(
            f"view {made.name}: its target {made.target} is missing but has to be there first. It has a repair of its own. "
            "This one is tried again by itself."
        )
    if ask.damage == "refresh failed":
        return refresh(site, made)
    if ask.damage in ("throws", "isolate"):
        return judge(site, ask, made)
    if ask.damage == "probe":
        return probe(site, ask, made)
    return mend(site, ask, made)


def _recover_target(site: RecoverySite, ask: Ask, target: Object) -> Outcome:
    if ask.damage == "partition lost":
        return repair_partitions(site, ask, target)
    if ask.damage == "deficit":
        return repair_deficit(site, ask, target)
    if ask.damage == "rows missed" and target.name in fetch_existing(site.server, [target.name]):
        open_outage(site, ask)
        outcome = refill(site, target)
        close_outages(site, target.name)
        return outcome
    return restore_target(site, ask, target)


def _is_missing(site: RecoverySite, view: Object) -> bool:
    assert view.target is not None
    target = site.pipeline.catalog.objects.get(view.target)
    is_stored = target is not None and target.kind == "table"
    return is_stored and view.target not in fetch_existing(site.server, [view.target])


def mend(site: RecoverySite, ask: Ask, view: Object) -> Outcome:
    """Put a view back and rebuild what it missed."""
    outage = open_outage(site, ask)
    before = look_at(site, view)
    if is_made_anew(before) and (before.damage == "changed" or has_inner_table(site, view)):
        outage = note_damage(site, outage, "dropped")  # so that the next try knows, if this one breaks off
    if not mend_view(site, view):
        if outage.damage in ("dropped", "unhooked"):  # maybe created by a try that broke off then
            hook(site, view)
        site.did(f"{view.name} is as declared; what it may have missed is rebuilt")
    drain_inserts(site)
    is_emptied = _is_emptied(site, view, outage)
    since = None if is_emptied or ask.since_ms is None else min(ask.since_ms, outage.opened_ms)
    outcome = rebuild_missed(site, view, since, before.damage or ask.damage)
    close_outages(site, view.name)
    return outcome


def _is_emptied(site: RecoverySite, view: Object, outage: Outage) -> bool:
    """Whether a view's own table went in an outage: nothing in it is known to be right any more."""
    return outage.damage == "dropped" and has_inner_table(site, view)


def rebuild_missed(site: RecoverySite, view: Object, since_ms: int | None, was: str) -> Outcome:
    """Rebuild the windows of what arrived since a moment, or tell that nothing did."""
    if view.kind == "refreshable_view":
        return refresh(site, view, was)
    arrived = find_windows(site, view, since_ms)
    windows = [*arrived, *find_unarrived(site, view, since_ms, arrived)]
    if not windows or view.target is None or view.target not in site.pipeline.catalog.objects:
        since = (
            "ever"
            if since_ms is None
            else f"{(site.now_ms() - since_ms) / 1000:.0f} s ago, with a margin of {MARGIN_MS // 1000} s"
        )
        site.did(f"nothing arrived for {view.name} since {since}: nothing to rebuild")
        return Outcome(tier=1, steps=tuple(site.steps), before={"view": was}, after={"view": "as declared"})
    done = repair_windows(site, site.pipeline.catalog.objects[view.target], windows, view)
    return Outcome(
        tier=2, steps=tuple(site.steps), rebuilt=tuple(done.rebuilt), reconciled=done.reconciled,
        before={"view": was, "rows": str(done.rows_before)}, after={"view": "as declared", "rows": str(done.rows_after)},
    )  # fmt: skip


def find_unarrived(site: RecoverySite, view: Object, since_ms: int | None, arrived: Sequence[Window]) -> list[Window]:
    """Windows that differ although nothing arrived there by the arrival column: writers may have given it a value of their own.

    `arrived` are rebuilt anyway. Only windows of parts that changed are looked at, and only those that differ are rebuilt.
    """
    catalog, settings = site.pipeline.catalog, site.pipeline.settings
    trigger = catalog.trigger_of(view.name)
    target = catalog.objects.get(view.target) if view.target is not None else None
    if trigger is None or target is None or since_ms is None or settings.policy(trigger).arrival is None:
        return []
    sure = set(align(site.pipeline, target, arrived))
    reconciler = Reconciler(site.server, catalog, settings.timezone, cluster=site.journal.cluster)
    found: list[Window] = []
    for window in align(site.pipeline, target, find_windows(site, view, since_ms, by_arrival=False)):
        if window is not None and window not in sure and reconciler.run(target, window).status == "different":
            named = name_window(window, settings.timezone)
            site.did(
                f"{target.name} {named} differs although nothing arrived there by {settings.policy(trigger).arrival}; rebuilt too"
            )
            found.append(window)
    return found


def judge(site: RecoverySite, ask: Ask, view: Object) -> Outcome:
    """A view that throws, or whose repair failed too often: it is taken off only if its query fails on the side too."""
    standing = look_at(site, view)
    if ask.damage == "throws" and standing.damage:
        site.did(f"{view.name} is {standing.damage}, which explains that it throws")
        return mend(site, ask, view)
    error = dry_run(site, view, ask.since_ms)
    if error:
        return isolate(site, ask, view, error)
    site.did(f"the query of {view.name} works over all rows that arrived since")
    return mend(site, ask, view)


def probe(site: RecoverySite, ask: Ask, view: Object) -> Outcome:
    """Try an isolated view on the side; attach it if that works, and rebuild exactly what it missed."""
    outage = read_open(site, view.name)
    since = ask.since_ms if outage is None else outage.opened_ms
    if error := dry_run(site, view, since):
        if not look_at(site, view).damage:
            take_off(site, view)  # somebody attached it, and it still throws
        outage = strike(site, outage or open_outage(site, ask, "isolated"))
        route_readers(site, view, "snapshot", f"{view.name} is isolated: {error}"[:500], ask.evidence)
        return told_isolated(site, outage, error)
    site.did(f"the query of {view.name} works again over all rows of the outage")
    mend_view(site, view)
    drain_inserts(site)
    if outage is not None and _is_emptied(site, view, outage):
        since = None
    outcome = rebuild_missed(site, view, since, "isolated")
    route_readers(site, view, "primary", f"{view.name} is back and its windows are compared", ask.evidence)
    close_outages(site, view.name)
    return outcome


def refresh(site: RecoverySite, view: Object, was: str = "refresh failed") -> Outcome:
    """Refresh a refreshable view and know that it worked; what is wrong with it is mended before."""
    mend_view(site, view)
    done = refresh_view(site.executor, view.name)
    site.did(f"refreshed {view.name}: {done.rows} rows, {done.seconds:.2f} s")
    rebuilt = ((view.target, None),) if view.target is not None else ()
    return Outcome(
        tier=1, steps=tuple(site.steps), rebuilt=rebuilt, before={"view": was}, after={"view": "refreshed", "rows": str(done.rows)}
    )  # fmt: skip
