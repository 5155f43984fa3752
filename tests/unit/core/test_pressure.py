"""Batch size and parallelism follow the server's numbers within three polls, without swinging."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.pressure import (
    Pace,
    PaceLimits,
    Pressure,
    adapt_pace,
    first_pace,
    judge_pressure,
)

LIMITS = PaceLimits()
numbers = st.builds(
    Pressure,
    parts=st.integers(0, 5_000),
    parts_to_delay=st.integers(0, 2_000),
    parts_to_throw=st.integers(0, 4_000),
    pool_tasks=st.integers(0, 64),
    pool_size=st.integers(0, 64),
)
paces = st.builds(
    Pace, batch_rows=st.integers(LIMITS.min_rows, LIMITS.max_rows), parallelism=st.integers(0, LIMITS.max_parallelism)
)


def pressure(parts: int = 10, pool: int = 0) -> Pressure:
    return Pressure(parts=parts, parts_to_delay=1_000, parts_to_throw=3_000, pool_tasks=pool, pool_size=100)


def polls(pace: Pace, seen: Pressure, count: int) -> Pace:
    for _ in range(count):
        pace = adapt_pace(pace, seen, LIMITS)
    return pace


def test_levels_are_judged_by_parts_and_by_the_merge_pool() -> None:
    assert [judge_pressure(pressure(parts))[0] for parts in (500, 501, 799, 800, 2_699, 2_700)] == [
        "calm", "steady", "steady", "busy", "busy", "stop",
    ]  # fmt: skip
    assert [judge_pressure(pressure(pool=pool))[0] for pool in (70, 71, 85, 86)] == ["calm", "steady", "steady", "busy"]


def test_lasting_pressure_leads_to_one_large_insert_at_a_time_within_three_polls() -> None:
    slow = polls(Pace(batch_rows=LIMITS.min_rows * 2, parallelism=8), pressure(900), 3)
    assert slow.parallelism == 1 and slow.batch_rows >= LIMITS.normal_rows
    assert polls(first_pace(LIMITS), pressure(pool=90), 3).parallelism == 1
    assert polls(first_pace(LIMITS), pressure(2_900), 1).parallelism == 0


def test_lasting_calm_leads_back_to_full_speed_within_three_polls() -> None:
    stopped = polls(first_pace(LIMITS), pressure(2_900), 1)
    fast = polls(stopped, pressure(10), 3)
    assert (fast.parallelism, fast.batch_rows) == (LIMITS.max_parallelism, LIMITS.normal_rows)


@given(pace=paces)
def test_between_the_marks_nothing_changes(pace: Pace) -> None:
    after = adapt_pace(pace, pressure(650), LIMITS)
    assert (after.batch_rows, after.parallelism) == (pace.batch_rows, pace.parallelism)


def test_a_stop_ends_with_one_insert_even_if_it_is_not_calm_yet() -> None:
    assert adapt_pace(polls(first_pace(LIMITS), pressure(2_900), 1), pressure(650), LIMITS).parallelism == 1


@given(pace=paces, seen=numbers)
def test_every_pace_is_within_its_limits_and_says_why(pace: Pace, seen: Pressure) -> None:
    after = adapt_pace(pace, seen, LIMITS)
    assert LIMITS.min_rows <= after.batch_rows <= LIMITS.max_rows
    assert 0 <= after.parallelism <= LIMITS.max_parallelism
    assert after.reason and (after.parallelism > 0 or after.level == "stop" or pace.parallelism == 0)
