"""The demo pipeline on a real server: its DDL applies, its data loads exactly once, its targets equal their views.

Each target is compared with its views' own SELECTs (as the server keeps them) over the sources, both sides finalised
in the same way by engine and column type. Needs the `clickhouse` fixture, a client of module or session scope for a
server where the database `shop` may be dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from resources.demo_data import (
    DATABASE,
    GROUP_EVENTS,
    DemoLoad,
    DemoLoadError,
    DemoSummary,
    build_demo_select,
    build_fact_statements,
    demo_size,
    load_demo,
)

DDL_DIR = Path(__file__).parents[2] / "chmv_assets" / "ddl"
GRAPH = json.loads((Path(__file__).parents[1] / "fixtures" / "demo_graph.json").read_text())
ROWS, SEED = 50_000, 7
START, END = datetime(2026, 10, 25, tzinfo=timezone.utc), datetime(2026, 11, 5, 15, 30, tzinfo=timezone.utc)
LOAD = DemoLoad(size=demo_size(ROWS), seed=SEED, start=START, end=END)
SOURCES = ("events", "order_changes", "payments")
# Of all rows of the load above. They change only when the generator is changed on purpose.
CHECKSUMS = {
    "events": 948643821443938117,
    "order_changes": 701358985056333332,
    "payments": 14307390471823764969,
}


def edges(kind: str) -> set[tuple[str, str]]:
    return {(edge["from"], edge["to"]) for edge in GRAPH["edges"] if edge["kind"] == kind}


TARGETS = sorted({target for _, target in edges("writes")})


def apply_ddl(client: Any) -> None:
    for file in sorted(DDL_DIR.glob("*.sql")):
        for statement in re.split(r";\s*$", file.read_text(), flags=re.MULTILINE):
            if statement.strip():
                client.command(statement)


@pytest.fixture(scope="module")
def shop(clickhouse: Any) -> Iterator[Any]:
    """A server with the demo's tables and 50,000 events, loaded once."""
    clickhouse.command(f"DROP DATABASE IF EXISTS {DATABASE} SYNC")
    apply_ddl(clickhouse)
    load_demo(clickhouse, rows=ROWS, seed=SEED, start=START, end=END)
    clickhouse.command("SYSTEM REFRESH VIEW shop.customer_value_mv")
    clickhouse.command("SYSTEM WAIT VIEW shop.customer_value_mv")
    yield clickhouse
    clickhouse.command(f"DROP DATABASE IF EXISTS {DATABASE} SYNC")


def columns_of(client: Any, table: str) -> list[tuple[str, str, bool]]:
    """Name, type and whether it is part of the sorting key."""
    database, name = table.split(".")
    return client.query(
        "SELECT name, type, is_in_sorting_key FROM system.columns "
        "WHERE database = {database:String} AND table = {name:String} ORDER BY position",
        parameters={"database": database, "name": name},
    ).result_rows


def table_facts(client: Any) -> dict[str, dict[str, Any]]:
    rows = client.query(
        "SELECT concat(database, '.', name) AS name, engine, as_select, dependencies_database, dependencies_table, "
        "target_database, target_table FROM system.tables "
        "WHERE database = {database:String} AND name NOT LIKE '.%'",  # a running refresh has a hidden table
        parameters={"database": DATABASE},
    )
    return {row["name"]: row for row in rows.named_results()}


def finalised(column: str, kind: str) -> str:
    """The expression that merges the partial values of one column."""
    if match := re.match(r"SimpleAggregateFunction\((\w+),", kind):
        return f"{match.group(1)}({column})"
    if match := re.match(r"AggregateFunction\((\w+)(\([^)]*\))?,", kind):
        return f"{match.group(1)}Merge{match.group(2) or ''}({column})"
    return f"sum({column})"


def fingerprint(client: Any, relation: str, columns: list[tuple[str, str, bool]], engine: str) -> tuple[int, int]:
    """Count and order-independent checksum of the finalised rows."""
    names = [name for name, _, _ in columns]
    if engine in ("SummingMergeTree", "AggregatingMergeTree"):
        keys = ", ".join(name for name, _, is_key in columns if is_key)
        values = ", ".join(finalised(name, kind) for name, kind, is_key in columns if not is_key)
        relation = f"SELECT {keys}, {values} FROM ({relation}) GROUP BY {keys}"
        names = ["*"]
    return client.query(f"SELECT count(), sum(cityHash64({', '.join(names)})) FROM ({relation})").result_rows[0]


def target_fingerprint(client: Any, target: str) -> tuple[int, int]:
    engine = table_facts(client)[target]["engine"]
    final = " FINAL" if engine == "ReplacingMergeTree" else ""
    return fingerprint(client, f"SELECT * FROM {target}{final}", columns_of(client, target), engine)


def views_fingerprint(client: Any, target: str) -> tuple[int, int]:
    """The same of what the target's views give over their sources now."""
    facts, columns = table_facts(client), columns_of(client, target)
    branches = []
    for view in sorted(source for source, dest in edges("writes") if dest == target):
        given = {name for name, _, _ in columns_of(client, view)}
        # What a view does not give, the server fills with the column's default.
        values = [
            f"CAST({f'v.{name}' if name in given else f'defaultValueOfTypeName($${kind}$$)'}, $${kind}$$) AS {name}"
            for name, kind, _ in columns
        ]
        branches.append(f"SELECT {', '.join(values)} FROM ({facts[view]['as_select']}) AS v")
    relation = " UNION ALL ".join(branches)
    if facts[target]["engine"] == "ReplacingMergeTree":
        relation = f"SELECT * FROM ({relation}) ORDER BY version DESC LIMIT 1 BY order_id"
    return fingerprint(client, relation, columns, facts[target]["engine"])


@pytest.mark.parametrize("target", TARGETS)
def test_target_equals_its_views_over_the_source(shop: Any, target: str) -> None:
    expected = views_fingerprint(shop, target)
    assert expected[0] > 0
    assert target_fingerprint(shop, target) == expected


def test_chained_rollup_equals_the_events_themselves(shop: Any) -> None:
    rolled_up = shop.query("SELECT day, sum(events), sum(items) FROM shop.traffic_daily GROUP BY day ORDER BY day")
    direct = shop.query(
        "SELECT toDate(event_time) AS day, count(), sum(quantity) FROM shop.events GROUP BY day ORDER BY day"
    )
    assert rolled_up.result_rows == direct.result_rows


def test_loading_again_adds_nothing(shop: Any) -> None:
    before = {target: target_fingerprint(shop, target) for target in TARGETS}
    seen: list[tuple[int, int]] = []
    again = load_demo(
        shop, rows=ROWS, seed=SEED, start=START, end=END, progress=lambda done, total: seen.append((done, total))
    )
    assert again == DemoSummary(rows=again.rows, added=dict.fromkeys(again.rows, 0))
    assert again.rows["events"] == ROWS
    assert seen[-1][0] == seen[-1][1]
    assert {target: target_fingerprint(shop, target) for target in TARGETS} == before


@pytest.mark.parametrize("table", SOURCES)
def test_same_seed_gives_same_checksum(shop: Any, table: str) -> None:
    columns = ", ".join(name for name, _, _ in columns_of(shop, f"{DATABASE}.{table}"))
    stored = shop.query(f"SELECT sum(cityHash64({columns})) FROM {DATABASE}.{table}").result_rows[0][0]

    def generated(load: DemoLoad) -> int:
        count = ROWS if table == "events" else ROWS // GROUP_EVENTS
        select, parameters = build_demo_select(load, table, 0, count)  # type: ignore[arg-type]
        # As in the table: a map's or number's hash depends on its exact type.
        structure = ", ".join(f"CAST({name}, $${kind}$$)" for name, kind, _ in columns_of(shop, f"{DATABASE}.{table}"))
        checksum = f"SELECT sum(cityHash64({structure})) FROM ({select})"
        return shop.query(checksum, parameters=parameters).result_rows[0][0]

    assert generated(LOAD) == stored == CHECKSUMS[table]
    assert generated(replace(LOAD, seed=SEED + 1)) != stored


def test_graph_fixture_matches_the_live_hooks(shop: Any) -> None:
    facts = table_facts(shop)
    hooks = {
        (name, f"{database}.{view}")
        for name, row in facts.items()
        for database, view in zip(row["dependencies_database"], row["dependencies_table"], strict=True)
    }
    writes = {
        (name, f"{row['target_database']}.{row['target_table']}") for name, row in facts.items() if row["target_table"]
    }
    assert hooks == edges("trigger")
    assert writes == edges("writes")
    assert {name: row["engine"] for name, row in facts.items()} == {n["name"]: n["engine"] for n in GRAPH["nodes"]}


def test_graph_fixture_points_at_the_create_statements() -> None:
    for node in GRAPH["nodes"]:
        line = (DDL_DIR / node["file"]).read_text().splitlines()[node["line"] - 1]
        assert re.match(rf"CREATE [A-Z ]+ {re.escape(node['name'])}\b", line), node


def test_every_insert_stays_within_the_partition_limit(shop: Any) -> None:
    two_years = replace(LOAD, end=START + timedelta(days=730))
    for statement in build_fact_statements(two_years)[::40]:
        column = {"events": "event_time", "order_changes": "ordered_at", "payments": "paid_at"}[statement.table]
        select = statement.sql.split("\n", 1)[1]
        unit = "toStartOfHour" if statement.table == "events" else "toDate"
        partitions = shop.query(
            f"SELECT uniqExact({unit}({column})) FROM ({select})", parameters=dict(statement.parameters)
        ).result_rows[0][0]
        assert partitions <= 90


@pytest.mark.parametrize("length", [timedelta(minutes=1), timedelta(hours=5), timedelta(days=3, hours=7)])
def test_events_stay_in_the_window(shop: Any, length: timedelta) -> None:
    start = datetime(2026, 10, 31, 21, 17, tzinfo=timezone.utc)
    select, parameters = build_demo_select(replace(LOAD, start=start, end=start + length), "events", 0, ROWS)
    low, high, late, sessions = shop.query(
        "SELECT toUnixTimestamp64Milli(min(event_time)), toUnixTimestamp64Milli(max(event_time)), "
        f"countIf(ingested_at < event_time), uniqExact(session_id) FROM ({select})",
        parameters=parameters,
    ).result_rows[0]
    assert start.timestamp() * 1000 <= low < high < (start + length).timestamp() * 1000
    assert (late, sessions) == (0, ROWS // 4)


@pytest.mark.parametrize(
    "load",
    [
        replace(LOAD, end=START),
        replace(LOAD, size=demo_size(2**31)),
        replace(LOAD, start=datetime(2026, 10, 1)),  # noqa: DTZ001
    ],
)
def test_impossible_load_is_refused(load: DemoLoad) -> None:
    with pytest.raises(DemoLoadError, match="but wanted"):
        build_fact_statements(load)
