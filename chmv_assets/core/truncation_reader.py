"""Reading a time expression with sqlglot, for `truncation.read_truncation` alone.

Accepts only plain truncations, nested ones included, and refuses everything else with `NotTruncationError`; it never
guesses. The types that come out were measured on ClickHouse 26.7. The vocabulary lives in `truncation`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import sqlglot
from sqlglot import exp

from chmv_assets.core.truncation import (
    UNITS,
    NotTruncationError,
    Truncation,
    Unit,
    ValueType,
    WeekMode,
    nests,
    parse_time_type,
)

_DATES: tuple[ValueType, ...] = ("date", "date32")
_FUNCTIONS: dict[str, tuple[Unit, ValueType]] = {
    "toYYYYMM": ("month", "yyyymm"),
    "toYYYYMMDD": ("day", "yyyymmdd"),
    "toYear": ("year", "year"),
    "toDate": ("day", "date"),
    "toDate32": ("day", "date32"),
    "toStartOfHour": ("hour", "datetime"),
    "toStartOfDay": ("day", "datetime"),
    "toMonday": ("week", "date"),
    "toStartOfMonth": ("month", "date"),
    "toStartOfQuarter": ("quarter", "date"),
    "toStartOfYear": ("year", "date"),
}
_SUB_HOUR = {"toStartOfSecond", "toStartOfMinute", "toStartOfFiveMinutes", "toStartOfFiveMinute", "toStartOfTenMinutes"}
_SUB_HOUR |= {"toStartOfFifteenMinutes", "timeSlot"}
_CONVERSIONS: dict[str, ValueType] = {"toDateTime": "datetime", "toDateTime64": "datetime64"}
_PASS_THROUGH = {"assumeNotNull", "toUInt32", "toUInt64", "toInt32", "toInt64"}
_FORMATS: dict[str, Unit] = {"%Y": "year", "%Y%m": "month", "%Y-%m": "month", "%Y%m%d": "day", "%Y-%m-%d": "day"}
_FORMATS |= {"%F": "day", "%Y%m%d%H": "hour", "%Y-%m-%d %H": "hour"}


def read_expression(expression_sql: str, types: Mapping[str, str] | None) -> Truncation:
    """Read one expression; without `types` every column is taken for a DateTime in the server's zone."""
    try:
        node = sqlglot.parse_one(expression_sql, dialect="clickhouse")
    except Exception as error:  # sqlglot raises more than its own errors on odd input
        raise NotTruncationError(f"cannot read {expression_sql!r}") from error
    return _read(node, types)


def _read(node: exp.Expr, types: Mapping[str, str] | None) -> Truncation:
    match node:
        case exp.Paren() | exp.Alias():
            return _read(node.this, types)
        case exp.Column():
            return _column(node, types)
        case exp.TimestampTrunc() | exp.DateTrunc():
            return _trunc(node, types)
        case exp.TimeToStr():
            return _formatted(_read(node.this, types), _text(node.args.get("format")), _text(node.args.get("zone")))
        case exp.Cast() | exp.CastToStrType():
            target = node.args["to"]
            to = target.name if isinstance(target, exp.Literal) else target.sql(dialect="clickhouse")
            return _cast(_read(node.this, types), to)
        case exp.Date():
            return _truncate(_read(node.this, types), "day", "date")
        case exp.Year():
            return _truncate(_read(node.this, types), "year", "year")
        case exp.IntDiv():
            return _divided(_read(node.this, types), node.expression)
        case exp.Anonymous():
            return _function(node.name, node.expressions, types)
    raise NotTruncationError(f"{node.sql(dialect='clickhouse')} is not a truncation of a time column")


def _column(node: exp.Column, types: Mapping[str, str] | None) -> Truncation:
    if types is None:
        return Truncation(column=node.name)
    if node.name not in types:
        raise NotTruncationError(f"column {node.name} is not declared")
    time_type = parse_time_type(types[node.name])
    if time_type is None:
        raise NotTruncationError(f"column {node.name} is {types[node.name]}, not a date or a time")
    value_types: dict[str, ValueType] = {"Date32": "date32", "DateTime": "datetime", "DateTime64": "datetime64"}
    value_type = value_types.get(time_type.base, "date32" if time_type.wrapped else "date")
    return Truncation(
        column=node.name,
        unit="day" if time_type.is_date else None,
        timezone=time_type.timezone,
        value_type=value_type,
        wrapped=time_type.wrapped,
        id_known=time_type.base != "DateTime64",
    )


def _function(name: str, args: list[exp.Expr], types: Mapping[str, str] | None) -> Truncation:
    if not args:
        raise NotTruncationError(f"{name}() has no column")
    inner = _read(args[0], types)
    if name in _FUNCTIONS:
        unit, value_type = _FUNCTIONS[name]
        mode: WeekMode | None = "monday" if unit == "week" else None
        return _truncate(inner, unit, value_type, zone=_zone(args[1:]), week_mode=mode)
    if name == "toStartOfWeek":
        mode = "monday" if len(args) > 1 and _integer(args[1]) % 2 else "sunday"
        return _truncate(inner, "week", "date", zone=_zone(args[2:]), week_mode=mode)
    if name in _SUB_HOUR:
        return _sub_hour(inner)
    if name == "toStartOfInterval":
        return _interval(inner, args)
    if name in _CONVERSIONS:
        return _convert(inner, _CONVERSIONS[name], _zone(args[2 if name == "toDateTime64" else 1 :]))
    if name == "toTimeZone":
        return _convert(inner, inner.value_type, _zone(args[1:]))
    if name in _PASS_THROUGH and (name == "assumeNotNull" or inner.value_type in ("yyyymm", "yyyymmdd", "year")):
        return inner
    if name == "intDiv" and len(args) == 2:
        return _divided(inner, args[1])
    raise NotTruncationError(f"{name}(…) is not a truncation of a time column")


def _trunc(node: exp.TimestampTrunc | exp.DateTrunc, types: Mapping[str, str] | None) -> Truncation:
    """`toStartOf…` reaches us as TimestampTrunc, `date_trunc` as DateTrunc: they differ in the type that comes out."""
    inner = _read(node.this, types)
    unit = _unit(node.args["unit"].name)
    if unit is None:
        return _sub_hour(inner)
    zone = _text(node.args.get("zone"))
    mode: WeekMode | None = "monday" if unit == "week" else None
    short: ValueType = "datetime" if unit in ("hour", "day") else "date"
    cut = _truncate(inner, unit, short, zone=zone, week_mode=mode)
    if isinstance(node, exp.DateTrunc) and inner.value_type in ("datetime64", "date32"):
        # 26.7 gives DateTime64(0) or Date32 here, older servers DateTime or Date: the text is the same, the id is not.
        return replace(cut, id_known=False)
    return cut


def _interval(inner: Truncation, args: list[exp.Expr]) -> Truncation:
    count, unit = _interval_size(args[1] if len(args) > 1 else None)
    zone = _zone(args[2:])
    if unit in ("second", "minute"):
        seconds = count * (60 if unit == "minute" else 1)
        if 3600 % seconds:
            raise NotTruncationError(f"buckets of {count} {unit} do not fit into an hour")
        return _truncate(inner, "hour", "datetime", zone=zone) if seconds == 3600 else _sub_hour(inner)
    if unit == "hour" and count > 1 and 24 % count == 0:
        return _truncate(inner, "day", "datetime", zone=zone, exact=count == 24)
    if unit == "month" and count > 1 and 12 % count == 0:
        return _truncate(inner, "quarter" if count == 3 else "year", "date", zone=zone, exact=count in (3, 12))
    known = _unit(unit)
    if known is None or count != 1:
        raise NotTruncationError(f"buckets of {count} {unit} have no calendar unit")
    mode: WeekMode | None = "monday" if known == "week" else None
    return _truncate(inner, known, "datetime" if known in ("hour", "day") else "date", zone=zone, week_mode=mode)


def _interval_size(node: exp.Expr | None) -> tuple[int, str]:
    if isinstance(node, exp.Interval) and node.this is not None and node.unit is not None:
        return _integer(node.this), str(node.unit.name).lower()
    if isinstance(node, exp.Anonymous) and node.name.startswith("toInterval") and len(node.expressions) == 1:
        return _integer(node.expressions[0]), node.name.removeprefix("toInterval").lower()
    raise NotTruncationError("the interval is not a literal")


def _truncate(
    inner: Truncation,
    unit: Unit,
    value_type: ValueType,
    *,
    zone: str | None = None,
    week_mode: WeekMode | None = None,
    exact: bool = True,
) -> Truncation:
    """Put one truncation around another: the coarser unit wins, and they must fit into each other."""
    if inner.value_type not in ("date", "date32", "datetime", "datetime64"):
        raise NotTruncationError(f"a time function over a {inner.value_type} number is not a truncation")
    is_date = inner.value_type in _DATES
    if inner.unit is not None and not is_date and zone is not None and zone != inner.timezone:
        raise NotTruncationError(f"truncated in zone {inner.timezone or 'of the server'} first and in {zone} after")
    outer_wins = inner.unit is None or nests(inner.unit, unit)
    if not outer_wins and not (inner.unit and nests(unit, inner.unit)):
        raise NotTruncationError(f"a {unit} of a {inner.unit} is not a whole period")
    if inner.unit == unit == "week" and inner.week_mode != week_mode:
        raise NotTruncationError("weeks that begin on different days")
    # Midnight of a Date is taken in the server's zone, whatever zone the date came from.
    foreign_midnight = is_date and value_type == "datetime" and (inner.timezone or zone) is not None
    return replace(
        inner,
        unit=unit if outer_wins else inner.unit,
        exact=(exact or (inner.unit == unit and inner.exact)) if outer_wins else inner.exact,
        timezone=inner.timezone if is_date else zone or inner.timezone,
        week_mode=week_mode if outer_wins else inner.week_mode,
        value_type="date32" if value_type == "date" and inner.wrapped else value_type,
        id_known=not foreign_midnight,
    )


def _sub_hour(inner: Truncation) -> Truncation:
    return replace(inner, exact=False) if inner.unit is None else inner


def _convert(inner: Truncation, value_type: ValueType, zone: str | None) -> Truncation:
    if inner.value_type in _DATES:
        return replace(inner, value_type=value_type, id_known=value_type == "datetime" and zone is None)
    if inner.unit is not None and zone is not None and zone != inner.timezone:
        raise NotTruncationError("the zone changes after the truncation")
    return replace(inner, value_type=value_type, timezone=zone or inner.timezone, id_known=value_type == "datetime")


def _cast(inner: Truncation, to: str) -> Truncation:
    # sqlglot prints types in capitals; the server's spelling differs only by case.
    spelled = re.sub(r"(?i)\b(datetime64|datetime|date32|date|nullable)\b", lambda m: _SPELLING[m[0].lower()], to)
    time_type = parse_time_type(spelled)
    if time_type is None:
        raise NotTruncationError(f"a cast to {to} is not a truncation")
    if time_type.is_date:
        cut = _truncate(inner, "day", "date32" if time_type.base == "Date32" else "date")
        return replace(cut, value_type="date32") if time_type.wrapped else cut
    return _convert(inner, "datetime" if time_type.base == "DateTime" else "datetime64", time_type.timezone)


_SPELLING = {
    "datetime64": "DateTime64",
    "datetime": "DateTime",
    "date32": "Date32",
    "date": "Date",
    "nullable": "Nullable",
}


def _divided(inner: Truncation, divisor: exp.Expr) -> Truncation:
    rules: dict[tuple[ValueType, int], tuple[Unit, ValueType]] = {
        ("yyyymmdd", 100): ("month", "yyyymm"),
        ("yyyymmdd", 10000): ("year", "year"),
        ("yyyymm", 100): ("year", "year"),
    }
    rule = rules.get((inner.value_type, _integer(divisor)))
    if rule is None or inner.unit is None or not nests(inner.unit, rule[0]):
        raise NotTruncationError("the division does not cut a date number")
    return replace(inner, unit=rule[0], value_type=rule[1])


def _formatted(inner: Truncation, fmt: str | None, zone: str | None) -> Truncation:
    if fmt not in _FORMATS:
        raise NotTruncationError(f"the format {fmt!r} is not a known period")
    cut = _truncate(inner, _FORMATS[fmt], "text", zone=zone)
    return replace(cut, text_format=fmt, id_known=False)


def _unit(name: str) -> Unit | None:
    lowered = name.lower()
    if lowered in ("second", "minute"):
        return None
    unit = next((unit for unit in UNITS if unit == lowered), None)
    if unit is None:
        raise NotTruncationError(f"{name} is not a known unit")
    return unit


def _zone(args: list[exp.Expr]) -> str | None:
    return _text(args[0]) if args else None


def _text(node: exp.Expr | None) -> str | None:
    if node is None:
        return None
    if isinstance(node, exp.Literal) and node.is_string:
        return str(node.name)
    raise NotTruncationError(f"{node.sql(dialect='clickhouse')} is not a literal")


def _integer(node: exp.Expr) -> int:
    if isinstance(node, exp.Literal) and str(node.name).isdigit() and int(node.name) >= 0:
        return int(node.name)
    raise NotTruncationError(f"{node.sql(dialect='clickhouse')} is not a literal number")
