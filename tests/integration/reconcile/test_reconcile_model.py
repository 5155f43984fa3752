"""Random rows, random damage to the target: the verdict is that of a model in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from clickhouse_connect.driver.client import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reconcile_bench import Bench, bench_of, numbers

from resources.clickhouse import Server

DDL = """
CREATE TABLE {db}.m_source (day Date, k UInt8, n Int8, v UInt8) ENGINE = MergeTree PARTITION BY day ORDER BY k;
CREATE TABLE {db}.m_plain (day Date, k UInt8, n Int8) ENGINE = MergeTree PARTITION BY day ORDER BY k;
CREATE MATERIALIZED VIEW {db}.m_plain_mv TO {db}.m_plain AS SELECT day, k, n FROM {db}.m_source;
CREATE TABLE {db}.m_sums (day Date, k UInt8, n Int64) ENGINE = SummingMergeTree PARTITION BY day ORDER BY (day, k);
CREATE MATERIALIZED VIEW {db}.m_sums_mv TO {db}.m_sums AS SELECT day, k, sum(n) AS n FROM {db}.m_source GROUP BY day, k;
CREATE TABLE {db}.m_newest (day Date, k UInt8, n Int8, v UInt8) ENGINE = ReplacingMergeTree(v) PARTITION BY day ORDER BY (day, k);
CREATE MATERIALIZED VIEW {db}.m_newest_mv TO {db}.m_newest AS SELECT day, k, n, v FROM {db}.m_source;
"""
Row = tuple[int, int, int]  # key, number, version
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3), st.integers(0, 3)), max_size=12)
TABLES = ("m_plain", "m_sums", "m_newest")


@pytest.fixture(scope="module")
def bench(clickhouse: Client, server: Server, database: str) -> Bench:
    return bench_of(clickhouse, server, database, DDL)


def values(rows: list[Row], columns: int) -> str:
    return ", ".join(f"('2026-11-01', {', '.join(map(str, row[:columns]))})" for row in rows)


def form(table: str, rows: list[Row]) -> Mapping[object, object]:
    """The normal form of a table's rows, by hand; the newest rows of a key as a set."""
    if table == "m_plain":
        return Counter((k, n) for k, n, _ in rows)
    found: dict[object, object] = {}
    for key in {k for k, _, _ in rows}:
        if table == "m_sums":
            found[key] = sum(n for k, n, _ in rows if k == key)
        else:
            newest = max(v for k, _, v in rows if k == key)
            found[key] = (newest, frozenset(n for k, n, v in rows if k == key and v == newest))
    return {key: value for key, value in found.items() if value != 0}


def judge(table: str, expected: Mapping[object, object], actual: Mapping[object, object]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for key in expected.keys() | actual.keys():
        if key not in actual:
            found["missing"] += 1
        elif key not in expected:
            found["extra"] += 1
        elif table == "m_newest":
            (version, wanted), (there, held) = expected[key], actual[key]  # type: ignore[misc]
            if version != there:
                found["smaller" if there < version else "larger"] += 1
            elif len(wanted) == len(held) == 1 and wanted != held:
                found["changed"] += 1
        elif expected[key] != actual[key]:
            found["smaller" if actual[key] < expected[key] else "larger"] += 1  # type: ignore[operator]
    return dict(found)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=ROWS, lost=st.sets(st.integers(0, 11), max_size=3), added=ROWS.map(lambda rows: rows[:3]), merged=st.booleans()
)
def test_the_verdict_is_that_of_the_model(
    bench: Bench, rows: list[Row], lost: set[int], added: list[Row], merged: bool
) -> None:
    for table in ("m_source", *TABLES):
        bench.run(f"TRUNCATE TABLE {{db}}.{table} SYNC")
    if rows:
        bench.run(f"INSERT INTO {{db}}.m_source VALUES {values(rows, 3)}")
    damaged = [row for at, row in enumerate(rows) if at not in lost] + added
    for table in TABLES:
        columns = 3 if table == "m_newest" else 2
        if damaged != rows:
            bench.run(f"TRUNCATE TABLE {{db}}.{table} SYNC")
            for one in damaged:  # a part each: an insert would merge the rows of one block
                bench.run(f"INSERT INTO {{db}}.{table} VALUES {values([one], columns)}")
        if merged and table != "m_newest":  # there a merge would decide ties
            bench.run(f"OPTIMIZE TABLE {{db}}.{table} FINAL")
        wanted = judge(table, form(table, rows), form(table, damaged))
        found = bench.verdict(table)
        assert (numbers(found), found.status) == (wanted, "different" if wanted else "equal"), (table, found.samples)
