"""Taking a view off that throws, and trying it on the side until it works again.

A view that throws makes every insert into its source fail, also for its siblings. Off means detached for good: it stays off
after a restart, inserts and siblings go on, readers of its target see the snapshot, and the journal knows since when rows are missing.
Invariant: a view is attached again only after its query has worked over all rows of the outage, into an empty twin of its target.
"""

from __future__ import annotations

from contextlib import suppress

from chmv_assets.core.errors import ChmvError, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.outages import Outage
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.recovery import Ask, Outcome
from chmv_assets.core.serving_journal import Route
from chmv_assets.recovery.arrivals import fetch_changed
from chmv_assets.recovery.outage_book import open_outage, read_isolated, strike
from chmv_assets.recovery.routes import open_router
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.windows import affected_targets
from resources.executor import Executor
from resources.inner_tables import fetch_real_names
from resources.introspect import describe_select, fetch_columns

DRY_RUN_SECONDS = 120
# Too long, out of memory, too many queries, cancelled, no connection: they say nothing about the view.
_PASSING = frozenset({159, 160, 202, 209, 210, 241, 394})


def dry_run(site: RecoverySite, view: Object, since_ms: int | None) -> str:
    """Run a view's query over what arrived since a moment, into nothing; gives the error, or nothing if it works."""
    catalog = site.pipeline.catalog
    trigger = catalog.trigger_of(view.name)
    if trigger is None or view.target is None or not catalog.objects[trigger].engine.endswith("MergeTree"):
        return ""
    real = fetch_real_names(site.server, catalog, [trigger, view.target])
    changed = fetch_changed(site, real[trigger], since_ms)
    if not changed.is_any:
        return ""
    probe = QName(OWN_DATABASE, f"probe.{view.name.database}.{view.name.table}.{site.journal.versions.next()}")
    executor = Executor(
        site.server, log=site.log, bounds={"max_execution_time": DRY_RUN_SECONDS, "max_threads": 1, "async_insert": 0}
    )
    try:
        executor.run_ddl(f"create {probe}", f"CREATE TABLE {probe.sql} AS {real[view.target].sql} ENGINE = Null")
        sql = _render_insert(site, view, probe)
        executor.insert_select(probe, sql, real[trigger], changed.where(), view.session_database)
    except ServerError as error:
        if error.code in _PASSING:
            raise
        return str(error)
    finally:
        with suppress(ServerError):
            executor.drop_table(probe)
    return ""


def _render_insert(site: RecoverySite, view: Object, probe: QName) -> str:
    """Columns go by name, as the trigger itself does it."""
    held = {name for name, _, kind in fetch_columns(site.server, probe) if kind not in ("MATERIALIZED", "ALIAS")}
    outputs = [name for name, _ in describe_select(site.server, view.select, view.session_database)]
    columns = ", ".join(quote_identifier(name) for name in outputs if name in held)
    return f"INSERT INTO {probe.sql} ({columns}) SELECT {columns} FROM ({view.select})"


def isolate(site: RecoverySite, ask: Ask, view: Object, why: str) -> Outcome:
    """Take a view off; the outage is noted first, so that a crash in between is found."""
    outage = open_outage(site, ask, "isolated")
    take_off(site, view)
    outage = strike(site, outage)
    route_readers(site, view, "snapshot", f"{view.name} is isolated: {why}"[:500], ask.evidence)
    return told_isolated(site, outage, why)


def take_off(site: RecoverySite, view: Object) -> None:
    """Detach a view for good, if it is there."""
    sql = f"DETACH TABLE IF EXISTS {view.name.sql} PERMANENTLY SYNC"
    site.executor.run_ddl(f"isolate {view.name}", sql)
    site.did(f"isolated {view.name}: detached permanently; its siblings and inserts into its source go on")


def told_isolated(site: RecoverySite, outage: Outage, why: str) -> Outcome:
    """The outcome of a view that stays off."""
    after = {"view": "isolated", "missing since (ms)": str(outage.opened_ms), "tries": str(outage.strikes)}
    site.did(
        f"rows of {outage.view} are missing since {outage.opened_ms} ms; they come back with it. It fails with: {why[:300]}"
    )
    return Outcome(tier=3, steps=tuple(site.steps), before={"view": "throws"}, after=after, status="isolated")


def route_readers(site: RecoverySite, view: Object, route: Route, reason: str, evidence: str) -> None:
    """Let readers of a view's target, and of what is computed from it, read the snapshot or the primary; best effort, and told."""
    if view.target is None or view.target not in site.pipeline.catalog.objects:
        return
    router = open_router(site)
    kept = _kept_off(site, view) if route == "primary" else frozenset()
    for target in affected_targets(site.pipeline, site.pipeline.catalog.objects[view.target]):
        if target.name in kept:
            site.did(f"readers of {target.name} stay on the snapshot: another view that it needs is isolated")
            continue
        try:
            router.switch(target.name, route, reason, evidence)
            site.did(f"readers of {target.name} read the {route} now")
        except ChmvError as error:
            site.did(f"readers of {target.name} stay where they are: {error}")


def _kept_off(site: RecoverySite, view: Object) -> frozenset[QName]:
    """Targets that lack rows because of other views that are isolated."""
    objects = site.pipeline.catalog.objects
    others = [objects.get(one.view) for one in read_isolated(site) if one.view != view.name]
    targets = [
        objects[one.target] for one in others if one is not None and one.target is not None and one.target in objects
    ]
    return frozenset(made.name for target in targets for made in affected_targets(site.pipeline, target))
