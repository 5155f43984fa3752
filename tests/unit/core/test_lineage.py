"""Column lineage: every output column and exactly the upstream columns it is made of."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName

TABLES = """
CREATE TABLE d.s (id UInt64, ts DateTime, a UInt8, b UInt8, tags Array(String), `n.x` Array(UInt8)) ENGINE = Log;
CREATE TABLE d.u (id UInt64, name String, a UInt8) ENGINE = Log;
CREATE TABLE d.t (id UInt64) ENGINE = Log;
"""
Lineage = dict[str, list[str]]


def lineage(select: str, tables: str = TABLES) -> Lineage:
    """Output column → upstream `table.column`, tables of database d without it."""
    catalog = build_catalog(
        [SourceFile(path="x.sql", text=f"{tables} CREATE MATERIALIZED VIEW d.v TO d.t AS {select}")],
        default_database="d",
    )
    facts = catalog.facts[QName("d", "v")]
    return {
        name: [f"{str(source.table).removeprefix('d.')}.{source.column}" for source in sources]
        for name, sources in facts.lineage
    }


CASES: dict[str, tuple[str, Lineage]] = {
    "plain": ("SELECT id, a + b AS c, 1 AS one FROM d.s", {"id": ["s.id"], "c": ["s.a", "s.b"], "one": []}),
    "aggregate": ("SELECT toDate(ts) AS day, sum(a) AS a FROM d.s GROUP BY day", {"day": ["s.ts"], "a": ["s.a"]}),
    "subquery": (
        "SELECT x + b AS y FROM (SELECT a * 2 AS x, b FROM d.s) WHERE x > 1",
        {"y": ["s.a", "s.b"]},
    ),
    "two subqueries": ("SELECT z FROM (SELECT x AS z FROM (SELECT a AS x FROM d.s))", {"z": ["s.a"]}),
    "cte": ("WITH c AS (SELECT id, a + b AS ab FROM d.s) SELECT id, ab FROM c", {"id": ["s.id"], "ab": ["s.a", "s.b"]}),
    "cte of cte": ("WITH c AS (SELECT a FROM d.s), e AS (SELECT a AS q FROM c) SELECT q FROM e", {"q": ["s.a"]}),
    "scalar with": ("WITH a + 1 AS inc SELECT inc * 2 AS x FROM d.s", {"x": ["s.a"]}),
    "star": (
        "SELECT * FROM d.u",
        {"id": ["u.id"], "name": ["u.name"], "a": ["u.a"]},
    ),
    "star except": ("SELECT * EXCEPT (name, a) FROM d.u", {"id": ["u.id"]}),
    "star except one": ("SELECT * EXCEPT name FROM d.u", {"id": ["u.id"], "a": ["u.a"]}),
    "star of subquery": ("SELECT * FROM (SELECT id, a AS q FROM d.s)", {"id": ["s.id"], "q": ["s.a"]}),
    "qualified star": ("SELECT u.*, s.b FROM d.s AS s JOIN d.u AS u ON s.id = u.id", {
        "id": ["u.id"], "name": ["u.name"], "a": ["u.a"], "b": ["s.b"]}),
    "alias reuse": ("SELECT a + 1 AS x, x * b AS y, y + 1 AS z FROM d.s", {
        "x": ["s.a"], "y": ["s.a", "s.b"], "z": ["s.a", "s.b"]}),
    "alias hides its column": ("SELECT a + 1 AS a, a * 2 AS twice FROM d.s", {"a": ["s.a"], "twice": ["s.a"]}),
    "array join": ("SELECT id, tag FROM d.s ARRAY JOIN tags AS tag", {"id": ["s.id"], "tag": ["s.tags"]}),
    "array join without alias": ("SELECT tags FROM d.s ARRAY JOIN tags", {"tags": ["s.tags"]}),
    "left array join of two": (
        "SELECT tag, i FROM d.s LEFT ARRAY JOIN tags AS tag, arrayEnumerate(tags) AS i",
        {"tag": ["s.tags"], "i": ["s.tags"]},
    ),
    "nested column": ("SELECT n.x AS nx FROM d.s", {"nx": ["s.n.x"]}),
    "dictGet": (
        "SELECT dictGet('d.dict', 'country', id) AS country FROM d.s",
        {"country": ["dict.country", "s.id"]},
    ),
    "dictGetOrDefault": (
        "SELECT dictGetOrDefault('dict', 'country', id, 'x') AS country FROM d.s",
        {"country": ["dict.country", "s.id"]},
    ),
    "union": ("SELECT a AS x FROM d.s UNION ALL SELECT a AS y FROM d.u", {"x": ["s.a"]}),
    "columns": ("SELECT COLUMNS('^(id|a)$') FROM d.s", {"id": ["s.id"], "a": ["s.a"]}),
    "join": (
        "SELECT s.a AS sa, u.a AS ua, name FROM d.s AS s LEFT JOIN d.u AS u ON s.id = u.id",
        {"sa": ["s.a"], "ua": ["u.a"], "name": ["u.name"]},
    ),
    "join by table names": ("SELECT s.b, u.name FROM d.s JOIN d.u ON s.id = u.id", {"b": ["s.b"], "name": ["u.name"]}),
    "join by full names": ("SELECT d.s.b AS b FROM d.s JOIN d.u ON d.s.id = d.u.id", {"b": ["s.b"]}),
    "join of subqueries": (
        "SELECT l.x AS x, r.n AS n FROM (SELECT id, a AS x FROM d.s) AS l JOIN (SELECT id, name AS n FROM d.u) AS r ON l.id = r.id",
        {"x": ["s.a"], "n": ["u.name"]},
    ),
    "lambda": ("SELECT arrayMap(x -> x || toString(a), tags) AS m FROM d.s", {"m": ["s.a", "s.tags"]}),
    "lambda argument hides a column": ("SELECT arrayMap(b -> b + 1, `n.x`) AS m FROM d.s", {"m": ["s.n.x"]}),
    "scalar subquery": ("SELECT a, (SELECT max(a) FROM d.u) AS top FROM d.s", {"a": ["s.a"], "top": ["u.a"]}),
    "unknown table": ("SELECT q AS x FROM e.elsewhere", {"x": ["e.elsewhere.q"]}),
    "two unknown tables": ("SELECT q AS x FROM e.one, e.two", {"x": []}),
    "default database": ("SELECT a FROM s", {"a": ["s.a"]}),
    "if and case": ("SELECT CASE WHEN a > 1 THEN b ELSE id END AS x, if(a, b, 0) AS y FROM d.s", {
        "x": ["s.a", "s.b", "s.id"], "y": ["s.a", "s.b"]}),
    "final and sample": ("SELECT a FROM d.s FINAL", {"a": ["s.a"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_lineage_is_exact(name: str) -> None:
    select, wanted = CASES[name]
    found = lineage(select)
    assert found == {column: sorted(sources) for column, sources in wanted.items()}
    assert list(found) == list(wanted), "in the order of the SELECT"


def test_star_over_an_unknown_table_is_not_guessed() -> None:
    assert lineage("SELECT * FROM e.elsewhere") == {}
    assert lineage("SELECT *, 1 AS x FROM (SELECT * FROM e.elsewhere)") == {}
