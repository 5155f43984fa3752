"""Folders that declare their state as a history: each statement does what the server would do, or is named."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.model import Object

TABLE = "CREATE TABLE d.t (a UInt8, b String COMMENT 'x', c.x Array(UInt8)) ENGINE = MergeTree ORDER BY a TTL b SETTINGS s = 1;"


def read(sql: str) -> Catalog:
    return build_catalog([SourceFile(path="m.sql", text=sql)], default_database="d")


def after(sql: str) -> Object:
    catalog = read(f"{TABLE}\n{sql}")
    assert [f for f in catalog.findings if f.code not in ("no-dedup-window",)] == []
    return catalog.get("d.t")


def columns(made: Object) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in made.columns]


ALL = [("a", "UInt8"), ("b", "String"), ("c.x", "Array(UInt8)")]


@pytest.mark.parametrize(
    ("alter", "wanted"),
    [
        ("ADD COLUMN d UInt8", [*ALL, ("d", "UInt8")]),
        ("ADD COLUMN IF NOT EXISTS d UInt8 AFTER a", [ALL[0], ("d", "UInt8"), *ALL[1:]]),
        ("ADD COLUMN d UInt8 FIRST", [("d", "UInt8"), *ALL]),
        ("ADD COLUMN d UInt8, ADD COLUMN e Date AFTER d", [*ALL, ("d", "UInt8"), ("e", "Date")]),
        ("ADD COLUMN d Tuple(x UInt8, y String) DEFAULT (1, 'q'), DROP COLUMN a", [*ALL[1:], ("d", "Tuple(x UInt8, y String)")]),
        ("DROP COLUMN IF EXISTS b", [ALL[0], ALL[2]]),
        ("DROP COLUMN c.x", ALL[:2]),
        ("RENAME COLUMN b TO `b b`", [ALL[0], ("b b", "String"), ALL[2]]),
        ("MODIFY COLUMN b LowCardinality(String)", [ALL[0], ("b", "LowCardinality(String)"), ALL[2]]),
        ("ALTER COLUMN b TYPE Int8", [ALL[0], ("b", "Int8"), ALL[2]]),
        ("MODIFY COLUMN b DEFAULT 'z'", ALL),
        ("MODIFY COLUMN b String AFTER c.x", [ALL[0], ALL[2], ALL[1]]),
        ("ADD INDEX i b TYPE minmax GRANULARITY 1", ALL),
        ("DELETE WHERE a = 1", ALL),
    ],
)  # fmt: skip
def test_alter_changes_the_columns(alter: str, wanted: list[tuple[str, str]]) -> None:
    assert columns(after(f"ALTER TABLE d.t {alter};")) == wanted


def test_alter_changes_the_clauses() -> None:
    made = after(
        "ALTER TABLE d.t MODIFY TTL a + INTERVAL 1 DAY, b + INTERVAL 2 DAY; ALTER TABLE d.t MODIFY SETTING s = 2, z = 'q';"
        "ALTER TABLE t MODIFY COMMENT 'it''s'; ALTER TABLE t MODIFY ORDER BY (a, b); ALTER TABLE t COMMENT COLUMN a 'n'"
    )
    assert made.ttl == "a + INTERVAL 1 DAY, b + INTERVAL 2 DAY"
    assert made.settings == (("s", "2"), ("z", "q"))
    assert (made.comment, made.order_by, made.columns[0].comment) == ("it's", "(a, b)", "n")


def test_removed_clauses_are_gone() -> None:
    made = after("ALTER TABLE d.t REMOVE TTL; ALTER TABLE d.t RESET SETTING s")
    assert (made.ttl, made.settings) == ("", ())


def test_a_default_keeps_what_it_does_not_change() -> None:
    made = after("ALTER TABLE d.t MODIFY COLUMN b DEFAULT 'z'")
    assert (made.columns[1].type, made.columns[1].default, made.columns[1].comment) == ("String", "'z'", "x")


def test_remove_takes_only_what_it_names() -> None:
    made = after(
        "ALTER TABLE d.t MODIFY COLUMN b REMOVE COMMENT, MODIFY COLUMN a DEFAULT 1; ALTER TABLE d.t MODIFY COLUMN a REMOVE DEFAULT"
    )
    assert columns(made) == ALL
    assert [(c.comment, c.default_kind, c.default) for c in made.columns[:2]] == [("", "", ""), ("", "", "")]


def test_the_latest_query_of_a_view_counts() -> None:
    catalog = read(
        "CREATE TABLE s (x UInt8) ENGINE = Log; CREATE TABLE s2 (x UInt8) ENGINE = Log; CREATE TABLE t (x UInt8) ENGINE = Log;"
        "CREATE MATERIALIZED VIEW v TO t AS SELECT x FROM s; ALTER TABLE v MODIFY QUERY SELECT x + 1 AS x FROM s2;"
    )
    assert str(catalog.trigger_of(catalog.get("v").name)) == "d.s2"


def test_drop_rename_exchange() -> None:
    catalog = read(
        "CREATE TABLE a (x UInt8) ENGINE = Log; CREATE TABLE b (y UInt8) ENGINE = Memory; CREATE TABLE c (z UInt8) ENGINE = Log;"
        "CREATE TABLE e (z UInt8) ENGINE = Log; DROP TABLE IF EXISTS c, e SYNC; RENAME TABLE a TO new.a1, b TO b1; EXCHANGE TABLES new.a1 AND b1;"
    )
    assert {str(n): o.engine for n, o in catalog.objects.items()} == {"new.a1": "Memory", "d.b1": "Log"}
    assert catalog.findings == ()


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("DROP TABLE x", "drop-of-unknown"),
        ("RENAME TABLE x TO y", "rename-of-unknown"),
        ("EXCHANGE TABLES x AND y", "rename-of-unknown"),
        ("ALTER TABLE x ADD COLUMN a UInt8", "alter-of-unknown"),
        ("CREATE TABLE x (a UInt8) ENGINE = Log; ALTER TABLE x FROBNICATE a", "unapplied-alter"),
        ("DROP USER x", "ignored-statement"),
        ("INSERT INTO x VALUES (1)", "ignored-statement"),
        ("CREATE TABLE x (a UInt8) ENGINE = Log; CREATE TABLE x (a UInt8) ENGINE = Log", "duplicate-object"),
        ("FROBNICATE x", "unreadable-statement"),
    ],
)
def test_what_is_not_applied_is_named(sql: str, code: str) -> None:
    (finding,) = read(sql).findings
    assert (finding.code, str(finding.place)) == (code, "m.sql:1")
