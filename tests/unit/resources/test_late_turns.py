"""Which sources a tick reads late rows of: so many at most, each in its turn, and no row is missed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chmv_assets.core.names import QName
from resources import late_rows
from resources.late_rows import Young, choose_sources, find_due

A, B, C = (QName("shop", name) for name in "abc")
SECOND = 1_000_000


def test_a_source_without_parts_that_are_younger_than_its_moment_is_not_read() -> None:
    young = {A: Young(9, 1), B: Young(10, 1), C: Young(5, 1)}
    assert find_due(young, 10 * SECOND + 3, {}) == {B: 10 * SECOND + 3}
    assert find_due(young, 10 * SECOND, {C: 5 * SECOND}) == {B: 10 * SECOND, C: 5 * SECOND}
    assert find_due({}, 10 * SECOND, {C: 5 * SECOND}) == {}  # its table is gone


def test_who_waits_longest_comes_first_and_one_comes_always() -> None:
    young = {name: Young(9, 400) for name in (A, B, C)}
    assert choose_sources({A: 7, B: 7, C: 3}, young) == {C}
    assert choose_sources({A: 7}, {A: Young(9, 10**6)}) == {A}
    assert choose_sources({A: 7, B: 7, C: 3}, {name: Young(9, 250) for name in young}) == {A, C}
    assert choose_sources({}, {}) == frozenset()


def test_so_many_sources_at_most() -> None:
    names = [QName("shop", f"t{number:03d}") for number in range(500)]
    chosen = choose_sources(dict.fromkeys(names, 1), dict.fromkeys(names, Young(1, 1)))
    assert chosen == set(names[: late_rows.SOURCES_AT_ONCE])


@dataclass
class World:
    """Sources with parts: when each was written, and the arrivals of its rows."""

    now: int = 1_000
    parts: dict[QName, list[tuple[int, set[int]]]] = field(default_factory=dict)
    read: dict[QName, set[int]] = field(default_factory=dict)
    fence: int | None = 1_000 * SECOND
    behind: dict[QName, int] = field(default_factory=dict)

    def insert(self, name: QName, began: int, row: int) -> None:
        self.parts.setdefault(name, []).append((self.now, {began * SECOND + row}))

    def merge(self, name: QName) -> None:
        """All parts become one, which is as young as the merge."""
        rows = set().union(*(rows for _, rows in self.parts.get(name, [])))
        if rows:
            self.parts[name] = [(self.now, rows)]

    def tick(self, overlap: int, between: QName | None = None) -> None:
        assert self.fence is not None
        first = min([self.fence, *self.behind.values()]) // SECOND
        found = {name: [at for at, _ in parts if at >= first] for name, parts in self.parts.items()}
        young = {name: Young(max(times), len(times)) for name, times in found.items() if times}
        due = find_due(young, self.fence, self.behind)
        chosen = choose_sources(due, young)
        if between is not None:
            self.merge(between)  # between the two queries
        for name in chosen:
            for at, rows in self.parts[name]:
                if at >= due[name] // SECOND:  # not one of the older parts
                    self.read.setdefault(name, set()).update(row for row in rows if row > due[name])
        self.behind = {name: since for name, since in due.items() if name not in chosen}
        self.fence = max(self.fence, (self.now - overlap) * SECOND)


NAMES = [QName("shop", f"t{number}") for number in range(6)]
INSERTS = st.tuples(st.sampled_from(NAMES), st.integers(0, 5))  # how many seconds ago it began
ACTIONS = st.tuples(st.lists(INSERTS, max_size=8), st.one_of(st.none(), st.sampled_from(NAMES)), st.integers(0, 20))


@settings(max_examples=200, deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=25), st.integers(1, 3), st.integers(1, 6))
def test_every_row_is_read_however_few_sources_a_tick_takes(
    actions: list[tuple[list[tuple[QName, int]], QName | None, int]], sources: int, parts: int
) -> None:
    """Inserts that began up to 5 s before they are seen, merges between the queries, and an overlap of 5 s."""
    world, wanted = World(), dict[QName, set[int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_rows, "SOURCES_AT_ONCE", sources)
        patch.setattr(late_rows, "PARTS_AT_ONCE", parts)
        for number, (inserts, merged, pause) in enumerate(actions, start=1):
            world.now += pause
            for name, ago in inserts:
                began = max(world.now - ago, 1_000)
                world.insert(name, began, number)
                wanted.setdefault(name, set()).add(began * SECOND + number)
            world.tick(overlap=5, between=merged)
        for _ in range(2 * len(NAMES)):
            world.now += 30
            world.tick(overlap=5)
    assert world.behind == {}
    assert {name: rows & wanted.get(name, set()) for name, rows in world.read.items() if rows} == wanted
