"""The corpus of nasty DDL: every `tests/fixtures/ddl/*.sql` is one catalog with its expected graph beside it.

Expectations were derived by hand from what the server does (triggers checked against `system.tables.dependencies_table`),
never from the parser's output. `?` in an expected node means: present, this property is not laid down.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog, decode_source
from chmv_assets.core.render import graph_document

FOLDER = Path(__file__).parents[2] / "fixtures" / "ddl"
FIXTURES = sorted(FOLDER.glob("*.sql"))
# The same statements in the server's spelling: as `formatQuery` writes them, and as `create_table_query` stores them.
RESPELLED = sorted((FOLDER / "formatted").glob("*.sql")) + sorted((FOLDER / "stored").glob("*.sql"))
LINT_CODES = frozenset(
    {
        "reads-own-ancestor",
        "partial-aggregate-chain",
        "replacing-counts",
        "populate",
        "or-replace-view",
        "inner-table",
        "order-by-lacks-group-key",
        "partition-per-insert",
        "ttl-shorter-than-target",
        "no-dedup-window",
        "union-view",
        "view-over-view",
        "function-source",
    }
)

Node = tuple[str, str, str, str]
EdgeRow = tuple[str, str, str]


def expected_of(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{path.stem}.expected.json").read_text(encoding="utf-8"))
    return loaded


def fixture_id(path: Path) -> str:
    return path.stem if path.parent == FOLDER else f"{path.parent.name}-{path.stem}"


def read_fixture(path: Path) -> tuple[Catalog | None, list[tuple[str, str]]]:
    """The catalog of one fixture and all its findings as (subject, code)."""
    source = decode_source(path.name, path.read_bytes())
    if not isinstance(source, SourceFile):
        return None, [(source.subject, source.code)]
    catalog = build_catalog([source], default_database=expected_of(path).get("default_database", "default"))
    return catalog, [(finding.subject, finding.code) for finding in catalog.findings]


def nodes_of(document: dict[str, Any]) -> set[Node]:
    return {(node["name"], node["kind"], node["engine"], node["cadence"] or "-") for node in document["nodes"]}


def edges_of(document: dict[str, Any]) -> set[EdgeRow]:
    return {(edge["from"], edge["kind"], edge["to"]) for edge in document["edges"]}


def with_wildcards(wanted: set[Node], found: set[Node]) -> set[Node]:
    """Replace `?` in the wanted nodes by what was found under the same name."""
    by_name = {node[0]: node for node in found}
    return {
        tuple(by_name.get(node[0], node)[at] if part == "?" else part for at, part in enumerate(node))  # type: ignore[misc]
        for node in wanted
    }


def difference(what: str, wanted: set[Any], found: set[Any]) -> list[str]:
    missing = [f"  {what} missing:    {' | '.join(row)}" for row in sorted(wanted - found)]
    surplus = [f"  {what} unexpected: {' | '.join(row)}" for row in sorted(found - wanted)]
    return missing + surplus


@pytest.mark.parametrize("path", FIXTURES + RESPELLED, ids=fixture_id)
def test_catalog_of_fixture_is_exactly_the_expected_graph(path: Path) -> None:
    wanted = expected_of(path)
    catalog, findings = read_fixture(path)
    lines: list[str] = []
    if "nodes" in wanted:
        assert catalog is not None, findings
        document = graph_document(catalog)
        found = nodes_of(document)
        lines += difference("node", with_wildcards(nodes_of(wanted), found), found)
        lines += difference("edge", edges_of(wanted), edges_of(document))
        lines += [f"  defect: {finding}" for finding in catalog.findings if finding.severity == "error"]
    lines += [
        f"  finding missing: {code}" for code in wanted.get("findings", []) if code not in {c for _, c in findings}
    ]
    if "lints" in wanted:
        lints = {pair for pair in findings if pair[1] in LINT_CODES}
        lines += difference("lint", {(subject, code) for subject, code in wanted["lints"]}, lints)
    assert not lines, f"{path.name}:\n" + "\n".join(lines)


@pytest.mark.parametrize("path", FIXTURES + RESPELLED, ids=fixture_id)
def test_every_edge_ends_at_a_node(path: Path) -> None:
    catalog, _ = read_fixture(path)
    if catalog is None:
        return
    names = set(catalog.objects)
    dangling = [edge for edge in catalog.edges if edge.source not in names or edge.dest not in names]
    assert dangling == []


@pytest.mark.parametrize("path", FIXTURES + RESPELLED, ids=fixture_id)
def test_truncated_fixture_never_raises(path: Path) -> None:
    raw = path.read_bytes()
    for part in range(1, 8):
        source = decode_source(path.name, raw[: len(raw) * part // 8])
        if isinstance(source, SourceFile):
            build_catalog([source], default_database="default")


EXTREMES = {
    "brackets": f"CREATE VIEW d.v AS SELECT {'(' * 3000}1{')' * 3000} FROM d.s",
    "conditions": f"CREATE VIEW d.v AS SELECT 1 FROM d.s WHERE {' AND '.join(f'x{i} = 1' for i in range(3000))}",
    "subqueries": f"CREATE VIEW d.v AS SELECT * FROM {'(SELECT * FROM ' * 300}d.s{')' * 300}",
    "branches": "CREATE VIEW d.v AS " + " UNION ALL ".join(["SELECT 1 FROM d.s"] * 800),
    "columns": f"CREATE TABLE d.v ({', '.join(f'c{i} UInt8' for i in range(3000))}) ENGINE = Memory",
    "types": f"CREATE TABLE d.v (x {'Array(' * 1500}UInt8{')' * 1500}) ENGINE = Memory",
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_statement_is_kept_or_reported(name: str) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=EXTREMES[name])], default_database="default")
    assert "d.v" in map(str, catalog.objects) or catalog.findings


def mutations(statements: list[str], count: int) -> list[str]:
    """Statements with a few words removed, swapped or put in: always the same ones."""
    chance = random.Random(20260)
    intruders = (
        "(",
        ")",
        "FROM",
        "AS",
        "'",
        "`",
        "IN",
        ";",
        "/*",
        "WITH",
        "TO",
        "{",
        "$$",
        "UNION ALL",
        "ENGINE",
        "\\",
    )
    made: list[str] = []
    for _ in range(count):
        words = chance.choice(statements).split(" ")
        for _ in range(chance.randint(1, 4)):
            at, other = chance.randrange(len(words)), chance.randrange(len(words))
            match chance.randrange(3):
                case 0:
                    words[at] = ""
                case 1:
                    words.insert(at, chance.choice(intruders))
                case _:
                    words[at], words[other] = words[other], words[at]
        made.append(" ".join(words))
    return made


def test_mutated_statements_never_raise() -> None:
    texts = [path.read_bytes().decode("utf-8", errors="replace") for path in FIXTURES + RESPELLED]
    statements = [statement for text in texts for statement in text.split(";\n") if statement.strip()]
    for statement in mutations(statements, 800):
        build_catalog([SourceFile(path="x.sql", text=statement)], default_database="default")


def test_use_ends_with_its_file() -> None:
    first = SourceFile(path="1.sql", text="USE other; CREATE TABLE a (x UInt8) ENGINE = Memory;")
    second = SourceFile(path="2.sql", text="CREATE TABLE b (x UInt8) ENGINE = Memory;")
    catalog = build_catalog([first, second], default_database="home")
    assert sorted(map(str, catalog.objects)) == ["home.b", "other.a"]


def test_declaration_order_over_files_does_not_matter() -> None:
    view = SourceFile(path="1.sql", text="CREATE MATERIALIZED VIEW d.mv TO d.t AS SELECT x FROM d.s;")
    tables = SourceFile(
        path="2.sql", text="CREATE TABLE d.s (x UInt8) ENGINE = Log; CREATE TABLE d.t (x UInt8) ENGINE = Log;"
    )
    there = graph_document(build_catalog([view, tables], default_database="default"))
    back = graph_document(build_catalog([tables, view], default_database="default"))
    assert (nodes_of(there), edges_of(there)) == (nodes_of(back), edges_of(back))
    assert {kind for _, kind, _, _ in nodes_of(there)} == {"table", "materialized_view"}


def test_corpus_is_large_enough() -> None:
    statements = sum(expected_of(path)["statements"] for path in FIXTURES)
    views = sum(
        node["kind"] in ("materialized_view", "refreshable_view")
        for path in FIXTURES
        for node in expected_of(path).get("nodes", [])
    )
    assert statements >= 150
    assert views >= 60


def test_every_fixture_has_a_title_and_an_expectation() -> None:
    untitled = [
        path.name
        for path in FIXTURES
        if not path.read_bytes().removeprefix(b"\xef\xbb\xbf").startswith(b"-- title: ")
        and path.stem != "broken_binary"
    ]
    orphans = [
        path.name
        for path in FOLDER.glob("*.expected.json")
        if not (FOLDER / path.name.replace(".expected.json", ".sql")).exists()
    ]
    assert (untitled, orphans) == ([], [])
