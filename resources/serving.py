"""Serving views, snapshots and routes on the server. What they are made of is in `core.serving`.

Invariants: a snapshot takes a partition only while the primary still has it and no rebuild of ours touches the target; a lost partition, a
target with an open outage, or one whose readers are on the snapshot is never copied over. Reading costs a constant number of queries.
Snapshots and views live on the server that we speak to, also on a cluster: their guards are of that server's copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.deploy_journal import DEPLOY_LOCK
from chmv_assets.core.errors import LockRefused, RouteRefused, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import lease_name
from chmv_assets.core.serving import (
    ANY_BLOCK,
    SERVING_DATABASE,
    SNAPSHOT_DATABASE,
    UNGUARDED,
    WHOLE,
    CopyPlan,
    Held,
    copy_survived,
    describe_copy,
    is_guarded,
    least_offset,
    mark_in,
    plan_copy,
    render_guard_view,
    render_snapshot_view,
    serving_names,
    serving_targets,
    side_name,
    snapshot_name,
    snapshot_refusal,
    twin_name,
)
from chmv_assets.core.serving_journal import (
    Guard,
    Route,
    RouteRecord,
    write_guards,
    write_route,
)
from resources.clickhouse import Server
from resources.executor import Executor
from resources.introspect import fetch_existing
from resources.journal import Journal
from resources.serving_live import Live, fetch_live, fetch_routes

_AT_ONCE = 100  # partitions per statement
_LEASE_SECONDS = 120.0
_EMPTIED = frozenset({36, 60, 218, 232, 248})  # the partition or the table went while it was copied
_NOT_READ = ("MATERIALIZED", "ALIAS", "EPHEMERAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult:
    """What a refresh did for one target."""

    target: QName
    copied: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    rows: int = 0  # of the copied partitions
    seconds: float = 0.0
    skipped: str = ""  # why nothing was done, or not all
    snapshot_ms: int = 0  # when the snapshot was last complete
    complete: bool = False  # nothing was left out this time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """Targets whose copies have another shape, have no copies, whose view is not what it should be."""

    stale: Sequence[Object]
    new: Sequence[Object]
    views: Sequence[Object]

    def __bool__(self) -> bool:
        return bool(self.stale or self.new or self.views)


@dataclass
class Router:
    """Serving views of one catalog on one server. Not for sharing between threads."""

    server: Server
    journal: Journal
    catalog: Catalog
    max_age_seconds: float
    log: Callable[[str], None] = lambda _line: None
    clock: Callable[[], float] = time.time
    only_declared: bool = (
        False  # views ask for no column that is not declared: during a deployment, those are about to go
    )
    deploying: bool = False  # it is a deployment that asks, and holds their lock
    _names: dict[QName, QName] = field(default_factory=dict)

    @cached_property
    def executor(self) -> Executor:
        return Executor(self.server, log=self.log, cluster=self.journal.cluster)

    def targets(self) -> tuple[Object, ...]:
        return serving_targets(self.catalog)

    def view_of(self, target: QName) -> QName:
        self._names = self._names or serving_names(one.name for one in self.targets())
        return self._names[target]

    def look(self, targets: Sequence[Object]) -> Live:
        """How targets and their snapshots stand now."""
        return fetch_live(self.server, self.journal.cluster, [one.name for one in targets])

    def read_routes(self) -> dict[QName, RouteRecord]:
        """The present route of each target that was ever switched; all others are on the primary."""
        return fetch_routes(self.server, self.journal.cluster)

    def ensure(self, targets: Sequence[Object] | None = None, live: Live | None = None) -> tuple[QName, ...]:
        """Make what is missing of databases, snapshots, twins and views; gives the views that were made anew.

        A deployment looks after the readers of what it changes. While somebody else's runs, everything stays as it is.
        """
        targets = self.targets() if targets is None else targets
        self.journal.prepare()
        live = live or self.look(targets)
        if not self._find_missing(targets, live):
            return ()
        if self.deploying:
            return self._make(targets, live)
        try:
            with self.journal.locks.hold(DEPLOY_LOCK, self.journal.owner, lease_seconds=_LEASE_SECONDS):
                return self._make(targets, self.look(targets))  # one may have ended since
        except LockRefused:
            self.log("serving views: a deployment is under way, they are made after it")
            return ()

    def _make(self, targets: Sequence[Object], live: Live) -> tuple[QName, ...]:
        missing = self._find_missing(targets, live)
        if missing:
            for database in (SNAPSHOT_DATABASE, SERVING_DATABASE):
                self.executor.create_database(database)
        for target in missing.stale:
            self._unguard_all(target, live)
            self.renew(target.name)
        for target in (one for one in missing.new if one not in missing.stale):
            if target.name in live.uuids:
                self.executor.create_like(twin_name(target.name), target.name)
            self.executor.create_like(snapshot_name(target.name), twin_name(target.name))
        for target in missing.views:
            self.executor.run_ddl(str(self.view_of(target.name)), self._render(target, live))
        return tuple(self.view_of(one.name) for one in missing.views)

    def _find_missing(self, targets: Sequence[Object], live: Live) -> _Missing:
        there = [one for one in targets if one.name in live.uuids or twin_name(one.name) in live.uuids]
        stale = [one for one in there if self._shape_changed(one, live)]
        marks = {one.name: mark_in(self._render(one, live)) for one in there}
        return _Missing(
            stale=stale,
            new=[one for one in there if not {twin_name(one.name), snapshot_name(one.name)} <= live.uuids.keys()],
            views=[one for one in there if one in stale or live.marks.get(self.view_of(one.name)) != marks[one.name]],
        )

    def renew(self, target: QName) -> None:
        """Empty copies of the target's present shape take the place of those that are there: a reader's view never lacks a table that it names."""
        fresh = side_name(target)
        for table, model in ((twin_name(target), target), (snapshot_name(target), twin_name(target))):
            self.executor.drop_table(fresh)
            self.executor.create_like(fresh, model)
            self.executor.create_like(table, model)  # if it is missing
            self.executor.run_ddl(f"renew {table}", f"EXCHANGE TABLES {fresh.sql} AND {table.sql}")
        self.executor.drop_table(fresh)

    def narrow(self, targets: Sequence[Object]) -> tuple[Object, ...]:
        """Views on the primary stop to ask for columns that are not declared any more, before these go; gives the targets of those views."""
        there = fetch_existing(self.server, [self.view_of(one.name) for one in targets])
        served = [one for one in targets if self.view_of(one.name) in there]
        if not served:
            return ()
        live = self.look(served)
        narrowed: list[Object] = []
        for target in served:
            view, listed = self.view_of(target.name), self._all_columns(target, live)
            kept = _declared(target, listed)
            if self._route(target.name, live) == "primary" and 0 < len(kept) < len(listed):
                self.executor.run_ddl(str(view), render_guard_view(view, target, kept))
                narrowed.append(target)
        return tuple(narrowed)

    def _shape_changed(self, target: Object, live: Live) -> bool:
        """Whether the target has other columns than its snapshot; one that readers are on is left alone."""
        now, copied = live.columns.get(target.name), live.columns.get(snapshot_name(target.name))
        return bool(now and copied and now != copied) and self._route(target.name, live) == "primary"

    def _route(self, target: QName, live: Live) -> Route:
        return live.routes[target].route if target in live.routes else "primary"

    def _render(self, target: Object, live: Live, route: Route | None = None) -> str:
        render = render_guard_view if (route or self._route(target.name, live)) == "primary" else render_snapshot_view
        return render(self.view_of(target.name), target, self._columns(target, live))

    def _columns(self, target: Object, live: Live) -> list[str]:
        listed = self._all_columns(target, live)
        return (_declared(target, listed) or listed) if self.only_declared else listed

    def _all_columns(self, target: Object, live: Live) -> list[str]:
        """What `SELECT *` of a target gives; of a target that is gone, what it gave."""
        listed = live.columns.get(target.name) or live.columns.get(twin_name(target.name)) or ()
        return [name for name, _, kind in listed if kind not in _NOT_READ]

    def refresh_snapshots(self, targets: Sequence[Object] | None = None) -> list[SnapshotResult]:
        """Copy partitions that changed since they were copied last, by links."""
        targets = self.targets() if targets is None else targets
        self.journal.prepare()
        live = self.look(targets)
        if self.ensure(targets, live):
            live = self.look(targets)
        results = [self._refresh(target, live) for target in targets]
        self._write([self._whole(one) for one in results if one.complete])
        return results

    def _whole(self, result: SnapshotResult) -> Guard:
        version = self.journal.versions.next()
        return Guard(
            target=result.target, partition_id=WHOLE, max_block=UNGUARDED, copied_ms=result.snapshot_ms, version=version
        )  # fmt: skip

    def _refresh(self, target: Object, live: Live) -> SnapshotResult:
        name, started = target.name, self.clock()
        present = SnapshotResult(target=name, snapshot_ms=live.snapshot_ms(name), lost=live.lost(name))
        if why := self._why_not(target, live):
            return _skipped(present, why)
        plan = self._plan(target, live)
        if not plan.copy and not plan.drop:
            return self._complete(present, plan, started)
        try:
            lock = self.journal.locks.hold(lease_name(name), self.journal.owner, lease_seconds=_LEASE_SECONDS)
            with lock:
                live = self.look([target])  # a rebuild may have ended since
                plan = self._plan(target, live)
                present = self._copy(target, plan, live, present)
        except LockRefused:
            return _skipped(present, "a rebuild holds the target")
        except ServerError as error:
            if error.code not in _EMPTIED:
                raise
            return _skipped(present, f"it changed while it was copied: {error}")
        return self._complete(present, plan, started)

    def _why_not(self, target: Object, live: Live) -> str:
        if target.name not in live.uuids:
            return "there is no such table on the server"
        if self._route(target.name, live) == "snapshot":
            return "readers are on the snapshot"
        if snapshot_name(target.name) not in live.uuids or self._shape_changed(target, live):
            return "its copies have to be made anew, and a deployment is under way"
        broken = [view.name for view in self.catalog.views_into(target.name) if view.name in live.outages]
        return f"{broken[0]} has an open outage: {live.outages[broken[0]].damage}" if broken else ""

    def _plan(self, target: Object, live: Live) -> CopyPlan:
        name = target.name
        copied = live.parts.get(snapshot_name(name), {})
        return plan_copy(live.parts.get(name, {}), copied, live.guards.get(name, {}), live.uuids.get(name, ""))

    def _copy(self, target: Object, plan: CopyPlan, live: Live, present: SnapshotResult) -> SnapshotResult:
        """Copy to the side, look again, then into the snapshot, then guard."""
        name, side, executor = target.name, side_name(target.name), self.executor
        before = live.parts.get(name, {})
        good: list[str] = []
        if plan.copy:
            executor.drop_table(side)
            executor.create_like(side, name)
            for ids in _chunks(plan.copy):
                executor.replace_partitions(side, ids, name)
            now = self.look([target])
            if now.uuids.get(name) == live.uuids.get(name):
                held = now.parts.get(name, {})
                good = [one for one in plan.copy if copy_survived(target, before[one], held.get(one))]
            for ids in _chunks(good):
                executor.replace_partitions(snapshot_name(name), ids, side)
        for one in plan.drop:
            executor.drop_partition(snapshot_name(name), one)
        guarded = is_guarded(self.catalog, name)
        self._write(
            [
                *(self._guard(target, one, before[one], live, guarded=guarded) for one in good),
                *(self._released(name, one) for one in plan.drop),
            ]
        )
        executor.drop_table(side)
        left = len(plan.copy) - len(good)
        return SnapshotResult(
            target=name, copied=tuple(good), lost=plan.lost, rows=sum(before[one].rows for one in good),
            skipped=f"{left} partition(s) were lost while they were copied" if left else "", snapshot_ms=present.snapshot_ms,
        )  # fmt: skip

    def _guard(self, target: Object, partition_id: str, held: Held, live: Live, *, guarded: bool) -> Guard:
        uuid = live.uuids[target.name]
        return Guard(
            target=target.name, partition_id=partition_id, max_block=held.max_block if guarded else UNGUARDED, table_uuid=uuid,
            copied=describe_copy(uuid, held, least_offset(target, held)), copied_ms=self._now_ms(), version=self.journal.versions.next(),
        )  # fmt: skip

    def _complete(self, done: SnapshotResult, plan: CopyPlan, started: float) -> SnapshotResult:
        """It is as the primary was when we began, unless something was left out."""
        complete = not plan.lost and not done.skipped
        at_ms = int(started * 1000) if complete else done.snapshot_ms
        return replace(done, lost=plan.lost, seconds=self.clock() - started, snapshot_ms=at_ms, complete=complete)

    def switch(self, target: QName, route: Route, reason: str, evidence: str) -> RouteRecord:
        """Send readers of a target to the primary or to its snapshot, atomically, and note it; refuses a snapshot that is too old."""
        made = self.catalog.objects.get(target)
        if made is None or made not in self.targets():
            raise RouteRefused(
                f"target {target}: found no serving view for it but wanted one to switch. Hidden inner tables, and tables that are not of the "
                "MergeTree family, have none. Give the view a table of its own with TO."
            )
        live = self.look([made])
        self.ensure([made], live)
        live = self.look([made])
        present = live.routes.get(target)
        if (present.route if present else "primary") == route:
            return present or RouteRecord(target=target, route=route)
        refused = snapshot_refusal(target, live.snapshot_ms(target), self._now_ms(), self.max_age_seconds)
        if route == "snapshot" and refused:
            raise RouteRefused(refused)
        record = RouteRecord(
            target=target, route=route, reason=reason, evidence=evidence, snapshot_ms=live.snapshot_ms(target), owner=self.journal.owner,
            version=self.journal.versions.next(above=present.version if present else 0), switched_ms=self._now_ms(),
        )  # fmt: skip
        self.journal.run(write_route(record, self.journal.cluster))  # first: `ensure` finishes what a crash leaves
        self.executor.run_ddl(str(self.view_of(target)), self._render(made, live, route))
        self.log(f"{target}: readers read the {route} now. {reason}")
        return record

    def release(self, target: QName, partition_ids: Iterable[str]) -> None:
        """Let readers have partitions of the primary again that were lost there and are right now."""
        uuid = self.look([self.catalog.objects[target]]).uuids.get(target, "")
        self._write(
            [
                Guard(
                    target=target,
                    partition_id=one,
                    max_block=ANY_BLOCK,
                    table_uuid=uuid,
                    copied_ms=self._now_ms(),
                    version=self.journal.versions.next(),
                )
                for one in partition_ids
            ]
        )

    def _unguard_all(self, target: Object, live: Live) -> None:
        self._write([self._released(target.name, one) for one in live.guards.get(target.name, {})])

    def _released(self, target: QName, partition_id: str) -> Guard:
        return Guard(
            target=target, partition_id=partition_id, max_block=UNGUARDED, version=self.journal.versions.next()
        )

    def _write(self, guards: Sequence[Guard]) -> None:
        for first in range(0, len(guards), 1000):
            self.journal.run(write_guards(guards[first : first + 1000], self.journal.cluster))

    def _now_ms(self) -> int:
        return int(self.clock() * 1000)


def _declared(target: Object, names: Iterable[str]) -> list[str]:
    declared = {column.name for column in target.columns}
    return [name for name in names if name in declared]


def _skipped(present: SnapshotResult, why: str) -> SnapshotResult:
    return SnapshotResult(target=present.target, lost=present.lost, skipped=why, snapshot_ms=present.snapshot_ms)


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))
