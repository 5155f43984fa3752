"""What the tests of reconciliation share: a catalog on the server, defects that fire no view, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.reconcile_sql import Counts
from chmv_assets.core.statements import split_statements
from chmv_assets.core.window_text import parse_window
from resources.clickhouse import Server
from resources.reconcile import Reconciled, Reconciler

NOW = datetime(2026, 11, 16, tzinfo=timezone.utc)


@dataclass
class Bench:
    """One catalog on the server."""

    client: Client
    server: Server
    catalog: Catalog
    database: str

    def run(self, sql: str) -> None:
        self.client.command(sql.replace("{db}", self.database))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(sql.replace("{db}", self.database)).result_rows]

    def partitions(self, table: str) -> list[str]:
        return [
            name
            for (name,) in self.rows(
                f"SELECT DISTINCT partition_id FROM system.parts WHERE active AND database = '{{db}}' AND table = '{table}'"
            )
        ]

    def add(self, table: str, select: str) -> None:
        """Put rows into a table so that no view of it fires."""
        self.run(f"DROP TABLE IF EXISTS {{db}}.{table}_added SYNC")
        self.run(f"CREATE TABLE {{db}}.{table}_added AS {{db}}.{table}")
        self.run(f"SYSTEM STOP MERGES {{db}}.{table}_added")
        self.run(f"INSERT INTO {{db}}.{table}_added {select}")
        self.attach(table, f"{table}_added")
        self.run(f"DROP TABLE {{db}}.{table}_added SYNC")

    def attach(self, table: str, origin: str) -> None:
        for partition in self.partitions(origin):
            self.run(f"ALTER TABLE {{db}}.{table} ATTACH PARTITION ID '{partition}' FROM {{db}}.{origin}")

    def delete(self, table: str, where: str) -> None:
        """Swap in partitions without some rows; a mutation would wait for its turn."""
        for (partition,) in self.rows(f"SELECT DISTINCT _partition_id FROM {{db}}.{table} WHERE {where}"):
            self.run(f"CREATE TABLE {{db}}.{table}_rest AS {{db}}.{table}")
            self.run(
                f"INSERT INTO {{db}}.{table}_rest SELECT * FROM {{db}}.{table} WHERE _partition_id = '{partition}' AND NOT ({where})"
            )
            full = self.partitions(f"{table}_rest")
            verb = (
                f"REPLACE PARTITION ID '{partition}' FROM {{db}}.{table}_rest"
                if full
                else f"DROP PARTITION ID '{partition}'"
            )
            self.run(f"ALTER TABLE {{db}}.{table} {verb}")
            self.run(f"DROP TABLE {{db}}.{table}_rest SYNC")

    def drop_partitions(self, table: str, where: str) -> None:
        for (partition,) in self.rows(f"SELECT DISTINCT _partition_id FROM {{db}}.{table} WHERE {where}"):
            self.run(f"ALTER TABLE {{db}}.{table} DROP PARTITION ID '{partition}'")

    def keep(self, table: str) -> None:
        """Remember what a table holds."""
        self.run(f"DROP TABLE IF EXISTS {{db}}.{table}_kept SYNC")
        self.run(f"CREATE TABLE {{db}}.{table}_kept AS {{db}}.{table}")
        self.attach(f"{table}_kept", table)

    def restore(self, table: str) -> None:
        self.run(f"TRUNCATE TABLE {{db}}.{table} SYNC")
        self.attach(table, f"{table}_kept")
        self.run(f"DROP TABLE {{db}}.{table}_kept SYNC")

    def verdict(self, table: str, window: str | None = "2026-11-01", **options: Any) -> Reconciled:
        target = self.catalog.get(f"{self.database}.{table}")
        options.setdefault("now", lambda: NOW)
        asked = parse_window(window) if window else None
        return Reconciler(options.pop("server", self.server), self.catalog, "UTC", **options).run(target, asked)


def bench_of(client: Client, server: Server, database: str, ddl: str) -> Bench:
    """Create the objects of a text and read the same text into a catalog."""
    text = ddl.replace("{db}", database)
    for statement in split_statements(SourceFile(path="ddl.sql", text=text))[0]:
        client.command(statement.text)
    return Bench(client, server, build_catalog([SourceFile(path="ddl.sql", text=text)]).require_sound(), database)


def numbers(found: Reconciled) -> dict[str, int]:
    """What is not zero."""
    counts = found.counts
    assert isinstance(counts, Counts), found.reason
    names = ("missing", "smaller", "extra", "larger", "changed")
    return {name: value for name in names if (value := getattr(counts, name))}
