"""`chmv pull` on the real server: the demo, the nasty ones and random catalogs keep its law."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pull_folder import create_again, drop, hold_law, states, texts

from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.pipeline import load_pipeline
from chmv_assets.pull import pull
from resources.clickhouse import Server

QUICK = settings(
    max_examples=25 if os.environ.get("CHMV_THOROUGH") else 8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)

NASTY = r"""
CREATE TABLE shop.`select` (`from` UInt8, `order` String DEFAULT 'x', `settings` UInt8, `index` String, `a.b` Array(UInt8), `a.c` Array(String))
ENGINE = MergeTree ORDER BY (`from`, `settings`) SETTINGS index_granularity = 1024;
CREATE TABLE shop.settings (settings UInt8) ENGINE = MergeTree ORDER BY settings;
CREATE TABLE shop.`odd.na``me/../x` (`a b` UInt8, `c``d` String, `é"'` String COMMENT 'it''s a \\ \'quoted\' "comment"
of two lines') ENGINE = MergeTree ORDER BY `a b` COMMENT 'table''s
-- +goose Down
; CREATE TABLE no.no (x Int8)';
CREATE TABLE shop.`таблица 😀` (`столбец` UInt8) ENGINE = MergeTree ORDER BY `столбец`;
CREATE TABLE shop.`x.down` (x UInt8) ENGINE = Log;
CREATE TABLE shop.Events (x UInt8) ENGINE = Memory;
CREATE TABLE shop.`line
break` (x UInt8) ENGINE = Log;
CREATE TABLE shop.rich
(
    id UInt64 CODEC(Delta(8), ZSTD(3)),
    at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(DoubleDelta, LZ4),
    arrived DateTime MATERIALIZED now(),
    k LowCardinality(String) ALIAS toString(id),
    e Enum8('a' = 1, 'b''c' = 2),
    d Decimal(18, 4) DEFAULT 1.5 COMMENT 'money' TTL toDateTime(at) + INTERVAL 1 DAY,
    s AggregateFunction(quantiles(0.5, 0.9), Float64),
    t Tuple(a UInt8, b Nullable(String)),
    m Map(String, Array(UInt8)),
    j JSON,
    f String EPHEMERAL,
    n Nullable(Int32) DEFAULT NULL,
    INDEX by_id id TYPE minmax GRANULARITY 4,
    INDEX by_s e TYPE set(10) GRANULARITY 1,
    INDEX bloom toString(id) TYPE bloom_filter(0.01) GRANULARITY 2,
    PROJECTION totals (SELECT toDate(at), count() GROUP BY toDate(at)),
    PROJECTION ordered (SELECT id, at ORDER BY at),
    CONSTRAINT positive CHECK id > 0,
    CONSTRAINT known ASSUME e = 'a'
)
ENGINE = ReplacingMergeTree(at) PARTITION BY (toYYYYMM(at), id % 2) PRIMARY KEY id ORDER BY (id, at) SAMPLE BY id
TTL toDateTime(at) + INTERVAL 1 MONTH DELETE WHERE id > 5, toDateTime(at) + toIntervalDay(90)
SETTINGS min_bytes_for_wide_part = 0, deduplicate_merge_projection_mode = 'drop', non_replicated_deduplication_window = 7 COMMENT 'everything at once';
CREATE TABLE shop.src (ts DateTime, k UInt64, v Float64, arrived DateTime64(6) DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY toDate(ts) ORDER BY k;
CREATE TABLE shop.nothing (ts DateTime, k UInt64) ENGINE = Null;
CREATE TABLE shop.buffered AS shop.src ENGINE = Buffer(shop, src, 1, 10, 100, 1000, 10000, 100000, 1000000);
CREATE TABLE shop.all_parts AS shop.src ENGINE = Merge(shop, '^src$');
CREATE TABLE shop.joined (k UInt64, v String) ENGINE = Join(ANY, LEFT, k);
CREATE TABLE shop.members (k UInt64) ENGINE = Set;
CREATE TABLE shop.web (x UInt8) AS url('http://localhost:1/x', 'CSV', 'x UInt8');
CREATE DICTIONARY shop.names (k UInt64, name String DEFAULT 'un''known' EXPRESSION 'v')
PRIMARY KEY k SOURCE(CLICKHOUSE(DB 'shop' TABLE 'joined' WHERE 'k > 0')) LAYOUT(COMPLEX_KEY_HASHED_ARRAY()) LIFETIME(MIN 0 MAX 100)
SETTINGS(format_csv_allow_single_quotes = 1) COMMENT 'it''s';
CREATE DICTIONARY shop.ranges (k UInt64, a Date, b Date, v Float64) PRIMARY KEY k
SOURCE(CLICKHOUSE(TABLE 'joined' PASSWORD 'secret' USER 'default')) LAYOUT(RANGE_HASHED(range_lookup_strategy 'max')) RANGE(MIN a MAX b) LIFETIME(300);
CREATE TABLE shop.with_lookup (k UInt64, name String DEFAULT dictGet('shop.names', 'name', k)) ENGINE = MergeTree ORDER BY k;
CREATE TABLE shop.target (day Date, n SimpleAggregateFunction(sum, UInt64), v SimpleAggregateFunction(max, Float64)) ENGINE = AggregatingMergeTree ORDER BY day;
CREATE MATERIALIZED VIEW shop.to_target TO shop.target AS SELECT toDate(ts) AS day, count() AS n, max(v) AS v FROM shop.src GROUP BY day;
CREATE MATERIALIZED VIEW shop.fewer TO shop.target (day Date, n UInt32) AS SELECT toDate(ts) AS day, 1 AS n FROM shop.src;
CREATE MATERIALIZED VIEW shop.unsafe TO shop.target SQL SECURITY NONE AS SELECT toDate(ts) AS day FROM shop.src;
CREATE MATERIALIZED VIEW shop.inner_mv ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day SETTINGS index_granularity = 512
AS SELECT toDate(ts) AS day, count() AS n FROM shop.src GROUP BY day COMMENT 'inside';
CREATE MATERIALIZED VIEW shop.on_inner TO shop.target AS SELECT day, n FROM shop.inner_mv;
CREATE MATERIALIZED VIEW shop.refreshed REFRESH EVERY 1 YEAR OFFSET 1 DAY TO shop.target AS SELECT today() AS day, count() AS n FROM shop.src;
CREATE MATERIALIZED VIEW shop.refreshed_after REFRESH AFTER 1 YEAR DEPENDS ON shop.refreshed SETTINGS refresh_retries = 3 APPEND TO shop.target EMPTY AS SELECT today() AS day, count() AS n FROM shop.src;
CREATE MATERIALIZED VIEW shop.refreshed_inner REFRESH EVERY 1 YEAR ENGINE = MergeTree ORDER BY tuple() EMPTY AS SELECT 1 AS one;
CREATE VIEW shop.unnamed AS SELECT k, k + 1 FROM shop.src COMMENT 'x';
CREATE VIEW shop.united AS WITH x AS (SELECT 1 AS a UNION ALL SELECT 2) SELECT * FROM x UNION DISTINCT SELECT 3;
CREATE VIEW shop.both AS (SELECT 1 AS a) INTERSECT SELECT 1;
CREATE MATERIALIZED VIEW shop.narrow TO shop.target AS SELECT toDate(ts) AS day, 1 AS n FROM shop.src;
CREATE TABLE shop.queue (x UInt8) ENGINE = Kafka SETTINGS kafka_broker_list = 'localhost:1', kafka_topic_list = 't', kafka_group_name = 'g', kafka_format = 'CSV';
CREATE TABLE shop.statistics (x UInt8 STATISTICS(tdigest), y String SETTINGS (max_compress_block_size = 16384)) ENGINE = MergeTree ORDER BY x;
CREATE TABLE shop.inline_key (x UInt8, y String, PRIMARY KEY x);
CREATE TABLE shop.backwards (x UInt8, y UInt8) ENGINE = MergeTree ORDER BY (x DESC, y) SETTINGS allow_experimental_reverse_key = 1;
CREATE TABLE shop.types (n Nested(a UInt8, b String), v Variant(UInt8, String), dy Dynamic, p Point, i IPv4, b BFloat16) ENGINE = MergeTree ORDER BY tuple();
CREATE TABLE shop.mysql (x UInt8) ENGINE = MySQL('127.0.0.1:1', 'd', 't', 'u', 'secret');
CREATE TABLE shop.far AS shop.src ENGINE = Distributed('solo', shop, src, k) SETTINGS fsync_after_insert = 1;
CREATE VIEW shop.a_view AS SELECT * FROM shop.z_view WHERE k IN (SELECT k FROM shop.members) SETTINGS max_threads = 1;
CREATE VIEW shop.parameters AS SELECT * FROM shop.src WHERE k = {key:UInt64} AND v > {v:Float64};
CREATE VIEW shop.typed (k UInt8, renamed String) AS SELECT k, toString(v) AS renamed FROM shop.src;
CREATE VIEW shop.invoked SQL SECURITY INVOKER AS SELECT 1 AS x;
CREATE MATERIALIZED VIEW shop.`mv on "view"` TO shop.target AS WITH c AS (SELECT k FROM shop.a_view) SELECT toDate(k) AS day FROM c;
"""
Z_VIEW = "CREATE VIEW shop.z_view AS SELECT k, v, joinGet('shop.joined', 'v', k) AS j FROM shop.src"


def test_the_demo(shop: str, clickhouse: Client, server: Server, tmp_path: Path) -> None:
    clickhouse.command(
        f"INSERT INTO {shop}.events (event_id, event_time) VALUES (1, '2026-10-03 10:00:00'), (2, '1970-01-01 00:00:00')"
    )
    clickhouse.command(f"INSERT INTO {shop}.payments (payment_id, paid_at) VALUES (1, '2026-11-02 10:00:00')")
    folder = tmp_path / "ddl"
    report = hold_law(clickhouse, server, folder, [shop])
    assert report.hidden == () and report.left_out == () and report.verdicts == ()
    text = (folder / "30_views" / shop / "traffic_hourly_mv.sql").read_text()
    assert text.splitlines()[:2] == [
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {shop}.traffic_hourly_mv TO {shop}.traffic_hourly",
        "AS SELECT",
    ]
    said = load_pipeline(folder, cache=tmp_path / "cache").settings
    assert (said.default_database, said.timezone) == (shop, server.timezone)
    policy = said.policy(QName(shop, "events"))
    assert (policy.event_time, policy.arrival, str(policy.start)) == ("event_time", "ingested_at", "2026-10-03")
    assert str(said.policy(QName(shop, "payments")).start) == "2026-11-02"


def test_the_nasty_ones(name: str, clickhouse: Client, server: Server, tmp_path: Path) -> None:
    text = re.sub(r"\bshop\b", name, NASTY)
    order = [statement for statement in text.split(";\n") if statement.strip()]
    at = next(i for i, statement in enumerate(order) if "a_view AS" in statement)
    order.insert(at, re.sub(r"\bshop\b", name, Z_VIEW))
    for statement in order:
        clickhouse.command(
            statement, settings={"allow_experimental_json_type": 1, "allow_suspicious_low_cardinality_types": 1}
        )
    report = hold_law(clickhouse, server, tmp_path / "ddl", [name], skip=("ranges", "mysql"))
    assert report.hidden == (f"{name}.mysql", f"{name}.ranges")
    secret = (tmp_path / "ddl" / "20_dictionaries" / name / "ranges.sql").read_text()
    assert secret.startswith("-- chmv pull: the server hides a secret") and "'secret'" not in secret
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(tmp_path / "ddl")]
    assert not [path for path in outside if path.suffix == ".sql"]


def test_more_than_one_parameter_can_hold(name: str, clickhouse: Client, server: Server, tmp_path: Path) -> None:
    """The server refuses a parameter of more than 128 KiB; an object longer than that is taken as the server wrote it."""
    for number, length in enumerate([9_000] * 20 + [150_000]):
        clickhouse.command(f"CREATE TABLE {name}.t{number} (x UInt8) ENGINE = Memory COMMENT '{'é' * (length // 2)}'")
    report = pull(server, tmp_path, [name])
    assert {str(found): verdict.state for found, verdict in report.verdicts} == {f"{name}.t20": "cannot tell"}
    before = texts(clickhouse, [name])
    drop(clickhouse, [name])
    create_again(clickhouse, tmp_path)
    assert texts(clickhouse, [name]) == before


def test_databases_need_one_another(clickhouse: Client, server: Server, tmp_path: Path) -> None:
    """Files of `a` need tables of `z`, and the other way round."""
    a, z = (f"pull_{letter}`{secrets.token_hex(3)}" for letter in "az")
    try:
        for database in (a, z):
            clickhouse.command(f"CREATE DATABASE {quote_identifier(database)} COMMENT 'of {database[5]}'")
            clickhouse.command(f"CREATE TABLE {QName(database, 't').sql} (x UInt8) ENGINE = MergeTree ORDER BY x")
        for one, other in ((a, z), (z, a)):
            clickhouse.command(
                f"CREATE MATERIALIZED VIEW {QName(one, 'v').sql} TO {QName(one, 't').sql} AS SELECT x FROM {QName(other, 't').sql} WHERE x > 1"
            ) if one == a else clickhouse.command(f"CREATE VIEW {QName(one, 'v').sql} AS SELECT x FROM {QName(other, 'v').sql}")  # fmt: skip
        hold_law(clickhouse, server, tmp_path / "ddl", [a, z])
        assert "COMMENT 'of a'" in next((tmp_path / "ddl" / "00_databases").glob("pull_a*.sql")).read_text()
    finally:
        drop(clickhouse, [a, z])


# --- random catalogs -----------------------------------------------------------------------------------------------

NAMES = st.text(alphabet="ab .`\"'\\é\n-;/*😀%", min_size=1, max_size=8)
TYPES = st.sampled_from(
    ["UInt8", "String", "Nullable(Int32)", "DateTime('UTC')", "DateTime64(3)", "LowCardinality(String)", "Decimal(10, 2)",
     "Array(Tuple(a String, b UInt8))", "Map(String, UInt64)", "Enum('x' = 1, 'y''z' = 2)", "FixedString(3)", "UUID", "INT", "VARCHAR(9)"]
)  # fmt: skip


@st.composite
def catalogs(draw: st.DrawFn) -> Callable[[str], list[str]]:
    """Statements of a random pipeline, in an order in which they can be run."""
    count = draw(st.integers(1, 4))
    tables = [f"{i}{draw(NAMES)}" for i in range(count)]
    parts: list[tuple[str, str]] = []  # table, the rest of its statement
    for table in tables:
        columns = ["ts DateTime", "k UInt64"]
        for number in range(draw(st.integers(0, 4))):
            column = quote_identifier(f"c{number}{draw(NAMES)}")
            extra = draw(st.sampled_from(["", " CODEC(ZSTD(2))", " COMMENT 'it''s\n;'", " TTL ts + INTERVAL 3 DAY"]))
            columns.append(f"{column} {draw(TYPES)}{extra}")
        columns += draw(st.sets(st.sampled_from(["INDEX i k TYPE minmax", "PROJECTION p (SELECT k ORDER BY k)", "CONSTRAINT c CHECK k != 7"]))) if draw(st.booleans()) else []  # fmt: skip
        engine = draw(st.sampled_from(["MergeTree", "SummingMergeTree(k)", "ReplacingMergeTree(ts)", "AggregatingMergeTree"]))  # fmt: skip
        partition = draw(st.sampled_from(["", "PARTITION BY toDate(ts)", "PARTITION BY (k % 3, toYYYYMM(ts))"]))
        tail = draw(st.sampled_from(["", " TTL ts + INTERVAL 1 YEAR", " SETTINGS index_granularity = 256", " COMMENT 'a\\b'"]))  # fmt: skip
        if "Summing" in engine or "Replacing" in engine or "Aggregating" in engine:
            columns = [column for column in columns if not column.startswith("PROJECTION")]
        parts.append((table, f"({', '.join(columns)}) ENGINE = {engine} {partition} ORDER BY (ts, k + 1){tail}" if "Summing" not in engine else f"({', '.join(columns)}) ENGINE = SummingMergeTree {partition} ORDER BY ts{tail}"))  # fmt: skip
    views: list[tuple[str, str, int, str, int]] = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["to", "inner", "view"]))
        clause = draw(st.sampled_from(["", " WHERE k % 2 = 0", " SETTINGS max_threads = 2"]))
        views.append((f"{draw(NAMES)}v{number}", kind, draw(st.integers(0, count - 1)), clause, draw(st.integers(-1, number - 1))))  # fmt: skip

    def statements(database: str) -> list[str]:
        found = [f"CREATE TABLE {QName(database, table).sql} {rest}" for table, rest in parts]
        for name, kind, source, clause, over in views:
            read = QName(database, views[over][0] if over >= 0 and kind == "view" else tables[source])
            select = f"SELECT ts, k FROM {read.sql}{clause}"
            head = {"to": "MATERIALIZED VIEW", "inner": "MATERIALIZED VIEW", "view": "VIEW"}[kind]
            body = {"to": f"TO {QName(database, tables[(source + 1) % count]).sql}", "inner": "ENGINE = MergeTree ORDER BY k", "view": ""}[kind]  # fmt: skip
            if kind == "to" and count == 1:
                body = "ENGINE = MergeTree ORDER BY k"
            found.append(f"CREATE {head} {QName(database, name).sql} {body} AS {select}")
        return found

    return statements


@QUICK
@given(catalogs())
def test_the_law_over_random_catalogs(
    clickhouse: Client, server: Server, tmp_path_factory: pytest.TempPathFactory, made: Callable[[str], list[str]]
) -> None:
    database = f"pull_{secrets.token_hex(4)}"
    clickhouse.command(f"CREATE DATABASE {database}")
    try:
        for statement in made(database):
            clickhouse.command(statement)
        before = texts(clickhouse, [database])
        folder = tmp_path_factory.mktemp("random") / "ddl"
        report = pull(server, folder, [database])
        pipeline = load_pipeline(folder, cache=folder.parent / "cache")
        # Views in a circle (a → b → a) can be drawn; a cycle is a defect of the catalog, not of the pull.
        assert {finding.code for finding in pipeline.catalog.errors} <= {"cycle"}
        assert report.conflicts == () and set(states(server, pipeline, [database]).values()) <= {"equal", "cannot tell"}
        drop(clickhouse, [database])
        create_again(clickhouse, folder)
        assert texts(clickhouse, [database]) == before
        assert {step.action for step in pull(server, folder, [database]).steps} == {"unchanged"} if before else True
    finally:
        drop(clickhouse, [database])
