"""Spark's filters as ClickHouse conditions with bound values. Pure.

Invariant: a condition keeps exactly the rows that Spark's filter keeps, or it is not made (None) and Spark filters itself.
Floats are left to Spark (NaN compares differently), decimals too; a text-like type (UUID, Enum, …) is compared as the text
that Spark would see. DateTime64 finer than microseconds is left to Spark, which sees it cut.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import datasource as ds

from chmv_assets.core.names import quote_identifier, quote_string
from spark_jobs.types import TypeMap

_COMPARE: Mapping[type[ds.Filter], str] = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_TEXT_TESTS: Mapping[type[ds.Filter], str] = {ds.StringStartsWith: "startsWith", ds.StringEndsWith: "endsWith"}
_SIGNED = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32")
_TEXT_CASTS = ("String", "Nullable(String)")
_MICROSECONDS = 6


@dataclass(frozen=True, slots=True)
class Condition:
    """A piece of a WHERE clause and its values."""

    sql: str
    parameters: Mapping[str, Any]


def selected(name: str, column: TypeMap, declared: str) -> str:
    """The column as it is selected: cast on the server where Arrow or Spark need another type.

    >>> from spark_jobs.types import map_type
    >>> selected("id", map_type("id", "UUID"), "UUID")
    "CAST(`id`, 'String')"
    """
    if column.cast == declared:
        return quote_identifier(name)
    return f"CAST({quote_identifier(name)}, {quote_string(column.cast)})"


def build_condition(found: ds.Filter, columns: Mapping[str, TypeMap], prefix: str) -> Condition | None:
    """The condition of one filter; None if ClickHouse would not answer as Spark does."""
    if isinstance(found, ds.Not):
        inner = build_condition(found.child, columns, prefix)
        return inner and Condition(f"NOT ({inner.sql})", inner.parameters)
    path: tuple[str, ...] = getattr(found, "attribute", ())
    column = columns.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    name = quote_identifier(path[0])
    if isinstance(found, ds.IsNull):
        return Condition(f"{name} IS NULL", {})
    if isinstance(found, ds.IsNotNull):
        return Condition(f"{name} IS NOT NULL", {})
    return _build_comparison(found, path[0], column, prefix)


def _build_comparison(found: ds.Filter, name: str, column: TypeMap, prefix: str) -> Condition | None:
    values = found.value if isinstance(found, ds.In) else (getattr(found, "value", None),)
    bound = [_bind(value, column) for value in values]
    if not bound or any(item is None for item in bound):
        return None
    left = _comparable(name, column)
    parameters = {f"{prefix}_{at}": item[1] for at, item in enumerate(bound) if item}
    places = [f"{{{prefix}_{at}:{item[0]}}}" for at, item in enumerate(bound) if item]
    if isinstance(found, ds.In):
        return Condition(f"{left} IN ({', '.join(places)})", parameters)
    if type(found) in _COMPARE:
        return Condition(f"{left} {_COMPARE[type(found)]} {places[0]}", parameters)
    if type(found) in _TEXT_TESTS and column.cast in _TEXT_CASTS:
        return Condition(f"{_TEXT_TESTS[type(found)]}({left}, {places[0]})", parameters)
    return None


def _comparable(name: str, column: TypeMap) -> str:
    is_text = column.cast in _TEXT_CASTS and column.name != "String"
    return selected(name, column, "") if is_text else quote_identifier(name)


def _bind(value: Any, column: TypeMap) -> tuple[str, Any] | None:
    """The parameter's type and value; None if this pair is not pushed."""
    if column.name in _SIGNED:
        return ("Int64", value) if type(value) is int else None
    if column.name == "UInt64":
        whole = isinstance(value, Decimal) and value == int(value) and 0 <= value < 2**64
        return ("UInt64", int(value)) if whole or (type(value) is int and 0 <= value < 2**64) else None
    if column.name == "Bool":
        return ("Bool", str(value).lower()) if isinstance(value, bool) else None
    if column.name in ("Date", "Date32"):
        return ("Date32", value.isoformat()) if type(value) is dt.date else None
    if column.name in ("DateTime", "DateTime64"):
        return _bind_instant(value) if column.digits <= _MICROSECONDS else None
    if column.cast in _TEXT_CASTS:
        return ("String", value) if isinstance(value, str) and column.name != "JSON" else None
    return None


def _bind_instant(value: Any) -> tuple[str, Any] | None:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        return None
    return "DateTime64(6, 'UTC')", value.astimezone(dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
