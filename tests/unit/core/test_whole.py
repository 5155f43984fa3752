"""Fences of resting partitions: which rows count as computed, and when that cannot be told any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step, StepKind, choose_protocol, notes_of, undo_of
from chmv_assets.core.whole import (
    GROUP_PARTITIONS,
    Fence,
    Part,
    computed_parts,
    find_cold,
    find_fences,
    group_partitions,
)


def part(name: str, first: int, last: int, *, rows: int = 10, version: int = 0, age: float = 999) -> Part:
    return Part(
        name=name, partition_id="p", partition="p", rows=rows, min_block=first, max_block=last,
        data_version=version, age_seconds=age,
    )  # fmt: skip


OLD = (part("a", 1, 4), part("b", 5, 5))


def test_fence_is_the_same_after_a_merge_and_another_after_anything_else() -> None:
    fence = find_fences(OLD, counts_rows=True)["p"]
    assert fence == Fence(rows=20, max_block=5, data_version=0)
    assert find_fences([part("ab", 1, 5, rows=20)], counts_rows=True)["p"] == fence
    for other in ([*OLD, part("c", 6, 6)], OLD[:1], [replace(OLD[0], data_version=9), OLD[1]]):
        assert find_fences(other, counts_rows=True)["p"] != fence


def test_rows_do_not_count_where_merges_drop_them() -> None:
    fence = find_fences(OLD, counts_rows=False)["p"]
    assert find_fences([part("ab", 1, 5, rows=3)], counts_rows=False)["p"] == fence


@pytest.mark.parametrize(
    ("parts", "computed"),
    [
        (OLD, ["a", "b"]),
        ([*OLD, part("c", 6, 6), part("d", 7, 9)], ["a", "b"]),
        ([part("ab", 1, 5, rows=20), part("c", 6, 6)], ["ab"]),
        ([part("a", 1, 4), part("bc", 5, 6, rows=20)], None),  # merged across the fence
        ([part("a", 1, 4)], None),  # dropped
        ([part("a", 1, 4, version=9), OLD[1]], None),  # mutated
        ([part("n", 8, 8, rows=20)], None),  # replaced
        ([], None),
    ],
)
def test_later_rows_are_told_from_computed_ones(parts: list[Part], computed: list[str] | None) -> None:
    fence = find_fences(OLD, counts_rows=True)["p"]
    assert computed_parts(parts, "p", fence, counts_rows=True) == computed


def test_partition_rests_when_its_last_fresh_part_is_old() -> None:
    fresh = part("b", 5, 5, age=3)
    assert find_cold([part("a", 1, 4, age=1), part("b", 5, 5, age=300)], 120) == ["p"]
    assert find_cold([part("a", 1, 4), fresh], 120) == []
    assert find_cold([part("a", 1, 4), fresh], -1) == ["p"]


def test_groups_have_bounds_and_keep_the_order() -> None:
    names = [f"{at:04}" for at in range(250)]
    groups = group_partitions(names, dict.fromkeys(names, 1))
    assert [len(group) for group in groups] == [GROUP_PARTITIONS, GROUP_PARTITIONS, 50]
    assert [one for group in groups for one in group] == names
    assert group_partitions(["a", "b"], {"a": 10**9, "b": 10**9}) == [("a",), ("b",)]
    assert group_partitions([], {}) == []


KINDS: tuple[StepKind, ...] = (
    "settle", "scratch", "scratch", "prebuild cold", "hold merges", "prebuild", "shut gate", "shut gate", "drain",
    "recheck", "publish", "open gate", "drop scratch",
)  # fmt: skip


def test_whatever_is_left_behind_was_noted_before() -> None:
    steps = [Step(kind, QName("d", f"{kind}{at}")) for at, kind in enumerate(KINDS)]
    notes = notes_of(steps)
    assert notes == {1: 2, 4: 4, 6: 7}
    for at, step in enumerate(steps):
        spoken = max((upto for begun, upto in notes.items() if begun <= at), default=-1)
        left = undo_of([step])
        assert set(left) <= set(undo_of(steps[: spoken + 1])), step


def test_without_a_window_auto_means_the_whole_target() -> None:
    assert choose_protocol("auto", gates=[], quiet_seconds=None, whole=True)[0] == "whole"
    assert choose_protocol("auto", gates=[], quiet_seconds=None)[0] == "closed"
    assert choose_protocol("closed", gates=[], quiet_seconds=None, whole=True) == ("closed", "asked for")
