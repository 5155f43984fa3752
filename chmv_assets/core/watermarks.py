"""Watermarks: how far each window of each target is known to be right. Pure rules and SQL text.

    open ──rows──▶ processed ──reconciled and old enough──▶ sealed ──late rows──▶ reopened ──reconciled──▶ sealed
                       └── late rows for an opaque view ──▶ stale ◀── the same ──┘     stale ──rebuilt──▶ processed

Invariants: a watermark moves only after its batch has succeeded; its timestamps and its version never go back; a sealed
window is reconciled and nothing has arrived since; a stale window is not sealed before it is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, overload

from chmv_assets.core.model import ViewClass
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, Statement, read_settings, render_own_table, write_settings

WATERMARKS = QName(OWN_DATABASE, "watermarks")
WatermarkStatus = Literal["open", "processed", "sealed", "stale", "reopened"]
DEFAULT_TOLERANCE = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """One window of one target, as far as one source feeds it. All times are aware."""

    source_id: QName
    target_table: QName
    window_start: datetime
    window_end: datetime
    last_processed_ts: datetime | None = None  # the latest event time that is in the target
    last_arrival_ts: datetime | None = None  # when the latest row came in
    batch_id: str = ""
    status: WatermarkStatus = "open"
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """What a batch did to one window."""

    batch_id: str
    succeeded: bool
    max_event_ts: datetime
    max_arrival_ts: datetime
    late_rows: int = 0  # rows whose arrival lies further behind their event time than the tolerance


def _later(one: datetime | None, other: datetime) -> datetime:
    return other if one is None or other > one else one


def _with_version(mark: Watermark, version: int) -> Watermark:
    if version <= mark.version:
        raise ValueError(
            f"watermark of {mark.target_table}: found version {version} but wanted more than {mark.version}"
        )
    return replace(mark, version=version)


def advance(mark: Watermark, outcome: BatchOutcome, view_class: ViewClass, version: int) -> Watermark:
    """The watermark after a batch; unchanged unless the batch has succeeded.

    Append and additive targets take late rows by themselves, replacing ones by version: such a window only needs to be
    reconciled again. What an opaque view made of late rows cannot be trusted: its window is stale until rebuilt.
    """
    if not outcome.succeeded or mark.batch_id == outcome.batch_id:  # the same batch again: it was finished twice
        return mark
    return replace(
        _with_version(mark, version),
        last_processed_ts=_later(mark.last_processed_ts, outcome.max_event_ts),
        last_arrival_ts=_later(mark.last_arrival_ts, outcome.max_arrival_ts),
        batch_id=outcome.batch_id,
        status=_status_after_rows(mark.status, view_class, outcome.late_rows),
    )


def _status_after_rows(status: WatermarkStatus, view_class: ViewClass, late_rows: int) -> WatermarkStatus:
    late = late_rows > 0 or status in ("sealed", "reopened")
    if status == "stale" or (late and view_class == "opaque"):
        return "stale"
    return "reopened" if status in ("sealed", "reopened") else "processed"


def reopen(mark: Watermark, arrival: datetime, view_class: ViewClass, version: int) -> Watermark:
    """The watermark after late rows that somebody else wrote; only a window that was done changes."""
    if mark.status in ("open", "stale"):
        return mark
    status: WatermarkStatus = "stale" if view_class == "opaque" else "reopened"
    return replace(_with_version(mark, version), status=status, last_arrival_ts=_later(mark.last_arrival_ts, arrival))


def seal(
    mark: Watermark, now: datetime, version: int, *, reconciled: bool, tolerance: timedelta = DEFAULT_TOLERANCE
) -> Watermark:
    """Seal a window that is reconciled and older than the tolerance; else leave it as it is."""
    if not reconciled or mark.status in ("sealed", "stale") or mark.window_end + tolerance > now:
        return mark
    return replace(_with_version(mark, version), status="sealed")


def rebuilt(mark: Watermark, batch_id: str, version: int) -> Watermark:
    """A window whose target was computed anew and reconciled: as good as processed."""
    return replace(_with_version(mark, version), status="processed", batch_id=batch_id)


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@overload
def micros(moment: datetime) -> int: ...
@overload
def micros(moment: None) -> None: ...
def micros(moment: datetime | None) -> int | None:
    """An aware moment as microseconds since 1970, exactly.

    >>> from_micros(micros(_EPOCH + timedelta(microseconds=7))).microsecond
    7
    """
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


_COLUMNS = (
    "source_id, target_table, window_start, window_end, last_processed_ts, last_arrival_ts, batch_id, status, version"
)
_TIME = "DateTime64(6, 'UTC')"


def render_create_watermarks(cluster: str = "") -> str:
    """The journal's table of watermarks."""
    columns = (
        "source_id String", "target_table String", f"window_start {_TIME}", f"window_end {_TIME}",
        f"last_processed_ts Nullable({_TIME})", f"last_arrival_ts Nullable({_TIME})", "batch_id String",
        "status LowCardinality(String)", "version UInt64", f"updated_at {_TIME} DEFAULT now64(6, 'UTC')",
    )  # fmt: skip
    return render_own_table(WATERMARKS, columns, ("source_id", "target_table", "window_start"), cluster)


def write_watermarks(marks: Sequence[Watermark], cluster: str = "") -> Statement:
    """Note watermarks in one insert; per window the highest version counts.

    Times travel as microseconds: numbers, which no session time zone can bend.
    """
    sql = (
        f"INSERT INTO {WATERMARKS.sql} ({_COLUMNS}) "
        "SELECT row.1, row.2, fromUnixTimestamp64Micro(row.3, 'UTC'), fromUnixTimestamp64Micro(row.4, 'UTC'), "
        "fromUnixTimestamp64Micro(row.5, 'UTC'), fromUnixTimestamp64Micro(row.6, 'UTC'), row.7, row.8, row.9 "
        "FROM (SELECT arrayJoin({rows:Array(Tuple(String, String, Int64, Int64, Nullable(Int64), Nullable(Int64), "
        "String, String, UInt64))}) AS row)"
    )
    rows = [
        (
            str(mark.source_id), str(mark.target_table), micros(mark.window_start), micros(mark.window_end),
            micros(mark.last_processed_ts), micros(mark.last_arrival_ts), mark.batch_id, mark.status, mark.version,
        )
        for mark in marks
    ]  # fmt: skip
    return Statement(sql=sql, parameters={"rows": rows}, settings=write_settings(cluster))


_TIMES = "toUnixTimestamp64Micro"
_PRESENT = (
    f"SELECT source_id, target_table, {_TIMES}(window_start), {_TIMES}(window_end), {_TIMES}(last_processed_ts), "
    f"{_TIMES}(last_arrival_ts), batch_id, status, version FROM {WATERMARKS.sql} FINAL "
)


def read_watermarks(
    source: QName | None = None,
    target: QName | None = None,
    cluster: str = "",
    limit: int = 100_000,
    between: tuple[datetime, datetime] | None = None,
) -> Statement:
    """The present watermarks, of one source or target or of all, in order of windows; `between` bounds their starts."""
    sql = (
        f"{_PRESENT}WHERE (empty({{source:String}}) OR source_id = {{source:String}}) "
        "AND (empty({target:String}) OR target_table = {target:String}) "
        f"AND {_TIMES}(window_start) BETWEEN {{first:Int64}} AND {{last:Int64}} "
        "ORDER BY source_id, target_table, window_start LIMIT {limit:UInt32}"
    )
    first, last = (micros(moment) for moment in between) if between else (-(2**63), 2**63 - 1)
    values = {"source": str(source or ""), "target": str(target or ""), "limit": limit, "first": first, "last": last}
    return Statement(sql=sql, parameters=values, settings=read_settings(cluster))


def read_last_watermarks(windows: int, cluster: str = "") -> Statement:
    """The watermarks of the last so many windows of every target, newest first."""
    sql = f"{_PRESENT}ORDER BY target_table, window_start DESC, source_id LIMIT {{windows:UInt32}} BY target_table"
    return Statement(sql=sql, parameters={"windows": windows}, settings=read_settings(cluster))


def decode_watermark(row: Sequence[Any]) -> Watermark:
    """A row of `read_watermarks` as a record."""
    source, target, start, end, processed, arrival, batch, status, version = row
    return Watermark(
        source_id=parse_qname(source, ""), target_table=parse_qname(target, ""),
        window_start=from_micros(start), window_end=from_micros(end),
        last_processed_ts=None if processed is None else from_micros(processed),
        last_arrival_ts=None if arrival is None else from_micros(arrival),
        batch_id=batch, status=status, version=int(version),
    )  # fmt: skip
