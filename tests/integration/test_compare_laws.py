"""Laws of the comparison on the real server: noise is never a change, a change is never noise.

Random tables, views and dictionaries are made of clauses. Each clause knows other spellings of itself (noise) and what would really change
it, with the name of that change. What is created is the plain text; what is declared is a noisy or a changed one.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from clickhouse_connect.driver.client import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName
from chmv_assets.core.tokens import tokenize
from chmv_assets.live import compare_with_live
from resources.clickhouse import Server
from resources.introspect import fetch_objects

EXAMPLES = settings(
    max_examples=40,
    phases=(Phase.explicit, Phase.generate),  # what fails is short as it is
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KEYWORDS = (
    "CREATE TABLE MATERIALIZED VIEW IF NOT EXISTS TO AS SELECT FROM GROUP BY ORDER PARTITION ENGINE SETTINGS LEFT JOIN ON WHERE AND IN "
    "PRIMARY KEY SAMPLE TTL COMMENT DEFAULT ALIAS CODEC INDEX TYPE GRANULARITY PROJECTION CONSTRAINT CHECK INTERVAL DAY REFRESH EVERY "
    "HOUR DICTIONARY SOURCE LAYOUT LIFETIME MIN MAX UNION ALL WITH CAST DELETE OR REPLACE"
)


@dataclass(frozen=True)
class Clause:
    """One clause: as created, in other spellings, and really changed."""

    plain: str
    noise: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()  # text → the name of the difference


TYPES = [
    Clause("Int32", ("INT", "int", "INTEGER", "Int32"), (("Int64", "type of {}"), ("Nullable(Int32)", "type of {}"))),
    Clause("String", ("TEXT", "VARCHAR(10)"), (("FixedString(3)", "type of {}"), ("LowCardinality(String)", "type of {}"))),
    Clause("Decimal(10, 2)", ("DECIMAL(10,2)", "NUMERIC(10, 2)"), (("Decimal(10, 3)", "type of {}"),)),
    Clause("Bool", ("BOOLEAN", "bool"), (("UInt8", "type of {}"),)),
    Clause("DateTime", ("TIMESTAMP", "DATETIME"), (("DateTime('UTC')", "type of {}"), ("DateTime64(3)", "type of {}"))),
    Clause("DateTime64(3)", ("DateTime64", "DateTime64( 3 )"), (("DateTime64(6)", "type of {}"),)),
    Clause("Enum8('a' = 1, 'b' = 2)", ("Enum('a'=1,'b'=2)", "Enum8('a', 'b')"), (("Enum8('a' = 1, 'b' = 3)", "type of {}"),)),
    Clause("Nullable(Int64)", ("BIGINT NULL", "Nullable(BIGINT)"), (("Int64", "type of {}"),)),
    Clause("Array(Float64)", ("Array(DOUBLE)",), (("Array(Float32)", "type of {}"),)),
    Clause("Map(String, Array(Int32))", ("Map(TEXT, Array(INT))",), (("Map(String, Array(UInt32))", "type of {}"),)),
    Clause("Tuple(a Int32, b String)", ("Tuple(a INT, b TEXT)", "Tuple(`a` Int32, b String)"), (("Tuple(a Int32, c String)", "type of {}"),)),
    Clause("SimpleAggregateFunction(sum, Int64)", ("SimpleAggregateFunction(sum, BIGINT)",), (("Int64", "type of {}"),)),
    Clause("AggregateFunction(sum, Int32)", ("AggregateFunction(sum, INT)",), (("AggregateFunction(sum, Int64)", "type of {}"),)),
    Clause("Float32", ("REAL", "FLOAT"), (("Float64", "type of {}"),)),
]  # fmt: skip
ATTRIBUTES = [
    Clause("Int64 DEFAULT id + 1", ("Int64 DEFAULT (id + 1)", "BIGINT DEFAULT id+1"),
           (("Int64 DEFAULT id + 2", "default of {}"), ("Int64 MATERIALIZED id + 1", "default of {}"), ("Int64", "default of {}"))),
    Clause("Date DEFAULT toDate(ts)", ("Date DEFAULT (toDate(ts))",),
           (("Date DEFAULT toMonday(ts)", "default of {}"),)),
    Clause("UInt8 DEFAULT 7", ("DEFAULT 7", "UInt8 default 7"), (("UInt8 DEFAULT 8", "default of {}"), ("UInt16 DEFAULT 7", "type of {}"))),
    Clause("String ALIAS upper(toString(id))", ("String ALIAS UPPER(toString(id))", "TEXT ALIAS ucase(toString(id))"),
           (("String ALIAS lower(toString(id))", "default of {}"), ("String ALIAS upper(toString(id + 0))", "default of {}"))),
    Clause("UInt64 CODEC(ZSTD(1))", ("UInt64 CODEC(ZSTD)", "UInt64 CODEC( ZSTD (1) )"), (("UInt64 CODEC(ZSTD(3))", "codec of {}"), ("UInt64", "codec of {}"))),
    Clause("UInt32 CODEC(Delta(4), LZ4)", ("UInt32 CODEC(Delta, LZ4)",), (("UInt32 CODEC(Delta(2), LZ4)", "codec of {}"), ("UInt32 CODEC(LZ4)", "codec of {}"))),
    Clause("String TTL ts + INTERVAL 1 DAY", ("String TTL ts + toIntervalDay(1)", "String TTL (ts + INTERVAL 1 DAY)"),
           (("String TTL ts + INTERVAL 2 DAY", "ttl of {}"), ("String", "ttl of {}"))),
    Clause("UInt8 COMMENT 'it''s; --x'", ("UInt8 COMMENT 'it\\'s; --x'",), (("UInt8 COMMENT 'its'", "comment of {}"), ("UInt8", "comment of {}"))),
    Clause("String SETTINGS (min_compress_block_size = 100, max_compress_block_size = 1000)",
           ("String SETTINGS (max_compress_block_size = 1000, min_compress_block_size = 100)",),
           (("String SETTINGS (min_compress_block_size = 101, max_compress_block_size = 1000)", "column settings of {}"),)),
]  # fmt: skip
LISTED = [
    Clause("INDEX i1 id TYPE minmax GRANULARITY 1", ("INDEX i1 id TYPE minmax", "INDEX `i1` (id) TYPE minmax GRANULARITY 1"),
           (("INDEX i1 id TYPE minmax GRANULARITY 2", "index i1"), ("INDEX i1 id TYPE set(10)", "index i1"), ("INDEX i1 id + 1 TYPE minmax", "index i1"))),
    Clause("INDEX i2 toString(id) TYPE bloom_filter(0.01) GRANULARITY 4", ("INDEX i2 (toString(id)) TYPE bloom_filter(0.01) GRANULARITY 4",),
           (("INDEX i2 toString(id) TYPE bloom_filter(0.02) GRANULARITY 4", "index i2"), ("INDEX i3 toString(id) TYPE bloom_filter(0.01) GRANULARITY 4", "index i2"))),
    Clause("PROJECTION p1 (SELECT id, count() GROUP BY id)", ("PROJECTION p1 (SELECT id, COUNT(*) GROUP BY id)",),
           (("PROJECTION p1 (SELECT id, max(ts) GROUP BY id)", "projection p1"),)),
    Clause("PROJECTION p2 (SELECT * ORDER BY ts)", ("PROJECTION p2 (SELECT * ORDER BY (ts))",), (("PROJECTION p2 (SELECT * ORDER BY id)", "projection p2"),)),
    Clause("CONSTRAINT c1 CHECK id > 0", ("CONSTRAINT c1 CHECK (id > 0)", "CONSTRAINT c1 CHECK id>0"),
           (("CONSTRAINT c1 CHECK id > 1", "constraint c1"), ("CONSTRAINT c1 CHECK id >= 0", "constraint c1"), ("CONSTRAINT c1 ASSUME id > 0", "constraint c1"))),
]  # fmt: skip
ENGINES = [
    Clause("MergeTree", ("MergeTree()",), (("ReplacingMergeTree", "ENGINE"), ("AggregatingMergeTree", "ENGINE"))),
    Clause("ReplacingMergeTree(ts)", ("ReplacingMergeTree(`ts`)",), (("ReplacingMergeTree", "engine arguments"), ("ReplacingMergeTree(id)", "engine arguments"))),
    Clause("SummingMergeTree(v)", ("SummingMergeTree((v))",), (("SummingMergeTree", "engine arguments"), ("SummingMergeTree((v, w))", "engine arguments"))),
]  # fmt: skip
PARTITIONS = [
    Clause("", ("PARTITION BY tuple()",), (("PARTITION BY toDate(ts)", "PARTITION BY"),)),
    Clause("PARTITION BY toYYYYMM(ts)", ("PARTITION BY (toYYYYMM(ts))",), (("PARTITION BY toDate(ts)", "PARTITION BY"), ("", "PARTITION BY"))),
    Clause("PARTITION BY (toDate(ts), id % 4)", ("PARTITION BY tuple(toDate(ts), id % 4)",), (("PARTITION BY (toDate(ts), id % 5)", "PARTITION BY"),)),
]  # fmt: skip
ORDERS = [
    Clause("ORDER BY id", ("ORDER BY (id)", "PRIMARY KEY id", "PRIMARY KEY (id) ORDER BY id", "ORDER BY tuple(id)"), (("ORDER BY ts", "ORDER BY"), ("ORDER BY (id, ts)", "ORDER BY"))),
    Clause("ORDER BY (id, ts)", ("ORDER BY (`id`, ts) PRIMARY KEY (id, ts)", "ORDER BY tuple(id, ts)"), (("ORDER BY (ts, id)", "ORDER BY"), ("ORDER BY (id, ts) PRIMARY KEY id", "PRIMARY KEY"))),
    Clause("PRIMARY KEY id ORDER BY (id, toDate(ts))", ("ORDER BY (id, toDate(ts)) PRIMARY KEY (id)", "ORDER BY (id, (toDate(ts))) PRIMARY KEY id"), (("ORDER BY (id, toDate(ts))", "PRIMARY KEY"),)),
    Clause("ORDER BY tuple()", ("ORDER BY ()",), (("ORDER BY id", "ORDER BY"),)),
    Clause("ORDER BY (id, intHash32(id)) SAMPLE BY intHash32(id)", ("ORDER BY (id, intHash32(id)) SAMPLE BY (intHash32(id))",), (("ORDER BY (id, intHash32(id))", "SAMPLE BY"),)),
]  # fmt: skip
TTLS = [
    Clause(""),
    Clause("TTL ts + INTERVAL 30 DAY", ("TTL ts + toIntervalDay(30)", "TTL (ts + INTERVAL 30 DAY)", "TTL ts + INTERVAL 30 DAY DELETE"),
           (("TTL ts + INTERVAL 31 DAY", "TTL"), ("", "TTL"), ("TTL ts + INTERVAL 30 WEEK", "TTL"), ("TTL ts + INTERVAL 30 DAY DELETE WHERE id = 1", "TTL"))),
]  # fmt: skip
SETTINGS = [
    Clause("", ("SETTINGS index_granularity = 8192", "SETTINGS merge_max_block_size = 8192, index_granularity = 8192"),
           (("SETTINGS index_granularity = 4096", "setting index_granularity"), ("SETTINGS ttl_only_drop_parts = 1", "setting ttl_only_drop_parts"))),
    Clause("SETTINGS index_granularity = 1024, ttl_only_drop_parts = 1", ("SETTINGS ttl_only_drop_parts = true, index_granularity = 1024", "SETTINGS index_granularity = 1024, ttl_only_drop_parts = 1, merge_max_block_size = 8192"),
           (("SETTINGS index_granularity = 1024", "setting ttl_only_drop_parts"), ("SETTINGS index_granularity = 1024, ttl_only_drop_parts = 0", "setting ttl_only_drop_parts"))),
]  # fmt: skip
COMMENTS = [
    Clause(""),
    Clause("COMMENT 'a; b'", (), (("COMMENT 'a; B'", "COMMENT"), ("", "COMMENT"))),
]
OTHER_TABLES = [
    Clause("(id UInt64, v Int32) ENGINE = Memory", ("(id UInt64, v INT) ENGINE Memory()",), (("(id UInt64, v Int32) ENGINE = Log", "ENGINE"), ("(v Int32, id UInt64) ENGINE = Memory", "order of columns"))),
    Clause("(id UInt64, v Int32) ENGINE = Null", ("(`id` UInt64, v INT) ENGINE = Null()",), (("(id UInt64, v Int32) ENGINE = Memory", "ENGINE"),)),
    Clause("(id UInt64) ENGINE = Merge('{d}', '^src')", ("(id UInt64) ENGINE = Merge({d}, '^src')", "(id UInt64) ENGINE = Merge(currentDatabase(), '^src')"), (("(id UInt64) ENGINE = Merge('{d}', '^sr')", "engine arguments"),)),
    Clause("(id UInt64) ENGINE = Buffer('{d}', 'src', 1, 10, 100, 10, 1000, 100, 1000)", ("(id UInt64) ENGINE = Buffer({d}, src, 1, 10, 100, 10, 1000, 100, 1000)", "(id UInt64) ENGINE = Buffer('', src, 1, 10, 100, 10, 1000, 100, 1000)"),
           (("(id UInt64) ENGINE = Buffer('{d}', 'src', 1, 10, 101, 10, 1000, 100, 1000)", "engine arguments"),)),
    Clause("(n Nested(a Int32, b String)) ENGINE = Memory", ("(`n.a` Array(Int32), `n.b` Array(String)) ENGINE = Memory", "(n Nested(a INT, b TEXT)) ENGINE = Memory"), (("(n Nested(a Int32, c String)) ENGINE = Memory", "column n.c"),)),
    Clause("(id UInt64) ENGINE = MergeTree ORDER BY id", ("(id UInt64 PRIMARY KEY) ENGINE = MergeTree", "(id UInt64, PRIMARY KEY (id)) ENGINE = MergeTree", "(id UInt64) ORDER BY id"), (("(id UInt64 PRIMARY KEY, b UInt8) ENGINE = MergeTree", "column b"),)),
]  # fmt: skip
SELECTS = [
    Clause("SELECT toDate(ts) AS day, count() AS n FROM {d}.src GROUP BY day",
           ("SELECT toDate(ts) AS day, COUNT(*) AS n FROM {d}.src GROUP BY day", "SELECT toDate(ts) day, count() n FROM src GROUP BY day", "SELECT (toDate(ts)) AS day, (count()) AS n FROM `{d}`.\"src\" GROUP BY (day)"),
           (("SELECT toDate(ts) AS day, count(id) AS n FROM {d}.src GROUP BY day", "query"), ("SELECT toDate(ts) AS day, count() AS n FROM {d}.src2 GROUP BY day", "query"),
            ("SELECT toMonday(ts) AS day, count() AS n FROM {d}.src GROUP BY day", "query"), ("SELECT toDate(ts) AS day, count() AS n FROM {d}.src GROUP BY day SETTINGS max_threads = 1", "query"))),
    Clause("SELECT toDate(ts) AS day, toUInt64(sum(id)) AS n FROM {d}.src WHERE id > 5 AND v < 3 GROUP BY day",
           ("SELECT toDate(ts) AS day, toUInt64(SUM(id)) AS n FROM {d}.src WHERE (id > 5) AND (v < 3) GROUP BY day", "SELECT toDate(ts) AS day, toUInt64(sum(id)) AS n FROM src WHERE ((id > 5) AND v < 3) GROUP BY day"),
           (("SELECT toDate(ts) AS day, toUInt64(sum(id)) AS n FROM {d}.src WHERE id > 6 AND v < 3 GROUP BY day", "query"), ("SELECT toDate(ts) AS day, toUInt64(sum(id)) AS n FROM {d}.src WHERE id > 5 OR v < 3 GROUP BY day", "query"),
            ("SELECT toDate(ts) AS day, toUInt64(sum(id)) AS n FROM {d}.src WHERE v > 5 AND v < 3 GROUP BY day", "query"))),
    Clause("SELECT toDate(ts) + INTERVAL 1 DAY AS day, CAST(id, 'UInt64') AS n FROM {d}.src WHERE name = 'x' OR name IN ('y', 'z') AND id = 1",
           ("SELECT toDate(ts) + toIntervalDay(1) AS day, id::UInt64 AS n FROM {d}.src WHERE name = 'x' OR name IN ('y', 'z') AND id = 1", "SELECT toDate(ts) + INTERVAL 1 DAY AS day, CAST(id AS UInt64) AS n FROM {d}.src WHERE (name == 'x') OR ((name IN ('y', 'z')) AND (id = 1))"),
           (("SELECT toDate(ts) + INTERVAL 1 DAY AS day, CAST(id, 'UInt64') AS n FROM {d}.src WHERE (name = 'x' OR name IN ('y', 'z')) AND id = 1", "query"), ("SELECT toDate(ts) + INTERVAL 2 DAY AS day, CAST(id, 'UInt64') AS n FROM {d}.src WHERE name = 'x' OR name IN ('y', 'z') AND id = 1", "query"),
            ("SELECT toDate(ts) + INTERVAL 1 DAY AS day, CAST(id, 'UInt64') AS n FROM {d}.src WHERE name = 'X' OR name IN ('y', 'z') AND id = 1", "query"))),
    Clause("SELECT s.d AS day, s.n AS n FROM (SELECT toDate(ts) AS d, toUInt64(id - (v - 1)) AS n FROM {d}.src) AS s LEFT JOIN {d}.src2 AS j ON s.n = j.id",
           ("SELECT s.d AS day, s.n AS n FROM (SELECT toDate(ts) AS d, toUInt64(id - (v - 1)) AS n FROM src) s LEFT JOIN src2 AS j ON (s.n = j.id)",),
           (("SELECT s.d AS day, s.n AS n FROM (SELECT toDate(ts) AS d, toUInt64(id - v - 1) AS n FROM {d}.src) AS s LEFT JOIN {d}.src2 AS j ON s.n = j.id", "query"), ("SELECT s.d AS day, s.n AS n FROM (SELECT toDate(ts) AS d, toUInt64(id - (v - 1)) AS n FROM {d}.src) AS s INNER JOIN {d}.src2 AS j ON s.n = j.id", "query"))),
    Clause("WITH src2 AS (SELECT ts, id FROM {d}.src) SELECT toDate(ts) AS day, id AS n FROM src2",
           ("WITH src2 AS (SELECT ts, id FROM src) SELECT toDate(ts) AS day, id AS n FROM src2",),
           (("WITH src2 AS (SELECT ts, id FROM {d}.src) SELECT toDate(ts) AS day, id AS n FROM {d}.src2", "query"),)),
    Clause("SELECT toDate(ts) AS day, id AS n FROM {d}.src UNION ALL SELECT toDate(ts) AS day, id AS n FROM {d}.src2",
           ("SELECT toDate(ts) AS day, id AS n FROM src UNION ALL SELECT toDate(ts) AS day, id AS n FROM src2", "(SELECT toDate(ts) AS day, id AS n FROM src) UNION ALL (SELECT toDate(ts) AS day, id AS n FROM src2)"),
           (("SELECT toDate(ts) AS day, id AS n FROM {d}.src2 UNION ALL SELECT toDate(ts) AS day, id AS n FROM {d}.src", "query"), ("SELECT toDate(ts) AS day, id AS n FROM {d}.src UNION DISTINCT SELECT toDate(ts) AS day, id AS n FROM {d}.src2", "query"))),
    Clause("SELECT toDate(ts) AS day, id AS n FROM {d}.src WHERE id IN (SELECT id FROM {d}.src2) AND dictGet('{d}.dict', 'name', id) != ''",
           ("SELECT toDate(ts) AS day, id AS n FROM src WHERE id IN (SELECT id FROM src2) AND dictGet('{d}.dict', 'name', id) <> ''", "SELECT toDate(ts) AS day, id AS n FROM src WHERE id IN (SELECT id FROM src2) AND dictGet('dict', 'name', id) != ''"),
           (("SELECT toDate(ts) AS day, id AS n FROM {d}.src WHERE id NOT IN (SELECT id FROM {d}.src2) AND dictGet('{d}.dict', 'name', id) != ''", "query"),)),
]  # fmt: skip
VIEWS = [
    Clause("CREATE MATERIALIZED VIEW {n} TO {d}.target AS {s}", ("CREATE MATERIALIZED VIEW IF NOT EXISTS {n} TO target AS {s}", "CREATE MATERIALIZED VIEW {n} TO {d}.target (day Date, n UInt64) AS {s}", "ATTACH MATERIALIZED VIEW {n} TO {d}.target AS {s}"),
           (("CREATE MATERIALIZED VIEW {n} TO {d}.target2 AS {s}", "target"), ("CREATE VIEW {n} AS {s}", "KIND"), ("CREATE MATERIALIZED VIEW {n} TO {d}.target SQL SECURITY NONE AS {s}", "security"), ("CREATE MATERIALIZED VIEW {n} REFRESH EVERY 1 DAY TO {d}.target AS {s}", "KIND"))),
    Clause("CREATE MATERIALIZED VIEW {n} REFRESH EVERY 1 DAY TO {d}.target EMPTY AS {s}", ("CREATE MATERIALIZED VIEW {n} REFRESH EVERY 1 DAYS TO target AS {s}", "CREATE MATERIALIZED VIEW {n} REFRESH EVERY 1 DAY TO target (day Date, n UInt64) AS {s}"),
           (("CREATE MATERIALIZED VIEW {n} REFRESH EVERY 2 DAY TO {d}.target AS {s}", "refresh"), ("CREATE MATERIALIZED VIEW {n} REFRESH AFTER 1 DAY TO {d}.target AS {s}", "refresh"), ("CREATE MATERIALIZED VIEW {n} REFRESH EVERY 1 DAY APPEND TO {d}.target AS {s}", "refresh"))),
    Clause("CREATE MATERIALIZED VIEW {n} ENGINE = SummingMergeTree PARTITION BY day ORDER BY day AS {s}", ("CREATE MATERIALIZED VIEW {n} ENGINE = SummingMergeTree() PARTITION BY (day) ORDER BY (day) SETTINGS index_granularity = 8192 AS {s}",),
           (("CREATE MATERIALIZED VIEW {n} ENGINE = MergeTree PARTITION BY day ORDER BY day AS {s}", "ENGINE"), ("CREATE MATERIALIZED VIEW {n} ENGINE = SummingMergeTree PARTITION BY day ORDER BY (day, n) AS {s}", "ORDER BY"), ("CREATE MATERIALIZED VIEW {n} ENGINE = SummingMergeTree ORDER BY day AS {s}", "PARTITION BY"), ("CREATE MATERIALIZED VIEW {n} TO {d}.target AS {s}", "target"))),
    Clause("CREATE VIEW {n} AS {s}", ("CREATE OR REPLACE VIEW {n} AS {s}", "CREATE VIEW {n} (day Date, n UInt64) AS {s}"), (("CREATE MATERIALIZED VIEW {n} TO {d}.target AS {s}", "KIND"),)),
]  # fmt: skip
DICTIONARIES = [
    Clause("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT '') PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src' PASSWORD 'p')) LAYOUT(HASHED()) LIFETIME(MIN 0 MAX 300)",
           ("CREATE DICTIONARY IF NOT EXISTS {n} (id UInt64, name TEXT DEFAULT '') PRIMARY KEY (id) SOURCE(clickhouse(TABLE 'src' db '{d}' password 'p')) LIFETIME(300) LAYOUT(hashed)", "CREATE OR REPLACE DICTIONARY {n} (`id` UInt64, `name` String DEFAULT '') PRIMARY KEY id LAYOUT(HASHED()) SOURCE(CLICKHOUSE(TABLE 'src' DB '{d}' PASSWORD 'q')) LIFETIME(MIN 0 MAX 300)"),
           (("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT 'x') PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src' PASSWORD 'p')) LAYOUT(HASHED()) LIFETIME(MIN 0 MAX 300)", "default of name"),
            ("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT '') PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src2' PASSWORD 'p')) LAYOUT(HASHED()) LIFETIME(MIN 0 MAX 300)", "source"),
            ("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT '') PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src' PASSWORD 'p')) LAYOUT(FLAT()) LIFETIME(MIN 0 MAX 300)", "layout"),
            ("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT '') PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src' PASSWORD 'p')) LAYOUT(HASHED()) LIFETIME(MIN 10 MAX 300)", "lifetime"),
            ("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT '', v Int32) PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src' PASSWORD 'p')) LAYOUT(HASHED()) LIFETIME(MIN 0 MAX 300)", "column v"),
            ("CREATE DICTIONARY {n} (id UInt64, name String DEFAULT '') PRIMARY KEY name SOURCE(CLICKHOUSE(DB '{d}' TABLE 'src' PASSWORD 'p')) LAYOUT(HASHED()) LIFETIME(MIN 0 MAX 300)", "primary key"))),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Three texts of one object."""

    plain: str
    noisy: str
    changed: str
    what: str  # the name of the change


def noisy_text(text: str, chance: random.Random) -> str:
    """White space, comments and case of keywords, at random; what is said stays the same."""
    tokens, broken = tokenize(text)
    assert broken is None
    pieces: list[str] = []
    for token in tokens:
        word = token.text
        if token.kind == "word" and word in KEYWORDS.split() and chance.random() < 0.4:
            word = word.lower() if chance.random() < 0.5 else word.title()
        pieces += [word, chance.choice([" ", " ", "\n", "\t ", " /* ; ' */ ", " -- x\n", "  "])]
    return "".join(pieces)


def assemble(draw: st.DrawFn, clauses: list[Clause]) -> tuple[list[list[str]], list[str], str]:
    """For each clause its plain and noisy text; and one clause, chosen at random, changed."""
    noisy = [draw(st.sampled_from((clause.plain, *clause.noise))) for clause in clauses]
    at = draw(st.sampled_from([i for i, clause in enumerate(clauses) if clause.changes]))
    text, what = draw(st.sampled_from(clauses[at].changes))
    changed = [text if i == at else clause.plain for i, clause in enumerate(clauses)]
    return [[clause.plain for clause in clauses], noisy], changed, what


@st.composite
def tables(draw: st.DrawFn) -> Case:
    chosen = draw(st.lists(st.sampled_from([*TYPES, *ATTRIBUTES]), min_size=1, max_size=5))
    listed = draw(st.lists(st.sampled_from(LISTED), max_size=3, unique=True))
    fixed = ["id UInt64", "ts DateTime", "v Int32", "w Int32"]
    columns = [
        Clause(f"c{i} {c.plain}", tuple(f"`c{i}` {n}" for n in c.noise), tuple((f"c{i} {t}", w.format(f"c{i}")) for t, w in c.changes))
        for i, c in enumerate(chosen)
    ]  # fmt: skip
    # A projection with its own rows and an engine that merges them do not go together.
    engine = draw(st.sampled_from(ENGINES[:1] if any("PROJECTION" in c.plain for c in listed) else ENGINES))
    tail = [engine, *(draw(st.sampled_from(part)) for part in (PARTITIONS, ORDERS, TTLS, SETTINGS, COMMENTS))]
    if any("PROJECTION" in clause.plain for clause in listed):
        tail[0] = Clause(engine.plain, engine.noise)
    clauses = [*columns, *listed, *tail]
    (plain, noisy), changed, what = assemble(draw, clauses)
    cut = len(columns) + len(listed)

    def text(pieces: list[str]) -> str:
        return f"CREATE TABLE {{n}} ({', '.join([*fixed, *pieces[:cut]])}) ENGINE = {' '.join(pieces[cut:])}"

    return Case(text(plain), text(noisy), text(changed), what)


@st.composite
def whole(draw: st.DrawFn, clauses: list[Clause], head: str = "") -> Case:
    clause = draw(st.sampled_from(clauses))
    noisy = draw(st.sampled_from((clause.plain, *clause.noise)))
    text, what = draw(st.sampled_from(clause.changes))
    return Case(head + clause.plain, head + noisy, head + text, what)


@st.composite
def views(draw: st.DrawFn) -> Case:
    (plain, noisy), changed, what = assemble(draw, [draw(st.sampled_from(VIEWS)), draw(st.sampled_from(SELECTS))])
    return Case(*(pieces[0].replace("{s}", pieces[1]) for pieces in (plain, noisy, changed)), what)


@pytest.fixture(scope="module")
def place(clickhouse: Client) -> Iterator[str]:
    """A database with what the random objects stand on."""
    name = f"laws_{secrets.token_hex(3)}"
    clickhouse.command(f"CREATE DATABASE {name}")
    for table in ("src", "src2"):
        clickhouse.command(
            f"CREATE TABLE {name}.{table} (id UInt64, ts DateTime, v Int32, name String) ENGINE = MergeTree ORDER BY id"
        )
    for table in ("target", "target2"):
        clickhouse.command(f"CREATE TABLE {name}.{table} (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day")
    clickhouse.command(
        f"CREATE DICTIONARY {name}.dict (id UInt64, name String) PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{name}' TABLE 'src')) "
        "LAYOUT(HASHED()) LIFETIME(0)"
    )
    yield name
    clickhouse.command(f"DROP DATABASE {name} SYNC")


@dataclass(frozen=True)
class Ground:
    client: Client
    server: Server
    database: str

    def text(self, sql: str) -> str:
        return sql.replace("{n}", f"{self.database}.thing").replace("{d}", self.database)

    def compare(self, sql: str) -> Comparison:
        name = QName(self.database, "thing")
        catalog = build_catalog([SourceFile(path="x.sql", text=self.text(sql))], default_database=self.database)
        assert catalog.objects[name].sql, sql
        return compare_with_live(catalog, fetch_objects(self.server, [self.database]), self.server, [name])[name]

    def check(self, case: Case, chance: random.Random, hidden: tuple[str, ...] = ()) -> None:
        created = {"database": self.database, "allow_suspicious_codecs": 1}
        self.client.command(self.text(case.plain), settings=created)
        try:
            for text in (
                case.noisy,
                noisy_text(case.noisy.replace("{n}", "NNN").replace("{d}", "DDD"), chance),
            ):
                again = text.replace("NNN", "{n}").replace("DDD", "{d}")
                verdict = self.compare(again)
                assert verdict == Comparison("equal", hidden=hidden), again
            verdict = self.compare(case.changed)
            assert verdict.state == "changed", (case.changed, verdict)
            assert case.what in {difference.what for difference in verdict.differences}, (case.changed, verdict)
        finally:
            kind = "DICTIONARY" if "DICTIONARY" in case.plain else "TABLE"
            self.client.command(f"DROP {kind} {self.database}.thing SYNC")


@pytest.fixture
def ground(clickhouse: Client, server: Server, place: str) -> Ground:
    return Ground(clickhouse, server, place)


SEEDS = st.integers(0, 2**32)


@EXAMPLES
@given(tables(), SEEDS)
def test_tables(ground: Ground, case: Case, seed: int) -> None:
    ground.check(case, random.Random(seed))


@EXAMPLES
@given(views(), SEEDS)
def test_views(ground: Ground, case: Case, seed: int) -> None:
    ground.check(case, random.Random(seed))


@EXAMPLES
@given(whole(OTHER_TABLES, "CREATE TABLE {n} "), SEEDS)
def test_other_engines(ground: Ground, case: Case, seed: int) -> None:
    ground.check(case, random.Random(seed))


@EXAMPLES
@given(whole(DICTIONARIES), SEEDS)
def test_dictionaries(ground: Ground, case: Case, seed: int) -> None:
    """The password is not shown, so it is named as not compared."""
    ground.check(case, random.Random(seed), hidden=("source",))
