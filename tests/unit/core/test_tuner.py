"""The tuner's decision, as tables of numbers and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chmv_assets.core.capabilities import setting_of
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import Decision, Reading, Sample, Tunable, decide, judge_watch
from chmv_assets.core.tuner_order import dump_order, load_order, order_of
from chmv_assets.core.tunings import DELAY, MAX_DELAY, PARALLELISM, Tuning, split_tuned
from chmv_assets.core.verdict_parts import Comparison, Difference

T, S = QName("d", "t"), QName("d", "s")
LIMITS = Limits()
NOW = 10_000.0
TABLE = (Tunable(table=T),)


def window(parts: int, pool: float, *, delay: int = 1000, longest: int = 1, seconds: int = 300) -> list[Sample]:
    """Samples every 30 s, all alike."""
    reading = Reading(parts=parts, parts_to_delay=delay, parts_to_throw=3000, max_delay=longest)
    return [
        Sample(at=NOW - ago, pool_tasks=round(pool * 100), pool_size=100, readings={T: reading}, inserts=10 * (seconds - ago))
        for ago in range(seconds, -1, -30)
    ]  # fmt: skip


def tuned(setting: str, previous: int | None, value: int, *, base: int = 1000, ago: float = 400, status: str = "settled") -> Tuning:  # fmt: skip
    started = int((NOW - ago) * 1000)
    return Tuning(
        tuning=f"{started}-{value}", subject=S if setting == PARALLELISM else T, setting=setting, previous=previous, base=base, value=value,
        status=status, reason="", started_ms=started, watch_until_ms=started + 60_000,  # type: ignore[arg-type]
    )  # fmt: skip


def steps(decision: Decision) -> list[tuple[str, int, int]]:
    return [(one.setting, one.expected, one.value) for one in decision.actions]


@pytest.mark.parametrize(
    ("parts", "pool", "acts"),
    [
        (600, 0.9, False),  # exactly 20% above the wanted half: not more than 20%
        (601, 0.9, True),
        (500, 0.9, False),
        (900, 0.35, False),  # merges have nothing to do: slowing writers would not help
        (900, 0.37, True),
        (0, 1.0, False),
    ],
)
def test_acts_only_when_the_average_is_more_than_20_percent_off(parts: int, pool: float, acts: bool) -> None:
    found = decide(window(parts, pool), [], TABLE, now=NOW, limits=LIMITS)
    assert steps(found) == ([(DELAY, 1000, 500)] if acts else []), found.told


def test_one_reading_is_not_enough_nor_a_short_time() -> None:
    assert decide(window(990, 1.0)[-1:], [], TABLE, now=NOW, limits=LIMITS).is_empty
    assert decide(window(990, 1.0, seconds=210), [], TABLE, now=NOW, limits=LIMITS).is_empty
    assert not decide(window(990, 1.0, seconds=240), [], TABLE, now=NOW, limits=LIMITS).is_empty


def test_a_storm_that_has_just_ended_is_left_alone() -> None:
    samples = window(900, 0.9)
    last = replace(samples[-1], readings={T: replace(samples[-1].readings[T], parts=40)})
    assert decide([*samples[:-1], last], [], TABLE, now=NOW, limits=LIMITS).is_empty


def test_steps_go_from_ours_to_theirs_and_end_at_their_bounds() -> None:
    with_source = (Tunable(table=T, sources=(S,)),)
    assert steps(decide(window(900, 0.9), [], with_source, now=NOW, limits=LIMITS)) == [(PARALLELISM, 8, 4)]
    slow = [tuned(PARALLELISM, None, 4, base=8), tuned(PARALLELISM, 4, 1, base=8)]
    assert steps(decide(window(900, 0.9), slow, with_source, now=NOW, limits=LIMITS)) == [(DELAY, 1000, 500)]
    half = tuned(DELAY, None, 500)
    assert steps(decide(window(900, 0.9, delay=500), [half], TABLE, now=NOW, limits=LIMITS)) == [(DELAY, 500, 250)]
    quarter = tuned(DELAY, 500, 250, ago=1_000)
    low = [half, replace(quarter, started_ms=half.started_ms - 1)]
    later = NOW + 1_000
    samples = [replace(one, at=one.at + 1_000) for one in window(900, 0.9, delay=250)]
    assert steps(decide(samples, low, TABLE, now=later, limits=LIMITS)) == [(MAX_DELAY, 1, 2)]
    samples = [replace(one, at=one.at + 1_000) for one in window(900, 0.9, delay=250, longest=4)]
    found = decide(samples, low, TABLE, now=later, limits=LIMITS)
    assert not found.actions and "at their bounds" in " ".join(found.told)


def test_a_cool_down_holds_the_next_step_and_doubles() -> None:
    samples = window(900, 0.9, delay=500)
    for ago, before, acts in ((299, 1, False), (300, 1, True), (599, 2, False), (600, 2, True)):
        old = [tuned(DELAY, None, 500, ago=ago), *(tuned(MAX_DELAY, None, 2, ago=5_000, status="rolled_back") for _ in range(before - 1))]  # fmt: skip
        assert bool(decide(samples, old, TABLE, now=NOW, limits=LIMITS).actions) is acts, (ago, before)


@pytest.mark.parametrize(("pool", "back"), [(0.29, True), (0.3, False), (0.9, False)])
def test_a_watch_takes_back_when_the_pool_falls_under_30_percent(pool: float, back: bool) -> None:
    one = tuned(DELAY, None, 500, ago=100, status="applied")
    found = judge_watch(window(10, pool)[-3:], one, LIMITS)
    assert (found is not None and found.kind == "over-correction" and not found.settle) is back
    assert judge_watch(window(10, 0.0)[-2:], one, LIMITS) is None  # two readings of an idle moment


def test_nobody_interferes_with_a_watch_that_goes_on() -> None:
    one = tuned(DELAY, None, 500, ago=80, status="applied")
    assert decide(window(10, 0.0, delay=500), [one], TABLE, now=NOW, limits=LIMITS).backs == ()


@pytest.mark.parametrize(
    ("status", "pool", "settle"), [("applied", 0.9, True), ("applied", 0.1, False), ("proposed", 0.9, False)]
)
def test_what_a_dead_tuner_left_is_settled_or_taken_back(status: str, pool: float, settle: bool) -> None:
    one = tuned(DELAY, 60, 30, base=60, ago=120, status=status)
    (back,) = decide(window(50, pool, delay=30), [one], TABLE, now=NOW, limits=LIMITS).backs
    assert back.settle is settle and back.tuning == one


def test_calm_takes_back_every_step_and_over_correction_only_the_newest() -> None:
    stack = [
        tuned(DELAY, None, 500, ago=2_000),
        tuned(DELAY, 500, 250, ago=1_000),
        tuned(MAX_DELAY, None, 2, base=1, ago=900),
    ]
    calm = decide(window(90, 0.5, delay=250, longest=2), stack, TABLE, now=NOW, limits=LIMITS)
    assert [(one.kind, one.tuning.value) for one in calm.backs] == [("calm", 2), ("calm", 250), ("calm", 500)]
    idle = decide(window(240, 0.1, delay=250, longest=2), stack, TABLE, now=NOW, limits=LIMITS)
    assert [(one.kind, one.tuning.value) for one in idle.backs] == [("over-correction", 2), ("over-correction", 250)]
    assert (
        decide(window(240, 0.5, delay=250), stack, TABLE, now=NOW, limits=LIMITS).backs == ()
    )  # writers still feel it


def test_a_busy_pool_without_a_full_table_slows_our_own_ingests_only() -> None:
    with_source = (Tunable(table=T, sources=(S,)),)
    found = decide(window(50, 0.85), [], with_source, now=NOW, limits=LIMITS)
    assert [(one.subject, one.setting, one.value) for one in found.actions] == [(S, PARALLELISM, 4)]
    assert decide(window(50, 0.84), [], with_source, now=NOW, limits=LIMITS).is_empty
    assert decide(window(50, 1.0), [], TABLE, now=NOW, limits=LIMITS).is_empty


def test_orders_travel_as_json_and_nothing_else_is_taken() -> None:
    one = tuned(MAX_DELAY, None, 2, base=1, ago=900)
    decision = decide(window(900, 0.9), [], TABLE, now=NOW, limits=LIMITS)
    calm = decide(window(9, 0.5), [one], TABLE, now=NOW, limits=LIMITS)
    order = order_of(replace(decision, backs=calm.backs))
    assert load_order(dump_order(order)) == order
    assert order.backs_of([one]) == calm.backs and order.backs_of([]) == ()
    for text in ("", "[]", '{"actions":[]}', dump_order(order).replace(DELAY, "min_bytes; DROP")):
        with pytest.raises(ChmvError, match="tuner order: found"):
            load_order(text)


def test_a_tuned_setting_is_no_difference_while_the_server_has_our_value() -> None:
    drift = Comparison("changed", (Difference(f"setting {DELAY}", "60", "30"),))
    own = [tuned(DELAY, 60, 30, base=60)]
    assert split_tuned(drift, own) == Comparison("equal", (), (), drift.differences)
    other = Comparison("changed", (*drift.differences, Difference("TTL", "a", "b")))
    assert split_tuned(other, own) == Comparison("changed", other.differences[1:], (), drift.differences)
    assert split_tuned(drift, [replace(own[0], status="rolled_back")]) == drift
    foreign = Comparison("changed", (Difference(f"setting {DELAY}", "60", "31"),))
    assert split_tuned(foreign, own) == foreign


def test_a_setting_is_read_by_its_whole_name() -> None:
    assert setting_of("MergeTree ORDER BY x SETTINGS inactive_parts_to_delay_insert = 7", DELAY) is None
