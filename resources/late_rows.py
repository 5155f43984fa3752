"""Read which hours of event time have received late rows since a moment, for all sources at once. Three queries at most; writes nothing.

Only parts that are younger than the moment are read. They are chosen by leaving the older ones out, not by naming the younger
ones: a part that is merged between two queries has another name and still the same rows. A tick reads so many sources and parts at
most; a source that has to wait keeps its moment (`LateSeen.behind`) and comes first next time, so that none is lost. What follows from
it belongs to `sensors.late_data_verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chmv_assets.core.names import QName, parse_qname, quote_identifier
from chmv_assets.core.own_tables import read_settings
from chmv_assets.core.watermarks import WATERMARKS, WatermarkStatus, from_micros, micros
from chmv_assets.core.windows import Window
from resources.clickhouse import Server

HOUR_US = 3_600_000_000
_SETTINGS = {"max_execution_time": 50}  # a tick has 60 s
_MARKS = 20_000
# What a tick reads at most: on 26.7 a source costs 6 ms of one core and a part 0.3 ms, so that the worst tick takes about 0.4 s. The driver
# sends every value as a field of its own, and the server takes 1,000 of them (five per source).
SOURCES_AT_ONCE = 40
PARTS_AT_ONCE = 500
# Young parts are small: handing each read to another thread takes longer than reading.
_READ_SETTINGS = {**_SETTINGS, "local_filesystem_read_method": "pread"}
_YOUNG = """
SELECT toUnixTimestamp64Micro(now64(6)), groupArray((database, table, latest, parts)) FROM
(
    SELECT database, table, toInt64(toUnixTimestamp(max(modification_time))) AS latest, count() AS parts FROM system.parts
    WHERE active AND database IN {databases:Array(String)} AND modification_time >= fromUnixTimestamp({since:Int64})
    GROUP BY database, table
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSource:
    """A source whose rows say when they happened and when they arrived."""

    source: QName
    event_time: str
    arrival: str
    tolerance_seconds: int


@dataclass(frozen=True, slots=True)
class Young:
    """The parts of a source that are younger than a moment."""

    latest_s: int  # when the last one was written
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LateHour:
    """Late rows of one hour of event time that arrived after the moment that was asked for."""

    source: QName
    start: datetime
    rows: int
    tail_rows: int  # of them those that will be read once more by the next tick
    latest_us: int  # arrival of the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class LateMark:
    """A watermark that matters here: stale, or sealed although late rows may have come."""

    source: QName
    target: QName
    window: Window
    arrival_us: int
    status: WatermarkStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSeen:
    """What one tick saw."""

    now_us: int  # the server's clock
    fence_us: int  # everything that arrived before is read for good, but for `behind`; the next tick reads from here
    hours: tuple[LateHour, ...] = ()
    marks: tuple[LateMark, ...] = ()
    sources_read: int = 0  # sources with parts younger than the fence
    behind: Mapping[QName, int] = field(default_factory=dict)  # sources that have to wait, with the fence of each


def read_late_rows(
    server: Server,
    sources: Sequence[LateSource],
    fence_us: int | None,
    overlap_seconds: float,
    cluster: str = "",
    *,
    behind: Mapping[QName, int] | None = None,
) -> LateSeen:
    """Late rows that arrived after the fence; without one (the first tick) those of the last few seconds.

    `behind` are sources that the last tick had no room for, with the fence of each.
    """
    overlap_us = int(overlap_seconds * 1_000_000)
    earlier = behind or {}
    now_us, young = _read_young(server, sources, min([fence_us or 0, *earlier.values()]))
    since_us = fence_us if fence_us is not None else now_us - overlap_us
    next_us = max(since_us, now_us - overlap_us)
    due = find_due(young, since_us, earlier)
    chosen = choose_sources(due, young)
    changed = [one for one in sources if one.source in chosen]
    hours = _read_hours(server, changed, due, next_us) if changed else ()
    return LateSeen(
        now_us=now_us,
        fence_us=next_us,
        hours=hours,
        marks=_read_marks(server, hours, cluster),
        sources_read=len(changed),
        behind={name: since for name, since in due.items() if name not in chosen},
    )


def find_due(young: Mapping[QName, Young], since_us: int, behind: Mapping[QName, int]) -> dict[QName, int]:
    """The sources to read, with the moment from which on. One that was left out before keeps its moment; one without younger parts has nothing."""
    wanted = ((name, behind.get(name, since_us), parts.latest_s) for name, parts in young.items())
    return {name: since for name, since, latest_s in wanted if latest_s >= since // 1_000_000}


def choose_sources(due: Mapping[QName, int], young: Mapping[QName, Young]) -> frozenset[QName]:
    """Those that one tick reads: whoever waits longest comes first, at least one, so that each has its turn."""
    chosen: list[QName] = []
    parts = 0
    for name in sorted(due, key=lambda name: (due[name], name)):
        parts += young[name].parts
        if chosen and (parts > PARTS_AT_ONCE or len(chosen) >= SOURCES_AT_ONCE):
            break
        chosen.append(name)
    return frozenset(chosen)


def _read_young(server: Server, sources: Iterable[LateSource], since_us: int) -> tuple[int, dict[QName, Young]]:
    """The server's clock, and the parts that are younger than a moment, by source."""
    names = {one.source for one in sources}
    values = {"databases": sorted({name.database for name in names}), "since": since_us // 1_000_000}
    now_us, found = server.rows(_YOUNG, values, _SETTINGS)[0]
    young = {
        QName(str(database), str(table)): Young(int(latest), int(parts)) for database, table, latest, parts in found
    }
    return int(now_us), {name: parts for name, parts in young.items() if name in names}


def _read_hours(
    server: Server, sources: Sequence[LateSource], since_us: Mapping[QName, int], next_us: int
) -> tuple[LateHour, ...]:
    sql = " UNION ALL ".join(_render_hours(one, at) for at, one in enumerate(sources))
    values: dict[str, Any] = {"next": next_us}
    for at, one in enumerate(sources):
        values |= {
            f"database_{at}": one.source.database,
            f"table_{at}": one.source.table,
            f"tolerance_{at}": one.tolerance_seconds * 1_000_000,
            f"since_{at}": since_us[one.source],
            f"since_s_{at}": since_us[one.source] // 1_000_000,
        }
    rows = server.rows(sql, values, _READ_SETTINGS)
    return tuple(
        LateHour(
            source=sources[int(at)].source, start=from_micros(int(hour) * HOUR_US), rows=int(count), tail_rows=int(tail),
            latest_us=int(latest),
        )
        for at, hour, count, tail, latest in sorted(rows)
    )  # fmt: skip


def _render_hours(one: LateSource, at: int) -> str:
    """Late rows of one source by hour. Times as microseconds: numbers, which no zone can bend."""
    event, arrival = (
        f"toUnixTimestamp64Micro(toDateTime64({quote_identifier(name)}, 6, 'UTC'))"
        for name in (one.event_time, one.arrival)
    )
    return (
        f"SELECT toUInt32({at}), toInt64(floor(chmv_event / {HOUR_US})) AS chmv_hour, count(), countIf(chmv_arrival > {{next:Int64}}), "
        f"max(chmv_arrival) FROM (SELECT {event} AS chmv_event, {arrival} AS chmv_arrival FROM {one.source.sql} "
        f"WHERE _part NOT IN (SELECT name FROM system.parts WHERE database = {{database_{at}:String}} AND table = {{table_{at}:String}} "
        f"AND modification_time < fromUnixTimestamp({{since_s_{at}:Int64}}))) "
        f"WHERE chmv_arrival > {{since_{at}:Int64}} AND chmv_arrival - chmv_event > {{tolerance_{at}:Int64}} GROUP BY chmv_hour"
    )


def _read_marks(server: Server, hours: Sequence[LateHour], cluster: str) -> tuple[LateMark, ...]:
    """All stale windows, and the sealed ones that late rows may have come into; none without a journal."""
    starts = [micros(hour.start) for hour in hours]
    times = "toUnixTimestamp64Micro"
    sql = (
        f"SELECT source_id, target_table, {times}(window_start) AS first, {times}(window_end) AS last, "
        f"ifNull({times}(last_arrival_ts), 0), status FROM {WATERMARKS.sql} FINAL WHERE status = 'stale' OR (status = 'sealed' "
        "AND has({sources:Array(String)}, source_id) AND last > {first:Int64} AND first < {last:Int64}) "
        "ORDER BY status DESC, window_start DESC LIMIT {limit:UInt32}"  # stale ones first
    )
    values = {
        "sources": sorted({str(hour.source) for hour in hours}),
        "first": min(starts, default=0),
        "last": max(starts, default=0) + HOUR_US,
        "limit": _MARKS,
    }
    rows = server.rows_if_there(sql, values, {**read_settings(cluster), **_SETTINGS})
    return tuple(
        LateMark(
            source=parse_qname(str(source), ""), target=parse_qname(str(target), ""),
            window=Window(from_micros(int(first)), from_micros(int(last))), arrival_us=int(arrival), status=status,
        )
        for source, target, first, last, arrival, status in rows
    )  # fmt: skip
