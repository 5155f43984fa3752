"""The graph as text: the JSON document, DOT and Mermaid. Pure; no colours, no terminal.

The JSON document is a contract (docs/graph.md): fields are added, never renamed or removed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import NodeKind, Role
from chmv_assets.core.names import QName

GRAPH_VERSION = 1
_SHAPES: dict[NodeKind, str] = {
    "materialized_view": "cds", "refreshable_view": "cds", "view": "note", "dictionary": "folder", "queue": "larrow",
    "external": "box", "function": "component",
}  # fmt: skip
_STYLES = {"trigger": "solid", "writes": "bold", "lookup": "dashed", "feeds": "solid", "after": "dotted"}
_ARROWS = {"trigger": "-->", "writes": "==>", "lookup": "-.->", "feeds": "-->", "after": "-.->"}


def graph_document(catalog: Catalog) -> dict[str, Any]:
    """Nodes and edges as plain JSON, sorted by name."""
    roles = catalog.roles()
    return {
        "version": GRAPH_VERSION,
        "nodes": [_node(catalog, name, roles[name]) for name in sorted(catalog.objects)],
        "edges": [
            {"from": str(edge.source), "to": str(edge.dest), "kind": edge.kind}
            for edge in sorted(catalog.edges, key=lambda e: (str(e.source), str(e.dest), e.kind))
        ],
    }


def _node(catalog: Catalog, name: QName, role: Role) -> dict[str, Any]:
    made = catalog.objects[name]
    facts = catalog.facts.get(name)
    declared = made.kind not in ("external", "function")
    return {
        "name": str(name),
        "kind": made.kind,
        "engine": made.engine,
        "cadence": catalog.cadence(name),
        "file": made.place.file if declared else None,
        "line": made.place.line if declared else None,
        "role": role,
        "class": facts.view_class if facts is not None and role == "view" else None,
    }


Dashed = Sequence[tuple[QName, QName, str]]  # edges that nobody declared, with a label


def _strangers(catalog: Catalog, dashed: Dashed) -> list[QName]:
    """Ends of such edges that are not in the catalog."""
    return sorted({name for source, dest, _ in dashed for name in (source, dest)} - set(catalog.objects))


def render_dot(catalog: Catalog, dashed: Dashed = ()) -> str:
    """The graph for Graphviz."""
    lines = ["digraph chmv {", "  rankdir=LR;", '  node [fontname="Helvetica", shape=box];']
    for name in sorted(catalog.objects):
        made = catalog.objects[name]
        cadence = catalog.cadence(name)
        label = f"{name}\\n{made.engine or made.kind}" + (f" · {cadence}" if cadence else "")
        style = ', style="dashed"' if made.kind in ("external", "function") else ""
        lines.append(f"  {_dot(str(name))} [label={_dot(label)}, shape={_SHAPES.get(made.kind, 'box')}{style}];")
    for edge in catalog.edges:
        lines.append(
            f"  {_dot(str(edge.source))} -> {_dot(str(edge.dest))} [style={_STYLES[edge.kind]}, label={_dot(edge.kind)}];"
        )
    for name in _strangers(catalog, dashed):
        lines.append(f'  {_dot(str(name))} [label={_dot(str(name))}, shape=box, style="dashed", color=red];')
    for source, dest, label in dashed:
        lines.append(f"  {_dot(str(source))} -> {_dot(str(dest))} [style=dashed, color=red, label={_dot(label)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace("\\\\n", "\\n").replace('"', '\\"') + '"'


def render_mermaid(catalog: Catalog, dashed: Dashed = ()) -> str:
    """The graph for Mermaid, as in a README."""
    names = [*sorted(catalog.objects), *_strangers(catalog, dashed)]
    ids = {name: f"n{i}" for i, name in enumerate(names)}
    lines = ["flowchart LR"]
    for name, node in ids.items():
        made = catalog.objects.get(name)
        text = re.sub(r'["`]', "'", str(name))
        is_view = made is not None and made.kind in ("materialized_view", "refreshable_view")
        opened, closed = ("([", "])") if is_view else ("[", "]")
        lines.append(f'  {node}{opened}"{text}"{closed}')
    for edge in catalog.edges:
        lines.append(f"  {ids[edge.source]} {_ARROWS[edge.kind]}|{edge.kind}| {ids[edge.dest]}")
    for source, dest, label in dashed:
        lines.append(f"  {ids[source]} -.->|{label}| {ids[dest]}")
    return "\n".join(lines) + "\n"
