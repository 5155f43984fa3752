"""The soak's verdict can fail: each thing that must not be makes it fail, alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soak.clients import AGE_SECONDS, Reader
from soak.deploys import VARIANTS, ddl_of
from soak.report import match_repairs, render
from soak.verdict import Account, Compared, Findings, Growth, Reads, count_ids, judge

GOOD = Findings(
    accounts=(Account(table="shop.events", sent=3, found=3, lost=0, doubled=0),),
    compared=(Compared(target="shop.hourly", windows=1, keys=3),),
    reads=Reads(polls=10, steps_back=1),
    growths=(Growth(what="engine memory", unit="MiB", first=100, last=150, bound=50),),
)


def test_nothing_wrong_is_good() -> None:
    assert judge(GOOD) == ()
    assert "GOOD: 0 lost, 0 doubled" in render(GOOD, [], {}, {}, {"seed": 7})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accounts": (Account(table="t", sent=3, found=2, lost=1, doubled=0),)}, "t: 1 lost, 0 doubled, 0 that nobody sent"),
        ({"accounts": (Account(table="t", sent=3, found=3, lost=0, doubled=2),)}, "t: 0 lost, 2 doubled, 0 that nobody sent"),
        ({"accounts": (Account(table="t", sent=3, found=4, lost=0, doubled=0, foreign=1),)}, "t: 0 lost, 0 doubled, 1 that nobody sent"),
        ({"accounts": ()}, "no row was sent, so nothing is proved"),
        ({"compared": (Compared(target="t", windows=1, keys=1, wrong=("x: of 1 keys 1 missing",)),)}, "t: x: of 1 keys 1 missing"),
        ({"compared": ()}, "no target was compared, so nothing is proved"),
        ({"reads": Reads(polls=1, holes=("hourly: 1 < 2",))}, "readers saw a hole 1 times, first hourly: 1 < 2"),
        ({"reads": Reads(polls=1, doubles=("hourly: 3 > 2",))}, "readers saw a double 1 times, first hourly: 3 > 2"),
        ({"reads": Reads(polls=1, errors=("hourly: gone",))}, "readers saw an error 1 times, first hourly: gone"),
        ({"reads": Reads()}, "nobody read, so nothing is proved about readers"),
        ({"left": ("table scratch.1f",)}, "left behind: table scratch.1f"),
        ({"growths": (Growth(what="engine memory", unit="MiB", first=100, last=151, bound=50),)}, "engine memory: grew from 100 to 151 MiB, more than the bound of 50"),
        ({"not_active": ("shop.hourly STALE: x",)}, "not ACTIVE: shop.hourly STALE: x"),
    ],
)  # fmt: skip
def test_each_thing_alone_makes_it_fail(change: dict[str, object], said: str) -> None:
    found = replace(GOOD, **change)  # type: ignore[arg-type]
    assert judge(found) == (said,)
    assert f"FAILED {said}" in render(found, [], {}, {}, {})  # type: ignore[arg-type]


def test_an_insert_without_an_answer_may_be_there_once_or_not() -> None:
    absent = count_ids("t", {1: 1}, [1], [2])
    present = count_ids("t", {1: 1, 2: 1}, [1], [2])
    twice = count_ids("t", {1: 1, 2: 2}, [1], [2])
    assert [(one.lost, one.doubled, one.foreign) for one in (absent, present, twice)] == [
        (0, 0, 0),
        (0, 0, 0),
        (0, 1, 0),
    ]


def test_a_summed_row_of_zero_is_a_lost_one() -> None:
    assert count_ids("t", {1: 0}, [1]).lost == 1


def test_reader_tells_holes_and_doubles_from_a_snapshot() -> None:
    reader = Reader(None, {}, {"t": lambda: 100}, floor={("t", "d"): 10})  # type: ignore[arg-type]
    for total, now in ((50, 0.0), (60, 10.0), (55, 20.0)):
        reader.judge("t", {"d": total}, now)
    assert (reader.holes, reader.doubles, reader.steps_back) == ([], [], 1)
    reader.judge("t", {"d": 9, "e": 70}, 30.0)
    assert reader.holes == ["t d: 9 < 10"]
    reader.judge("t", {"d": 101}, 40.0)
    assert reader.doubles == ["t: 101 > 100 that were sent"]
    reader.judge("t", {"d": 55}, 10.0 + AGE_SECONDS)
    assert reader.holes[1:] == [f"t: 55 < 60 of {AGE_SECONDS:.0f} s ago"]


def test_repair_is_matched_with_the_last_fault_before_it() -> None:
    events = [
        {"t": 5.0, "event": "view dropped", "view": "v"},
        {"t": 50.0, "event": "view dropped", "view": "v"},
        {"t": 51.0, "event": "x", "view": "w"},
    ]
    rows = [
        ("view", "shop.v", "dropped", "repaired", 1_058_000, 1_070_000),
        ("late", "shop.z", "late rows", "repaired", 1_058_000, 0),
    ]
    repairs = match_repairs(rows, events, 1000.0)
    assert [(one.after_seconds, one.repair_seconds) for one in repairs] == [(8.0, 12.0), (None, 0.0)]


def test_every_variant_of_the_ddl_says_something_else() -> None:
    texts = {ddl_of(frozenset()), *(ddl_of(frozenset({one})) for one in VARIANTS), ddl_of(frozenset(VARIANTS))}
    assert len(texts) == len(VARIANTS) + 2
