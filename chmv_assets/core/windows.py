"""Windows: instants, Dagster keys, ClickHouse partitions and the predicates that select them.

One mapping in both directions: Dagster key ⇄ half-open window of instants ⇄ set of ClickHouse partitions. The
invariant: consecutive periods cover time once, without gap or overlap, also where a zone's day has 23 or 25 hours. Pure
arithmetic with the standard library's zones; what a PARTITION BY means lives in `cadence`, Dagster's objects in
`partitions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.truncation import Unit, WeekMode, parse_time_type

UTC = timezone.utc
HOUR_KEY_FORMAT = "%Y-%m-%d-%H:%M"
DATE_KEY_FORMAT = "%Y-%m-%d"

_MONTHS: dict[Unit, int] = {"month": 1, "quarter": 3, "year": 12}
_EPOCH = date(1970, 1, 1)


class PartitionKeyError(ChmvError):
    """A partition key that is not the start of a period of its cadence."""

    def __init__(self, key: str, unit: Unit, wanted: str) -> None:
        self.key = key
        self.unit = unit
        super().__init__(
            f"partition {key}: found {key!r} but wanted the start of a {unit} like {wanted}. "
            "A window that does not match a period could be rebuilt in part only. Take a key from the Dagster UI."
        )


class TimeColumnError(ChmvError):
    """A column that cannot be compared with a window."""

    def __init__(self, column_sql: str, column_type: str) -> None:
        self.column_sql = column_sql
        self.column_type = column_type
        super().__init__(
            f"column {column_sql}: found type {column_type} but wanted Date, Date32, DateTime or DateTime64. "
            "A window is an interval of time. Partition the table by a column or an expression of one of these types, or rebuild it as a whole."
        )


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open interval [start, end) of instants, kept in UTC."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError(f"window [{self.start}, {self.end}) needs instants with a zone")
        object.__setattr__(self, "start", self.start.astimezone(UTC))
        object.__setattr__(self, "end", self.end.astimezone(UTC))
        if self.start >= self.end:
            raise ValueError(f"window [{self.start}, {self.end}) is empty")

    def __str__(self) -> str:
        return f"[{self.start:%Y-%m-%d %H:%M:%S}, {self.end:%Y-%m-%d %H:%M:%S}) UTC"

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end - self.start).total_seconds()

    def overlaps(self, other: Window) -> bool:
        """Tell whether the two share an instant."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class ChPartition:
    """One period of a ClickHouse partition key."""

    start: datetime
    end: datetime
    value: str  # the time part as `system.parts.partition` prints it, without quotes
    partition_id: str | None  # None: only the server knows (other dimensions, or a hashed type)


# --- periods -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def period_start(instant: datetime, unit: Unit, zone: str, week_mode: WeekMode | None = None) -> datetime:
    """Give the start (UTC) of the period that holds an instant.

    >>> period_start(datetime(2026, 7, 1, 23, tzinfo=UTC), "day", "Europe/Berlin").isoformat()
    '2026-07-01T22:00:00+00:00'
    """
    local = instant.astimezone(_zone(zone))
    if unit == "hour":
        return (
            instant - timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
        ).astimezone(UTC)
    return _midnight(_first_day(local.date(), unit, week_mode), zone)


def next_period_start(start: datetime, unit: Unit, zone: str) -> datetime:
    """Give the start (UTC) of the period after the one that begins at `start`."""
    if unit == "hour":
        return start.astimezone(UTC) + timedelta(hours=1)
    first = start.astimezone(_zone(zone)).date()
    return _midnight(_next_first_day(first, unit), zone)


def _midnight(day: date, zone: str) -> datetime:
    """The first instant of a day: where midnight is skipped by DST, the instant of the jump."""
    return datetime(day.year, day.month, day.day, tzinfo=_zone(zone)).astimezone(UTC)


def _first_day(day: date, unit: Unit, week_mode: WeekMode | None) -> date:
    if unit == "week":
        return day - timedelta(days=(day.weekday() + (week_mode == "sunday")) % 7)
    if unit in _MONTHS:
        months = _MONTHS[unit]
        return date(day.year, (day.month - 1) // months * months + 1, 1)
    return day


def _next_first_day(first: date, unit: Unit) -> date:
    if unit in _MONTHS:
        month = first.month - 1 + _MONTHS[unit]
        return date(first.year + month // 12, month % 12 + 1, 1)
    return first + timedelta(days=7 if unit == "week" else 1)


def periods(window: Window, unit: Unit, zone: str, week_mode: WeekMode | None = None) -> Iterator[Window]:
    """Walk the periods that overlap a window, oldest first; the outer ones may reach beyond it."""
    start = period_start(window.start, unit, zone, week_mode)
    while start < window.end:
        end = next_period_start(start, unit, zone)
        yield Window(start, end)
        start = end


# --- Dagster keys --------------------------------------------------------------------------------------------------


def window_of_key(key: str, unit: Unit, zone: str, week_mode: WeekMode | None = None) -> Window:
    """Read a Dagster partition key of the default format.

    The second of two equal local hours carries its offset, as Dagster writes it: `2026-10-25-02:00+0100`.

    >>> str(window_of_key("2026-07-01", "month", "UTC"))
    '[2026-07-01 00:00:00, 2026-08-01 00:00:00) UTC'
    """
    start = _key_start(key, unit, zone)
    is_checkable = unit != "week" or week_mode is not None
    if start is None or (is_checkable and period_start(start, unit, zone, week_mode) != start):
        raise PartitionKeyError(key, unit, "2026-07-01-00:00" if unit == "hour" else "2026-07-01")
    return Window(start, next_period_start(start, unit, zone))


def _key_start(key: str, unit: Unit, zone: str) -> datetime | None:
    formats = (HOUR_KEY_FORMAT, HOUR_KEY_FORMAT + "%z") if unit == "hour" else (DATE_KEY_FORMAT,)
    for fmt in formats:
        try:
            parsed = datetime.strptime(key, fmt)  # noqa: DTZ007 - the zone is added below
        except ValueError:
            continue
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=_zone(zone))).astimezone(UTC)
    return None


def key_of(instant: datetime, unit: Unit, zone: str, week_mode: WeekMode | None = None) -> str:
    """Name the Dagster partition that holds an instant."""
    local = period_start(instant, unit, zone, week_mode).astimezone(_zone(zone))
    if unit != "hour":
        # Where DST skips midnight the local time is 01:00, but the date is right.
        return local.strftime(DATE_KEY_FORMAT)
    ambiguous = local.fold == 1 and local.replace(fold=0).utcoffset() != local.utcoffset()
    return local.strftime(HOUR_KEY_FORMAT + ("%z" if ambiguous else ""))


def keys(window: Window, unit: Unit, zone: str, week_mode: WeekMode | None = None) -> tuple[str, ...]:
    """Name every Dagster partition that overlaps a window, oldest first."""
    return tuple(key_of(period.start, unit, zone, week_mode) for period in periods(window, unit, zone, week_mode))


# --- ClickHouse partitions -----------------------------------------------------------------------------------------


def scheme_zone(scheme: PartitionScheme, location_timezone: str, server_timezone: str | None = None) -> str:
    """Tell in which zone a scheme's periods begin: dates follow the location, bare DateTime columns the server."""
    if scheme.timezone:
        return scheme.timezone
    return location_timezone if scheme.is_date else server_timezone or location_timezone


def ch_partitions(
    window: Window, scheme: PartitionScheme, location_timezone: str, *, server_timezone: str | None = None
) -> tuple[ChPartition, ...]:
    """List the ClickHouse partitions that overlap a window, oldest first."""
    zone = scheme_zone(scheme, location_timezone, server_timezone)
    return tuple(
        ChPartition(
            start=period.start,
            end=period.end,
            value=_printed(period.start, scheme, zone),
            partition_id=_partition_id(period.start, scheme, zone, server_timezone or location_timezone),
        )
        for period in periods(window, scheme.unit, zone, scheme.week_mode)
    )


def _printed(start: datetime, scheme: PartitionScheme, zone: str) -> str:
    formats = {"yyyymm": "%Y%m", "yyyymmdd": "%Y%m%d", "year": "%Y", "date": "%Y-%m-%d", "date32": "%Y-%m-%d"}
    fmt = scheme.text_format or formats.get(scheme.value_type, "%Y-%m-%d %H:%M:%S")
    return start.astimezone(_zone(zone)).strftime(fmt)


def _partition_id(start: datetime, scheme: PartitionScheme, zone: str, server_zone: str) -> str | None:
    if scheme.dimensions or not scheme.id_known:
        return None
    first_day = start.astimezone(_zone(zone)).date()
    match scheme.value_type:
        case "yyyymm" | "yyyymmdd" | "year":
            return _printed(start, scheme, zone)
        case "date":
            return first_day.strftime("%Y%m%d")
        case "date32":
            return str((first_day - _EPOCH).days)
        case "datetime":
            # Midnight of a Date column is taken in the server's zone.
            instant = _midnight(first_day, server_zone) if scheme.is_date else start
            return str(int(instant.timestamp()))
    return None


_TUPLE_ITEM = re.compile(r"\s*('(?:[^'\\]|\\.|'')*'|[^,]*?)\s*(?:,|\Z)", re.DOTALL)


def partition_matches(scheme: PartitionScheme, partition_text: str, ch_partition: ChPartition) -> bool:
    """Tell whether a text of `system.parts.partition` belongs to the period, whatever its other dimensions.

    The two equal local hours of a DST change print alike; where `partition_id` is known, compare that instead.
    """
    return partition_value(scheme, partition_text) == ch_partition.value


def partition_value(scheme: PartitionScheme, partition_text: str) -> str | None:
    """The time part of a text of `system.parts.partition`, spelled as `ChPartition.value`; None if it has another shape."""
    text = partition_text.strip()
    items = [text]
    if text.startswith("(") and text.endswith(")"):
        body = text[1:-1]
        items = [match.group(1) for match in _TUPLE_ITEM.finditer(body) if match.group(0)]
    if len(items) != len(scheme.dimensions) + 1:
        return None
    item = items[scheme.position]
    value = item[1:-1] if item.startswith("'") else item
    return value.split(".", 1)[0] if scheme.value_type == "datetime64" else value


def begins_before(
    scheme: PartitionScheme,
    partition_text: str,
    moment: datetime,
    location_timezone: str,
    server_timezone: str | None = None,
) -> bool | None:
    """Tell whether the period of a partition, by its text in `system.parts.partition`, begins before a moment; None if the text has another shape.

    Texts of one scheme sort as their periods do. Of two equal local hours the first one counts.
    """
    value = partition_value(scheme, partition_text)
    if value is None:
        return None
    until = Window(moment - timedelta(hours=2), moment + timedelta(microseconds=1))
    nearest = ch_partitions(until, scheme, location_timezone, server_timezone=server_timezone)
    return value < nearest[-1].value or any(value == one.value and one.start < moment for one in nearest)


# --- windows in SQL ------------------------------------------------------------------------------------------------


def window_predicate(column_sql: str, column_type: str, window: Window, timezone: str = "UTC") -> str:
    """Render the half-open condition that selects a window.

    A Date column holds days of `timezone` (the location's); a day belongs to the window that holds its first instant,
    so that consecutive windows still take every row once.

    >>> july = Window(datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 8, 1, tzinfo=UTC))
    >>> window_predicate("`d`", "Date", july)
    "(`d` >= toDate('2026-07-01') AND `d` < toDate('2026-08-01'))"
    >>> window_predicate("`ts`", "DateTime", july)
    "(`ts` >= toDateTime('2026-07-01 00:00:00', 'UTC') AND `ts` < toDateTime('2026-08-01 00:00:00', 'UTC'))"
    """
    time_type = parse_time_type(column_type)
    if time_type is None:
        raise TimeColumnError(column_sql, column_type)
    if time_type.is_date:
        start, end = (f"to{time_type.base}('{_day_from(at, timezone)}')" for at in (window.start, window.end))
    else:
        start, end = (_instant_sql(at, time_type.base, time_type.precision) for at in (window.start, window.end))
    return f"({column_sql} >= {start} AND {column_sql} < {end})"


def _day_from(instant: datetime, zone: str) -> date:
    """The first day that begins at or after an instant."""
    day = instant.astimezone(_zone(zone)).date()
    return day if _midnight(day, zone) >= instant else day + timedelta(days=1)


def _instant_sql(instant: datetime, base: str, precision: int) -> str:
    text = instant.strftime("%Y-%m-%d %H:%M:%S")
    if base == "DateTime" and not instant.microsecond:
        return f"toDateTime('{text}', 'UTC')"
    if instant.microsecond:
        return f"toDateTime64('{text}.{instant.microsecond:06d}', {max(precision, 6)}, 'UTC')"
    return f"toDateTime64('{text}', {precision}, 'UTC')"
