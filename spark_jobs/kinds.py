"""Kinds: what a ClickHouse scalar type means to Spark SQL, as far as both agree. Pure; no session, no server.

In Spark SQL every integer is a DECIMAL(20, 0), so that nothing wraps before it is looked at; decimals, days, instants (UTC) and texts are
themselves. Invariant: two kinds are equal exactly if their values mean the same in both engines. What has no kind is never compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from chmv_assets.core.truncation import parse_time_type
from spark_jobs.types import split_type

Family = Literal[
    "int",
    "flag",  # what a comparison gives: UInt8 to ClickHouse, BOOLEAN to Spark
    "bool",
    "decimal",
    "float",  # only handed through
    "text",
    "label",  # handed through as text: Enum, UUID, FixedString, addresses
    "date",
    "instant",
]
INTEGER = "DECIMAL(20, 0)"
_MICROSECONDS = 6
_INTEGER = re.compile(r"(U?)Int(8|16|32|64)\Z")
_LABELS = ("Enum8", "Enum16", "UUID", "FixedString", "IPv4", "IPv6")
_CLASSES = (9, 18, 38)  # digits of Decimal32, Decimal64, Decimal128


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A scalar type."""

    family: Family
    bits: int = 0
    signed: bool = False
    precision: int = 0
    scale: int = 0  # of a decimal; fractional digits of an instant
    zone: str = ""
    name: str = ""  # which of several types of one family
    nullable: bool = False

    @property
    def sql(self) -> str:
        """The type in which Spark SQL holds it."""
        if self.family == "decimal":
            return f"DECIMAL({self.precision}, {self.scale})"
        return {
            "int": INTEGER, "flag": "BOOLEAN", "bool": "BOOLEAN", "float": "FLOAT" if self.name == "Float32" else "DOUBLE",
            "text": "STRING", "label": "STRING", "date": "DATE", "instant": "TIMESTAMP",
        }[self.family]  # fmt: skip

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value of an integer."""
        return (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1) if self.signed else (0, 2**self.bits - 1)

    @property
    def default(self) -> str:
        """What ClickHouse stores where nothing is given; empty if that cannot be said here."""
        if self.nullable:
            return f"CAST(NULL AS {self.sql})"
        values = {
            "int": "0", "decimal": "0", "flag": "FALSE", "bool": "FALSE", "float": "0", "text": "''", "date": "DATE'1970-01-01'",
            "instant": "TIMESTAMP'1970-01-01 00:00:00Z'",
        }  # fmt: skip
        return f"CAST({values[self.family]} AS {self.sql})" if self.family in values else ""


def integer(bits: int, *, signed: bool, nullable: bool = False) -> Kind:
    return Kind(family="int", bits=bits, signed=signed, nullable=nullable)


def decimal_class(precision: int) -> int:
    """The digits that a decimal of some precision has room for; 0 if Spark has no such type.

    >>> decimal_class(12), decimal_class(38), decimal_class(40)
    (18, 38, 0)
    """
    return next((digits for digits in _CLASSES if precision <= digits), 0)


def parse_kind(type_text: str, server_zone: str) -> Kind | None:
    """The kind of a type; None for nested types, states, wide numbers and times finer than Spark's.

    >>> parse_kind("LowCardinality(Nullable(String))", "UTC")
    Kind(family='text', bits=0, signed=False, precision=0, scale=0, zone='', name='', nullable=True)
    """
    name, args = split_type(type_text)
    if name == "LowCardinality":
        return parse_kind(args[0], server_zone)
    if name == "SimpleAggregateFunction":
        return parse_kind(args[-1], server_zone)
    if name == "Nullable":
        inner = parse_kind(args[0], server_zone)
        return inner and replace(inner, nullable=True)
    if match := _INTEGER.match(name):
        return integer(int(match.group(2)), signed=not match.group(1))
    if name == "Decimal" and decimal_class(int(args[0])):
        return Kind(family="decimal", precision=int(args[0]), scale=int(args[1]))
    if name in ("Float32", "Float64"):
        return Kind(family="float", name=name)
    if name in _LABELS:
        return Kind(family="label", name=type_text)
    return (
        Kind(family="text")
        if name == "String"
        else Kind(family="bool")
        if name == "Bool"
        else _time(type_text, server_zone)
    )


def _time(type_text: str, server_zone: str) -> Kind | None:
    found = parse_time_type(type_text)
    if found is None or found.precision > _MICROSECONDS:
        return None
    if found.is_date:
        return Kind(family="date", name=found.base)
    return Kind(family="instant", name=found.base, scale=found.precision, zone=found.timezone or server_zone)


def agrees(inferred: Kind, described: Kind | None) -> bool:
    """Whether what we take an expression for is what the server says it is."""
    if inferred.family == "flag":
        return described == integer(8, signed=False, nullable=inferred.nullable)
    return described == inferred
