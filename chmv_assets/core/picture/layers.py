"""Layers and their order: which column a node stands in, and in which row, with few crossings. Pure, and the same for the same input.

Nodes are numbers, edges are pairs of them. A cycle does not stop it: the edges that close one are turned round for the layout alone.
Long edges get a point in every layer that they pass (`Points`), so that they run between nodes and not through them. Where nodes stand in
pixels belongs to `place`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Pair = tuple[int, int]
_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Layered:
    """Layers of slots; a slot below `nodes` is a node, any other is a point of a long edge."""

    nodes: int
    layers: tuple[tuple[int, ...], ...]
    links: tuple[Pair, ...]  # between slots of neighbouring layers
    chains: dict[Pair, tuple[int, ...]]  # edge → the points that it passes, from its first node to its last


def build_layered(count: int, edges: Iterable[Pair]) -> Layered:
    """Layer and order a graph of the nodes 0 … count - 1; the order of nodes decides where nothing else does.

    >>> build_layered(3, [(0, 1), (1, 2), (0, 2)]).layers
    ((0,), (1, 3), (2,))
    """
    wanted = sorted({edge for edge in edges if edge[0] != edge[1]})
    forward = _acyclic(count, wanted)
    ranks = _ranks(count, forward)
    layers: list[list[int]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for node in range(count):
        layers[ranks[node]].append(node)
    slots = count
    links: list[Pair] = []
    chains: dict[Pair, tuple[int, ...]] = {}
    for source, dest in forward:
        points: list[int] = []
        before = source
        for rank in range(ranks[source] + 1, ranks[dest]):
            layers[rank].append(slots)
            points.append(slots)
            links.append((before, slots))
            before, slots = slots, slots + 1
        links.append((before, dest))
        chains[source, dest] = tuple(points)
    for source, dest in wanted:
        if (source, dest) not in chains:
            chains[source, dest] = tuple(reversed(chains[dest, source]))
    ordered = _order(layers, links, slots)
    return Layered(count, tuple(tuple(layer) for layer in ordered), tuple(links), chains)


def _acyclic(count: int, edges: Sequence[Pair]) -> list[Pair]:
    """The edges, with those turned round that lead back to where a walk came from."""
    down = _adjacency(count, edges)
    state = [0] * count  # 0 not seen, 1 on the way, 2 done
    back: set[Pair] = set()
    for start in range(count):
        if state[start]:
            continue
        state[start] = 1
        walk = [(start, iter(down[start]))]
        while walk:
            node, rest = walk[-1]
            child = next(rest, None)
            if child is None:
                state[node] = 2
                walk.pop()
            elif state[child] == 1:
                back.add((node, child))
            elif state[child] == 0:
                state[child] = 1
                walk.append((child, iter(down[child])))
    return sorted({(b, a) if (a, b) in back else (a, b) for a, b in edges})


def _adjacency(count: int, edges: Iterable[Pair]) -> list[list[int]]:
    down: list[list[int]] = [[] for _ in range(count)]
    for source, dest in edges:
        down[source].append(dest)
    return down


def _ranks(count: int, edges: Sequence[Pair]) -> list[int]:
    """The longest way to each node; what nothing leads to then moves next to what it is for."""
    down, up = _adjacency(count, edges), _adjacency(count, ((b, a) for a, b in edges))
    waiting = [len(sources) for sources in up]
    order = [node for node in range(count) if waiting[node] == 0]
    ranks = [0] * count
    for node in order:  # grows while it is walked
        for child in down[node]:
            ranks[child] = max(ranks[child], ranks[node] + 1)
            waiting[child] -= 1
            if waiting[child] == 0:
                order.append(child)
    for node in reversed(order):
        if down[node] and len(up[node]) <= len(down[node]):
            ranks[node] = max(ranks[node], min(ranks[child] for child in down[node]) - 1)
    return ranks


def _order(layers: list[list[int]], links: Sequence[Pair], slots: int) -> list[list[int]]:
    """Sort each layer by the barycentre of its neighbours, to and fro, and keep the best that was seen."""
    down, up = _adjacency(slots, links), _adjacency(slots, ((b, a) for a, b in links))
    best = [list(layer) for layer in layers]
    fewest = _crossings(best, down)
    current = [list(layer) for layer in layers]
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        onward = sweep % 2 == 0
        places = range(1, len(current)) if onward else range(len(current) - 2, -1, -1)
        for at in places:
            beside = current[at - 1] if onward else current[at + 1]
            _sort_layer(current[at], beside, up if onward else down)
        crossings = _crossings(current, down)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in current], crossings
    return best


def _sort_layer(layer: list[int], beside: Sequence[int], neighbours: Sequence[Sequence[int]]) -> None:
    rows = {slot: row for row, slot in enumerate(beside)}
    centre = {}
    for row, slot in enumerate(layer):
        near = [rows[one] for one in neighbours[slot]]
        scaled = row * len(beside) / max(1, len(layer))  # without neighbours it stays about where it is
        centre[slot] = sum(near) / len(near) if near else scaled
    layer.sort(key=lambda slot: (centre[slot], slot))


def _crossings(layers: Sequence[Sequence[int]], down: Sequence[Sequence[int]]) -> int:
    """How often links between neighbouring layers cross: inversions, counted in a Fenwick tree."""
    total = 0
    for left, right in itertools.pairwise(layers):
        rows = {slot: row for row, slot in enumerate(right)}
        tree = [0] * (len(right) + 1)
        seen = 0
        for slot in left:
            ends = sorted(rows[one] for one in down[slot])
            for end in ends:
                at, below = end + 1, 0
                while at:
                    below += tree[at]
                    at &= at - 1
                total += seen - below
            for end in ends:
                at = end + 1
                while at <= len(right):
                    tree[at] += 1
                    at += at & -at
                seen += 1
    return total
