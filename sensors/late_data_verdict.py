"""The late data sensor's decision, purely: hours that received late rows, watermarks → asks, cursor, a sentence.

By class of what an hour's rows reach: an opaque target's windows are rebuilt ("late rows"; what is downstream comes with it); the others
took the rows by themselves, so only windows that were sealed are opened again ("reopen"). Rows that came through our own ingest are in the
watermarks already: nothing to reopen, and what they made stale is found there.

Invariants: a window waits in the cursor until it is asked for, and an ask stays there until its run has succeeded, so none is lost, however
many come at once; the newest are asked for first. The same rows seen again (the tail is read twice) are nothing new: their number and
their last arrival are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

from chmv_assets.core.model import ViewClass
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.watermarks import micros
from chmv_assets.core.windows import Window
from resources.late_rows import LateHour, LateMark, LateSeen
from sensors.late_data_cursor import Cursor, Damage, Flight, Key, Waiting
from sensors.verdict import Verdict

HOUR = timedelta(hours=1)
_REOPENED_AT_ONCE = 500  # windows in one ask: opening one is a row in the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A target that the inserts of a source reach."""

    source: QName
    target: QName
    view_class: ViewClass  # behind an opaque view all is opaque
    root: bool  # the first opaque one on its way: what is behind it is rebuilt with it
    auto: bool  # whether sensors may repair it
    upstream: frozenset[QName] = frozenset()  # opaque targets in front of it
    periods: Callable[[Window], Sequence[Window]] = field(default=lambda window: (window,), compare=False)


def asked_of(cursor: Cursor) -> tuple[Ask, ...]:
    """What earlier ticks asked for and is not known to be done."""
    return tuple(flight.ask() for flight in cursor.flights)


def decide(
    seen: LateSeen,
    reached: Sequence[Reached],
    cursor: Cursor,
    *,
    now: float,
    limits: Limits,
    done: Collection[str] = (),
) -> Verdict[Cursor]:
    """What to repair now, what waits; `done` has the keys of asks (`asked_of`) whose run has succeeded."""
    landed = [flight for flight in cursor.flights if flight.ask().key in done]
    flights = [flight for flight in cursor.flights if flight.ask().key not in done]
    fresh = [hour for hour in seen.hours if _is_new(hour, cursor)]
    pending = dict(cursor.pending)
    for key, one in _found(fresh, reached, seen.marks, now):
        _add(pending, key, one)
    settled = _settled(cursor, landed, seen.marks)
    for key, one in _stale(seen.marks, reached, pending, flights, settled, now):
        _add(pending, key, one)
    rested = {key: at for key, at in cursor.rested.items() if now - at < limits.late_again}
    started = _start(pending, flights, rested, limits)
    for flight in started:
        for window, _ in flight.windows:
            rested[flight.subject, flight.damage, window] = now
            del pending[flight.subject, flight.damage, window]
    after = Cursor(
        fence_us=seen.fence_us,
        behind=seen.behind,
        tail=_tail(seen, cursor),
        pending=pending,
        flights=(*flights, *started),
        rested=rested if limits.late_again else {},
        settled=settled,
    )  # fmt: skip
    return Verdict(asks=asked_of(after), cursor=after, told=_tell(seen, fresh, reached, after, cursor.note))


def _tail(seen: LateSeen, cursor: Cursor) -> dict[tuple[QName, int], tuple[int, int]]:
    """What the next tick will see again; a source that has to wait keeps what it had, as it is read from the same moment on."""
    kept = {key: known for key, known in cursor.tail.items() if key[0] in seen.behind}
    read = {
        (hour.source, micros(hour.start)): (hour.tail_rows, hour.latest_us) for hour in seen.hours if hour.tail_rows
    }
    return {**kept, **read}


def _is_new(hour: LateHour, cursor: Cursor) -> bool:
    """Whether an hour has more late rows than the last tick counted over the same arrivals."""
    rows, latest = cursor.tail.get((hour.source, micros(hour.start)), (0, -1))
    return hour.rows > rows or hour.latest_us > latest


def _add(pending: dict[Key, Waiting], key: Key, one: Waiting) -> None:
    before = pending.get(key)
    if before is not None:
        one = Waiting(
            max(one.latest_us, before.latest_us), min(one.detected_ms, before.detected_ms), one.rows + before.rows
        )
    pending[key] = one


def _found(
    hours: Iterable[LateHour], reached: Sequence[Reached], marks: Sequence[LateMark], now: float
) -> Iterable[tuple[Key, Waiting]]:
    """What hours with new late rows ask for: windows of opaque targets, and hours in which something was sealed."""
    by_source: dict[QName, list[Reached]] = {}
    for one in reached:
        by_source.setdefault(one.source, []).append(one)
    sealed = _by_day(mark for mark in marks if mark.status == "sealed")
    for hour in hours:
        window = Window(hour.start, hour.start + HOUR)
        waiting = Waiting(hour.latest_us, int(now * 1000), hour.rows)
        targets = by_source.get(hour.source, [])
        for one in targets:
            if one.root and one.auto:
                for period in one.periods(window):
                    yield (one.target, "late rows", period), waiting
        plain = {one.target for one in targets if one.auto and one.view_class != "opaque"}
        near = sealed.get((hour.source, hour.start.date()), ())
        if any(mark.target in plain and mark.window.overlaps(window) for mark in near):
            yield (hour.source, "reopen", window), waiting


def _by_day(marks: Iterable[LateMark]) -> dict[tuple[QName, date], list[LateMark]]:
    """Watermarks by source and the days (UTC) that they touch: a flood of hours meets few of them each."""
    found: dict[tuple[QName, date], list[LateMark]] = {}
    for mark in marks:
        day, last = mark.window.start.date(), mark.window.end.date()
        while day <= last:
            found.setdefault((mark.source, day), []).append(mark)
            day += timedelta(days=1)
    return found


def _settled(cursor: Cursor, landed: Iterable[Flight], marks: Sequence[LateMark]) -> dict[Key, int]:
    """Windows that are repaired although their watermark still calls them stale; forgotten with the watermark's next move."""
    done = dict(cursor.settled)
    for flight in landed:
        for window, arrival in flight.windows:
            key = (flight.subject, flight.damage, window)
            done[key] = max(arrival, done.get(key, 0))
    stale = {(mark.target, mark.window) for mark in marks if mark.status == "stale"}
    return {key: at for key, at in done.items() if (key[0], key[2]) in stale}


def _stale(
    marks: Sequence[LateMark],
    reached: Sequence[Reached],
    pending: Mapping[Key, Waiting],
    flights: Sequence[Flight],
    settled: Mapping[Key, int],
    now: float,
) -> list[tuple[Key, Waiting]]:
    """Stale windows that nothing is under way for: our own ingest noted that late rows came into them."""
    known = {one.target: one for one in reached if one.view_class == "opaque"}
    under_way: dict[QName, list[tuple[Window, int]]] = {}
    for (subject, damage, window), one in pending.items():
        if damage == "late rows":
            under_way.setdefault(subject, []).append((window, one.latest_us))
    for flight in flights:
        if flight.damage == "late rows":
            under_way.setdefault(flight.subject, []).extend(flight.windows)
    found: list[tuple[Key, Waiting]] = []
    stale = [mark for mark in marks if mark.status == "stale" and mark.target in known and known[mark.target].auto]
    for mark in sorted(stale, key=lambda mark: (not known[mark.target].root, mark.target, mark.window, mark.source)):
        key: Key = (mark.target, "late rows", mark.window)
        sources = {mark.target} | known[mark.target].upstream
        busy = [span for name in sources for span in under_way.get(name, ())]
        if any(window.overlaps(mark.window) for window, _ in busy) or settled.get(key, -1) >= mark.arrival_us:
            continue
        found.append((key, Waiting(mark.arrival_us, int(now * 1000))))
        under_way.setdefault(mark.target, []).append((mark.window, mark.arrival_us))
    return found


def _start(
    pending: Mapping[Key, Waiting], flights: Sequence[Flight], rested: Mapping[Key, float], limits: Limits
) -> list[Flight]:
    """The next runs: one per object at a time, newest windows first, so many windows per tick."""
    busy = {(flight.subject, flight.damage) for flight in flights}
    chosen: dict[tuple[QName, Damage], list[Key]] = {}
    rebuilt = 0
    for key in sorted(pending, key=lambda key: (key[2].start, key[2].end, key[0], key[1]), reverse=True):
        subject, damage, _ = key
        if (subject, damage) in busy or key in rested:
            continue
        group = chosen.setdefault((subject, damage), [])
        if damage == "late rows" and rebuilt < limits.late_windows_per_tick:
            rebuilt += 1
            group.append(key)
        elif damage == "reopen" and len(group) < _REOPENED_AT_ONCE:
            group.append(key)
    return [
        Flight(
            subject=subject,
            damage=damage,
            windows=tuple((key[2], pending[key].latest_us) for key in keys),
            detected_ms=min(pending[key].detected_ms for key in keys),
            rows=sum(pending[key].rows for key in keys),
        )
        for (subject, damage), keys in chosen.items()
        if keys
    ]


def _tell(seen: LateSeen, fresh: Sequence[LateHour], reached: Sequence[Reached], after: Cursor, note: str) -> str:
    """The tick in words: numbers first, then what they mean for each source."""
    wait = f" ({len(seen.behind)} more are read by the next ticks)" if seen.behind else ""
    lines = [
        f"{seen.sources_read} source(s) with new parts{wait}, {sum(hour.rows for hour in fresh)} new late rows in {len(fresh)} hour(s)"
    ]
    for source in sorted({hour.source for hour in fresh}):
        rows = sum(hour.rows for hour in fresh if hour.source == source)
        own = sorted({one.target for one in reached if one.source == source and one.view_class != "opaque"} - {source})
        rebuilt = sorted({one.target for one in reached if one.source == source and one.root and one.auto})
        off = sorted({one.target for one in reached if one.source == source and one.root and not one.auto})
        lines.append(
            f"{source}: {rows} late rows; {len(own)} target(s) took them by themselves, {len(rebuilt)} opaque one(s) are rebuilt"
            + (f", {', '.join(map(str, off))} not, as the settings say `recovery: off`" if off else "")
        )
    stale = sum(mark.status == "stale" for mark in seen.marks)
    lines.append(
        f"{stale} stale window(s) in the watermarks, {len(after.pending)} window(s) wait, {len(after.flights)} repair(s) under way"
    )
    return " ".join(filter(None, (note, "; ".join(lines))))


def with_root(found: Sequence[Reached]) -> tuple[Reached, ...]:
    """Say of each opaque target whether another opaque one is in front of it."""
    opaque = {one.target for one in found if one.view_class == "opaque"}
    return tuple(
        replace(one, upstream=one.upstream & opaque, root=one.view_class == "opaque" and not one.upstream & opaque)
        for one in found
    )
