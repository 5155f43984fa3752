"""Numbers, texts and conditions of ClickHouse in Spark SQL: calculating, comparing, choosing, converting. Pure.

Invariant: the result's type is the one that ClickHouse would give it, and a number that does not fit there fails with our sentence
(`expression.guarded`) where ClickHouse would wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from spark_jobs.expression import Expression, Untranslatable, as_integer, guarded, made, made_flag
from spark_jobs.kinds import INTEGER, Kind, decimal_class, integer

CONVERSIONS = {f"to{'' if signed else 'U'}Int{bits}": integer(bits, signed=signed) for bits in (8, 16, 32, 64) for signed in (True, False)}  # fmt: skip


def calculate(sign: str, one: Expression, other: Expression) -> Expression:
    """`+`, `-` and `*` of integers and decimals."""
    one, other = as_integer(one), as_integer(other)
    families = {one.kind.family, other.kind.family}
    if families == {"int"}:
        bits = min(64, 2 * max(one.kind.bits, other.kind.bits))
        kind = integer(bits, signed=one.kind.signed or other.kind.signed or sign == "-")
        whole = made("", kind, one, other)
        return replace(whole, sql=guarded(f"{one.sql} {sign} {other.sql}", whole.kind, f"a result of {sign}"))
    if not families <= {"int", "decimal"}:
        raise Untranslatable(f"{sign} of a {one.kind.family} and a {other.kind.family}")
    scales = one.kind.scale, other.kind.scale
    scale = sum(scales) if sign == "*" else max(scales)
    digits = max(decimal_class(k.precision) if k.family == "decimal" else 0 for k in (one.kind, other.kind))
    if scale > digits:
        raise Untranslatable(f"{sign} of decimals with {scale} fractional digits")
    kind = Kind(family="decimal", precision=digits, scale=scale)
    return made(f"CAST(({one.sql} {sign} {other.sql}) AS {kind.sql})", kind, one, other)


def divide(sign: str, value: Expression, divisor: Expression) -> Expression:
    """intDiv and `%` (`sign` is div or %) of an unsigned integer by a literal; no others are the same on both engines."""
    by = divisor.literal
    if value.kind.family != "int" or not isinstance(by, int) or by <= 0 or value.kind.signed:
        raise Untranslatable("a division of anything but an unsigned integer by a positive number")
    kind = replace(value.kind if sign == "div" else divisor.kind, nullable=False)
    rest = f"({value.sql} % {by})"
    sql = (
        f"(({value.sql} - {rest}) / {by})" if sign == "div" else rest
    )  # `/` of decimals rounds, unless nothing is left over
    return made(f"CAST({sql} AS {INTEGER})", kind, value)


def compare(sign: str, one: Expression, other: Expression) -> Expression:
    """A comparison of two values of one sort."""
    left, right = _comparable(sign, as_integer(one), as_integer(other))
    return made_flag(f"({left} {sign} {right})", one, other)


def _comparable(sign: str, one: Expression, other: Expression) -> tuple[str, str]:
    families = (one.kind.family, other.kind.family)
    if families in (("int", "int"), ("text", "text"), ("instant", "instant")):
        return one.sql, other.sql
    if families == ("date", "date") and one.kind.name == other.kind.name:
        return one.sql, other.sql
    if families == ("decimal", "decimal") and one.kind.scale == other.kind.scale:
        return one.sql, other.sql
    if families == ("int", "decimal"):
        return _comparable(sign, other, one)[::-1]
    if families == ("decimal", "int") and isinstance(other.literal, int):
        if len(str(abs(other.literal))) + one.kind.scale > one.kind.precision:
            raise Untranslatable("a comparison of a decimal with a number of more digits")
        return one.sql, f"CAST({other.literal} AS {one.kind.sql})"
    if families == ("date", "text") and isinstance(other.literal, str):
        return one.sql, _day_literal(other.literal)
    if families == ("text", "date") and isinstance(one.literal, str):
        return _day_literal(one.literal), other.sql
    is_enum = one.kind.name.startswith("Enum") and isinstance(other.literal, str)
    if families == ("label", "text") and is_enum and sign in ("=", "<>"):
        return one.sql, other.sql
    raise Untranslatable(f"a comparison of a {families[0]} with a {families[1]}")


def _day_literal(text: str) -> str:
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        raise Untranslatable("a comparison of a date with a text") from None
    return f"DATE'{day:%Y-%m-%d}'"


def unify(values: Sequence[Expression]) -> list[Expression]:
    """Branches of a choice in their common type."""
    nullable = any(value.kind.nullable for value in values)
    kinds = {replace(value.kind, nullable=False) for value in values}
    if len(kinds) == 1:
        return [replace(value, kind=replace(value.kind, nullable=nullable), bare="") for value in values]
    values = [as_integer(value) for value in values]
    families = {value.kind.family for value in values}
    if families == {"int"}:
        kind = _common_integer([value.kind for value in values])
        return [replace(value, kind=replace(kind, nullable=nullable), bare="") for value in values]
    if families <= {"int", "decimal"}:
        return _unify_decimals(values, nullable)
    raise Untranslatable(f"a choice between a {' and a '.join(sorted(families))}")


def _common_integer(kinds: Sequence[Kind]) -> Kind:
    signed = any(kind.signed for kind in kinds)
    bits = max(kind.bits * (2 if signed and not kind.signed else 1) for kind in kinds)
    if bits > 64:
        raise Untranslatable("a choice between UInt64 and signed integers")
    return integer(bits, signed=signed)


def _unify_decimals(values: Sequence[Expression], nullable: bool) -> list[Expression]:
    decimals = [value.kind for value in values if value.kind.family == "decimal"]
    numbers = [value for value in values if value.kind.family == "int"]
    if any(not isinstance(value.literal, int) for value in numbers) or len({kind.scale for kind in decimals}) > 1:
        raise Untranslatable("a choice between decimals of different scale, or with an integer column")
    kind = max(decimals, key=lambda one: one.precision)
    if any(len(str(abs(int(value.literal or 0)))) + kind.scale > kind.precision for value in numbers):
        raise Untranslatable("a choice between a decimal and a number of more digits")
    kind = replace(kind, nullable=nullable)
    return [replace(value, sql=f"CAST({value.sql} AS {kind.sql})", kind=kind, bare="") for value in values]


def to_integer(value: Expression, kind: Kind) -> Expression:
    """toInt… and toUInt… of a number."""
    value = as_integer(value)
    if value.kind.family != "int":
        raise Untranslatable(f"a conversion of a {value.kind.family} to an integer")
    return made(guarded(value.sql, kind, "a converted number"), kind, value)


def to_text(value: Expression) -> Expression:
    """toString of what is spelled the same on both engines."""
    if value.kind.family not in ("int", "text"):
        raise Untranslatable(f"toString() of a {value.kind.family}")
    return made(f"CAST({value.sql} AS STRING)", Kind(family="text"), value)


def require_text(name: str, value: Expression) -> Expression:
    """The value if it is a text; refuses the function `name` for any other."""
    if value.kind.family != "text":
        raise Untranslatable(f"{name}() of a {value.kind.family}")
    return value
