"""Reads of the live server: objects, hooks, partitions, running inserts. Nothing here writes.

Each function is a constant number of queries whatever the number of tables; rows become frozen records at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.system_tables import system_table
from chmv_assets.core.windows import ChPartition, partition_matches
from resources.clickhouse import Server

SYSTEM_DATABASES = ("system", "INFORMATION_SCHEMA", "information_schema")
_PARAMETER_BYTES = 60_000  # the server takes 128 KiB (http_max_field_value_size), and escaping may double a text
_HIDDEN = (".inner.", ".inner_id.", ".tmp.")
_SHOW_SECRETS = "format_display_secrets_in_show_and_select"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObject:
    """One row of system.tables that matters to us."""

    name: QName
    engine: str
    sql: str
    select: str
    hooked_views: tuple[QName, ...]  # views that the server fires on an INSERT into this table

    @property
    def is_hidden(self) -> bool:
        """Whether it is the table of a view without TO, or one that a refresh fills before it swaps it in."""
        return self.name.table.startswith(_HIDDEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The active parts of one ClickHouse partition, summed up."""

    partition_id: str
    partition: str  # as the server prints its value
    rows: int
    bytes_on_disk: int
    parts: int
    max_block: int
    data_version: int  # of the last mutation, 0 without one (the server's column holds a block number then)

    @property
    def fingerprint(self) -> tuple[str, int, int, int]:
        """Changes with every insert, mutation or replacement; not with merges."""
        return (self.partition_id, self.rows, self.max_block, self.data_version)


def hide_secrets(server: Server) -> dict[str, int]:
    """Settings under which the server prints `[HIDDEN]` for every secret, whatever this user may see."""
    return {_SHOW_SECRETS: 0} if server.knows_settings([_SHOW_SECRETS]) else {}


def fetch_objects(server: Server, databases: Sequence[str] = ()) -> list[LiveObject]:
    """All objects of the given databases, or of all but the server's and our own."""
    rows = server.rows(
        """
        SELECT database, name, engine, create_table_query, as_select,
               arrayZip(dependencies_database, dependencies_table)
        FROM system.tables
        WHERE (empty({wanted:Array(String)}) OR database IN {wanted:Array(String)})
          AND database NOT IN {hidden:Array(String)} AND NOT is_temporary
        ORDER BY database, name
        """,
        {"wanted": list(databases), "hidden": [*SYSTEM_DATABASES, OWN_DATABASE]},
        hide_secrets(server),
    )
    return [
        LiveObject(
            name=QName(database, table),
            engine=engine,
            sql=sql,
            select=select,
            hooked_views=tuple(QName(*pair) for pair in hooks),
        )
        for database, table, engine, sql, select, hooks in rows
    ]


def fetch_writing_databases(server: Server, databases: Collection[str]) -> set[str]:
    """The databases with a view that writes into a table of one of these."""
    into = [f" TO {written}." for one in sorted(databases) for written in (one, quote_identifier(one))]
    rows = server.rows(
        "SELECT DISTINCT database FROM system.tables WHERE engine = 'MaterializedView' AND database NOT IN {hidden:Array(String)} "
        "AND arrayExists(one -> position(create_table_query, one) > 0, {into:Array(String)})",
        {"hidden": [*SYSTEM_DATABASES, OWN_DATABASE], "into": into},
        hide_secrets(server),
    )
    return {str(one) for (one,) in rows}


def fetch_formatted(server: Server, statements: Sequence[str]) -> list[str | None]:
    """The server's own formatting of many statements in few queries; None where it cannot parse one."""
    found: list[str | None] = []
    for some in in_batches(statements):
        if not is_sendable(some[0]):
            found.append(None)
            continue
        rows = server.rows(
            "SELECT formatQuerySingleLineOrNull(arrayJoin({statements:Array(String)}))", {"statements": some}
        )
        found += [text for (text,) in rows]
    return found


def in_batches(statements: Sequence[str]) -> Iterator[list[str]]:
    """Texts in groups that one parameter can hold; one that is too long for any stands alone."""
    group: list[str] = []
    size = 0
    for statement in statements:
        length = len(statement.encode())
        if group and size + length > _PARAMETER_BYTES:
            yield group
            group, size = [], 0
        group.append(statement)
        size += length + 4
    if group:
        yield group


def is_sendable(statement: str) -> bool:
    """Whether a text fits into one parameter."""
    return len(statement.encode()) <= _PARAMETER_BYTES


def fetch_partitions(server: Server, tables: Iterable[QName]) -> dict[QName, tuple[PartitionState, ...]]:
    """The partitions of many tables with one query; a table without parts is not in the answer."""
    wanted = [(name.database, name.table) for name in tables]
    if not wanted:
        return {}
    rows = server.rows(
        """
        SELECT database, table, partition_id, any(partition), sum(rows), sum(bytes_on_disk), count(),
               max(max_block_number), max(if(data_version = min_block_number, 0, data_version))
        FROM system.parts
        WHERE active AND (database, table) IN {tables:Array(Tuple(String, String))}
        GROUP BY database, table, partition_id ORDER BY database, table, partition_id
        """,
        {"tables": wanted},
    )
    found: dict[QName, list[PartitionState]] = {}
    for database, table, partition_id, partition, total, size, parts, block, version in rows:
        state = PartitionState(
            partition_id=partition_id, partition=partition, rows=int(total), bytes_on_disk=int(size),
            parts=int(parts), max_block=int(block), data_version=int(version),
        )  # fmt: skip
        found.setdefault(QName(database, table), []).append(state)
    return {name: tuple(states) for name, states in found.items()}


def fetch_marks(server: Server, tables: Iterable[QName]) -> tuple[dict[QName, int], str]:
    """A number per table that changes when rows come or go, not when parts merge, and the server's zone; many tables with one query, a row each."""
    wanted = [(name.database, name.table) for name in tables]
    if not wanted:
        return {}, ""
    rows = server.rows(
        """
        SELECT database, table, sum(cityHash64(partition_id, block, version)), serverTimezone()
        FROM
        (
            SELECT database, table, partition_id, max(max_block_number) AS block,
                   max(if(data_version = min_block_number, 0, data_version)) AS version
            FROM system.parts WHERE active AND (database, table) IN {tables:Array(Tuple(String, String))}
            GROUP BY database, table, partition_id
        )
        GROUP BY database, table
        """,
        {"tables": wanted},
    )
    marks = {QName(str(database), str(table)): int(mark) for database, table, mark, _ in rows}
    return marks, str(rows[0][3]) if rows else ""


def fetch_part_names(server: Server, table: QName) -> tuple[str, ...]:
    """Names of a table's active parts."""
    rows = server.rows(
        "SELECT name FROM system.parts WHERE active AND database = {d:String} AND table = {t:String} ORDER BY name",
        {"d": table.database, "t": table.table},
    )
    return tuple(str(name) for (name,) in rows)


def fetch_existing(server: Server, tables: Iterable[QName]) -> set[QName]:
    """Which of these tables exist."""
    rows = server.rows(
        "SELECT database, name FROM system.tables WHERE (database, name) IN {tables:Array(Tuple(String, String))}",
        {"tables": [(name.database, name.table) for name in tables]},
    )
    return {QName(str(database), str(table)) for database, table in rows}


def fetch_free_bytes(server: Server, table: QName) -> int | None:
    """Free space on the fullest disk that a table can use; None for stores without an end."""
    rows = server.rows(
        """
        SELECT min(disks.unreserved_space) FROM system.disks AS disks
        WHERE disks.type IN ('Local', 'local') AND disks.name IN
        (
            SELECT arrayJoin(policies.disks) FROM system.storage_policies AS policies WHERE policies.policy_name =
                (SELECT storage_policy FROM system.tables WHERE database = {d:String} AND name = {t:String})
        )
        HAVING count() > 0
        """,
        {"d": table.database, "t": table.table},
    )
    return int(rows[0][0]) if rows else None


def select_states(
    states: Sequence[PartitionState], scheme: PartitionScheme, partitions: Sequence[ChPartition]
) -> tuple[PartitionState, ...]:
    """Those states that belong to the given periods: by id where it can be computed, else by the printed value."""
    ids = {partition.partition_id for partition in partitions}
    printed = [partition for partition in partitions if partition.partition_id is None]
    return tuple(
        state
        for state in states
        if state.partition_id in ids or any(partition_matches(scheme, state.partition, one) for one in printed)
    )


def fetch_running_inserts(server: Server, cluster: str = "") -> frozenset[str]:
    """Ids of the inserts that run now, on this server or on every replica of a cluster."""
    rows = server.rows(
        f"SELECT query_id FROM {system_table('processes', cluster)} "
        "WHERE query_kind IN ('Insert', 'AsyncInsertFlush') AND query_id != queryID()"
    )
    return frozenset(str(query_id) for (query_id,) in rows)


def fetch_columns(server: Server, name: QName) -> list[tuple[str, str, str]]:
    """Name, type and default kind of a table's columns in order; empty if there is no such table."""
    rows = server.rows(
        "SELECT name, type, default_kind FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
        {"d": name.database, "t": name.table},
    )
    return [(str(column), str(kind), str(default)) for column, kind, default in rows]


def describe_select(server: Server, select: str, database: str = "") -> list[tuple[str, str]]:
    """Name and type of the columns that a SELECT gives; its unqualified names belong to `database`."""
    settings = {"database": database} if database else {}
    return [(str(row[0]), str(row[1])) for row in server.rows(f"DESCRIBE TABLE ({select})", settings=settings)]


_TREE_TABLE = re.compile(r"TABLE id: \d+.*?table_name: (\S+)")


def fetch_query_tables(server: Server, select: str) -> tuple[str, ...] | None:
    """The tables of a SELECT as the server resolves them; None when it cannot."""
    try:
        tree = server.text(f"EXPLAIN QUERY TREE {select}")
    except ServerError:
        return None
    return tuple(dict.fromkeys(_TREE_TABLE.findall(tree)))
