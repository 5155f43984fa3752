"""Before a view is made: nothing that would keep the server from firing it. After: does the server fire it?"""

from __future__ import annotations

from collections.abc import Collection

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import DeployRefused, ServerError
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.executor import Executor
from resources.rebuild.workbench import Workbench

# What a query is answered that does not fit its source or target any more.
_MISFITS = (8, 10, 16, 36, 43, 46, 47, 48, 53, 60, 81, 122, 215)
_RUNS_VIEW = "ExecutingInnerQueryFromView"  # one in an insert's pipeline for each view that it fires


def attach_detached(executor: Executor, view: QName) -> None:
    """A view that is detached keeps its name: it can neither be dropped nor made before it is attached again. Behind the gate no row goes through it."""
    rows = executor.server.rows(
        "SELECT count() FROM system.detached_tables WHERE database = {d:String} AND table = {t:String}",
        {"d": view.database, "t": view.table},
    )
    if rows[0][0]:
        executor.run_ddl(f"attach {view}", f"ATTACH TABLE {view.sql}")


def clear_hook(executor: Executor, view: QName) -> bool:
    """Let the server forget how it knows a view that is about to be dropped, behind the gate; false if there is none, or none that can be told.

    If its source was renamed away after a MODIFY QUERY, 26.7 keeps the hook by the view's UUID also when it is dropped: the next view of its name is listed as
    hooked but never fired (docs/measured.md). Another MODIFY QUERY clears that.
    """
    rows = executor.server.rows(
        "SELECT as_select FROM system.tables WHERE engine = 'MaterializedView' AND position(create_table_query, ' REFRESH ') = 0 "
        "AND database = {d:String} AND name = {t:String}",
        {"d": view.database, "t": view.table},
    )
    for (select,) in rows:
        try:
            executor.run_ddl(f"clear hook of {view}", f"ALTER TABLE {view.sql} MODIFY QUERY {select}")
        except ServerError as error:
            if error.code not in _MISFITS:
                raise
            executor.log(f"{view}: its hook could not be cleared: {error}")
            return False
    return bool(rows)


def count_fired(server: Server, table: QName) -> int:
    """How many views an insert into a table would fire, as the server would run it: what it lists as hooked may be wrong."""
    return server.text(f"EXPLAIN PIPELINE INSERT INTO {table.sql} SELECT * FROM {table.sql} WHERE 0").count(_RUNS_VIEW)


def find_unfired(executor: Executor, catalog: Catalog, tables: Collection[QName]) -> set[QName]:
    """Those of the tables that fire fewer views than there are. One whose inserts cannot be explained is left out, and told."""
    if not tables:
        return set()
    wanted = _count_behind(catalog, _fetch_views(executor.server, catalog))
    found = set()
    for table in sorted(tables):
        try:
            if wanted.get(table) and count_fired(executor.server, table) < wanted[table]:
                found.add(table)
        except ServerError as error:
            executor.log(f"{table}: whether inserts fire its views could not be told: {error}")
    return found


def _fetch_views(server: Server, catalog: Catalog) -> set[QName]:
    """The views that are there, in the databases of those that are declared."""
    databases = sorted({made.name.database for made in catalog.objects.values() if made.kind == "materialized_view"})
    rows = server.rows(
        "SELECT database, name FROM system.tables WHERE engine = 'MaterializedView' AND database IN {databases:Array(String)}",
        {"databases": databases},
    )
    return {QName(str(database), str(name)) for database, name in rows}


def _count_behind(catalog: Catalog, there: Collection[QName]) -> dict[QName, int]:
    """How many views an insert into each table fires, also through their targets; one that is reached on two ways counts twice."""
    counts: dict[QName, int] = {}
    for table in sorted(catalog.flow_order, key=catalog.flow_order.__getitem__, reverse=True):
        fired = [view for view in catalog.fired_by(table) if view.kind == "materialized_view" and view.name in there]
        counts[table] = sum(1 + (counts.get(view.target, 0) if view.target is not None else 0) for view in fired)
    return counts


def require_hook(bench: Workbench, view: QName) -> None:
    """Raise unless the server lists a view as hooked on the table that it should; the list is right once `clear_hook` was there."""
    trigger = bench.catalog.trigger_of(view)
    if trigger is None:
        return
    rows = bench.executor.server.rows(
        "SELECT has(arrayZip(dependencies_database, dependencies_table), ({vd:String}, {vt:String})) FROM system.tables "
        "WHERE database = {d:String} AND name = {t:String}",
        {"vd": view.database, "vt": view.table, "d": trigger.database, "t": trigger.table},
    )
    if not rows or not rows[0][0]:
        raise DeployRefused(
            f"view {view}: found no hook of it on {trigger} after it was created but wanted one. Inserts would not fire it. What was changed is taken back."
        )
