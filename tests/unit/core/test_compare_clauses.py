"""Every clause of a statement counts, each under its own name; what the server adds by itself does not."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import Comparison, compare_objects
from chmv_assets.core.names import QName
from chmv_assets.core.render_create import read_statement, render_create, statement_of
from chmv_assets.core.spelling import BUILTIN, Vocabulary, same, spell, spell_parts

TABLE = """CREATE TABLE d.t (a UInt8 CODEC(ZSTD(1)), b DateTime TTL b + toIntervalDay(1), c String STATISTICS(uniq, tdigest),
e String SETTINGS (min_compress_block_size = 1, max_compress_block_size = 2), INDEX i a TYPE minmax GRANULARITY 2,
PROJECTION p (SELECT a, count() GROUP BY a), CONSTRAINT k CHECK a > 0) ENGINE = MergeTree ORDER BY (a, b) SAMPLE BY a"""
DICTIONARY = """CREATE DICTIONARY d.t (id UInt64, parent UInt64 HIERARCHICAL, first Date, last Date, name String DEFAULT 'x') PRIMARY KEY id
SOURCE(CLICKHOUSE(USER 'u' PASSWORD '[HIDDEN]' DB 'd' TABLE 'users')) LAYOUT(RANGE_HASHED()) LIFETIME(MIN 0 MAX 300) RANGE(MIN first MAX last)"""
REFRESHED = "CREATE MATERIALIZED VIEW d.t REFRESH EVERY 1 HOUR DEPENDS ON d.a, d.b TO d.x AS SELECT 1 AS n"
INNER = "CREATE MATERIALIZED VIEW d.t (n UInt64) ENGINE = SummingMergeTree(n) PARTITION BY n ORDER BY n AS SELECT n FROM d.s"
VIEW = "CREATE MATERIALIZED VIEW d.t TO d.x AS SELECT a FROM d.s"


def compare(mine: str, theirs: str, vocabulary: Vocabulary = BUILTIN) -> Comparison:
    one, two = read_statement(mine, "d"), read_statement(theirs, "d")
    assert one is not None
    assert two is not None
    return compare_objects(one, two, "d", vocabulary)


CHANGES = [
    (TABLE, "ZSTD(1)", "ZSTD(2)", "codec of a"),
    (TABLE, " CODEC(ZSTD(1))", "", "codec of a"),
    (TABLE, "b + toIntervalDay(1)", "b + toIntervalDay(2)", "ttl of b"),
    (TABLE, "tdigest", "minmax", "statistics of c"),
    (TABLE, "min_compress_block_size = 1", "min_compress_block_size = 3", "column settings of e"),
    (TABLE, "GRANULARITY 2", "GRANULARITY 3", "index i"),
    (TABLE, "GRANULARITY 2", "", "index i"),
    (TABLE, "TYPE minmax", "TYPE set(1)", "index i"),
    (TABLE, "INDEX i a", "INDEX i c", "index i"),
    (TABLE, "count()", "max(b)", "projection p"),
    (TABLE, "a > 0", "a > 1", "constraint k"),
    (TABLE, ", CONSTRAINT k CHECK a > 0", "", "constraint k"),
    (TABLE, "ORDER BY (a, b)", "ORDER BY (a, b) PRIMARY KEY a", "PRIMARY KEY"),
    (TABLE, " SAMPLE BY a", "", "SAMPLE BY"),
    (TABLE, "SAMPLE BY a", "SAMPLE BY a COMMENT 'x'", "COMMENT"),
    (DICTIONARY, "PRIMARY KEY id", "PRIMARY KEY id, parent", "primary key"),
    (DICTIONARY, "'users'", "'people'", "source"),
    (DICTIONARY, "USER 'u'", "USER 'v'", "source"),
    (DICTIONARY, "RANGE_HASHED", "COMPLEX_KEY_RANGE_HASHED", "layout"),
    (DICTIONARY, "MAX 300", "MAX 301", "lifetime"),
    (DICTIONARY, "MAX last", "MAX first", "range"),
    (DICTIONARY, " HIERARCHICAL", "", "attributes of parent"),
    (DICTIONARY, "DEFAULT 'x'", "DEFAULT 'y'", "default of name"),
    (DICTIONARY, ", last Date", ", last Date, z Date", "column z"),
    (REFRESHED, "1 HOUR", "2 HOUR", "refresh"),
    (REFRESHED, "EVERY", "AFTER", "refresh"),
    (REFRESHED, "d.a, d.b", "d.a", "refresh"),
    (REFRESHED, "TO d.x", "APPEND TO d.x", "refresh"),
    (REFRESHED, "REFRESH EVERY 1 HOUR DEPENDS ON d.a, d.b ", "", "KIND"),
    (INNER, "SummingMergeTree(n)", "MergeTree(n)", "ENGINE"),
    (INNER, "SummingMergeTree(n)", "SummingMergeTree", "engine arguments"),
    (INNER, "PARTITION BY n ", "", "PARTITION BY"),
    (INNER, "ORDER BY n", "ORDER BY tuple()", "ORDER BY"),
    (INNER, "n UInt64", "n UInt32", "type of n"),
    (VIEW, "TO d.x", "TO d.x SQL SECURITY NONE", "security"),
    (VIEW, "TO d.x", "TO d.x DEFINER = bob SQL SECURITY DEFINER", "security"),
    (VIEW, "MATERIALIZED VIEW d.t TO d.x", "VIEW d.t", "KIND"),
    (VIEW, "FROM d.s", "FROM e.s", "query"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "old", "new", "what"), CHANGES, ids=[f"{w}-{n[:20]}" for _, _, n, w in CHANGES])
def test_each_clause_is_named(text: str, old: str, new: str, what: str) -> None:
    changed = text.replace(old, new, 1)
    assert changed != text
    if "bob" in new:  # whoever created it is the definer, unless somebody else is declared
        assert compare(text, changed).state == "equal"
        assert [d.what for d in compare(changed, text.replace(old, new.replace("bob", "eve"))).differences] == [what]
        return
    for mine, theirs in ((text, changed), (changed, text)):
        assert [d.what for d in compare(mine, theirs).differences] == [what]


NOISE = [
    (TABLE, "STATISTICS(uniq, tdigest)", "STATISTICS(tdigest, uniq)"),
    (TABLE, "min_compress_block_size = 1, max_compress_block_size = 2", "max_compress_block_size = 2, min_compress_block_size = 1"),
    (TABLE, "INDEX i a TYPE minmax", "INDEX i (a) TYPE minmax()"),
    (TABLE, "CONSTRAINT k CHECK a > 0", "CONSTRAINT k CHECK (a > 0), CONSTRAINT __chmv_fence_x CHECK 0"),
    (TABLE, "ORDER BY (a, b)", "ORDER BY (a, b) PRIMARY KEY (a, b)"),
    (TABLE, "ORDER BY (a, b)", "PRIMARY KEY tuple(a, b)"),
    (TABLE, "CREATE TABLE d.t", "CREATE OR REPLACE TABLE t ON CLUSTER c"),
    (TABLE, "SAMPLE BY a", "SAMPLE BY a SETTINGS index_granularity = 8192"),
    (DICTIONARY, "DB 'd' TABLE 'users'", "TABLE 'users' DB 'd'"),
    (DICTIONARY, "DB 'd' TABLE 'users'", "TABLE 'users'"),
    (DICTIONARY, "LIFETIME(MIN 0 MAX 300)", "LIFETIME(300)"),
    (DICTIONARY, "RANGE_HASHED()", "range_hashed"),
    (DICTIONARY, "PRIMARY KEY id", "PRIMARY KEY (id)"),
    (REFRESHED, "d.a, d.b", "b, a"),
    (INNER, "(n UInt64) ENGINE", "ENGINE"),
    (VIEW, "TO d.x", "TO d.x (a UInt8) DEFINER = default SQL SECURITY DEFINER"),
    (VIEW, "d.s", "s"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "old", "new"), NOISE, ids=[new[:40] for _, _, new in NOISE])
def test_what_the_server_adds_is_no_change(text: str, old: str, new: str) -> None:
    other = text.replace(old, new, 1)
    assert other != text
    hidden = ("source",) if text is DICTIONARY else ()
    assert compare(text, other) == Comparison("equal", hidden=hidden)
    if "DEFINER" not in new:  # a declared one must be there
        assert compare(other, text) == Comparison("equal", hidden=hidden)


def test_a_hidden_secret_is_named_and_compares_equal() -> None:
    told = DICTIONARY.replace("[HIDDEN]", "secret")
    assert compare(told, DICTIONARY) == Comparison("equal", hidden=("source",))
    assert compare(told, told.replace("secret", "other")).state == "changed"
    url = "CREATE TABLE d.t (a UInt8) ENGINE = MySQL('h:1', 'd', 't', 'u', '{}')"
    assert compare(url.format("pw"), url.format("[HIDDEN]")) == Comparison("equal", hidden=("engine arguments",))


@pytest.mark.parametrize(
    ("mine", "theirs", "what"),
    [
        ("ReplicatedMergeTree", "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')", ""),
        ("ReplicatedReplacingMergeTree(v)", "ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', v)", ""),
        ("ReplicatedMergeTree('/x/{database}/{table}', '{replica}')", "ReplicatedMergeTree('/x/d/t', '{replica}')", ""),
        ("ReplicatedMergeTree('/x/{uuid}', '{replica}')", "ReplicatedMergeTree('/x/01234567-0123-0123-0123-0123456789ab', '{replica}')", ""),
        ("ReplicatedMergeTree('/x/{shard}', '{replica}')", "ReplicatedMergeTree('/y/{shard}', '{replica}')", "engine arguments"),
        ("ReplicatedMergeTree", "ReplicatedMergeTree('/y/{shard}', '{replica}')", "engine arguments"),
        ("ReplacingMergeTree(v)", "SharedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', v)", ""),
        ("ReplacingMergeTree(v)", "SharedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', a)", "engine arguments"),
        ("MergeTree", "ReplicatedMergeTree", "ENGINE"),
        ("Distributed(c, d, s, rand())", "Distributed('c', 'd', 's', rand())", ""),
        ("Distributed(c, currentDatabase(), s)", "Distributed('c', 'd', 's')", ""),
        ("Distributed(c, '', s)", "Distributed('c', 'd', 's')", ""),
        ("Distributed(c, d, s, rand())", "Distributed('c', 'd', 's', a)", "engine arguments"),
        ("Distributed(c, d, s)", "Distributed('c', 'e', 's')", "engine arguments"),
        ("Merge(d, '^x')", "Merge('d', '^x')", ""),
        ("Merge(d, '^x')", "Merge('d', '^X')", "engine arguments"),
        ("Join(ANY, LEFT, a)", "Join(ALL, LEFT, a)", "engine arguments"),
    ],
)  # fmt: skip
def test_engine_arguments(mine: str, theirs: str, what: str) -> None:
    head = "CREATE TABLE d.t (a UInt8, v UInt8) ENGINE = "
    assert [d.what for d in compare(head + mine, head + theirs).differences] == ([what] if what else [])


def test_settings_count_by_their_effect() -> None:
    known = Vocabulary(table_settings={"ttl_only_drop_parts": "0", "x_ratio": "0.5"})
    plain = "CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a"
    assert compare(f"{plain} SETTINGS ttl_only_drop_parts = false, x_ratio = 0.50", plain, known).state == "equal"
    assert [d.what for d in compare(f"{plain} SETTINGS ttl_only_drop_parts = 1", plain, known).differences] == [
        "setting ttl_only_drop_parts"
    ]
    memory = plain.replace("MergeTree ORDER BY a", "Memory")
    assert compare(f"{memory} SETTINGS x_ratio = 0.5", memory, known).state == "changed"


def test_order_of_columns_counts() -> None:
    one, two = (
        "CREATE TABLE d.t (a UInt8, b UInt8) ENGINE = Memory",
        "CREATE TABLE d.t (b UInt8, a UInt8) ENGINE = Memory",
    )
    (difference,) = compare(one, two).differences
    assert (difference.what, difference.declared, difference.live) == ("order of columns", "a, b", "b, a")
    assert [d.what for d in compare(one, two.replace("b UInt8, a", "z UInt8, a UInt8, b")).differences] == ["column z"]


def test_nested_columns_are_arrays() -> None:
    nested = "CREATE TABLE d.t (n Nested(a UInt8, b String)) ENGINE = Memory"
    assert (
        compare(nested, "CREATE TABLE d.t (`n.a` Array(UInt8), `n.b` Array(String)) ENGINE = Memory").state == "equal"
    )
    assert compare(nested, nested).state == "equal"


def test_two_queries_are_never_one() -> None:
    """A table that a WITH query shadows, a column of an alias that is called like the database, case of literals and functions."""
    for one, two in (
        ("WITH s AS (SELECT 1) SELECT * FROM d.s", "WITH s AS (SELECT 1) SELECT * FROM s"),
        ("SELECT d.a FROM e.s AS d", "SELECT a FROM e.s AS d"),
        ("SELECT 'd.s' FROM d.s", "SELECT 's' FROM d.s"),
        ("SELECT myFunction(a) FROM d.s", "SELECT myfunction(a) FROM d.s"),
        ("SELECT `NULL` FROM d.s", "SELECT NULL FROM d.s"),
        ("SELECT a FROM d.s UNION ALL SELECT a FROM d.r", "SELECT a FROM d.r UNION ALL SELECT a FROM d.s"),
        ("SELECT count(DISTINCT a) FROM d.s", "SELECT count(a) FROM d.s"),
        ("SELECT a FROM d.s", "SELECT a FROM d.s SETTINGS max_threads = 1"),
    ):
        assert spell(one, "d") != spell(two, "d"), one
    assert spell("SELECT a FROM d.s, d.r JOIN (SELECT b FROM d.q) USING b WHERE x IN d.z", "d") == spell(
        "SELECT a FROM s, r JOIN (SELECT b FROM q) USING b WHERE x IN z", "d"
    )


def test_vocabulary_of_the_server() -> None:
    words = Vocabulary(functions={"ucase": "upper", "upper": "upper"}, aliases={"power": "pow"})
    assert spell("UCASE(a) + power(b)", "d", words) == spell("upper(a) + pow(b)", "d", words)
    assert spell("POWER(b)", "d", words) != spell("pow(b)", "d", words)


def test_parts_and_secrets() -> None:
    assert spell_parts("tuple(a, b)", "d") == spell_parts("(a, b ASC)", "d") == spell_parts("a, b", "d")
    assert spell_parts("b DESC", "d") != spell_parts("b", "d")
    assert same(("'http://u:[HIDDEN]@h",), ("'http://u:p@h",)) == "hidden"
    assert same(("'http://u:[HIDDEN]@h",), ("'http://u:p@i",)) == "different"
    assert same(("a",), ("a", "b")) == "different"


HISTORY = """
CREATE TABLE d.old (a UInt8 CODEC(ZSTD), b String, INDEX i a TYPE minmax) ENGINE = MergeTree ORDER BY a SETTINGS index_granularity = 1024 COMMENT 'it''s';
ALTER TABLE d.old ADD COLUMN c DateTime DEFAULT now() AFTER a, ADD INDEX j b TYPE set(5) GRANULARITY 2, DROP INDEX i, ADD CONSTRAINT k CHECK a > 0;
ALTER TABLE d.old MODIFY COLUMN a UInt16, MODIFY TTL c + INTERVAL 1 DAY, ADD PROJECTION p (SELECT a ORDER BY b), MODIFY SETTING ttl_only_drop_parts = 1;
ALTER TABLE d.old MODIFY COLUMN a REMOVE CODEC;
RENAME TABLE d.old TO d.t;
CREATE TABLE d.u AS d.t;
"""
OUTCOME = """CREATE TABLE d.t (a UInt16, c DateTime DEFAULT now(), b String, INDEX j b TYPE set(5) GRANULARITY 2, PROJECTION p (SELECT a ORDER BY b),
CONSTRAINT k CHECK a > 0) ENGINE = MergeTree ORDER BY a TTL c + INTERVAL 1 DAY SETTINGS index_granularity = 1024, ttl_only_drop_parts = 1 COMMENT 'it\\'s'"""


def test_a_history_of_statements_comes_to_one() -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=HISTORY)], default_database="d")
    assert not catalog.findings
    text = statement_of(catalog.objects[QName("d", "t")], "d")
    assert compare(text, OUTCOME) == Comparison("equal")
    copy = statement_of(catalog.objects[QName("d", "u")], "d")
    assert [d.what for d in compare(copy.replace("`u`", "`t`"), OUTCOME).differences] == ["COMMENT"]


@pytest.mark.parametrize(
    "text", [TABLE, DICTIONARY, REFRESHED, INNER, VIEW, "CREATE VIEW d.t AS SELECT 1 AS a COMMENT 'x'"]
)
def test_rendered_objects_read_the_same(text: str) -> None:
    made = read_statement(text, "d")
    assert made is not None
    assert compare(render_create(made), text).state == "equal"
    assert statement_of(made, "d") == text, "a statement that says it all stays as it is written"
