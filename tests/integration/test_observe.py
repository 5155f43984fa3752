"""Observing tables that have no parts: the number is counted, never guessed."""

from __future__ import annotations

from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from resources.clickhouse import Server
from resources.observe import observe_windows


def test_table_without_parts_is_counted(clickhouse: Client, server: Server, database: str) -> None:
    sql = f"CREATE TABLE {database}.lines (x UInt8) ENGINE = Log"
    clickhouse.command(sql)
    clickhouse.command(f"INSERT INTO {database}.lines SELECT number FROM numbers(7)")
    catalog = build_catalog([SourceFile(path="a.sql", text=sql)])
    name = QName(database, "lines")
    (seen,) = observe_windows(server, catalog, catalog.objects[name], [], "UTC", Settings().policy(name))
    assert seen.rows == 7
