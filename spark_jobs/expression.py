"""A translated expression, and the bricks that every translation is made of. Pure; no session, no server.

Invariant: what is made of others names all of their columns, and is Nullable if one of them is. What a function of ClickHouse means belongs
into `arithmetic`, `moments` and `aggregates`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_jobs.kinds import INTEGER, Kind, integer


class Untranslatable(Exception):
    """No Spark SQL is known to mean the same; the text says of what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Spark SQL, what it gives, and what it is made of."""

    sql: str
    kind: Kind
    columns: frozenset[str] = frozenset()
    bare: str = ""  # the column, if it is nothing else
    literal: int | str | None = None
    span_days: int | None = None  # a column of time, truncated by at most so much; None: not a plain truncation


def made_flag(sql: str, *parts: Expression) -> Expression:
    """A condition over other expressions."""
    return made(sql, Kind(family="flag"), *parts)


def made(sql: str, kind: Kind, *parts: Expression) -> Expression:
    """An expression over others: NULL where one of them is, and of all their columns."""
    nullable = any(part.kind.nullable for part in parts)
    columns = frozenset().union(*(part.columns for part in parts))
    return Expression(sql=sql, kind=replace(kind, nullable=nullable), columns=columns)


def number(value: int) -> Expression:
    """A literal in the smallest type that holds it, as ClickHouse reads it."""
    for bits in (8, 16, 32, 64):
        kind = integer(bits, signed=value < 0)
        if kind.bounds[0] <= value <= kind.bounds[1]:
            return Expression(sql=f"CAST({value} AS {INTEGER})", kind=kind, literal=value)
    raise Untranslatable(f"the number {value}")


def quote(text: str) -> str:
    """A string literal of Spark SQL.

    >>> quote("it's")
    "'it\\\\'s'"
    """
    if not text.isprintable():
        raise Untranslatable("a text with unprintable characters")
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def as_flag(value: Expression) -> Expression:
    """A value as a condition: numbers are true unless zero."""
    if value.kind.family in ("flag", "bool"):
        return value
    if value.kind.family != "int":
        raise Untranslatable(f"a {value.kind.family} as a condition")
    return made_flag(f"({value.sql} <> 0)", value)


def as_integer(value: Expression) -> Expression:
    """A flag as the number that ClickHouse holds for it."""
    if value.kind.family not in ("flag", "bool"):
        return value
    kind = integer(8, signed=False, nullable=value.kind.nullable)
    return replace(value, sql=f"CAST(CAST({value.sql} AS INT) AS {INTEGER})", kind=kind, bare="")


def guarded(sql: str, kind: Kind, what: str) -> str:
    """An integer that has to fit into its type; beyond it ClickHouse wraps, and Spark fails with a sentence."""
    low, high = kind.bounds
    sentence = quote(f"chmv: {what} does not fit into its type")
    # LEAST and GREATEST would hide it; a NULL stays one.
    return f"CAST(CASE WHEN ({sql}) < {low} OR ({sql}) > {high} THEN raise_error({sentence}) ELSE ({sql}) END AS {INTEGER})"
