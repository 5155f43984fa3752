"""Layers → pixels: columns by the widest node, rows by the median of the neighbours, ports and routes of edges. Pure.

Invariant: no two nodes overlap, and a long edge passes a column between its nodes. Which nodes belong into one picture and where the pictures
of several parts go is decided in `layout`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chmv_assets.core.picture.layers import Layered, Pair, build_layered

COLUMN_GAP = 84
_NODE_GAP = 16
_POINT_HEIGHT = 2
_ROUNDS = 10
_PORT_MARGIN = 9


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node stands: its left upper corner and its size."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, dx: float, dy: float) -> Box:
        return Box(self.x + dx, self.y + dy, self.width, self.height)


Route = tuple[tuple[float, float], ...]  # from port to port, two points per column that is passed


@dataclass(frozen=True, slots=True)
class Placed:
    """One laid out part; its left upper corner is (0, 0)."""

    boxes: tuple[Box, ...]
    routes: Mapping[Pair, Route]
    width: float
    height: float


def place(sizes: Sequence[tuple[float, float]], edges: Iterable[Pair]) -> Placed:
    """Lay out one part: `sizes` are width and height of its nodes."""
    layered = build_layered(len(sizes), edges)
    heights = _heights(layered, sizes)
    rows = _rows(layered, heights)
    columns = _columns(layered, sizes)
    boxes: dict[int, Box] = {}
    at: dict[int, int] = {}
    for column, layer in enumerate(layered.layers):
        x, width = columns[column]
        for slot in layer:
            at[slot] = column
            if slot < layered.nodes:
                boxes[slot] = Box(x, round(rows[slot] - heights[slot] / 2, 1), width, heights[slot])
    low = min((box.y for box in boxes.values()), default=0)
    high = max((box.y + box.height for box in boxes.values()), default=0)
    placed = tuple(boxes[node].moved(0, -low) for node in range(layered.nodes))
    middles = {slot: row - low for slot, row in rows.items()}
    width = max((x + wide for x, wide in columns), default=0)
    return Placed(placed, _routes(layered, placed, middles, at, columns), width, high - low)


def _heights(layered: Layered, sizes: Sequence[tuple[float, float]]) -> dict[int, float]:
    return {
        slot: sizes[slot][1] if slot < layered.nodes else _POINT_HEIGHT for layer in layered.layers for slot in layer
    }


def _columns(layered: Layered, sizes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Left edge and width of each column."""
    columns: list[tuple[float, float]] = []
    x = 0.0
    for layer in layered.layers:
        width = max((sizes[slot][0] for slot in layer if slot < layered.nodes), default=0)
        columns.append((x, width))
        x += width + COLUMN_GAP
    return columns


def _rows(layered: Layered, heights: Mapping[int, float]) -> dict[int, float]:
    """The middle of every slot: to and fro, each layer as near to the medians of its neighbours as its order allows."""
    near: dict[int, tuple[list[int], list[int]]] = {slot: ([], []) for slot in heights}
    for source, dest in layered.links:
        near[dest][0].append(source)
        near[source][1].append(dest)
    rows: dict[int, float] = {}
    for layer in layered.layers:
        y = 0.0
        for slot in layer:
            rows[slot] = y + heights[slot] / 2
            y += heights[slot] + _NODE_GAP
        for slot in layer:
            rows[slot] -= y / 2
    for turn in range(_ROUNDS):
        onward = turn % 2 == 0
        last = turn >= _ROUNDS - 2
        for layer in layered.layers if onward else layered.layers[::-1]:
            wanted: list[float] = []
            weights: list[float] = []
            for slot in layer:
                up, down = near[slot]
                sides = [*up, *down] if last else (up if onward else down) or (down if onward else up)
                wanted.append(_median([rows[one] for one in sides]) if sides else rows[slot])
                weights.append(8.0 if slot >= layered.nodes else 1.0 + len(sides) if sides else 0.1)
            rows.update(zip(layer, _spread(wanted, weights, [heights[slot] for slot in layer]), strict=True))
    return rows


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _spread(wanted: Sequence[float], weights: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones (least squares) that keep order and distance: neighbours that would overlap are pooled."""
    offsets = [0.0]
    for above, below in itertools.pairwise(heights):
        offsets.append(offsets[-1] + (above + below) / 2 + _NODE_GAP)
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        pool = (want - offset, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, many = pools.pop()
            both = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / both, both, many + pool[2])
        pools.append(pool)
    means = [mean for mean, _, many in pools for _ in range(many)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


def _routes(
    layered: Layered,
    boxes: Sequence[Box],
    middles: Mapping[int, float],
    at: Mapping[int, int],
    columns: Sequence[tuple[float, float]],
) -> dict[Pair, Route]:
    ends = {
        edge: (chain[0] if chain else edge[1], chain[-1] if chain else edge[0])
        for edge, chain in layered.chains.items()
    }
    leaving = _ports(boxes, [(edge[0], middles[first], edge) for edge, (first, _) in ends.items()])
    entering = _ports(boxes, [(edge[1], middles[last], edge) for edge, (_, last) in ends.items()])
    routes: dict[Pair, Route] = {}
    for edge, chain in layered.chains.items():
        source, dest = boxes[edge[0]], boxes[edge[1]]
        backward = source.x > dest.x
        points = [(source.x if backward else source.x + source.width, leaving[edge])]
        for slot in chain:
            x, width = columns[at[slot]]
            y = middles[slot]
            points += [(x + width, y), (x, y)] if backward else [(x, y), (x + width, y)]
        points.append((dest.x + dest.width if backward else dest.x, entering[edge]))
        routes[edge] = tuple((round(x, 1), round(y, 1)) for x, y in points)
    return routes


def _ports(boxes: Sequence[Box], ends: Sequence[tuple[int, float, Pair]]) -> dict[Pair, float]:
    """Where each edge touches its node: side by side, in the order of where they come from or go to."""
    of: dict[int, list[tuple[float, Pair]]] = {}
    for node, far, edge in ends:
        of.setdefault(node, []).append((far, edge))
    ports: dict[Pair, float] = {}
    for node, listed in of.items():
        box = boxes[node]
        room = box.height - 2 * _PORT_MARGIN
        step = min(10.0, room / max(1, len(listed) - 1))
        first = box.y + box.height / 2 - step * (len(listed) - 1) / 2
        for number, (_, edge) in enumerate(sorted(listed)):
            ports[edge] = first + step * number
    return ports
