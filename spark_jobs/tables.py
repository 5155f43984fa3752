"""What the server says about a table: columns, partitions, parts, and what depends on it. Reads only.

Invariant: every function is one query. Deciding what to do with the answers belongs to `reader`, `writer` and `preflight`.
"""

from __future__ import annotations

from dataclasses import dataclass

from clickhouse_connect.driver.client import Client

from chmv_assets.core.errors import ReadRefused
from chmv_assets.core.names import QName
from spark_jobs.connection import fetch_rows, plain

_COMPUTED = ("MATERIALIZED", "ALIAS")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column as the server declares it."""

    name: str
    type: str
    computed: bool  # MATERIALIZED or ALIAS: never inserted


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An active part of a MergeTree table."""

    partition_id: str
    name: str
    rows: int


def fetch_columns(client: Client, table: QName) -> tuple[TableColumn, ...]:
    """The columns in the table's order; an error if there is no such table (or no right to see it)."""
    rows = fetch_rows(
        client,
        plain(
            "SELECT name, type, default_kind FROM system.columns "
            "WHERE database = {database:String} AND table = {table:String} AND default_kind != 'EPHEMERAL' "
            "ORDER BY position",
            database=table.database,
            table=table.table,
        ),
    )
    if not rows:
        raise ReadRefused(
            f"table {table}: found no columns but wanted an existing table. The server does not show it to us. "
            "Check its name and the account's rights."
        )
    return tuple(TableColumn(name=name, type=kind, computed=default in _COMPUTED) for name, kind, default in rows)


def fetch_engine(client: Client, table: QName) -> str:
    """The engine's name; empty if the table is not there."""
    rows = fetch_rows(
        client,
        plain(
            "SELECT engine FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            database=table.database,
            table=table.table,
        ),
    )
    return str(rows[0][0]) if rows else ""


def fetch_parts(client: Client, table: QName) -> tuple[Part, ...]:
    """The active parts that hold rows, by partition and name."""
    rows = fetch_rows(
        client,
        plain(
            "SELECT partition_id, name, rows FROM system.parts WHERE active AND rows > 0 "
            "AND database = {database:String} AND table = {table:String} ORDER BY partition_id, min_block_number",
            database=table.database,
            table=table.table,
        ),
    )
    return tuple(Part(partition_id=partition, name=name, rows=int(count)) for partition, name, count in rows)


def fetch_missing_parts(client: Client, table: QName, names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of these parts are no longer active: merged, mutated or dropped."""
    rows = fetch_rows(
        client,
        plain(
            "SELECT name FROM system.parts WHERE active AND database = {database:String} AND table = {table:String} "
            "AND name IN {names:Array(String)}",
            database=table.database,
            table=table.table,
            names=list(names),
        ),
    )
    there = {str(name) for (name,) in rows}
    return tuple(name for name in names if name not in there)
