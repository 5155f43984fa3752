"""Code versions: what changes one, and what does not. Every row is a whole folder before and after."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog

TABLES = """
CREATE TABLE d.s (at DateTime, k String, v Int64) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (k, at);
CREATE TABLE d.t (k String, n UInt64) ENGINE = SummingMergeTree ORDER BY k;
CREATE TABLE d.t2 (k String, n UInt64) ENGINE = SummingMergeTree ORDER BY k;
"""
VIEW = "CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT k, count(*) AS n FROM d.s WHERE v > 0 GROUP BY k;"


def read(text: str, database: str = "d") -> Catalog:
    catalog = build_catalog([SourceFile(path="a.sql", text=text)], default_database=database)
    assert not catalog.errors, catalog.errors
    return catalog


def version(catalog: Catalog, name: str) -> str:
    found = catalog.get(f"d.{name}").code_version
    assert found
    return found


SAME = {
    "white space": VIEW.replace(" ", "\n\t "),
    "comments": VIEW.replace("SELECT", "/* what */ SELECT -- this\n"),
    "case of keywords": "create materialized view d.v to d.t as select k, count(*) as n from d.s where v > 0 group by k;",
    "if not exists": VIEW.replace("VIEW d.v", "VIEW IF NOT EXISTS d.v"),
    "case of a function": VIEW.replace("count(*)", "COUNT(*)"),
    "quotes": VIEW.replace("d.s", "`d`.`s`"),
    "comment clause": VIEW.replace("AS SELECT", "COMMENT 'what it is' AS SELECT"),
    "on cluster": VIEW.replace("d.v TO", "d.v ON CLUSTER main TO"),
    "attach": VIEW.replace("CREATE", "ATTACH"),
}
DIFFERENT = {
    "literal": VIEW.replace("> 0", "> 1"),
    "filter": VIEW.replace("WHERE v > 0 ", ""),
    "function": VIEW.replace("count(*)", "sum(v)"),
    "target": VIEW.replace("TO d.t ", "TO d.t2 "),
    "source": VIEW.replace("FROM d.s", "FROM d.s2") + "CREATE TABLE d.s2 AS d.s;",
    "alias": VIEW.replace("AS n", "AS N"),
    "string": VIEW.replace("v > 0", "k = 'A'"),
    "settings": VIEW.replace(";", " SETTINGS max_threads = 1;"),
    "altered": VIEW + "ALTER TABLE d.v MODIFY QUERY SELECT k, sum(v) AS n FROM d.s GROUP BY k;",
    "name that is a keyword": VIEW.replace("k, count", "k AS Type, k, count"),
}


@pytest.mark.parametrize("text", SAME.values(), ids=list(SAME))
def test_spelling_changes_no_version(text: str) -> None:
    before, after = read(TABLES + VIEW), read(TABLES + text)
    assert version(before, "v") == version(after, "v")
    assert version(before, "t") == version(after, "t")


@pytest.mark.parametrize("text", DIFFERENT.values(), ids=list(DIFFERENT))
def test_meaning_changes_the_version_of_the_view(text: str) -> None:
    assert version(read(TABLES + VIEW), "v") != version(read(TABLES + text), "v")


def test_a_target_follows_its_views_and_a_source_does_not() -> None:
    before, after = read(TABLES + VIEW), read(TABLES + DIFFERENT["filter"])
    assert version(before, "t") != version(after, "t")
    assert [version(before, name) for name in ("s", "t2")] == [version(after, name) for name in ("s", "t2")]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("ENGINE = MergeTree PARTITION", "ENGINE MergeTree() PARTITION", True),
        ("v Int64)", "v Int64 COMMENT 'amount')", True),
        ("CREATE TABLE d.s", "create table if not exists d.s", True),
        ("v Int64)", "v Int32)", False),
        ("v Int64)", "v Int64, w Int64)", False),
        ("v Int64)", "V Int64)", False),
        ("ENGINE = MergeTree PARTITION", "ENGINE = ReplacingMergeTree PARTITION", False),
        ("ORDER BY (k, at)", "ORDER BY (at, k)", False),
        ("toYYYYMM(at)", "toYYYYMMDD(at)", False),
        ("ORDER BY (k, at)", "ORDER BY (k, at) TTL at + INTERVAL 1 DAY", False),
        (
            "ORDER BY (k, at);",
            "ORDER BY (k, at); ALTER TABLE d.s ADD COLUMN w UInt8; ALTER TABLE d.s COMMENT COLUMN w 'x';",
            False,
        ),
        ("ORDER BY (k, at);", "ORDER BY (k, at); ALTER TABLE d.s MODIFY COMMENT 'x';", True),
        ("ORDER BY (k, at);", "ORDER BY (k, at); ALTER TABLE d.s COMMENT COLUMN k 'x';", True),
    ],
)
def test_versions_of_tables(old: str, new: str, same: bool) -> None:
    assert old in TABLES
    assert (version(read(TABLES), "s") == version(read(TABLES.replace(old, new, 1)), "s")) is same


def test_names_that_are_keywords_keep_their_case() -> None:
    assert version(read("CREATE TABLE d.x (type String) ENGINE = Log"), "x") != version(
        read("CREATE TABLE d.x (Type String) ENGINE = Log"), "x"
    )


def test_what_an_unqualified_name_means_counts() -> None:
    text = "CREATE VIEW d.x AS SELECT 1 FROM plain"
    assert version(read(text, "d"), "x") != version(read(text, "e"), "x")


def test_create_as_another_follows_it() -> None:
    text = "CREATE TABLE d.c AS d.s;"
    assert version(read(TABLES + text), "c") != version(read(TABLES.replace("v Int64", "v Int32") + text), "c")


def test_an_altered_object_has_another_digest() -> None:
    one, two = (read(TABLES + more).get("d.s") for more in ("", "ALTER TABLE d.s COMMENT COLUMN k 'x';"))
    assert one.digest != two.digest
