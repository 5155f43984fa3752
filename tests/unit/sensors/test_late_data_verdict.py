"""The late data sensor's decision, case by case, and under floods; no server, no Dagster."""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from chmv_assets.core.model import ViewClass
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.watermarks import WatermarkStatus, micros
from chmv_assets.core.windows import Window, periods
from resources.late_rows import LateHour, LateMark, LateSeen
from sensors import late_data_verdict
from sensors.late_data_cursor import Cursor, Flight, load_cursor
from sensors.late_data_verdict import Reached, asked_of, decide, with_root
from sensors.verdict import Verdict

EVENTS, ADDED, OPAQUE, BEHIND = (QName("shop", name) for name in ("events", "added", "opaque", "behind"))
START = datetime(2026, 7, 5, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
DAY = Window(START, START + 24 * HOUR)
NOW = 1_800_000_000.0
NOW_US = int(NOW * 1_000_000)
LIMITS = Limits()


def days(window: Window) -> Sequence[Window]:
    return tuple(periods(window, "day", "UTC"))


def reach(target: QName, view_class: ViewClass, *, auto: bool = True, upstream: Sequence[QName] = ()) -> Reached:
    return Reached(
        source=EVENTS, target=target, view_class=view_class, root=False, auto=auto, upstream=frozenset(upstream), periods=days
    )  # fmt: skip


GRAPH = with_root(
    [
        reach(EVENTS, "append"),
        reach(ADDED, "additive"),
        reach(OPAQUE, "opaque"),
        reach(BEHIND, "opaque", upstream=[OPAQUE]),
    ]
)


def hour(at: int = 3, rows: int = 2, latest: int = NOW_US, tail: int = 0) -> LateHour:
    return LateHour(source=EVENTS, start=START + at * HOUR, rows=rows, tail_rows=tail, latest_us=latest)


def mark(target: QName, status: WatermarkStatus, arrival: int = NOW_US - 5) -> LateMark:
    return LateMark(source=EVENTS, target=target, window=DAY, arrival_us=arrival, status=status)


def seen(*hours: LateHour, marks: Sequence[LateMark] = ()) -> LateSeen:
    return LateSeen(now_us=NOW_US, fence_us=NOW_US - 1, hours=hours, marks=tuple(marks), sources_read=1)


def run(
    found: LateSeen, cursor: Cursor | None = None, now: float = NOW, limits: Limits = LIMITS, **more: object
) -> Verdict[Cursor]:
    graph = more.pop("graph", GRAPH)
    verdict = decide(found, graph, cursor or Cursor(), now=now, limits=limits, **more)  # type: ignore[arg-type]
    assert load_cursor(verdict.cursor.dump()) == verdict.cursor
    return verdict


def asked(verdict: Verdict[Cursor]) -> list[tuple[str, QName, tuple[Window, ...]]]:
    return [(ask.damage, ask.subject, ask.windows) for ask in verdict.asks]


def test_doctests() -> None:
    assert doctest.testmod(late_data_verdict).failed == 0


def test_only_the_first_opaque_target_on_a_way_is_asked_for() -> None:
    assert {one.target: one.root for one in GRAPH} == {EVENTS: False, ADDED: False, OPAQUE: True, BEHIND: False}
    verdict = run(seen(hour(3), hour(5)))
    assert asked(verdict) == [("late rows", OPAQUE, (DAY,))]
    assert verdict.asks[0].seen["late rows"] == "4"
    assert "1 target(s) took them by themselves, 1 opaque one(s) are rebuilt" in verdict.told


def test_nothing_is_asked_for_without_late_rows() -> None:
    verdict = run(seen())
    assert verdict.asks == () and "0 new late rows" in verdict.told
    assert verdict.cursor == Cursor(fence_us=NOW_US - 1)


def test_targets_that_take_late_rows_by_themselves_are_only_opened_if_they_were_sealed() -> None:
    plain = GRAPH[:2]
    assert asked(run(seen(hour()), graph=plain)) == []
    sealed = run(seen(hour(), marks=[mark(ADDED, "sealed")]), graph=plain)
    assert asked(sealed) == [("reopen", EVENTS, (Window(START + 3 * HOUR, START + 4 * HOUR),))]
    other = LateMark(
        source=EVENTS, target=ADDED, window=Window(DAY.end, DAY.end + HOUR), arrival_us=0, status="sealed"
    )  # fmt: skip
    assert asked(run(seen(hour(), marks=[other]), graph=plain)) == []


def test_the_same_rows_seen_again_are_nothing_new_and_one_more_row_is() -> None:
    first = run(seen(hour(rows=5, tail=2)))
    done = {ask.key for ask in first.asks}
    limits = Limits(late_again=0)
    assert run(seen(hour(rows=2, tail=2)), first.cursor, done=done, limits=limits).asks == ()
    straggler = run(seen(hour(rows=3, tail=3)), first.cursor, done=done, limits=limits)  # an insert that began earlier
    assert asked(straggler) == [("late rows", OPAQUE, (DAY,))]
    later = run(seen(hour(rows=2, tail=2, latest=NOW_US + 9)), first.cursor, done=done, limits=limits)
    assert later.asks[0].key != first.asks[0].key


def test_a_source_that_has_to_wait_keeps_its_moment_and_what_was_counted_of_it() -> None:
    first = run(seen(hour(rows=5, tail=2)))
    waits = LateSeen(now_us=NOW_US, fence_us=NOW_US + 7, behind={EVENTS: NOW_US - 1})
    second = run(waits, first.cursor, done={ask.key for ask in first.asks})
    assert second.cursor.behind == {EVENTS: NOW_US - 1} and second.cursor.fence_us == NOW_US + 7
    assert "(1 more are read by the next ticks)" in second.told
    limits = Limits(late_again=0)
    assert (
        run(seen(hour(rows=2, tail=2)), second.cursor, limits=limits).asks == ()
    )  # the tail of the first tick, once more
    third = run(seen(hour(rows=3, tail=0)), second.cursor, limits=limits)
    assert asked(third) == [("late rows", OPAQUE, (DAY,))] and third.cursor.behind == {}


def test_a_cursor_from_before_sources_could_wait_is_read() -> None:
    text = Cursor(fence_us=5).dump().replace('"behind":{},', "")
    assert "behind" not in text and load_cursor(text) == Cursor(fence_us=5)


def test_a_window_just_repaired_waits_for_more_rows_before_it_is_repaired_again() -> None:
    first = run(seen(hour()))
    done = {ask.key for ask in first.asks}
    trickle = run(seen(hour(latest=NOW_US + 9)), first.cursor, NOW + 30, done=done)
    assert trickle.asks == () and "1 window(s) wait" in trickle.told
    later = run(seen(), trickle.cursor, NOW + 301)
    assert asked(later) == [("late rows", OPAQUE, (DAY,))]
    other = run(seen(hour(at=-50, latest=NOW_US + 9)), trickle.cursor, NOW + 30)
    assert len(other.asks) == 1 and other.asks[0].windows[0].start == START - timedelta(days=3)


def test_an_ask_stays_until_its_run_has_succeeded() -> None:
    first = run(seen(hour()))
    again = run(seen(), first.cursor, NOW + 30)
    assert [ask.key for ask in again.asks] == [ask.key for ask in first.asks]
    assert run(seen(), again.cursor, NOW + 60, done={first.asks[0].key}).cursor.flights == ()


def test_a_tick_that_is_evaluated_twice_asks_for_the_same() -> None:
    one, other = run(seen(hour())), run(seen(hour()), now=NOW + 5)
    assert [ask.key for ask in one.asks] == [ask.key for ask in other.asks]


def test_stale_windows_of_our_own_ingest_are_found_in_the_watermarks_and_repaired_once() -> None:
    marks = [mark(OPAQUE, "stale"), mark(BEHIND, "stale")]
    first = run(seen(marks=marks))
    assert asked(first) == [("late rows", OPAQUE, (DAY,))]  # what is behind comes with it
    assert first.asks[0].seen["late rows"] == "known from the watermarks"
    both = run(seen(hour(), marks=marks))
    assert len(both.asks) == 1  # the same rows, seen twice
    done = {ask.key for ask in first.asks}
    landed = run(seen(marks=[marks[0]]), first.cursor, NOW + 999, done=done)
    assert landed.asks == () and landed.cursor.settled
    again = run(seen(marks=[mark(OPAQUE, "stale", arrival=NOW_US + 9)]), landed.cursor, NOW + 999)
    assert len(again.asks) == 1
    assert run(seen(), landed.cursor, NOW + 999).cursor.settled == {}


def test_a_stale_window_behind_a_repaired_one_is_repaired_by_itself() -> None:
    assert asked(run(seen(marks=[mark(BEHIND, "stale")]))) == [("late rows", BEHIND, (DAY,))]


def test_recovery_off_is_told_and_asks_for_nothing() -> None:
    graph = with_root([reach(OPAQUE, "opaque", auto=False)])
    verdict = run(seen(hour(), marks=[mark(OPAQUE, "stale")]), graph=graph)
    assert verdict.asks == () and "recovery: off" in verdict.told


def test_a_foreign_cursor_is_started_afresh_and_says_so() -> None:
    cursor = load_cursor('{"version": 7}')
    assert cursor.fence_us is None and "version 7, not 1" in run(seen(), cursor).told


def test_newest_windows_come_first_and_no_more_than_the_cap() -> None:
    hours = [hour(at=24 * day) for day in range(50)]
    verdict = run(seen(*hours))
    (ask,) = verdict.asks
    assert [one.start for one in ask.windows] == [START + timedelta(days=day) for day in range(49, 29, -1)]
    assert len(verdict.cursor.pending) == 30


@st.composite
def floods(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Per tick: hours that receive late rows, and of them the number."""
    ticks = st.lists(st.tuples(st.integers(-2_000, 2_000), st.integers(1, 9)), max_size=30)
    return draw(st.lists(ticks, min_size=1, max_size=12))


@settings(max_examples=60, deadline=None)
@given(floods(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_no_window_is_lost_under_floods_and_none_is_repaired_for_rows_that_came_after_it(
    ticks: list[list[tuple[int, int]]], random: object, cap: int
) -> None:
    """Runs succeed in any order, some ticks later or never until the end; the cursor goes through its text every time."""
    limits = Limits(late_windows_per_tick=cap, late_again=0)
    wanted: dict[Window, int] = {}
    repaired: dict[Window, int] = {}
    cursor = Cursor()
    for at, rows in enumerate([*ticks, *([[]] * 2_000)], start=1):
        if not rows and not cursor.pending and not cursor.flights and at > len(ticks):
            break
        latest = NOW_US + at
        hours = {number: hour(at=number, rows=count, latest=latest) for number, count in rows}
        for one in hours.values():
            wanted[days(Window(one.start, one.start + HOUR))[0]] = latest
        done: set[str] = set()
        for flight in cursor.flights:
            if at > len(ticks) or random.random() < 0.4:  # type: ignore[attr-defined]
                done.add(flight.ask().key)
                _land(flight, repaired)
        verdict = decide(
            seen(*hours.values()), GRAPH, load_cursor(cursor.dump()), now=NOW + at, limits=limits, done=done
        )
        fresh = [one for one in verdict.cursor.flights if one not in cursor.flights]
        assert sum(len(one.windows) for one in fresh) <= cap
        cursor = verdict.cursor
    assert not cursor.pending and not cursor.flights
    assert repaired == wanted


def _land(flight: Flight, repaired: dict[Window, int]) -> None:
    for window, arrival in flight.windows:
        repaired[window] = max(arrival, repaired.get(window, 0))


def test_what_is_asked_can_be_read_back_from_the_cursor() -> None:
    verdict = run(seen(hour()))
    kept: tuple[Ask, ...] = asked_of(load_cursor(verdict.cursor.dump()))
    assert kept == verdict.asks
    assert micros(START) == int(START.timestamp()) * 1_000_000
