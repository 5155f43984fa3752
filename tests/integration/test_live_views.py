"""Views compared by a tick: one query at most, whatever there is to compare; the next ticks go on."""

from __future__ import annotations

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.live_views import Verdicts, find_changed
from resources.clickhouse import Server
from resources.health import LiveView


def test_a_tick_compares_what_one_query_can_ask(server: Server, database: str) -> None:
    server.command(f"CREATE TABLE {database}.s (x UInt8) ENGINE = MergeTree ORDER BY x")
    server.command(f"CREATE TABLE {database}.t (x UInt8) ENGINE = MergeTree ORDER BY x")
    texts = [
        f"CREATE TABLE {database}.s (x UInt8) ENGINE = MergeTree ORDER BY x",
        f"CREATE TABLE {database}.t (x UInt8) ENGINE = MergeTree ORDER BY x",
    ]
    live = []
    for number in range(5):
        name = QName(database, f"v{number}")
        select = f"SELECT x FROM {database}.s WHERE '{'long ' * 4000}' != '' AND x != {number}"
        texts.append(f"CREATE MATERIALIZED VIEW {name} TO {database}.t AS {select}")
        server.command(f"CREATE MATERIALIZED VIEW {name} TO {database}.t AS {select}{' + 1' if number == 4 else ''}")
        rows = server.rows(
            "SELECT create_table_query, as_select FROM system.tables WHERE database = {d:String} AND name = {t:String}",
            {"d": database, "t": name.table},
        )
        live.append(LiveView(name=name, sql=str(rows[0][0]), select=str(rows[0][1])))
    catalog = build_catalog([SourceFile(path="a.sql", text=";\n".join(texts))])
    known: Verdicts = {}
    compared = []
    for _ in range(4):
        found = find_changed(server, catalog, live, known, one_query=True)
        compared.append(len(known))
    assert compared == [2, 4, 5, 5]
    assert found == {QName(database, "v4"): ("query",)}
    assert find_changed(server, catalog, live, {}) == found
