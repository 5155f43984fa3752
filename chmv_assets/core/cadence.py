"""Cadence: what a PARTITION BY clause, or the time column of a SELECT, says about periods.

A scheme is either read exactly or not at all; `explain_scheme` says why not. The invariant: a scheme's unit, zone and
week mode give the same borders as the server does (tests/integration/test_partition_ids.py). Instants, partition ids
and predicates live in `windows`, the reading of single expressions in `truncation`, Dagster's side in `partitions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from chmv_assets.core.model import Column
from chmv_assets.core.tokens import Token, split_commas, tokenize
from chmv_assets.core.truncation import (
    UNITS,
    NotTruncationError,
    Truncation,
    Unit,
    ValueType,
    WeekMode,
    nests,
    parse_time_type,
    read_truncation,
)

__all__ = [
    "UNITS",
    "PartitionScheme",
    "Truncation",
    "Unit",
    "ValueType",
    "WeekMode",
    "cadence_name",
    "can_narrow",
    "explain_scheme",
    "narrows",
    "nests",
    "parse_scheme",
    "split_tuple",
]

_NAMES: dict[Unit, str] = {
    "hour": "hourly",
    "day": "daily",
    "week": "weekly",
    "month": "monthly",
    "quarter": "quarterly",
    "year": "yearly",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScheme:
    """The time part of a PARTITION BY clause, and what stands beside it."""

    unit: Unit
    column: str
    column_type: str  # as declared
    expression: str  # the time part as written
    value_type: ValueType
    timezone: str | None = None  # explicit argument or the column type's; None: the server's
    week_mode: WeekMode | None = None
    dimensions: tuple[str, ...] = ()  # the other parts of the tuple, as written
    position: int = 0  # index of the time part in the tuple
    id_known: bool = True  # whether the partition id follows from the time alone, were there no dimensions
    text_format: str = ""

    @property
    def is_date(self) -> bool:
        """Whether the column holds calendar days, which have no zone of their own."""
        time_type = parse_time_type(self.column_type)
        return time_type is not None and time_type.is_date


def cadence_name(unit: Unit) -> str:
    """Name a cadence for people: hourly, daily, …"""
    return _NAMES[unit]


def parse_scheme(partition_by: str, columns: tuple[Column, ...]) -> PartitionScheme | None:
    """Read a PARTITION BY clause; None when it has no time part that can be read exactly.

    >>> scheme = parse_scheme("(country, toYYYYMM(ts))", (Column(name="ts", type="DateTime"),))
    >>> scheme.unit, scheme.column, scheme.dimensions, scheme.position
    ('month', 'ts', ('country',), 1)
    """
    scheme = explain_scheme(partition_by, columns)
    return scheme if isinstance(scheme, PartitionScheme) else None


def explain_scheme(partition_by: str, columns: tuple[Column, ...]) -> PartitionScheme | str:
    """Read a PARTITION BY clause, or say why it gives no cadence."""
    types = {column.name: column.type for column in columns}
    parts = split_tuple(partition_by)
    if not parts:
        return "the table has no partition key"
    read: dict[int, Truncation] = {}
    reasons: list[str] = []
    for index, part in enumerate(parts):
        try:
            truncation = read_truncation(part, types)
        except NotTruncationError as error:
            reasons.append(str(error))
            continue
        if truncation.unit is None or not truncation.exact:
            reasons.append(f"{part} has periods that are not a whole hour, day, week, month, quarter or year")
        else:
            read[index] = truncation
    if not read:
        return "; ".join(reasons)
    index = min(read, key=lambda at: UNITS.index(read[at].unit or "year"))
    for other in read:
        if not _determines(read[index], read[other]):
            return f"{parts[index]} and {parts[other]} are two time parts, and the first does not determine the second"
    return _scheme(read[index], parts, index, types)


def _determines(finer: Truncation, coarser: Truncation) -> bool:
    same_clock = finer.column == coarser.column and finer.timezone == coarser.timezone
    if finer.unit is None or coarser.unit is None or not same_clock or not nests(finer.unit, coarser.unit):
        return False
    return coarser.unit != "week" or finer.unit != "week" or finer.week_mode == coarser.week_mode


def _scheme(truncation: Truncation, parts: tuple[str, ...], index: int, types: dict[str, str]) -> PartitionScheme:
    assert truncation.unit is not None
    return PartitionScheme(
        unit=truncation.unit,
        column=truncation.column,
        column_type=types[truncation.column],
        expression=parts[index],
        value_type=truncation.value_type,
        timezone=truncation.timezone,
        week_mode=truncation.week_mode,
        dimensions=parts[:index] + parts[index + 1 :],
        position=index,
        id_known=truncation.id_known,
        text_format=truncation.text_format,
    )


def split_tuple(partition_by: str) -> tuple[str, ...]:
    """Split a partition key into its parts as written; the empty tuple has none.

    >>> split_tuple("tuple(`a, b`, toYYYYMM(ts))"), split_tuple("toDate(ts, 'UTC')"), split_tuple("tuple()")
    (('`a, b`', 'toYYYYMM(ts)'), ("toDate(ts, 'UTC')",), ())
    """
    text = partition_by.strip()
    tokens, broken = tokenize(text)
    if tokens and tokens[0].is_word("TUPLE"):
        tokens = tokens[1:]
    if broken is not None or not _in_one_pair(tokens):
        return (text,) if text else ()
    return tuple(text[part[0].start : part[-1].end] for part in split_commas(tokens[1:-1]) if part)


def _in_one_pair(tokens: list[Token]) -> bool:
    """Tell whether the first token opens a parenthesis that only the last one closes."""
    if len(tokens) < 2 or not tokens[0].is_op("("):
        return False
    depth = 0
    for index, token in enumerate(tokens):
        depth += token.is_op("(", "[") - token.is_op(")", "]")
        if depth == 0:
            return index == len(tokens) - 1
    return False


def can_narrow(truncation_unit: Unit | None, window_unit: Unit) -> bool:
    """Tell whether the borders of every window are borders of the truncation, in one zone and with one first weekday.

    >>> can_narrow("hour", "day"), can_narrow("month", "day"), can_narrow("week", "month")
    (True, False, False)
    """
    return truncation_unit is None or nests(truncation_unit, window_unit)


def narrows(
    truncation: Truncation,
    window_unit: Unit,
    *,
    window_timezone: str,
    column_timezone: str,
    window_week_mode: WeekMode | None = None,
) -> bool:
    """Tell whether rows of the source window are exactly the rows whose output falls into that window.

    Read the truncation with the source's column types where they are known: a Date column is a day, not an instant.
    `column_timezone` is the zone of the source column's type, or the server's where the type has none; for a Date
    column that is not converted it is the location's.
    """
    if not can_narrow(truncation.unit, window_unit):
        return False
    if truncation.unit is None:
        return True
    if truncation.unit == window_unit == "week" and truncation.week_mode != (window_week_mode or "monday"):
        return False
    return _same_zone(truncation.timezone or column_timezone, window_timezone)


def _same_zone(left: str, right: str) -> bool:
    utc = {"UTC", "Etc/UTC", "Etc/UCT", "UCT", "GMT", "Etc/GMT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal"}
    return left == right or (left in utc and right in utc)
