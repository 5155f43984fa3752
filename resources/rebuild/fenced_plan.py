"""What a fenced rebuild would do, all of it known before anything is touched: names, queries, steps, or the reason why not.

Everything is taken from the live server where it can differ from the declared state: the views' queries (they have to be put back to
the letter), the columns of the sources, who else listens to the targets, and whose rights the views use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.fence import (
    Arrival,
    Diverted,
    FenceState,
    Shadow,
    fence_table,
    find_arrival,
    plan_fenced,
    render_before,
    render_condition,
    render_pair,
)
from chmv_assets.core.fence_rules import check_layers, check_rights, downstream_views, refused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE, Feed
from chmv_assets.core.rebuild_plan import Step, find_downstream, find_roots
from chmv_assets.core.windows import Window
from resources.introspect import describe_select, fetch_columns
from resources.rebuild.workbench import Workbench

_DEFINER = re.compile(r"DEFINER = (\S+) SQL SECURITY DEFINER")
_TWIN_RIGHTS = "DEFINER = CURRENT_USER SQL SECURITY DEFINER"  # writers need no right on shadows


@dataclass
class FencedPlan:
    """One rebuild, ready to be begun."""

    rebuild_id: str
    target: Object
    window: Window | None
    roots: tuple[QName, ...]
    state: FenceState
    steps: tuple[Step, ...]
    feeds: dict[QName, Feed]  # view → its share
    diverted: dict[QName, str]  # view → its query with the fence
    twins: dict[QName, str]  # twin → its CREATE statement
    columns: dict[QName, list[tuple[str, str]]]  # source → names and kinds of its columns
    arrivals: dict[QName, Arrival]  # by source

    @property
    def targets(self) -> tuple[QName, ...]:
        return tuple(shadow.target for shadow in self.state.shadows)

    def feed_before(self, view: QName, from_us: int) -> Feed:
        """A share of the rows from before the fence: the view's own SELECT over these rows."""
        from chmv_assets.core.retarget import narrow  # brings sqlglot along, which loading the location must not

        feed = self.feeds[view]
        source = feed.source.name
        condition = render_before(self.arrivals[source].column, from_us)
        select = narrow(feed.view, source, self.columns[source], condition)
        return replace(feed, view=replace(feed.view, select=select))


@dataclass(frozen=True, slots=True)
class _Live:
    """A view as the server has it."""

    select: str
    definer: str | None  # None: nobody, its rights are the writer's; "": no rights are asked for


def prepare_fenced(
    bench: Workbench, target: Object, window: Window | None, rebuild_id: str, lead_seconds: float, cluster: str = ""
) -> FencedPlan:
    """Plan a fenced rebuild of a window, or refuse it with the reason."""
    from chmv_assets.core.retarget import narrow, retarget

    catalog = bench.catalog
    behind = [catalog.objects[name] for name in find_downstream(catalog, target.name)]
    views = bench.rebuildable_views(target)
    check_layers(catalog, views, [target, *behind], cluster)
    feeds = {view.name: bench.feed(view, window)[0] for view in views}
    arrivals = {feed.source.name: found for feed in feeds.values() if (found := find_arrival(feed.source))}
    later = downstream_views(catalog, [target.name, *(one.name for one in behind)])
    live = _read_views(bench, [*views, *later])
    _check_listeners(bench, [target, *behind], later)
    shadows = {
        one.name: QName(SCRATCH_DATABASE, f"shadow.{rebuild_id}.{number}")
        for number, one in enumerate([target, *behind])
    }
    fence = fence_table(rebuild_id)
    columns = {
        source: [(name, kind) for name, _, kind in fetch_columns(bench.executor.server, source)] for source in arrivals
    }
    diverted: dict[QName, str] = {}
    twins: dict[QName, str] = {}
    for view in views:
        source = feeds[view.name].source.name
        texts = {
            inside: narrow(
                replace(view, select=live[view.name].select), source, columns[source],
                render_condition(arrivals[source].column, inside=inside), render_pair(fence),
            )
            for inside in (True, False)
        }  # fmt: skip
        diverted[view.name] = texts[False]
        twin = QName(SCRATCH_DATABASE, f"twin.{rebuild_id}.{len(twins)}")
        twins[twin] = _render_twin(twin, shadows[target.name], texts[True])
    for view in later:
        trigger = catalog.trigger_of(view.name)
        assert trigger is not None and view.target is not None
        text = retarget(replace(view, select=live[view.name].select), trigger, shadows[trigger])
        twin = QName(SCRATCH_DATABASE, f"twin.{rebuild_id}.{len(twins)}")
        twins[twin] = _render_twin(twin, shadows[view.target], text)
    _check_shapes(bench, views, live)
    check_rights(
        {view.name: live[view.name].definer for view in views}, list(arrivals), _read_grants(bench), _user(bench)
    )
    roots = find_roots(catalog, target.name)
    state = FenceState(
        fence=fence,
        scratch=QName(SCRATCH_DATABASE, f"scratch.{rebuild_id}.0"),
        views=tuple(Diverted(view.name, live[view.name].select) for view in views),
        twins=tuple(twins),
        shadows=tuple(Shadow(name, owner) for owner, name in shadows.items()),
        arrivals=tuple(arrivals.values()),
        lead_seconds=lead_seconds,
    )
    return FencedPlan(
        rebuild_id=rebuild_id, target=target, window=window, roots=roots, state=state,
        steps=plan_fenced(state, target.name, list(feeds), roots), feeds=feeds, diverted=diverted, twins=twins,
        columns=columns, arrivals=arrivals,
    )  # fmt: skip


def check_narrowed(bench: Workbench, plan: FencedPlan) -> None:
    """The fenced queries give the same columns as before; asked once the fence is there, since they read it."""
    for view in plan.state.views:
        before = describe_select(bench.executor.server, view.select)
        try:
            after = describe_select(bench.executor.server, plan.diverted[view.view])
        except ServerError as error:
            raise refused(
                f"view {view.view}", f"its query does not work over a part of its rows ({error})", "one that does"
            ) from error
        if after != before:
            raise refused(f"view {view.view}", "other columns over a part of its rows", "the same")


def _render_twin(twin: QName, shadow: QName, select: str) -> str:
    return f"CREATE MATERIALIZED VIEW IF NOT EXISTS {twin.sql} TO {shadow.sql} {_TWIN_RIGHTS} AS {select}"


def _read_views(bench: Workbench, views: Sequence[Object]) -> dict[QName, _Live]:
    rows = bench.executor.server.rows(
        "SELECT database, name, as_select, create_table_query FROM system.tables "
        "WHERE engine = 'MaterializedView' AND (database, name) IN {views:Array(Tuple(String, String))}",
        {"views": [(view.name.database, view.name.table) for view in views]},
    )
    found: dict[QName, _Live] = {}
    for database, name, select, sql in rows:
        head = str(sql)[: str(sql).rfind(str(select))]
        definer = _DEFINER.search(head)
        free = "SQL SECURITY NONE" in head
        found[QName(str(database), str(name))] = _Live(
            str(select), definer[1].strip("`'\"") if definer else "" if free else None
        )
    for view in views:
        if view.name not in found:
            raise refused(f"view {view.name}", "nothing of this name on the server", "a materialized view")
    return found


def _check_listeners(bench: Workbench, targets: Sequence[Object], known: Sequence[Object]) -> None:
    """A view that nobody declared would not see rows that wait: moving them fires nothing."""
    rows = bench.executor.server.rows(
        "SELECT database, name, arrayJoin(arrayZip(dependencies_database, dependencies_table)) AS hook FROM system.tables "
        "WHERE (database, name) IN {tables:Array(Tuple(String, String))}",
        {"tables": [(one.name.database, one.name.table) for one in targets]},
    )
    names = {view.name for view in known}
    hooks = {QName(str(hook[0]), str(hook[1])): QName(str(database), str(name)) for database, name, hook in rows}
    fired = {
        QName(str(database), str(name))
        for database, name in bench.executor.server.rows(
            "SELECT database, name FROM system.tables WHERE engine = 'MaterializedView' "
            "AND position(create_table_query, ' REFRESH ') = 0 AND (database, name) IN {views:Array(Tuple(String, String))}",
            {"views": [(hook.database, hook.table) for hook in hooks]},
        )
    }
    for hook in sorted(fired - names):
        raise refused(
            f"view {hook}",
            f"it is fired by {hooks[hook]} and declared nowhere",
            "every view behind the target declared",
        )


def _check_shapes(bench: Workbench, views: Sequence[Object], live: dict[QName, _Live]) -> None:
    """MODIFY QUERY writes a view's columns anew; those that were given by hand could not be put back."""
    for view in views:
        written = [(name, kind) for name, kind, _ in fetch_columns(bench.executor.server, view.name)]
        if written != describe_select(bench.executor.server, live[view.name].select):
            raise refused(f"view {view.name}", "columns that were declared by hand", "those that its query gives")


def _read_grants(bench: Workbench) -> list[tuple[str, str, str | None, str | None, bool]]:
    """Who may do what, as far as INSERT and SELECT go: user or role, access, database, table, whether it is taken away."""
    try:
        rows = bench.executor.server.rows(
            "SELECT ifNull(user_name, concat('role ', ifNull(role_name, ''))), toString(access_type), database, table, "
            "is_partial_revoke FROM system.grants WHERE toString(access_type) IN ('ALL', 'INSERT', 'SELECT')"
        )
    except ServerError as error:
        raise RebuildRefused(
            f"server: system.grants could not be read ({error}) but wanted to know who writes. A view without a definer reads the fence with "
            "its writer's rights. Grant SELECT on system.grants, or use `--protocol gated`."
        ) from error
    return [(str(who), str(access), database, table, bool(revoked)) for who, access, database, table, revoked in rows]


def _user(bench: Workbench) -> str:
    return str(bench.executor.server.rows("SELECT currentUser()")[0][0])
