"""What the server makes of texts: its names for functions, its defaults, its reading of columns and queries. Nothing here writes.

For the comparison of declared with live objects; each function is one query.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.errors import ServerError
from chmv_assets.core.model import Column
from chmv_assets.core.names import QName, quote_string
from chmv_assets.core.render_create import render_columns
from chmv_assets.core.spelling import BUILTIN, Vocabulary
from chmv_assets.core.system_tables import system_table
from resources.clickhouse import Server
from resources.introspect import LiveObject

_PRESENT = QName("system", "one")  # there on every replica that answers

_NO_SCRUPLES = {
    "allow_suspicious_codecs": 1,
    "allow_suspicious_low_cardinality_types": 1,
}  # whoever created it had none


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a cluster and those of the wanted objects that it has; None: it does not answer."""

    host: str
    objects: tuple[LiveObject, ...] | None


def fetch_vocabulary(server: Server) -> Vocabulary:
    """Functions whose case does not count, aliases, and what tables and views have unless they say otherwise."""
    rows = server.rows(
        """
        SELECT 'function', name, alias_to, toString(case_insensitive) FROM system.functions WHERE case_insensitive OR alias_to != ''
        UNION ALL SELECT 'type', name, alias_to, toString(case_insensitive) FROM system.data_type_families
        UNION ALL SELECT 'table setting', name, value, '' FROM system.merge_tree_settings
        UNION ALL SELECT 'setting', name, value, '' FROM system.settings
            WHERE name LIKE 'default%view%' OR name IN ('union_default_mode', 'except_default_mode', 'intersect_default_mode')
        UNION ALL SELECT 'setting', name, value, '' FROM system.server_settings WHERE name LIKE 'default_replica_%'
        """
    )
    functions = [(name, alias or name, folded == "1") for kind, name, alias, folded in rows if kind == "function"]
    types = [(name, alias or name, folded == "1") for kind, name, alias, folded in rows if kind == "type"]
    return Vocabulary(
        types={name.lower(): real for name, real, folded in types if folded},
        functions={name.lower(): real for name, real, folded in functions if folded},
        aliases={name: real for name, real, _ in functions if name != real},
        table_settings={name: value for kind, name, value, _ in rows if kind == "table setting"},
        settings={**BUILTIN.settings, **{name: value for kind, name, value, _ in rows if kind == "setting"}},
    )


def describe_columns(server: Server, columns: Sequence[Column], database: str) -> tuple[Column, ...] | None:
    """Columns as the server would store them: types, defaults, codecs and TTLs in its own spelling; None if it refuses them."""
    try:
        rows = server.rows(
            f"DESCRIBE TABLE null({quote_string(render_columns(columns))})",
            settings={"database": database, **_NO_SCRUPLES},
        )
    except ServerError:
        return None
    known = {column.name: column for column in columns}
    return tuple(
        replace(
            known.get(name) or Column(name=name, type=kind, comment=comment),
            type=kind, default_kind=default_kind, default=default, codec=codec, ttl=ttl,
        )
        for name, kind, default_kind, default, comment, codec, ttl, *_ in rows
    )  # fmt: skip


def fetch_replica_objects(server: Server, names: Collection[QName], cluster: str) -> tuple[Replica, ...]:
    """The objects of these names on every replica, with one query; a replica that does not answer has none to show."""
    rows = server.rows(
        f"""
        WITH (
            SELECT groupArray((host_name, port)) FROM
            (SELECT host_name, port FROM system.clusters WHERE cluster = {{c:String}} ORDER BY shard_num, replica_num)
        ) AS hosts
        SELECT if((database, name) = ({quote_string(_PRESENT.database)}, {quote_string(_PRESENT.table)}), hosts, []), _shard_num, database, name, engine, create_table_query, as_select,
               arrayZip(dependencies_database, dependencies_table)
        FROM {system_table("tables", cluster)}
        WHERE (database, name) IN {{tables:Array(Tuple(String, String))}} ORDER BY database, name
        """,
        {"tables": [(name.database, name.table) for name in (*names, _PRESENT)], "c": cluster},
        settings={"skip_unavailable_shards": 1},
    )
    hosts = list(dict.fromkeys((host, port) for listed, *_ in rows for host, port in listed))
    found: dict[int, list[LiveObject]] = {}
    for _, number, database, table, engine, sql, select, hooks in rows:
        live = LiveObject(
            name=QName(database, table), engine=engine, sql=sql, select=select,
            hooked_views=tuple(QName(*pair) for pair in hooks),
        )  # fmt: skip
        found.setdefault(int(number), []).append(live)
    alone = {host for host, _ in hosts if sum(host == other for other, _ in hosts) == 1}
    return tuple(
        Replica(
            host=str(host) if host in alone else f"{host}:{port}",
            objects=tuple(live for live in found[number] if live.name != _PRESENT) if number in found else None,
        )
        for number, (host, port) in enumerate(hosts, start=1)
    )
