"""A time expression: which column it truncates, to what unit, in which zone, and what type comes out.

`read_truncation` accepts only plain truncations (nested ones included) and refuses everything else with
`NotTruncationError`; it never guesses. The reading itself is in `truncation_reader`, imported on first use: a process that
finds the catalog in the cache needs these types but no SQL parser. What a PARTITION BY means as a whole lives in `cadence`;
instants and partition ids live in `windows`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["hour", "day", "week", "month", "quarter", "year"]
WeekMode = Literal["monday", "sunday"]
ValueType = Literal[
    "yyyymm",  # printed 202607, id the same
    "yyyymmdd",  # printed 20260701, id the same
    "year",  # printed 2026, id the same
    "date",  # printed 2026-07-01, id 20260701
    "date32",  # Date32, and Date inside Nullable or LowCardinality: printed 2026-07-01, id = days since 1970
    "datetime",  # printed 2026-07-01 00:00:00, id = seconds since 1970
    "datetime64",  # printed the same, id = a hash that only the server computes
    "text",  # formatDateTime: printed as formatted, id = a hash
]
UNITS: tuple[Unit, ...] = ("hour", "day", "week", "month", "quarter", "year")


class NotTruncationError(Exception):
    """The expression is not a plain truncation of one column; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeType:
    """A ClickHouse type that holds a point in time or a date, without its wrappers."""

    base: Literal["Date", "Date32", "DateTime", "DateTime64"]
    precision: int = 0
    timezone: str | None = None
    wrapped: bool = False  # inside Nullable or LowCardinality

    @property
    def is_date(self) -> bool:
        """Whether values are calendar days without a zone."""
        return self.base in ("Date", "Date32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What a plain time expression does to its column."""

    column: str
    unit: Unit | None = None  # None: the value itself, or a bucket finer than an hour
    exact: bool = (
        True  # False: buckets are smaller than `unit`, but its borders are borders of theirs (6 hours in a day)
    )
    timezone: str | None = None  # explicit argument or the column type's; None: the server's
    week_mode: WeekMode | None = None
    value_type: ValueType = "datetime"
    wrapped: bool = False
    id_known: bool = True  # False: the partition id depends on the server's version or on a hash
    text_format: str = ""


_WRAPPER = re.compile(r"\s*(Nullable|LowCardinality)\s*\((.*)\)\s*\Z", re.DOTALL)
_SIMPLE_AGGREGATE = re.compile(r"\s*SimpleAggregateFunction\s*\(\s*\w+\s*,(.*)\)\s*\Z", re.DOTALL)
_TIME_TYPE = re.compile(
    r"\s*(Date|Date32|DateTime|DateTime32|DateTime64)\s*(?:\(\s*(?:(\d+)\s*,?\s*)?(?:'([^']*)')?\s*\))?\s*\Z"
)


def parse_time_type(text: str) -> TimeType | None:
    """Read a column type; None when it does not hold time.

    >>> parse_time_type("Nullable(DateTime64(3, 'Europe/Berlin'))")
    TimeType(base='DateTime64', precision=3, timezone='Europe/Berlin', wrapped=True)
    """
    if match := _SIMPLE_AGGREGATE.match(text):
        return parse_time_type(match.group(1))
    if match := _WRAPPER.match(text):
        inner = parse_time_type(match.group(2))
        return replace(inner, wrapped=True) if inner else None
    if not (match := _TIME_TYPE.match(text)):
        return None
    base, precision, timezone = match.groups()
    if base == "DateTime64":
        return TimeType(base="DateTime64", precision=int(precision or 3), timezone=timezone)
    if base in ("DateTime", "DateTime32"):
        return TimeType(base="DateTime", timezone=timezone)
    return TimeType(base="Date" if base == "Date" else "Date32")


def nests(finer: Unit, coarser: Unit) -> bool:
    """Tell whether every border of `coarser` is a border of `finer`; weeks fit into no month.

    >>> nests("day", "week"), nests("week", "month"), nests("month", "month")
    (True, False, True)
    """
    if finer == coarser:
        return True
    return finer != "week" and UNITS.index(finer) < UNITS.index(coarser)


def read_truncation(expression_sql: str, types: Mapping[str, str] | None = None) -> Truncation:
    """Read one expression; without `types` every column is taken for a DateTime in the server's zone.

    >>> read_truncation("toDate(toStartOfHour(e.ts, 'UTC'), 'UTC')").unit
    'day'
    """
    from chmv_assets.core.truncation_reader import read_expression  # brings sqlglot: 0.4 s per process

    return read_expression(expression_sql, types)
