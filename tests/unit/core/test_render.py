"""The graph as text: the JSON contract, DOT and Mermaid, also for names that fight back."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.render import Paint, graph_document, render_dot, render_mermaid

ROOT = Path(__file__).parents[3]
HOSTILE = """
CREATE TABLE d.`a"b` (x UInt8) ENGINE = Log; CREATE TABLE d.`back\\\\slash\\nline` (x UInt8) ENGINE = Log;
CREATE MATERIALIZED VIEW d.`<v> & ]) "` TO d.`a"b` AS SELECT x FROM d.`back\\\\slash\\nline`;
"""


def read(sql: str) -> Catalog:
    return build_catalog([SourceFile(path="x.sql", text=sql)], default_database="d")


@pytest.fixture(scope="module")
def demo() -> Catalog:
    files = [SourceFile(path=f.name, text=f.read_text()) for f in sorted((ROOT / "chmv_assets" / "ddl").glob("*.sql"))]
    return build_catalog(files, default_database="shop")


def test_demo_document_is_the_expected_graph(demo: Catalog) -> None:
    wanted = json.loads((ROOT / "tests" / "fixtures" / "demo_graph.json").read_text())
    document = graph_document(demo)
    keys = wanted["nodes"][0].keys()
    by_name = {node["name"]: node for node in wanted["nodes"]}
    assert [{k: n[k] for k in keys} for n in document["nodes"]] == [by_name[n["name"]] for n in document["nodes"]]
    assert {tuple(sorted(e.items())) for e in document["edges"]} == {tuple(sorted(e.items())) for e in wanted["edges"]}


def test_document_has_the_fields_of_the_contract(demo: Catalog) -> None:
    document = graph_document(demo)
    assert document["version"] == 1
    assert set(document["nodes"][0]) >= {"name", "kind", "engine", "cadence", "file", "line", "role", "class"}
    assert set(document["edges"][0]) >= {"from", "to", "kind"}
    assert json.loads(json.dumps(document)) == document


def test_external_nodes_have_no_file() -> None:
    nodes = {node["name"]: node for node in graph_document(read("CREATE VIEW d.v AS SELECT 1 FROM e.x"))["nodes"]}
    assert (nodes["e.x"]["kind"], nodes["e.x"]["file"], nodes["e.x"]["line"]) == ("external", None, None)


@pytest.mark.parametrize("hostile", [False, True])
def test_dot_has_every_node_and_edge(demo: Catalog, hostile: bool) -> None:
    catalog = read(HOSTILE) if hostile else demo
    text = render_dot(catalog)
    assert text.count(" -> ") == len(catalog.edges)
    assert len(re.findall(r"^  \"(?:[^\"\\]|\\.)*\" \[label=\"(?:[^\"\\]|\\.)*\", shape=", text, re.MULTILINE)) == len(
        catalog.objects
    )
    assert all(len(re.sub(r'"(?:[^"\\]|\\.)*"', "", line)) < 120 for line in text.splitlines())


def painted(catalog: Catalog) -> Paint:
    names = sorted(catalog.objects)
    statuses = dict(zip(names, itertools.cycle(("ACTIVE", "DEGRADED", "STALE", "unknown")), strict=False))
    rows = {edge: 10**number for number, edge in enumerate(catalog.edges[:6])}
    return Paint(statuses, rows, max(rows.values()))


def test_painted_pictures_have_colours_of_statuses_and_widths_by_rows(demo: Catalog) -> None:
    paint = painted(demo)
    dot = render_dot(demo, paint=paint)
    assert dot.count('fillcolor="#fde4e4"') == sum(status == "STALE" for status in paint.statuses.values())
    widths = [float(width) for width in re.findall(r"penwidth=([\d.]+)", dot)]
    assert len(widths) == len(demo.edges)
    assert widths[:6] == sorted(widths[:6]) and widths[5] == 7.0 and set(widths[6:]) == {2.0}
    assert "100,000 rows" in dot
    mermaid = render_mermaid(demo, paint=paint)
    assert re.search(r"^  class n2(,n\d+)* STALE$", mermaid, re.MULTILINE)
    assert mermaid.count("linkStyle ") == len(demo.edges) and "linkStyle 5 stroke-width:7.0px" in mermaid
    assert "fillcolor" not in render_dot(demo) and "classDef" not in render_mermaid(demo)


def test_different_names_stay_different_in_dot() -> None:
    text = render_dot(
        read("CREATE TABLE d.`a\\nb` (x UInt8) ENGINE = Log; CREATE TABLE d.`a\\\\nb` (x UInt8) ENGINE = Log;")
    )
    ids = re.findall(r'^  ("(?:[^"\\]|\\.)*") \[label', text, re.MULTILINE)
    assert len(set(ids)) == 2


def test_mermaid_has_every_node_and_edge(demo: Catalog) -> None:
    for catalog in (demo, read(HOSTILE)):
        lines = render_mermaid(catalog).splitlines()
        assert lines[0] == "flowchart LR"
        nodes = [line for line in lines if re.fullmatch(r'  n\d+(\(\["[^"`\n]*"\]\)|\["[^"`\n]*"\])', line)]
        edges = [line for line in lines if re.fullmatch(r"  n\d+ (-->|==>|-\.->)\|\w+\| n\d+", line)]
        assert (len(nodes), len(edges)) == (len(catalog.objects), len(catalog.edges))
        assert len(lines) == 1 + len(nodes) + len(edges)
