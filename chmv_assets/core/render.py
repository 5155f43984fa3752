"""The graph as text: the JSON document, DOT and Mermaid. Pure; the page is `core.picture`.

The JSON document is a contract (docs/graph.md): fields are added, never renamed or removed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Edge, NodeKind, Role
from chmv_assets.core.names import QName

GRAPH_VERSION = 1
_EDGE_WIDTHS = (1.5, 7.0)
_SHAPES: dict[NodeKind, str] = {
    "materialized_view": "cds", "refreshable_view": "cds", "view": "note", "dictionary": "folder", "queue": "larrow",
    "external": "box", "function": "component",
}  # fmt: skip
_STYLES = {"trigger": "solid", "writes": "bold", "lookup": "dashed", "feeds": "solid", "after": "dotted"}
_COLOURS = {  # fill, stroke
    "ACTIVE": ("#e6f6ec", "#2f9e58"), "DEGRADED": ("#fff3d6", "#d08700"), "STALE": ("#fde4e4", "#d23b3b"),
    "unknown": ("#eef1f4", "#8793a1"),
}  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class Paint:
    """What a server says of the picture: statuses of nodes, rows of edges."""

    statuses: Mapping[QName, str]
    rows: Mapping[Edge, int]
    most: int  # of these rows

    def width(self, edge: Edge) -> float:
        return edge_width(self.rows.get(edge), self.most)


def edge_width(rows: int | None, most: int) -> float:
    """Pixels on a logarithmic scale, from no rows to the most of the picture.

    >>> edge_width(None, 10), edge_width(0, 10), edge_width(1_000_000, 1_000_000)
    (2.0, 1.5, 7.0)
    """
    low, high = _EDGE_WIDTHS
    if rows is None:
        return 2.0
    share = math.log10(1 + rows) / math.log10(1 + most) if most else 0.0
    return round(low + (high - low) * share, 1)


def _strangers(catalog: Catalog, dashed: Dashed) -> list[QName]:
    """Ends of such edges that are not in the catalog."""
    return sorted({name for source, dest, _ in dashed for name in (source, dest)} - set(catalog.objects))


def render_dot(catalog: Catalog, dashed: Dashed = (), paint: Paint | None = None) -> str:
    """The graph for Graphviz; painted, nodes have the colours of their statuses and edges are as wide as their rows."""
    lines = ["digraph chmv {", "  rankdir=LR;", '  node [fontname="Helvetica", shape=box];']
    for name in sorted(catalog.objects):
        made = catalog.objects[name]
        cadence = catalog.cadence(name)
        label = f"{name}\\n{made.engine or made.kind}" + (f" · {cadence}" if cadence else "")
        styles = ["dashed"] if made.kind in ("external", "function") else []
        colours = ""
        if paint is not None:
            status = paint.statuses[name]
            fill, stroke = _COLOURS[status]
            styles.append("filled")
            label += f"\\n{status}"
            colours = f', fillcolor="{fill}", color="{stroke}"'
        style = f', style="{",".join(styles)}"{colours}' if styles else ""
        lines.append(f"  {_dot(str(name))} [label={_dot(label)}, shape={_SHAPES.get(made.kind, 'box')}{style}];")
    for edge in catalog.edges:
        rows = paint.rows.get(edge) if paint is not None else None
        label = edge.kind if rows is None else f"{edge.kind}\\n{rows:,} rows"
        width = f", penwidth={paint.width(edge)}" if paint is not None else ""
        lines.append(
            f"  {_dot(str(edge.source))} -> {_dot(str(edge.dest))} [style={_STYLES[edge.kind]}, label={_dot(label)}{width}];"
        )
    for name in _strangers(catalog, dashed):
        lines.append(f'  {_dot(str(name))} [label={_dot(str(name))}, shape=box, style="dashed", color=red];')
    for source, dest, label in dashed:
        lines.append(f"  {_dot(str(source))} -> {_dot(str(dest))} [style=dashed, color=red, label={_dot(label)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace("\\\\n", "\\n").replace('"', '\\"') + '"'


def render_mermaid(catalog: Catalog, dashed: Dashed = (), paint: Paint | None = None) -> str:
    """The graph for Mermaid, as in a README; painted as DOT is."""
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
    if paint is not None:
        for status, (fill, stroke) in _COLOURS.items():
            members = [ids[name] for name in sorted(catalog.objects) if paint.statuses[name] == status]
            if members:
                lines.append(f"  classDef {status} fill:{fill},stroke:{stroke},color:#1d2530")
                lines.append(f"  class {','.join(members)} {status}")
        for number, edge in enumerate(catalog.edges):
            lines.append(f"  linkStyle {number} stroke-width:{paint.width(edge)}px")
    return "\n".join(lines) + "\n"
