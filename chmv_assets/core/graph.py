"""The graph: edges from linked objects, cycles, layers, ancestors, roles. Pure look-ups over names.

Edges point the way the data flows. A Distributed or Buffer table forwards what is written to it, and shows what it reads:
if a view of this catalog writes into it (or it is a Buffer), the edge runs from it to its table, else towards it.
"""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from chmv_assets.core.model import VIEW_KINDS, Edge, EdgeKind, Object, Role
from chmv_assets.core.names import QName


def build_edges(objects: Mapping[QName, Object]) -> tuple[Edge, ...]:
    """All edges of the catalog, each once, sorted."""
    written = {made.target for made in objects.values() if made.kind in VIEW_KINDS and made.target}
    edges: set[Edge] = set()
    for made in objects.values():
        if made.kind in VIEW_KINDS and made.target is not None:
            edges.add(Edge(made.name, made.target, "writes"))
        if made.refresh is not None:
            edges |= {Edge(name, made.name, "after") for name in made.refresh.depends_on}
        for reference in made.references:
            forwards = made.kind == "buffer" or (made.kind == "distributed" and made.name in written)
            if forwards and reference.kind == "feeds":
                edges.add(Edge(made.name, reference.name, "feeds"))
            elif reference.name != made.name or reference.kind == "trigger":
                edges.add(Edge(reference.name, made.name, reference.kind))
    return tuple(sorted(edges))


def neighbours(
    edges: Iterable[Edge], kinds: Sequence[EdgeKind] | None = None
) -> tuple[dict[QName, list[QName]], dict[QName, list[QName]]]:
    """Upstream and downstream neighbours of every node, by the given kinds of edges."""
    up: dict[QName, list[QName]] = defaultdict(list)
    down: dict[QName, list[QName]] = defaultdict(list)
    for edge in edges:
        if kinds is None or edge.kind in kinds:
            up[edge.dest].append(edge.source)
            down[edge.source].append(edge.dest)
    return dict(up), dict(down)


def find_cycle(edges: Iterable[Edge]) -> tuple[QName, ...] | None:
    """One cycle as a path that ends where it began, or None."""
    up, _ = neighbours(edges)
    sorter = graphlib.TopologicalSorter(up)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        path = list(error.args[1])
        return tuple(path)
    return None


def build_layers(nodes: Iterable[QName], edges: Iterable[Edge]) -> tuple[tuple[QName, ...], ...]:
    """Topological layers: every node stands in a later layer than all it depends on; the caller has excluded cycles."""
    up, _ = neighbours(edges)
    sorter: graphlib.TopologicalSorter[QName] = graphlib.TopologicalSorter({node: up.get(node, []) for node in nodes})
    sorter.prepare()
    layers: list[tuple[QName, ...]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        layers.append(tuple(ready))
        sorter.done(*ready)
    return tuple(layers)


def reachable(start: QName, adjacency: Mapping[QName, Sequence[QName]]) -> set[QName]:
    """Everything that can be reached from a node, itself left out unless it lies on a cycle."""
    seen: set[QName] = set()
    stack = list(adjacency.get(start, ()))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += adjacency.get(node, ())
    return seen


def build_roles(objects: Mapping[QName, Object], edges: Iterable[Edge]) -> dict[QName, Role]:
    """What part each node plays: a target is written by a view, a source fires one, a lookup is only read."""
    writes = {edge.dest for edge in edges if edge.kind == "writes"}
    triggers = {edge.source for edge in edges if edge.kind == "trigger"}
    lookups = {edge.source for edge in edges if edge.kind in ("lookup", "feeds")}
    roles: dict[QName, Role] = {}
    for name, made in objects.items():
        if made.kind in VIEW_KINDS:
            roles[name] = "view"
        elif name in writes:
            roles[name] = "target"
        elif name in triggers and made.kind not in ("view", "merge"):
            roles[name] = "source"
        elif name in lookups:
            roles[name] = "lookup"
        else:
            roles[name] = "other"
    return roles
