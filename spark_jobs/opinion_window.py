"""A window of time in Spark: which rows are in it, and which need not be read. Pure.

Invariant: a day belongs to the window that holds its first instant in the zone of the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.windows import Window
from spark_jobs.kinds import Kind


def bounds(
    column: str, kind: Kind | None, window: Window, zone: str, days: int
) -> tuple[str, str, object, object] | None:
    """Column, family, first and end of a window that is wider by some days; nothing if the column is not of time."""
    if kind is None or kind.family not in ("date", "instant"):
        return None
    start, end = window.start - timedelta(days=days), window.end + timedelta(days=days)
    if kind.family == "date":
        return column, "date", first_day(start, zone), first_day(end, zone)
    return column, "instant", start, end


def first_day(instant: datetime, zone: str) -> date:
    """The first day that begins at or after an instant: a day belongs to the window that holds its first instant."""
    place_ = ZoneInfo(zone)
    day = instant.astimezone(place_).date()
    begins = datetime(day.year, day.month, day.day, tzinfo=place_)
    return day if begins >= instant else day + timedelta(days=1)


def window_sql(columns: Sequence[tuple[str, Kind]], time: str, window: Window | None, zone: str) -> str:
    """The condition that selects a window's rows; nothing without a window."""
    if window is None:
        return ""
    at, kind = next((at, kind) for at, (name, kind) in enumerate(columns) if name == time)
    if kind.family == "date":
        start, end = (f"DATE'{first_day(moment, zone)}'" for moment in (window.start, window.end))
    elif kind.family == "instant":
        start, end = (f"timestamp_micros({_micros(moment)})" for moment in (window.start, window.end))
    else:
        raise CannotCompare(f"{time} is no column of time to Spark")
    return f"t{at} >= {start} AND t{at} < {end}"


def _micros(moment: datetime) -> int:
    return round(moment.timestamp()) * 1_000_000 + moment.microsecond
