"""The whole picture: a catalog's graph → boxes, routes, frames of groups, and the overview of groups. Pure, the same for the same input.

A small graph is one layered picture. A large one is cut into parts that data flows within; a lookup stands with the one part that reads it, and
a shared one stands apart, with long edges. Parts are packed group by group, about as wide as a screen is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chmv_assets.core.model import Edge
from chmv_assets.core.names import QName
from chmv_assets.core.picture.place import COLUMN_GAP, Box, Placed, Route, place

NODE_HEIGHT = 46.0
ONE_PICTURE = 60  # up to so many nodes everything is one layered picture
_SMALL_PART = 8
_PART_GAP = 44.0
_GROUP_GAP = 130.0  # room for a title that is readable from afar
_FRAME_PAD = 26.0
_FRAME_TITLE = 34.0
_ASPECT = 1.9  # width to height of a screen without the panel
_GROUP_SIZE = (190.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """What the layout has to know of a node."""

    name: QName
    width: float
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A rectangle around the parts that belong to a group, most of their nodes at least."""

    group: str
    box: Box
    own: int  # nodes of the group in it
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is."""

    boxes: Mapping[QName, Box]
    routes: Mapping[Edge, Route]
    frames: tuple[Frame, ...]
    groups: Mapping[str, Box]  # in the overview, where each group is one node
    width: float
    height: float


def build_layout(nodes: Sequence[NodeSize], edges: Sequence[Edge]) -> Layout:
    """Lay out a graph; edges whose ends are not among the nodes are left out."""
    known = {node.name: node for node in sorted(nodes, key=lambda one: one.name)}
    inside = [edge for edge in sorted(edges) if edge.source in known and edge.dest in known]
    parts = _parts(known, inside)
    of = {name: number for number, part in enumerate(parts) for name in part}
    within: list[list[Edge]] = [[] for _ in parts]
    for edge in inside:
        if of[edge.source] == of[edge.dest]:
            within[of[edge.source]].append(edge)
    placed = [_place_part([known[name] for name in part], own) for part, own in zip(parts, within, strict=True)]
    corners, frames, width, height = _pack(parts, placed, known)
    boxes: dict[QName, Box] = {}
    for part, one, (x, y) in zip(parts, placed, corners, strict=True):
        for name, box in zip(part, one.boxes, strict=True):
            boxes[name] = box.moved(x, y)
    routes: dict[Edge, Route] = {}
    for edge in inside:
        if of[edge.source] == of[edge.dest] and edge.source != edge.dest:
            part, one, (x, y) = parts[of[edge.source]], placed[of[edge.source]], corners[of[edge.source]]
            route = one.routes[part.index(edge.source), part.index(edge.dest)]
            routes[edge] = tuple((round(px + x, 1), round(py + y, 1)) for px, py in route)
        else:
            routes[edge] = _straight(boxes[edge.source], boxes[edge.dest])
    groups = _overview(known, inside)
    return Layout(boxes=boxes, routes=routes, frames=frames, groups=groups, width=width, height=height)


def _straight(source: Box, dest: Box) -> Route:
    """From the right side to the left one, or the other way round where that would lead through both nodes."""
    backward = dest.x + dest.width < source.x
    starts = source.x if backward else source.x + source.width
    ends = dest.x + dest.width if backward else dest.x
    return ((starts, source.y + source.height / 2), (ends, dest.y + dest.height / 2))


def _place_part(nodes: Sequence[NodeSize], edges: Iterable[Edge]) -> Placed:
    at = {node.name: number for number, node in enumerate(nodes)}
    pairs = [(at[edge.source], at[edge.dest]) for edge in edges]
    return place([(node.width, NODE_HEIGHT) for node in nodes], pairs)


def _parts(known: Mapping[QName, NodeSize], edges: Sequence[Edge]) -> list[list[QName]]:
    """Names by part, each sorted; parts in the order of their groups and first names."""
    leader = {name: name for name in known}

    def find(name: QName) -> QName:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    def join(one: QName, other: QName) -> None:
        first, second = sorted((find(one), find(other)))
        leader[second] = first

    small = len(known) <= ONE_PICTURE
    for edge in edges:
        if small or edge.kind != "lookup":
            join(edge.source, edge.dest)
    moved = not small
    while moved:  # a small part that only one other part looks up stands with it
        moved = False
        sizes = Counter(find(name) for name in known)
        readers: dict[QName, set[QName]] = {}
        for edge in edges:
            if find(edge.source) != find(edge.dest):
                readers.setdefault(find(edge.source), set()).add(find(edge.dest))
        for part, reading in sorted(readers.items()):
            if len(reading) == 1 and sizes[part] <= _SMALL_PART and find(part) == part:
                join(part, next(iter(reading)))
                moved = True
    parts: dict[QName, list[QName]] = {}
    for name in known:
        parts.setdefault(find(name), []).append(name)
    return sorted(parts.values(), key=lambda part: (_main_group(part, known), len(part) == 1, part[0]))


def _main_group(part: Sequence[QName], known: Mapping[QName, NodeSize]) -> str:
    counted = Counter(known[name].group for name in part)
    return min(counted, key=lambda group: (-counted[group], group))


def _pack(
    parts: Sequence[Sequence[QName]], placed: Sequence[Placed], known: Mapping[QName, NodeSize]
) -> tuple[list[tuple[float, float]], tuple[Frame, ...], float, float]:
    """Corners of the parts: shelves within each group, groups on shelves again."""
    groups: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        groups.setdefault(_main_group(part, known), []).append(number)
    if len(groups) == 1 or len(known) <= ONE_PICTURE:
        sizes = [(one.width, one.height) for one in placed]
        corners, width, height = _shelves(sizes, _PART_GAP)
        return corners, (), width, height
    inner = {
        group: _shelves([(placed[number].width, placed[number].height) for number in numbers], _PART_GAP)
        for group, numbers in groups.items()
    }
    outer, width, height = _shelves(
        [(wide + 2 * _FRAME_PAD, high + 2 * _FRAME_PAD + _FRAME_TITLE) for _, wide, high in inner.values()], _GROUP_GAP
    )
    found: dict[int, tuple[float, float]] = {}
    frames = []
    for (group, numbers), (left, top) in zip(groups.items(), outer, strict=True):
        places, wide, high = inner[group]
        for number, (x, y) in zip(numbers, places, strict=True):
            found[number] = (left + x + _FRAME_PAD, top + y + _FRAME_PAD + _FRAME_TITLE)
        inside = [known[name].group for number in numbers for name in parts[number]]
        box = Box(left, top, wide + 2 * _FRAME_PAD, high + 2 * _FRAME_PAD + _FRAME_TITLE)
        own = inside.count(group)
        frames.append(Frame(group=group, box=box, own=own, others=len(inside) - own))
    return [found[number] for number in range(len(parts))], tuple(frames), width, height


def _shelves(sizes: Sequence[tuple[float, float]], gap: float) -> tuple[list[tuple[float, float]], float, float]:
    """Rectangles in rows, in their order: of all sensible widths the one whose whole is shaped most like a screen."""
    if not sizes:
        return [], 0.0, 0.0
    widest = max(width for width, _ in sizes)
    area = sum((width + gap) * (height + gap) for width, height in sizes)
    ideal = math.sqrt(area * _ASPECT)
    best: tuple[float, list[tuple[float, float]], float, float] | None = None
    for factor in (0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6):
        corners, width, height = _rows_of(sizes, gap, max(widest, ideal * factor))
        waste = max(width / _ASPECT, height)  # how far one has to zoom out
        if best is None or waste < best[0] - 0.5:
            best = (waste, corners, width, height)
    assert best is not None
    return best[1], best[2], best[3]


def _rows_of(
    sizes: Sequence[tuple[float, float]], gap: float, limit: float
) -> tuple[list[tuple[float, float]], float, float]:
    corners: list[tuple[float, float]] = []
    x = y = row = wide = 0.0
    for width, height in sizes:
        if x and x + width > limit:
            x, y, row = 0.0, y + row + gap, 0.0
        corners.append((x, y))
        x += width + gap
        row, wide = max(row, height), max(wide, x - gap)
    return corners, wide, y + row


def _overview(known: Mapping[QName, NodeSize], edges: Iterable[Edge]) -> dict[str, Box]:
    """Each group as one node, layered by the edges between groups; groups without any are packed below."""
    names = sorted({node.group for node in known.values()})
    at = {name: number for number, name in enumerate(names)}
    pairs = {(at[known[edge.source].group], at[known[edge.dest].group]) for edge in edges}
    pairs = {pair for pair in pairs if pair[0] != pair[1]}
    linked = sorted({end for pair in pairs for end in pair})
    alone = [number for number in range(len(names)) if number not in linked]
    row = {number: place_ for place_, number in enumerate(linked)}
    drawn = place([_GROUP_SIZE] * len(linked), [(row[a], row[b]) for a, b in sorted(pairs)])
    found = {names[number]: box for number, box in zip(linked, drawn.boxes, strict=True)}
    corners, _, _ = _shelves([_GROUP_SIZE] * len(alone), COLUMN_GAP / 2)
    below = drawn.height + (COLUMN_GAP / 2 if linked else 0)
    for number, (x, y) in zip(alone, corners, strict=True):
        found[names[number]] = Box(x, y + below, *_GROUP_SIZE)
    return {name: found[name] for name in names}
