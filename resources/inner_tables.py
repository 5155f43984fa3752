"""What the tables of a catalog are called on the server: the hidden table of a view without TO has a name of its own there. Only reads.

Each function is a constant number of queries whatever the number of tables.
"""

from __future__ import annotations

from collections.abc import Iterable

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.ddl_reader import view_of_inner
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.introspect import PartitionState, fetch_partitions


def fetch_inner_tables(server: Server, views: Iterable[QName]) -> dict[QName, QName]:
    """The hidden tables of materialized views without TO, by the names that they have now; one query, or none without views."""
    wanted = [(view.database, view.table) for view in views]
    if not wanted:
        return {}
    rows = server.rows(
        """
        SELECT views.database, views.name, max(tables.name)
        FROM system.tables AS tables INNER JOIN
        (
            SELECT database, name, arrayJoin([concat('.inner.', name), concat('.inner_id.', toString(uuid))]) AS hidden
            FROM system.tables WHERE (database, name) IN {views:Array(Tuple(String, String))}
        ) AS views ON tables.database = views.database AND tables.name = views.hidden
        GROUP BY views.database, views.name
        """,
        {"views": wanted},
    )
    return {QName(str(database), str(view)): QName(str(database), str(table)) for database, view, table in rows}


def fetch_inner_table(server: Server, view: QName) -> QName | None:
    """The hidden table of one materialized view without TO."""
    return fetch_inner_tables(server, [view]).get(view)


def fetch_real_names(server: Server, catalog: Catalog, names: Iterable[QName]) -> dict[QName, QName]:
    """What tables are called on the server; an inner table that is not there keeps its name of the catalog. One query at most."""
    objects = catalog.objects
    names = list(names)
    hidden = {name: view_of_inner(name) for name in names if name in objects and objects[name].kind == "inner_table"}
    found = fetch_inner_tables(server, hidden.values())
    return {name: found.get(hidden[name], name) if name in hidden else name for name in names}


def fetch_states(server: Server, catalog: Catalog, names: Iterable[QName]) -> dict[QName, tuple[PartitionState, ...]]:
    """The partitions of many tables, by their names of the catalog; a table without parts is not in the answer. Two queries at most."""
    real = fetch_real_names(server, catalog, names)
    states = fetch_partitions(server, real.values())
    return {name: states[held] for name, held in real.items() if held in states}
