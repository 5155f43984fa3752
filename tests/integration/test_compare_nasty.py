"""Objects of every shape equal themselves right after creation, in words of the folder; and each of them can be told from a near miss."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName
from chmv_assets.live import compare_with_live
from resources.clickhouse import Server
from resources.introspect import fetch_objects

# Each statement creates `x`; the session's database has `s` and `r`.
SAME = [
    "CREATE TABLE x (`index` UInt8, `comment` String, `ttl` DateTime, `key` UInt8 DEFAULT `index` + 1, `a b` String, `é` Int8) ENGINE = MergeTree ORDER BY (`index`, `a b`) TTL `ttl` + INTERVAL 1 DAY",
    "CREATE TABLE x (a UInt8, g UInt8 EPHEMERAL, h UInt8 EPHEMERAL 3, e UInt8 DEFAULT g + h) ENGINE = MergeTree ORDER BY a",
    "CREATE TABLE x (a UInt64, t DateTime, v UInt64) ENGINE = MergeTree ORDER BY (a, t) TTL t + INTERVAL 1 MONTH GROUP BY a SET v = max(v), t + INTERVAL 1 YEAR DELETE WHERE v = 0",
    "CREATE TABLE x (a UInt64, t DateTime) ENGINE = MergeTree ORDER BY a TTL t + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(3))",
    "CREATE TABLE x (a UInt64, b String, v Array(Float32), INDEX i1 (a, b) TYPE minmax, INDEX i2 lower(b) TYPE ngrambf_v1(3, 256, 2, 0) GRANULARITY 2, INDEX i3 b TYPE text(tokenizer = 'splitByNonAlpha'), INDEX i4 v TYPE vector_similarity('hnsw', 'L2Distance', 2)) ENGINE = MergeTree ORDER BY a",
    "CREATE TABLE x (a UInt64, b UInt64, PROJECTION p (SELECT b, sum(a), count(*) GROUP BY b), PROJECTION q (SELECT * ORDER BY b)) ENGINE = MergeTree ORDER BY a",
    "CREATE TABLE x (a UInt64, b UInt64, CONSTRAINT c1 CHECK a > 0 AND (b < 10 OR a = 5), CONSTRAINT c2 ASSUME a >= b) ENGINE = MergeTree ORDER BY a",
    "CREATE TABLE x (k UInt64, v String) ENGINE = Join(ANY, LEFT, k)",
    "CREATE TABLE x (k UInt64) ENGINE = Set",
    "CREATE TABLE x (n UInt64, j JSON(max_dynamic_paths = 4, a.b UInt32, SKIP c), d Dynamic, w Variant(String, UInt8)) ENGINE = MergeTree ORDER BY n",
    "CREATE TABLE x (a UInt64, s AggregateFunction(quantiles(0.5, 0.9), Float64), u AggregateFunction(uniq, String)) ENGINE = AggregatingMergeTree ORDER BY a",
    "CREATE TABLE x (a UInt64, sign Int8, ver UInt64) ENGINE = VersionedCollapsingMergeTree(sign, ver) ORDER BY a",
    "CREATE TABLE x (a UInt64, b DateTime('Europe/Berlin'), c DateTime64(3, 'UTC') DEFAULT now64(3), d Decimal32(2), e FixedString(4), f UUID DEFAULT generateUUIDv4(), g IPv4, h Date32, i Int128) ENGINE = MergeTree PRIMARY KEY a",
    "CREATE TABLE x (a UInt64 CODEC(DoubleDelta, ZSTD), b Float64 CODEC(Gorilla, LZ4HC), c UInt32 CODEC(T64), d String CODEC(NONE), e DateTime CODEC(Delta)) ENGINE = MergeTree ORDER BY a",
    "CREATE TABLE x (a UInt64) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = 0, index_granularity_bytes = '10Mi', old_parts_lifetime = 10.",
    "CREATE TABLE x ENGINE = MergeTree ORDER BY id AS SELECT id, toDate(ts) AS day FROM s",
    "CREATE TABLE x AS numbers(10)",
    "CREATE TABLE x (a UInt64, b String) ENGINE = URL('http://127.0.0.1:9/x.csv', 'CSV')",
    "CREATE TABLE x (a UInt64) ENGINE = MergeTree ORDER BY -a",
    "CREATE TABLE x (a UInt64, b String COMMENT 'two\nlines \\\\ ''q''') ENGINE = Memory COMMENT 'tab\t; -- no /* comment */'",
    "CREATE VIEW x AS SELECT s.id AS i, r.name AS n FROM s ASOF LEFT JOIN r ON s.id = r.id AND s.ts >= r.ts",
    "CREATE VIEW x AS SELECT id, row_number() OVER (PARTITION BY name ORDER BY ts DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS rn, sum(v) OVER w AS t FROM s WINDOW w AS (PARTITION BY (id))",
    "CREATE VIEW x AS SELECT arrayMap((a, i) -> (a + i) * 2, [1, 2], [3, 4]) AS m, quantile(0.5)(v) AS q, quantileIf(0.9)(v, (id > 1)) AS qi FROM s",
    "CREATE VIEW x AS WITH 5 AS five, (SELECT max(id) FROM r) AS top, c AS (SELECT * FROM s WHERE id > five) SELECT *, top FROM c WHERE id IN (1) OR (id, v) IN ((1, 2), (3, 4)) OR id IN (SELECT id FROM r)",
    "CREATE VIEW x AS SELECT * EXCEPT (name) REPLACE (id + 1 AS id) FROM s FINAL",
    "CREATE VIEW x AS SELECT CASE WHEN v > 1 THEN 'a' WHEN v = 0 THEN 'b' ELSE NULL END AS c, v BETWEEN 1 AND 2 AS b, NOT (v = 1) AS n, -v AS m, name NOT LIKE '%x' AS l, v IS NOT NULL AS o, (v, id).1 AS t, [1, 2][1] AS e, v % 2 = 0 ? 1 : 2 AS q FROM s",
    "CREATE VIEW x AS SELECT id, a FROM s ARRAY JOIN [1, 2] AS a ORDER BY id DESC NULLS FIRST, a LIMIT 2 BY id LIMIT 10 OFFSET 1 SETTINGS max_threads = 1",
    "CREATE VIEW x AS SELECT id, count() AS c FROM s GROUP BY GROUPING SETS ((id), (id, v)) HAVING c > 1 QUALIFY row_number() OVER (ORDER BY id) = 1",
    "CREATE VIEW x AS SELECT id FROM s WHERE id = {p:UInt64}",
    "CREATE VIEW x AS SELECT id FROM s EXCEPT SELECT id FROM r WHERE (id > 1)",
    "CREATE VIEW x AS SELECT id FROM s WHERE id IN (SELECT id FROM s INTERSECT DISTINCT SELECT id FROM r)",
    "CREATE VIEW x AS SELECT s.id FROM s, r WHERE s.id = r.id AND EXISTS (SELECT 1 FROM r WHERE id > 3)",
    "CREATE VIEW x AS SELECT EXTRACT(YEAR FROM ts) AS y, date_trunc('month', ts) AS m, ts + INTERVAL 1 MONTH - INTERVAL '2 hours' AS t, DATE '2020-01-01' AS d, 1::UInt8 AS u, '1'::INT AS i, TRIM(BOTH ' ' FROM name) AS n FROM s",
    "CREATE VIEW x DEFINER = default SQL SECURITY DEFINER AS SELECT id FROM s",
    "CREATE VIEW x SQL SECURITY INVOKER AS SELECT id FROM s COMMENT 'why'",
    "CREATE MATERIALIZED VIEW x ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day TTL day + INTERVAL 1 YEAR SETTINGS index_granularity = 1024 AS SELECT toDate(ts) AS day, uniqState(id) AS u FROM s GROUP BY day",
    "CREATE MATERIALIZED VIEW x (day Date CODEC(ZSTD(2)), u UInt64, INDEX i u TYPE minmax) ENGINE = MergeTree ORDER BY day AS SELECT toDate(ts) AS day, id AS u FROM s",
    "CREATE MATERIALIZED VIEW x ORDER BY id AS SELECT id FROM s",
    "CREATE MATERIALIZED VIEW x REFRESH EVERY 1 DAY OFFSET 90 MINUTE RANDOMIZE FOR 10 MINUTE SETTINGS refresh_retries = 3 APPEND TO t EMPTY AS SELECT id FROM s",
    "CREATE MATERIALIZED VIEW x REFRESH AFTER 36 HOUR DEPENDS ON other TO t EMPTY AS SELECT id FROM s",
    "CREATE MATERIALIZED VIEW x TO t AS SELECT CAST(dictGetOrDefault('dict', 'name', id, 'x') = '', 'UInt64') AS id FROM s AS s JOIN r USING (id)",
    "CREATE DICTIONARY x (id UInt64, parent UInt64 HIERARCHICAL, n String DEFAULT 'a' EXPRESSION upper(name), z UInt8 INJECTIVE) PRIMARY KEY id SOURCE(CLICKHOUSE(QUERY 'SELECT id, id AS parent, name, 1 AS z FROM s')) LAYOUT(FLAT(INITIAL_ARRAY_SIZE 10 MAX_ARRAY_SIZE 100)) LIFETIME(0) SETTINGS(dictionary_use_async_executor = 1) COMMENT 'c'",
    "CREATE DICTIONARY x (k1 String, k2 UInt8, v String) PRIMARY KEY k1, k2 SOURCE(HTTP(URL 'http://127.0.0.1:9/x' FORMAT 'CSV' HEADERS(HEADER(NAME 'a' VALUE 'b')))) LAYOUT(COMPLEX_KEY_HASHED(SHARDS 2)) LIFETIME(MIN 1 MAX 2)",
    "CREATE DICTIONARY x (id UInt64, a Date, b Date, v String) PRIMARY KEY id SOURCE(CLICKHOUSE(TABLE 's')) LAYOUT(RANGE_HASHED(RANGE_LOOKUP_STRATEGY 'max')) RANGE(MIN a MAX b) LIFETIME(MIN 1 MAX 2)",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(clickhouse: Client) -> Iterator[str]:
    name = f"nasty_{secrets.token_hex(3)}"
    clickhouse.command(f"CREATE DATABASE {name}")
    run = {"database": name}
    for table in ("s", "r"):
        clickhouse.command(
            f"CREATE TABLE {table} (id UInt64, ts DateTime, v UInt8, name String) ENGINE = ReplacingMergeTree ORDER BY id",
            settings=run,
        )
    for table in ("t", "u"):
        clickhouse.command(f"CREATE TABLE {table} (id UInt64) ENGINE = MergeTree ORDER BY id", settings=run)
    clickhouse.command("CREATE MATERIALIZED VIEW other REFRESH EVERY 1 YEAR TO u EMPTY AS SELECT 1 AS id", settings=run)
    clickhouse.command(
        "CREATE DICTIONARY dict (id UInt64, name String) PRIMARY KEY id SOURCE(CLICKHOUSE(TABLE 's')) LAYOUT(FLAT()) LIFETIME(0)",
        settings=run,
    )
    yield name
    clickhouse.command(f"DROP DATABASE {name} SYNC")


def judge(server: Server, place: str, text: str, default: str) -> Comparison:
    name = QName(place, "x")
    catalog = build_catalog([SourceFile(path="x.sql", text=text)], default_database=default)
    return compare_with_live(catalog, fetch_objects(server, [place]), server, [name])[name]


@pytest.mark.parametrize("sql", SAME, ids=range(len(SAME)))
def test_right_after_creation(clickhouse: Client, server: Server, place: str, sql: str) -> None:
    clickhouse.command(sql, settings={"database": place, "allow_suspicious_codecs": 1, "allow_suspicious_indices": 1})
    name = QName(place, "x")
    try:
        for text, default in ((sql, place), (f"USE {place};\n{sql}", "default")):
            assert judge(server, place, text, default) == Comparison("equal")
    finally:
        clickhouse.command(f"DROP {'DICTIONARY' if 'DICTIONARY' in sql else 'TABLE'} {name.sql} SYNC")


def test_queries_that_the_server_regroups_cannot_be_told(clickhouse: Client, server: Server, place: str) -> None:
    sql = "CREATE VIEW x AS (SELECT id FROM s EXCEPT SELECT id FROM r) UNION ALL (SELECT id FROM r INTERSECT SELECT id FROM s)"
    clickhouse.command(sql, settings={"database": place})
    try:
        assert judge(server, place, sql, place) == Comparison("cannot tell")
        assert judge(server, place, sql.replace("INTERSECT", "EXCEPT"), place).state == "changed"
    finally:
        clickhouse.command(f"DROP TABLE {place}.x SYNC")


NEAR = [
    ("SELECT id FROM s WHERE (id = 1 OR v = 2) AND name = 'a'", "SELECT id FROM s WHERE id = 1 OR v = 2 AND name = 'a'"),
    ("SELECT id - (v - 1) AS a FROM s", "SELECT id - v - 1 AS a FROM s"),
    ("SELECT -(id + 1) AS a FROM s", "SELECT -id + 1 AS a FROM s"),
    ("SELECT NOT (id = 1 AND v = 2) AS a FROM s", "SELECT NOT id = 1 AND v = 2 AS a FROM s"),
    ("SELECT id FROM s WHERE id IN (1, 2)", "SELECT id FROM s WHERE id IN (2, 1)"),
    ("SELECT count(DISTINCT id) AS c FROM s", "SELECT count(id) AS c FROM s"),
    ("SELECT count(*) AS c FROM s", "SELECT count(1) AS c FROM s"),
    ("SELECT id FROM s LEFT JOIN r USING id", "SELECT id FROM s LEFT ANY JOIN r USING id"),
    ("SELECT id FROM s FINAL", "SELECT id FROM s"),
    ("SELECT id AS a, v AS b FROM s", "SELECT v AS b, id AS a FROM s"),
    ("SELECT id FROM s ORDER BY id", "SELECT id FROM s ORDER BY id DESC"),
    ("SELECT id FROM s LIMIT 1", "SELECT id FROM s LIMIT 2"),
    ("SELECT DISTINCT id FROM s", "SELECT id FROM s"),
    ("SELECT quantile(0.5)(v) AS q FROM s", "SELECT quantile(0.9)(v) AS q FROM s"),
    ("SELECT id FROM s", "SELECT id FROM s SETTINGS max_threads = 2"),
    ("SELECT 1 AS a FROM s", "SELECT '1' AS a FROM s"),
    ("SELECT 1 AS a FROM s", "SELECT 1. AS a FROM s"),
    ("SELECT CAST(id, 'UInt8') AS a FROM s", "SELECT CAST(id, 'Int8') AS a FROM s"),
    ("SELECT (SELECT max(id) FROM s) AS a", "SELECT (SELECT max(id) FROM r) AS a"),
    ("SELECT tuple(id) AS a FROM s", "SELECT (id) AS a FROM s"),
    ("SELECT x.id FROM s AS x, r AS y WHERE x.id = y.id", "SELECT y.id FROM s AS x, r AS y WHERE x.id = y.id"),
    ("SELECT toDate(ts) AS a FROM s", "SELECT toDate(ts, 'UTC') AS a FROM s"),
    ("SELECT arrayMap(x -> x + 1, [1]) AS a", "SELECT arrayMap(x -> x + 1, [1, 1]) AS a"),
    ("SELECT id FROM s WHERE name = 'a  b'", "SELECT id FROM s WHERE name = 'a b'"),
    ("SELECT id FROM s WHERE name = 'COUNT(*)'", "SELECT id FROM s WHERE name = 'count()'"),
]  # fmt: skip


def test_near_misses_are_changes(clickhouse: Client, server: Server, place: str) -> None:
    for pair in NEAR:
        for one, two in (pair, pair[::-1]):
            clickhouse.command(f"CREATE VIEW x AS {one}", settings={"database": place})
            try:
                assert judge(server, place, f"CREATE VIEW x AS {one}", place) == Comparison("equal"), one
                verdict = judge(server, place, f"CREATE VIEW x AS {two}", place)
                assert [difference.what for difference in verdict.differences] == ["query"], two
            finally:
                clickhouse.command(f"DROP TABLE {place}.x SYNC")
