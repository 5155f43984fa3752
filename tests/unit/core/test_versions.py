"""Versions only rise, whatever the clock does."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.versions import MAX_VERSION, VersionAllocator, VersionParts, join_version, split_version

NOW = 1_790_000_000_000
clocks = st.lists(st.integers(0, 2**42 - 10_000), min_size=1, max_size=50)


@given(ticks=clocks, lanes=st.lists(st.sampled_from(["live", "replay"]), min_size=1, max_size=50))
def test_versions_of_a_lane_strictly_rise_even_if_the_clock_goes_back(ticks: list[int], lanes: list[str]) -> None:
    moments = iter(ticks)
    allocator = VersionAllocator(clock_ms=lambda: next(moments, 0), process=77)
    last = {"live": -1, "replay": -1}
    for lane in lanes:
        version = allocator.next(lane)  # type: ignore[arg-type]
        assert last[lane] < version <= MAX_VERSION < 2**63
        last[lane] = version


@given(live=st.integers(0, 2**42 - 10), replay=st.integers(0, 2**42 - 10), process=st.integers(0, 10**6))
def test_replay_outranks_live_whatever_their_clocks(live: int, replay: int, process: int) -> None:
    assert VersionAllocator(clock_ms=lambda: replay, process=process).next("replay") > VersionAllocator(
        clock_ms=lambda: live, process=process
    ).next("live")


@given(seen=st.integers(0, MAX_VERSION >> 1), clock=st.integers(0, 2**41))
def test_after_observing_a_version_the_next_one_is_above_it(seen: int, clock: int) -> None:
    if split_version(seen).milliseconds >= 2**42 - 2:
        return
    allocator = VersionAllocator(clock_ms=lambda: clock, process=3)
    assert seen < allocator.next(above=seen) < allocator.next()


def test_above_a_replay_version_the_next_live_one_is_lifted_into_its_lane() -> None:
    allocator = VersionAllocator(clock_ms=lambda: NOW)
    replayed = allocator.next("replay")
    lifted = allocator.next("live", above=replayed)
    assert lifted > replayed and split_version(lifted).lane == 1


def test_more_than_4096_versions_in_one_millisecond_move_on_by_themselves() -> None:
    allocator = VersionAllocator(clock_ms=lambda: NOW, process=5)
    versions = [allocator.next() for _ in range(10_000)]
    assert versions == sorted(set(versions))
    assert split_version(versions[-1]).milliseconds == NOW + 2


def test_threads_never_get_the_same_version() -> None:
    allocator = VersionAllocator(clock_ms=lambda: NOW)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(allocator.next() for _ in range(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8_000


def test_the_layout_is_the_documented_one() -> None:
    parts = VersionParts(1, NOW, 200, 4_095)
    assert join_version(parts) == (1 << 62) | (NOW << 20) | (200 << 12) | 4_095
    assert split_version(join_version(parts)) == parts
    with pytest.raises(ValueError, match="outside"):
        split_version(1 << 63)


def test_the_end_of_the_clock_is_an_error_not_a_wrap() -> None:
    allocator = VersionAllocator(clock_ms=lambda: 2**60)
    with pytest.raises(OverflowError):
        allocator.next(above=join_version(VersionParts(0, 2**42 - 1, 0, 0)))
