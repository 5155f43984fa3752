"""Reads of the live server that only a pull needs: databases, readable texts, what has to exist before what. Nothing here writes.

Secrets are never asked for: where a server shows them to this user, it is told not to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.pull_text import ServerDefaults
from resources.clickhouse import Server
from resources.introspect import describe_select, hide_secrets, in_batches, is_sendable


@dataclass(frozen=True, slots=True)
class LiveDatabase:
    """One row of system.databases."""

    name: str
    engine: str
    engine_full: str
    comment: str


def fetch_databases(server: Server) -> list[LiveDatabase]:
    """All databases of the server."""
    settings = hide_secrets(server)
    rows = server.rows("SELECT name, engine, engine_full, comment FROM system.databases ORDER BY name", None, settings)
    return [LiveDatabase(*map(str, row)) for row in rows]


def fetch_defaults(server: Server) -> ServerDefaults:
    """What the server writes down for a statement of ours that does not say it; older ones lack some of these settings."""
    rows = server.rows(
        "SELECT name, value FROM system.settings WHERE name = 'default_materialized_view_sql_security' "
        "UNION ALL SELECT name, value FROM system.merge_tree_settings WHERE name = 'index_granularity' "
        "UNION ALL SELECT 'user', currentUser()"
    )
    said = {str(name): str(value) for name, value in rows}
    usual = ServerDefaults()
    return ServerDefaults(
        user=said.get("user", usual.user),
        materialized_view_security=said.get("default_materialized_view_sql_security", usual.materialized_view_security),
        index_granularity=said.get("index_granularity", usual.index_granularity),
    )


def fetch_requirements(server: Server, databases: Sequence[str]) -> dict[QName, frozenset[QName]]:
    """What the server wants to have loaded before an object: dictionaries in defaults, tables of joinGet, and the like."""
    rows = server.rows(
        "SELECT database, name, arrayZip(loading_dependencies_database, loading_dependencies_table) FROM system.tables "
        "WHERE database IN {databases:Array(String)} AND notEmpty(loading_dependencies_table)",
        {"databases": list(databases)},
    )
    return {QName(str(d), str(t)): frozenset(QName(*map(str, pair)) for pair in needs) for d, t, needs in rows}


def fetch_readable(server: Server, statements: Sequence[str]) -> list[str]:
    """The statements over several lines, as the server writes them; as they are where it would change more than white space."""
    found: list[str] = []
    for some in in_batches(statements):
        if not is_sendable(some[0]):
            found += some
            continue
        rows = server.rows(
            "SELECT text, formatQueryOrNull(text) AS pretty, "
            "formatQuerySingleLineOrNull(ifNull(pretty, '')) = formatQuerySingleLineOrNull(text) "
            "FROM (SELECT arrayJoin({statements:Array(String)}) AS text)",
            {"statements": some},
            hide_secrets(server),
        )
        found += [str(pretty) if pretty and same else str(text) for text, pretty, same in rows]
    return found


def fetch_header(server: Server, select: str, database: str) -> list[tuple[str, str]] | None:
    """Name and type of what a SELECT gives; None if this user cannot ask, or it does not work."""
    try:
        return describe_select(server, select, database)
    except ServerError:
        return None
