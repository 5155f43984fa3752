"""Reconciliation on the server: compare a window of a target with what its views give, also while inserts arrive.

A difference counts only when nothing moved meanwhile: the inserts that ran before have ended, and the sources' and the target's highest blocks
are the same before and after; or when the same keys differ in the same way twice, with all inserts of the first time ended in between. Otherwise it
is tried again, and in the end said that it cannot be told. Nothing is ever written. What is compared, and how, is in `core.reconcile`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.measures import LeftOut
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_map
from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.reconcile import (
    Comparison,
    Share,
    StoredColumn,
    build_comparison,
    eaten_by_ttl,
    source_filters,
    window_condition,
)
from chmv_assets.core.reconcile_sql import (
    Counts,
    Sample,
    decode_counts,
    decode_sample,
    render_counts,
    render_samples,
)
from chmv_assets.core.windows import Window
from resources.clickhouse import Server
from resources.executor import Executor
from resources.introspect import describe_select
from resources.rebuild.workbench import Workbench
from resources.shares import build_shares, fetch_stored_columns
from resources.stillness import ARRIVING, Watch

MAX_TRIES = 5
FIRST_WAIT_SECONDS = 0.2
BOUNDS: Mapping[str, Any] = {
    "max_execution_time": 300,
    "timeout_overflow_mode": "throw",
    "max_bytes_before_external_group_by": 512 * 2**20,
    "max_bytes_before_external_sort": 512 * 2**20,
}
Status = Literal["equal", "different", "cannot tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The verdict on one window."""

    target: QName
    window: Window | None  # None: the whole target
    status: Status
    reason: str = ""  # why it cannot be told, or what else a difference may mean
    opaque: bool = False  # some view's result depended on more than its rows
    compared: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    counts: Counts | None = None
    samples: tuple[Sample, ...] = ()
    tries: int = 0
    seconds: float = 0.0

    @property
    def keys(self) -> int:
        return self.counts.keys if self.counts is not None else 0

    @property
    def deficit(self) -> int:
        return self.counts.deficit if self.counts is not None else 0

    @property
    def excess(self) -> int:
        return self.counts.excess if self.counts is not None else 0

    @property
    def changed(self) -> int:
        return self.counts.changed if self.counts is not None else 0

    def sentence(self) -> str:
        """The verdict in words."""
        if self.counts is None:
            return f"cannot tell: {self.reason}"
        if self.status == "equal":
            return f"{self.keys} keys are equal" if self.keys else "empty on both sides"
        numbers = (
            (self.counts.missing, "missing"), (self.counts.smaller, "smaller"), (self.counts.extra, "not expected"),
            (self.counts.larger, "larger"), (self.changed, "with other values"),
        )  # fmt: skip
        found = f"of {self.keys} keys " + ", ".join(f"{number} {what}" for number, what in numbers if number)
        sums = "".join(f"; {one.column}: {one.lacking} lacking, {one.too_much} too much" for one in self.counts.sums)
        start = "cannot tell: " if self.status == "cannot tell" else ""
        return f"{start}{found}{sums}{f'. {self.reason}' if self.reason else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    comparison: Comparison
    feeds: tuple[Feed, ...]
    settings: Mapping[str, Any]
    upstream: tuple[QName, ...]  # of a refreshable view
    refreshed_by: QName | None = None


@dataclass
class Reconciler:
    """Compares windows of one catalog's targets on one server."""

    server: Server
    catalog: Catalog
    timezone: str
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    cluster: str = ""  # whose replicas insert as well; compared is this one
    _bench: Workbench | None = None

    @property
    def bench(self) -> Workbench:
        if self._bench is None:
            executor = Executor(self.server, log=lambda _: None, cluster=self.cluster)
            self._bench = Workbench(executor, self.catalog, self.timezone, self.now, self.sleep, self.clock)
        return self._bench

    def run(self, target: Object, window: Window | None) -> Reconciled:
        """Give the verdict on a window; a window that no comparison is possible for gets one too."""
        started = self.clock()
        self.bench.begin()
        try:
            prepared = self._prepare(target, window)
        except (CannotCompare, RebuildRefused) as error:
            return self._untold(target, window, started, str(error))
        except ServerError as error:
            return self._untold(target, window, started, self._server_words(error))
        try:
            return self._compare(target, window, prepared, started)
        except ServerError as error:
            return self._untold(target, window, started, self._server_words(error), prepared.comparison)

    def _untold(
        self, target: Object, window: Window | None, started: float, why: str, comparison: Comparison | None = None
    ) -> Reconciled:
        return Reconciled(
            target=target.name, window=window, status="cannot tell", reason=why, seconds=self.clock() - started,
            left_out=comparison.form.left_out if comparison is not None else (),
        )  # fmt: skip

    def _server_words(self, error: ServerError) -> str:
        if error.code is None:  # no answer at all: that is no verdict
            raise error
        if error.code in (159, 241):
            return f"the comparison was too large for the server ({error.code_name}). Compare a smaller window"
        return f"the server refused the comparison: {error}"

    # --- what is compared ------------------------------------------------------------------------------------------

    def _prepare(self, target: Object, window: Window | None) -> _Prepared:
        views = self.catalog.views_into(target.name)
        if not views:
            raise CannotCompare(f"no view writes into {target.name}")
        columns = self._columns(self._real(target).name)
        if any(view.kind == "refreshable_view" for view in views):
            return self._prepare_refreshed(target, views, columns)
        feeds = tuple(self._feed(view, target, window) for view in views)
        shares = build_shares(self.bench, feeds, columns)
        condition = window_condition(columns, feeds[0], self.timezone)
        filters = source_filters(target.name, feeds)
        return _Prepared(
            comparison=build_comparison(self._real(target), columns, shares, condition), feeds=feeds, upstream=(),
            settings=self._settings(views, filters),
        )  # fmt: skip

    def _real(self, target: Object) -> Object:
        """The target under the name that it has on the server; a hidden inner table has another one there."""
        return replace(target, name=self.bench.real_name(target.name))

    def _feed(self, view: Object, target: Object, window: Window | None) -> Feed:
        trigger = self.catalog.trigger_of(view.name)
        source = self.catalog.objects.get(trigger) if trigger is not None else None
        asked = window if target.name in self.catalog.schemes else None
        for table in (source, target):
            if table is not None and (why := eaten_by_ttl(table, asked, self.now())):
                raise CannotCompare(why)
        return self.bench.feed(view, window)[0]

    def _prepare_refreshed(self, target: Object, views: Sequence[Object], columns: Sequence[StoredColumn]) -> _Prepared:
        view = views[0]
        if len(views) > 1 or (view.refresh is not None and view.refresh.append):
            how = "appends to it" if len(views) == 1 else "is not the only view that writes it"
            raise CannotCompare(f"{view.name} {how} with every refresh, so what it holds is not what one SELECT gives")
        outputs = tuple(describe_select(self.server, view.select, self.bench.session(view)))
        share = Share(view=view, facts=self.catalog.facts.get(view.name), select=view.select, outputs=outputs)
        upstream = tuple(edge.source for edge in self.catalog.edges_into(view.name) if edge.kind != "after")
        return _Prepared(
            comparison=build_comparison(self._real(target), columns, [share], ""), feeds=(), upstream=upstream,
            refreshed_by=view.name, settings=self._settings(views, {}),
        )  # fmt: skip

    def _columns(self, name: QName) -> list[StoredColumn]:
        columns = fetch_stored_columns(self.server, name)
        if not columns:
            raise CannotCompare(f"{name} is not on the server")
        return columns

    def _settings(self, views: Sequence[Object], filters: Mapping[QName, str]) -> dict[str, Any]:
        settings = dict(BOUNDS)
        sessions = {self.bench.session(view) for view in views}
        if len(sessions) > 1:
            raise CannotCompare(
                f"unqualified names of its views belong to different databases: {', '.join(sorted(sessions))}"
            )
        if any(sessions):
            settings["database"] = next(iter(sessions))
        if filters:
            named = {f"{name.database}.{name.table}": condition for name, condition in filters.items()}
            settings["additional_table_filters"] = quote_map(named)
        return settings

    # --- comparing -------------------------------------------------------------------------------------------------

    def _compare(self, target: Object, window: Window | None, prepared: _Prepared, started: float) -> Reconciled:
        comparison = prepared.comparison
        watch = Watch(bench=self.bench, target=target, window=window, feeds=prepared.feeds, upstream=prepared.upstream)
        seen: set[Sample] = set()
        wait = FIRST_WAIT_SECONDS
        for attempt in range(1, MAX_TRIES + 1):
            before = watch.look()
            rows = self.server.rows(render_counts(comparison), settings=prepared.settings)
            counts = decode_counts(comparison, rows[0])
            samples: tuple[Sample, ...] = ()
            if not counts.is_equal:
                found = self.server.rows(render_samples(comparison), settings=prepared.settings)
                samples = tuple(decode_sample(comparison, row) for row in found)
            verdict = Reconciled(
                target=target.name, window=window, status="equal" if counts.is_equal else "different",
                opaque=bool(comparison.opaque), compared=comparison.compared, left_out=comparison.form.left_out,
                notes=comparison.form.notes, counts=counts, samples=samples, tries=attempt, seconds=self.clock() - started,
            )  # fmt: skip
            if counts.is_equal:
                return verdict
            if watch.is_still(before) or (before.drained and seen & set(samples)):
                return self._explained(verdict, prepared, watch.doubts(before))
            seen = set(samples)
            if attempt < MAX_TRIES:
                self.sleep(wait)
                wait *= 2
        return replace(verdict, status="cannot tell", reason=ARRIVING)

    def _explained(self, verdict: Reconciled, prepared: _Prepared, doubts: str) -> Reconciled:
        """A firm difference, with what it may mean; behind a refreshable view it says nothing if its sources have moved on."""
        if why := doubts or self._moved_since_refresh(prepared):
            return replace(verdict, status="cannot tell", reason=why)
        return replace(verdict, reason=". ".join(prepared.comparison.opaque))

    def _moved_since_refresh(self, prepared: _Prepared) -> str:
        view = prepared.refreshed_by
        if not prepared.upstream or view is None:
            return ""
        # Both of this replica, also on a cluster: what it holds is what was compared.
        refreshed = self.server.rows(
            "SELECT toUnixTimestamp(last_success_time), toString(last_success_time) FROM system.view_refreshes "
            "WHERE database = {d:String} AND view = {v:String} AND last_success_time IS NOT NULL",
            {"d": view.database, "v": view.table},
        )
        if not refreshed:
            return f"{view} has never refreshed. Materialize it and compare again"
        changed = self.server.rows(
            "SELECT database, table FROM system.parts WHERE active AND (database, table) IN {tables:Array(Tuple(String, String))} "
            "GROUP BY database, table HAVING toUnixTimestamp(max(modification_time)) >= {since:Int64}",
            {"tables": [(name.database, name.table) for name in prepared.upstream], "since": int(refreshed[0][0])},
        )
        if not changed:
            return ""
        names = ", ".join(f"{database}.{table}" for database, table in changed)
        return f"{names} may have changed since {view} was refreshed at {refreshed[0][1]}. Materialize it and compare again"
