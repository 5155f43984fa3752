"""Which Parquet columns can be judged and sent as they are, and which of their rows are bad. Arrow only: no Spark, no server.

A column is *plain* if no value of it can fail on the server once the rules here have passed: then bad rows are known before
the first insert. Everything else (UUIDs and addresses as text, JSON, types that need a cast by meaning) goes through Spark and
staging. The reasons read the same as those of `landing_reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.landing_reader import INTEGER_BOUNDS, LandingColumn, enum_names, fixed_length
from spark_jobs.types import TypeMap, map_type

_TEXTS = frozenset({"String", "FixedString", "Enum8", "Enum16"})
_TIMES = frozenset({"Date", "Date32", "DateTime", "DateTime64"})
_EXACT = frozenset({"Bool", "Float32", "Float64"})


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows in the types that the table takes, and for each row the first reason why it is bad, or null."""

    rows: pa.Table
    reasons: pa.ChunkedArray | None  # None: all rows are good


def is_plain(column: LandingColumn, given: pa.DataType) -> bool:
    """Whether a Parquet column of this type can go into the table's column without Spark."""
    return _fits(map_type(column.name, column.clickhouse_type), given)


def _fits(target: TypeMap, given: pa.DataType) -> bool:
    if pa.types.is_dictionary(given):
        given = given.value_type
    if target.arrow is None:
        return False
    if pa.types.is_integer(target.arrow):
        return bool(pa.types.is_integer(given))
    if target.name in _TEXTS:
        return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
    if target.name == "Decimal":
        scale = target.arrow.scale
        whole = target.arrow.precision - scale
        return bool(pa.types.is_decimal(given) and given.scale <= scale and given.precision - given.scale <= whole)
    if target.name in _TIMES:
        if pa.types.is_date(target.arrow):
            return bool(given == pa.date32())
        return pa.types.is_timestamp(given) and given.unit in ("s", "ms", "us") and given.tz in (None, "UTC", "+00:00")
    if target.name in _EXACT:
        return bool(given == target.arrow)
    if target.name == "Array":
        return pa.types.is_list(given) and _nested(target.children[0], given.value_type)
    if target.name == "Map":
        key, value = target.children
        return pa.types.is_map(given) and _nested(key, given.key_type) and _nested(value, given.item_type)
    return False


def _nested(target: TypeMap, given: pa.DataType) -> bool:
    """Inside a list or map no single value can be told bad, so only what can never fail is plain."""
    if pa.types.is_integer(given):
        return bool(target.arrow == given)
    return _fits(target, given) and target.name not in (*_TIMES, "FixedString", "Enum8", "Enum16")


def judge_rows(rows: pa.Table, columns: Sequence[LandingColumn]) -> Judged:
    """Give every row its first reason, in the order of the columns; values of bad rows may be anything."""
    reasons: pa.ChunkedArray | None = None
    for column in columns:
        values = rows.column(column.name)
        for reason, bad in _defects(column, map_type(column.name, column.clickhouse_type), values):
            found = pc.if_else(pc.fill_null(bad, False), reason, pa.scalar(None, pa.string()))
            reasons = found if reasons is None else pc.coalesce(reasons, found)
    return Judged(rows, reasons)


def _defects(column: LandingColumn, target: TypeMap, values: pa.ChunkedArray) -> list[tuple[str, pa.ChunkedArray]]:
    """Only the rules that some row breaks, each with the mask of the rows that break it."""
    found: list[tuple[str, pa.ChunkedArray]] = []
    if not target.nullable and values.null_count:
        found.append((f"{column.name}: null, but it is not Nullable", pc.is_null(values)))
    if column.bare_type in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[column.bare_type]
        found += _outside(f"{column.name}: out of range for {column.bare_type}", values, low, high)
    elif target.bounds is not None:
        wanted = values if pa.types.is_date(target.arrow) else values.cast(target.arrow)
        found += _outside(f"{column.name}: out of range for {column.bare_type}", wanted, *target.bounds)
    elif target.name.startswith("Enum"):
        known = pc.is_in(values, value_set=pa.array(enum_names(column.bare_type), pa.string()))
        found += _broken(f"{column.name}: not a name of its Enum", pc.and_not(pc.is_valid(values), known))
    elif target.name == "FixedString":
        found += _broken(
            f"{column.name}: longer than {column.bare_type}",
            pc.greater(pc.binary_length(values), fixed_length(column.bare_type)),
        )
    elif target.name in ("Array", "Map"):
        found += _nested_nulls(column, target, values)
    return found


def _outside(reason: str, values: pa.ChunkedArray, low: object, high: object) -> list[tuple[str, pa.ChunkedArray]]:
    ends = pc.min_max(values)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if least is None or (least >= low and most <= high):
        return []
    kind = values.type
    masks = []
    if least < low:
        masks.append(pc.less(values, pa.scalar(low, kind)))
    if most > high:
        masks.append(pc.greater(values, pa.scalar(high, kind)))
    return [(reason, mask) for mask in masks]


def _broken(reason: str, bad: pa.ChunkedArray) -> list[tuple[str, pa.ChunkedArray]]:
    return [(reason, bad)] if pc.any(bad).as_py() else []


def _nested_nulls(column: LandingColumn, target: TypeMap, values: pa.ChunkedArray) -> list[tuple[str, pa.ChunkedArray]]:
    """Rows whose list or map holds a null where the table has no room for one."""
    child = target.children[-1]
    if child.nullable:
        return []
    masks = []
    for part in values.chunks:
        inner = part.items if target.name == "Map" else part.flatten()
        lists = part if target.name != "Map" else pa.ListArray.from_arrays(part.offsets, part.items)
        if not inner.null_count:
            masks.append(pa.nulls(len(part), pa.bool_()).fill_null(False))
            continue
        rows = pc.list_parent_indices(lists).filter(pc.is_null(lists.flatten()))
        at = pa.array(range(len(part)), pa.int64())
        masks.append(pc.is_in(at, value_set=rows.cast(pa.int64())))
    bad = pa.chunked_array(masks, pa.bool_())
    return _broken(f"{column.name}: a null inside, but its elements are not Nullable", bad)
