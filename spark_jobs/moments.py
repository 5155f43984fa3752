"""Functions of time of ClickHouse in Spark SQL: days, truncations, fields. Pure.

Invariants: an instant is UTC in Spark and gets its zone from the expression; a time at which ClickHouse would clip fails with our sentence;
`span_days` tells by how much a truncation of a column may move it, so that its rows can be found.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlglot import exp

from spark_jobs.expression import Expression, Untranslatable, made, quote
from spark_jobs.kinds import INTEGER, Kind, integer

_FIRST, _LAST = "TIMESTAMP'1970-01-12 00:00:00Z'", "TIMESTAMP'2105-12-30 00:00:00Z'"  # dates of ClickHouse end at both
_FIRST_DAY, _LAST_DAY = "DATE'1970-01-12'", "DATE'2105-12-30'"
_MINUTES = {
    "toStartOfFiveMinutes": 5,
    "toStartOfFiveMinute": 5,
    "toStartOfTenMinutes": 10,
    "toStartOfFifteenMinutes": 15,
}
_SUBDAY = {"HOUR": 60, "MINUTE": 1}
_CALENDAR = {"WEEK": 8, "MONTH": 32, "QUARTER": 93, "YEAR": 367}  # and how many days one of them has at most
_FIELDS = {
    "toYear": ("year({})", 16), "toMonth": ("month({})", 8), "toDayOfMonth": ("day({})", 8),
    "toHour": ("hour({})", 8), "toMinute": ("minute({})", 8), "toYYYYMM": ("year({}) * 100 + month({})", 32),
    "toYYYYMMDD": ("year({}) * 10000 + month({}) * 100 + day({})", 32),
}  # fmt: skip
_CLOCK = ("toHour", "toMinute")
TIME_FUNCTIONS = frozenset(("toDate", *_MINUTES, *_FIELDS))


def truncate(value: Expression, unit: str, given_zone: exp.Expr | None) -> Expression:
    """toStartOfHour, toStartOfMonth and the like."""
    zone = _zone(value, given_zone)
    if unit in _SUBDAY:
        return _to_minutes(value, _SUBDAY[unit], zone)
    if unit in _CALENDAR:
        sql = f"CAST(trunc({_local_day(value, zone)}, '{unit}') AS DATE)"
        return replace(made(sql, Kind(family="date", name="Date"), value), span_days=_wider(value, _CALENDAR[unit]))
    if unit == "DAY" and value.kind.family == "instant" and zone == "UTC":
        return _to_minutes(value, 24 * 60, zone)
    raise Untranslatable(f"toStartOf{unit.capitalize()} of a {value.kind.family} in {zone or 'no zone'}")


def call(name: str, value: Expression, given_zone: exp.Expr | None) -> Expression:
    """One of TIME_FUNCTIONS."""
    zone = _zone(value, given_zone)
    if name == "toDate":
        if value.kind.family == "date" and value.kind.name == "Date":
            return replace(value, bare="")
        return replace(
            made(_local_day(value, zone), Kind(family="date", name="Date"), value), span_days=_wider(value, 1)
        )
    if name in _MINUTES:
        return _to_minutes(value, _MINUTES[name], zone)
    template, bits = _FIELDS[name]
    if name in _CLOCK:
        moment = f"from_utc_timestamp({_in_range(_instant(name, value))}, '{zone}')"
    else:
        moment = _local_day(value, zone)
    return made(f"CAST({template.replace('{}', moment)} AS {INTEGER})", integer(bits, signed=False), value)


def to_seconds(name: str, value: Expression) -> Expression:
    """toUnixTimestamp."""
    value = _instant(name, value)
    return made(f"CAST(unix_seconds({_in_range(value)}) AS {INTEGER})", integer(32, signed=False), value)


def _zone(value: Expression, given: exp.Expr | None) -> str:
    if given is not None and not (isinstance(given, exp.Literal) and given.is_string):
        raise Untranslatable("a time zone that is computed")
    if value.kind.family not in ("date", "instant") or (given is not None and value.kind.family == "date"):
        raise Untranslatable(f"a function of time over a {value.kind.family}")
    zone = str(given.this) if given is not None else value.kind.zone
    if zone and not _is_known(zone):
        raise Untranslatable(f"the time zone {zone}")
    return zone


def _instant(name: str, value: Expression) -> Expression:
    if value.kind.family != "instant":
        raise Untranslatable(f"{name}() of a {value.kind.family}")
    return value


def _in_range(value: Expression) -> str:
    first, last = (_FIRST, _LAST) if value.kind.family == "instant" else (_FIRST_DAY, _LAST_DAY)
    sentence = quote("chmv: a time before 1970-01-12 or after 2105-12-30, where ClickHouse clips")
    outside = f"{value.sql} < {first} OR {value.sql} >= {last}"
    return f"CAST(CASE WHEN {outside} THEN raise_error({sentence}) ELSE {value.sql} END AS {value.kind.sql})"


def _local_day(value: Expression, zone: str) -> str:
    if value.kind.family == "date":
        return _in_range(value)
    return f"CAST(from_utc_timestamp({_in_range(value)}, '{zone}') AS DATE)"


def _to_minutes(value: Expression, minutes: int, zone: str) -> Expression:
    value = _instant("a truncation to minutes", value)
    if not has_whole_hours(zone):
        raise Untranslatable(f"a truncation to minutes in {zone}, whose offset is not of whole hours")
    seconds = minutes * 60
    sql = f"timestamp_seconds((unix_seconds({_in_range(value)}) div {seconds}) * {seconds})"
    cut = made(sql, Kind(family="instant", name="DateTime", zone=zone), value)
    return replace(cut, span_days=_wider(value, 1))


def _wider(value: Expression, days: int) -> int | None:
    return None if value.span_days is None else value.span_days + days


@lru_cache(maxsize=64)
def _is_known(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return "'" not in zone


@lru_cache(maxsize=64)
def has_whole_hours(zone: str) -> bool:
    """Whether a zone was never off by a part of an hour since 1970.

    >>> has_whole_hours("Europe/Berlin"), has_whole_hours("Asia/Kolkata")
    (True, False)
    """
    place, at = ZoneInfo(zone), datetime(1970, 1, 1, tzinfo=timezone.utc)
    while at.year < 2106:
        offset = at.astimezone(place).utcoffset()
        if offset is None or offset.total_seconds() % 3600:
            return False
        at += timedelta(days=7)
    return True
