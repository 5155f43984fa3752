"""The layout as laws: nothing overlaps, data flows to the right, few crossings, and the same input gives the same picture."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chmv_assets.core.model import Edge, EdgeKind
from chmv_assets.core.names import QName
from chmv_assets.core.picture.layers import _crossings, build_layered
from chmv_assets.core.picture.layout import ONE_PICTURE, Layout, NodeSize, build_layout
from chmv_assets.core.picture.place import Box
from chmv_assets.pipeline import DEMO_DDL, load_pipeline

GRAPHS = st.integers(1, 24).flatmap(
    lambda count: st.tuples(
        st.just(count), st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40)
    )
)


def name(number: int, database: str = "d") -> QName:
    return QName(database, f"t{number:03d}")


def sizes(names: Sequence[QName]) -> list[NodeSize]:
    return [NodeSize(name=one, width=120 + 10 * (number % 7), group=one.database) for number, one in enumerate(names)]


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width and other.x < one.x + one.width
        and one.y < other.y + other.height and other.y < one.y + one.height
    )  # fmt: skip


def expect_apart(layout: Layout) -> None:
    boxes = sorted(layout.boxes.items(), key=lambda item: item[1].x)
    for at, (first, box) in enumerate(boxes):
        for second, other in boxes[at + 1 :]:
            if other.x >= box.x + box.width:
                break
            assert not overlap(box, other), f"{first} and {second} overlap"


@settings(max_examples=80, deadline=None)
@given(GRAPHS)
def test_nodes_of_any_graph_stand_apart_and_every_edge_has_a_route(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    edges = [Edge(name(a), name(b), "writes") for a, b in pairs]  # cycles and loops too
    layout = build_layout(sizes([name(number) for number in range(count)]), edges)
    assert set(layout.boxes) == {name(number) for number in range(count)}
    assert set(layout.routes) == set(edges)
    expect_apart(layout)


@settings(max_examples=60, deadline=None)
@given(GRAPHS)
def test_an_edge_of_a_graph_without_cycles_goes_to_the_right(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    edges = [Edge(name(min(pair)), name(max(pair)), "writes") for pair in pairs if pair[0] != pair[1]]
    layout = build_layout(sizes([name(number) for number in range(count)]), edges)
    for edge in edges:
        source, dest = layout.boxes[edge.source], layout.boxes[edge.dest]
        assert source.x + source.width < dest.x
        route = layout.routes[edge]
        assert [x for x, _ in route] == sorted(x for x, _ in route)
        assert (route[0][0], route[-1][0]) == (source.x + source.width, dest.x)


@settings(max_examples=60, deadline=None)
@given(GRAPHS)
def test_a_long_edge_passes_columns_between_their_nodes(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    edges = [Edge(name(min(pair)), name(max(pair)), "writes") for pair in pairs if pair[0] != pair[1]]
    layout = build_layout(sizes([name(number) for number in range(count)]), edges)
    for edge in edges:
        inner = layout.routes[edge][1:-1]
        for (left, y), (right, same) in zip(inner[::2], inner[1::2], strict=True):
            assert y == same
            for other, box in layout.boxes.items():
                through = box.x < right and left < box.x + box.width and box.y < y < box.y + box.height
                assert not through, f"{edge} runs through {other}"


def test_order_by_barycentres_untangles_what_can_be_untangled() -> None:
    twisted = [(number, 20 + 9 - number) for number in range(10)] + [(20 + number, 10 + number) for number in range(10)]
    layered = build_layered(30, twisted)
    down: list[list[int]] = [[] for _ in range(30)]
    for source, dest in layered.links:
        down[source].append(dest)
    assert _crossings([list(range(10)), list(range(20, 30)), list(range(10, 20))], down) == 45
    assert _crossings(layered.layers, down) == 0


def test_a_lookup_stands_next_to_what_reads_it_and_not_at_the_far_left() -> None:
    chain = [(0, 1), (1, 2), (2, 3), (4, 3)]
    layers = build_layered(5, chain).layers
    assert next(at for at, layer in enumerate(layers) if 4 in layer) == 2


def family(number: int, database: str, lookup: QName | None = None) -> tuple[list[QName], list[Edge]]:
    names = [QName(database, f"f{number:02d}_{what}") for what in ("a_source", "b_view", "c_target", "d_lookup")]
    kinds: list[EdgeKind] = ["trigger", "writes"]
    edges = [Edge(a, b, kind) for a, b, kind in zip(names, names[1:], kinds, strict=False)]
    edges.append(Edge(names[3], names[1], "lookup"))
    if lookup is not None:
        edges.append(Edge(lookup, names[1], "lookup"))
    return names, edges


def large() -> tuple[list[QName], list[Edge]]:
    shared = QName("one", "shared")
    names, edges = [shared], []
    for number in range(40):
        more, links = family(number, "one" if number < 20 else "two", shared)
        names += more
        edges += links
    assert len(names) > ONE_PICTURE
    return names, edges


def test_a_large_graph_is_cut_into_parts_that_are_packed_by_group() -> None:
    names, edges = large()
    layout = build_layout(sizes(names), edges)
    expect_apart(layout)
    assert [(frame.group, frame.own, frame.others) for frame in layout.frames] == [("one", 81, 0), ("two", 80, 0)]
    for one in names:
        frame = next(frame.box for frame in layout.frames if frame.group == one.database)
        box = layout.boxes[one]
        assert frame.x <= box.x and box.x + box.width <= frame.x + frame.width
        assert frame.y <= box.y and box.y + box.height <= frame.y + frame.height
    assert 0.8 < layout.width / layout.height < 4
    own, view = layout.boxes[QName("two", "f30_d_lookup")], layout.boxes[QName("two", "f30_b_view")]
    assert own.x < view.x and abs(own.y - view.y) < 200, "a lookup of one part stands with it"


def test_the_same_graph_in_another_order_is_the_same_picture() -> None:
    names, edges = large()
    nodes = sizes(names)
    first = build_layout(nodes, edges)
    shuffle = random.Random(7)
    shuffle.shuffle(nodes)
    shuffle.shuffle(edges)
    second = build_layout(nodes, edges)
    assert (first.boxes, first.routes, first.frames, first.groups) == (
        second.boxes, second.routes, second.frames, second.groups,
    )  # fmt: skip


def test_groups_have_an_overview_of_their_own() -> None:
    edges = [Edge(QName("a", "x"), QName("b", "y"), "trigger"), Edge(QName("b", "y"), QName("b", "z"), "writes")]
    names = [QName("a", "x"), QName("b", "y"), QName("b", "z"), QName("c", "alone")]
    groups = build_layout(sizes(names), edges).groups
    assert list(groups) == ["a", "b", "c"]
    assert groups["a"].x + groups["a"].width < groups["b"].x
    boxes = list(groups.values())
    assert not any(overlap(one, other) for at, one in enumerate(boxes) for other in boxes[at + 1 :])


@pytest.mark.parametrize("nodes", [[], [NodeSize(name=QName("d", "t"), width=100, group="d")]])
def test_next_to_nothing_is_a_picture_too(nodes: list[NodeSize]) -> None:
    layout = build_layout(nodes, [])
    assert len(layout.boxes) == len(nodes) and layout.routes == {}


def test_the_demo_is_one_picture_that_fits_on_a_screen() -> None:
    catalog = load_pipeline(DEMO_DDL).catalog
    layout = build_layout(sizes(sorted(catalog.objects)), catalog.edges)
    expect_apart(layout)
    assert layout.width < 2000 and layout.height < 900
