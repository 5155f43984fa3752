"""Classes of views: one row per class and reason."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.classify import family
from chmv_assets.core.names import QName

SOURCE = "CREATE TABLE d.s (k UInt8, x UInt32, v UInt32, ts DateTime) ENGINE = MergeTree ORDER BY k;"
LOOKUP = "CREATE TABLE d.l (k UInt8, name String) ENGINE = MergeTree ORDER BY k;"
SUMMING = "(k UInt8, n UInt64) ENGINE = SummingMergeTree ORDER BY k"
AGGREGATING = "(k UInt8, n SimpleAggregateFunction(sum, UInt64), m SimpleAggregateFunction(max, UInt32), u AggregateFunction(uniq, UInt32)) ENGINE = AggregatingMergeTree ORDER BY k"
PLAIN = "(k UInt8, x UInt32) ENGINE = MergeTree ORDER BY k"
REPLACING = "(k UInt8, x UInt32, v UInt32) ENGINE = ReplacingMergeTree(v) ORDER BY k"

ROWS = [
    ("append", "row by row", PLAIN, "SELECT k, x FROM d.s"),
    ("append", "row by row", PLAIN.replace("MergeTree", "ReplicatedMergeTree"), "SELECT k, x FROM d.s WHERE x > 1"),
    ("append", "row by row", PLAIN, "SELECT k, x FROM (SELECT k, x FROM d.s)"),
    ("append", "row by row", PLAIN, "SELECT k, arrayJoin([x, v]) AS x FROM d.s"),
    ("append", "row by row", PLAIN, "SELECT k, dictGet('d.dict', 'x', k) AS x FROM d.s"),
    ("replacing", "row by row into a Replacing", REPLACING, "SELECT k, x, v FROM d.s"),
    ("replacing", "the latest state per key", REPLACING, "SELECT k, argMax(x, v) AS x, max(v) AS v FROM d.s GROUP BY k"),
    ("additive", "row by row into a Summing", SUMMING, "SELECT k, x AS n FROM d.s"),
    ("additive", "row by row into an Aggregating", AGGREGATING, "SELECT k, x AS n FROM d.s"),
    ("additive", "into a Summing", SUMMING, "SELECT k, count() AS n FROM d.s GROUP BY k"),
    ("additive", "into a Summing", SUMMING, "SELECT k, sumIf(x, x > 1) AS n FROM d.s GROUP BY ALL"),
    ("additive", "into an Aggregating", AGGREGATING, "SELECT k, count() AS n, max(x) AS m, uniqState(x) AS u FROM d.s GROUP BY k"),
    ("additive", "into an Aggregating", AGGREGATING, "SELECT k, countIf(x > 1) AS n, maxIf(x, v > 1) AS m FROM d.s GROUP BY k"),
    ("opaque", "u is uniq() but the target keeps any one", AGGREGATING.replace("AggregateFunction(uniq, UInt32))", "UInt64)"), "SELECT k, uniq(x) AS u FROM d.s GROUP BY k"),
    ("opaque", "n is avg() but the target sums", SUMMING, "SELECT k, avg(x) AS n FROM d.s GROUP BY k"),
    ("opaque", "n is max() but the target sums", SUMMING, "SELECT k, max(x) AS n FROM d.s GROUP BY k"),
    ("opaque", "m is sum() but its column merges by max", AGGREGATING, "SELECT k, sum(x) AS m FROM d.s GROUP BY k"),
    ("opaque", "n is computed from aggregates", SUMMING, "SELECT k, sum(x) / count() AS n FROM d.s GROUP BY k"),
    ("opaque", "n is computed from aggregates", AGGREGATING, "SELECT k, round(sum(x)) AS n FROM d.s GROUP BY k"),
    ("additive", "into a Summing", SUMMING, "SELECT k, toUInt64(sum(x))::UInt64 AS n FROM d.s GROUP BY k"),
    ("additive", "into a Summing", SUMMING, "WITH c AS (SELECT k, x FROM d.s) SELECT k, sum(x) AS n FROM c GROUP BY k"),
    ("opaque", "aggregates into a Replacing target", REPLACING, "SELECT k, count() AS x FROM d.s GROUP BY k"),
    ("opaque", "engine that never merges", PLAIN, "SELECT k, count() AS x FROM d.s GROUP BY k"),
    ("opaque", "collapsing target", "(k UInt8, x Int8) ENGINE = CollapsingMergeTree(x) ORDER BY k", "SELECT k, 1 AS x FROM d.s"),
    ("opaque", "not a MergeTree table", "(k UInt8) ENGINE = Log", "SELECT k FROM d.s"),
    ("opaque", "reads d.l beside its trigger", PLAIN, "SELECT k, x FROM d.s JOIN d.l USING k"),
    ("opaque", "reads d.l beside its trigger", PLAIN, "SELECT k, x FROM d.s WHERE k IN (SELECT k FROM d.l)"),
    ("opaque", "reads d.l beside its trigger", PLAIN, "SELECT k, x FROM d.s UNION ALL SELECT k, 1 FROM d.l"),
    ("opaque", "it is a UNION", PLAIN, "SELECT k, x FROM d.s UNION ALL SELECT k, v FROM d.s"),
    ("opaque", "it has LIMIT", PLAIN, "SELECT k, x FROM d.s LIMIT 5"),
    ("opaque", "it has LIMIT", PLAIN, "SELECT k, x FROM d.s LIMIT 1 BY k"),
    ("opaque", "it has DISTINCT", PLAIN, "SELECT DISTINCT k, x FROM d.s"),
    ("opaque", "it has HAVING", SUMMING, "SELECT k, count() AS n FROM d.s GROUP BY k HAVING n > 1"),
    ("opaque", "it has a window function", PLAIN, "SELECT k, row_number() OVER (PARTITION BY k) AS x FROM d.s"),
    ("opaque", "ROLLUP", SUMMING, "SELECT k, count() AS n FROM d.s GROUP BY k WITH ROLLUP"),
    ("opaque", "TOTALS", SUMMING, "SELECT k, count() AS n FROM d.s GROUP BY k WITH TOTALS"),
    ("opaque", "subquery that groups or limits", SUMMING, "SELECT k, n FROM (SELECT k, count() AS n FROM d.s GROUP BY k)"),
    ("opaque", "subquery that groups or limits", SUMMING, "WITH c AS (SELECT k, count() AS n FROM d.s GROUP BY k) SELECT k, n FROM c"),
    ("opaque", "subquery that groups or limits", SUMMING, "WITH c AS (SELECT k, count() AS n FROM d.s GROUP BY k), e AS (SELECT * FROM c) SELECT k, n FROM e"),
    ("append", "row by row", PLAIN, "WITH RECURSIVE s AS (SELECT k, x FROM d.s) SELECT k, x FROM s"),
    ("opaque", "it has SAMPLE", PLAIN, "SELECT k, x FROM d.s SAMPLE 0.1"),
    ("opaque", "could not be read in full", PLAIN, "SELECT COLUMNS('x') REPLACE STRICT (x + 1 AS x) FROM d.s"),
]  # fmt: skip


def judge(target: str, select: str, refresh: str = "") -> tuple[str, str]:
    text = f"{SOURCE} {LOOKUP} CREATE TABLE d.t {target}; CREATE MATERIALIZED VIEW d.v {refresh} TO d.t AS {select}"
    facts = build_catalog([SourceFile(path="x.sql", text=text)]).facts[QName("d", "v")]
    return facts.view_class, facts.why


@pytest.mark.parametrize(("view_class", "why", "target", "select"), ROWS)
def test_class_and_reason(view_class: str, why: str, target: str, select: str) -> None:
    found, reason = judge(target, select)
    assert found == view_class, reason
    assert why in reason


def test_refreshable_view_is_opaque() -> None:
    assert judge(PLAIN, "SELECT k, x FROM d.s", "REFRESH EVERY 1 HOUR") == (
        "opaque",
        "it is refreshed as a whole, not row by row",
    )


def test_rows_over_partial_rows_are_opaque() -> None:
    text = f"""{SOURCE} CREATE TABLE d.t {SUMMING}; CREATE TABLE d.w {PLAIN};
    CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT k, count() AS n FROM d.s GROUP BY k;
    CREATE MATERIALIZED VIEW d.v2 TO d.w AS SELECT k, n AS x FROM d.t;"""
    facts = build_catalog([SourceFile(path="x.sql", text=text)]).facts[QName("d", "v2")]
    assert (facts.view_class, facts.why.split(",")[0]) == (
        "opaque",
        "row by row over partial rows of an additive table",
    )


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ("SharedReplacingMergeTree", "replacing"),
        ("ReplicatedMergeTree", "plain"),
        ("Memory", ""),
        ("MergeTree", "plain"),
    ],
)
def test_family(engine: str, wanted: str) -> None:
    assert family(engine) == wanted


def test_group_keys_are_output_columns() -> None:
    text = f"""{SOURCE} CREATE TABLE d.t {SUMMING};
    CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT toDate(ts) AS day, k AS key, count() AS n FROM d.s GROUP BY toDate(ts), 2;"""
    facts = build_catalog([SourceFile(path="x.sql", text=text)]).facts[QName("d", "v")]
    assert (facts.group_keys, facts.aggregates) == (("day", "key"), (("n", "count"),))
