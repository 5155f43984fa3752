"""A ClickHouse expression → Spark SQL that means the same, or the reason why there is none. Pure; no session, no server.

An allow-list: only what was tried on both engines, edge values included (tests/spark/test_second_opinion.py), is translated; all else is
`Untranslatable`, by name. Invariant: a translated expression gives the server's value, or Spark fails with our sentence: where ClickHouse would
wrap or clip, a guard raises. Left out on purpose: lower and upper (bytes here, letters there), `/` and floats, LIKE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlglot import exp

from spark_jobs.kinds import INTEGER, Kind, decimal_class, integer

_MAX_CHARS = 100_000
_FIRST, _LAST = "TIMESTAMP'1970-01-12 00:00:00Z'", "TIMESTAMP'2105-12-30 00:00:00Z'"  # dates of ClickHouse end at both
_FIRST_DAY, _LAST_DAY = "DATE'1970-01-12'", "DATE'2105-12-30'"
_COMPARISONS: Mapping[type[exp.Expr], str] = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}  # fmt: skip
_ARITHMETIC: Mapping[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
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
_CONVERSIONS = {f"to{'' if signed else 'U'}Int{bits}": integer(bits, signed=signed) for bits in (8, 16, 32, 64) for signed in (True, False)}  # fmt: skip


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


@dataclass
class Translator:
    """Translates the expressions of one SELECT. `columns` are those of its table: name → Spark SQL and kind."""

    columns: Mapping[str, tuple[str, Kind]]
    aliases: Mapping[str, exp.Expr]
    tables: Sequence[str]  # what its table may be called in front of a column
    _open: list[str] = field(default_factory=list)

    def translate(self, node: exp.Expr, own_alias: str = "") -> Expression:
        """Translate; `own_alias` is the name that the SELECT gives to this very expression."""
        self._open.append(own_alias)
        try:
            made = self._node(node)
        finally:
            self._open.pop()
        if len(made.sql) > _MAX_CHARS:
            raise Untranslatable("an expression that is too long")
        return made

    def _node(self, node: exp.Expr) -> Expression:
        kind = type(node)
        if kind in _COMPARISONS:
            return compare(_COMPARISONS[kind], self._node(node.this), self._node(node.expression))
        if kind in _ARITHMETIC:
            return calculate(_ARITHMETIC[kind], self._node(node.this), self._node(node.expression))
        handlers: Mapping[type[exp.Expr], Callable[[exp.Expr], Expression]] = {
            exp.Column: self._column, exp.Literal: _literal, exp.Boolean: _boolean, exp.Neg: self._negative, exp.Paren: lambda n: self._node(n.this),
            exp.And: self._both, exp.Or: self._both, exp.Not: self._not, exp.In: self._in, exp.Between: self._between, exp.Is: self._is,
            exp.If: self._if, exp.Case: self._case, exp.Coalesce: self._coalesce, exp.Mod: self._modulo, exp.Concat: self._concat,
            exp.DPipe: self._concat, exp.Length: self._length, exp.StartsWith: self._starts, exp.TimestampTrunc: self._truncated,
            exp.Anonymous: self._call,
        }  # fmt: skip
        if kind not in handlers:
            raise Untranslatable(_named(node))
        return handlers[kind](node)

    def _column(self, node: exp.Expr) -> Expression:
        name, table = node.name, node.text("table")
        if node.args.get("catalog") or (table and table not in self.tables):
            raise Untranslatable(f"the name {node.sql(dialect='clickhouse')}")
        alias = None if table else self.aliases.get(name)
        if alias is not None and name in self._open[:-1]:
            raise Untranslatable(f"the alias {name}, which is made of itself")
        if alias is not None and name != self._open[-1]:
            if name in self.columns and not _is_plain(alias, name):
                raise Untranslatable(f"the name {name}, which is a column and an alias")
            return self.translate(alias, name)
        if name not in self.columns:
            raise Untranslatable(f"the column {name}")
        sql, kind = self.columns[name]
        span = 0 if kind.family in ("date", "instant") else None
        return Expression(sql=sql, kind=kind, columns=frozenset((name,)), bare=name, span_days=span)

    def _negative(self, node: exp.Expr) -> Expression:
        inner = self._node(node.this)
        if not isinstance(inner.literal, int):
            raise Untranslatable("a minus in front of an expression")
        return number(-inner.literal)

    def _both(self, node: exp.Expr) -> Expression:
        one, other = as_flag(self._node(node.this)), as_flag(self._node(node.args["expression"]))
        word = "AND" if isinstance(node, exp.And) else "OR"
        return _flag(f"({one.sql} {word} {other.sql})", one, other)

    def _not(self, node: exp.Expr) -> Expression:
        inner = as_flag(self._node(node.this))
        return _flag(f"(NOT {inner.sql})", inner)

    def _in(self, node: exp.Expr) -> Expression:
        left = self._node(node.this)
        values = node.expressions
        if (
            left.kind.nullable
            or not values
            or any(node.args.get(key) for key in ("query", "unnest", "field", "is_global"))
        ):
            raise Untranslatable("IN of a Nullable column or of anything but a list")
        tests = [compare("=", left, self._node(value)) for value in values]
        if any(self._node(value).literal is None for value in values):
            raise Untranslatable("IN of anything but literals")
        return _flag("(" + " OR ".join(test.sql for test in tests) + ")", left)

    def _between(self, node: exp.Expr) -> Expression:
        if node.args.get("symmetric"):
            raise Untranslatable("BETWEEN SYMMETRIC")
        value, low, high = (self._node(node.args[key]) for key in ("this", "low", "high"))
        one, other = compare(">=", value, low), compare("<=", value, high)
        return _flag(f"({one.sql} AND {other.sql})", one, other)

    def _is(self, node: exp.Expr) -> Expression:
        if not isinstance(node.expression, exp.Null):
            raise Untranslatable(f"IS {node.expression.sql(dialect='clickhouse')}")
        return self._null_test(node.this, "IS NULL")

    def _null_test(self, node: exp.Expr, words: str) -> Expression:
        inner = self._node(node)
        return replace(_flag(f"({inner.sql} {words})", inner), kind=Kind(family="flag"))

    def _if(self, node: exp.Expr) -> Expression:
        if node.args.get("false") is None:
            raise Untranslatable("IF without an else")
        return self._choose([(node.this, node.args["true"])], node.args["false"])

    def _case(self, node: exp.Expr) -> Expression:
        if node.this is not None or node.args.get("default") is None:
            raise Untranslatable("CASE with a value, or without ELSE")
        return self._choose([(one.this, one.args["true"]) for one in node.args["ifs"]], node.args["default"])

    def _choose(self, branches: Sequence[tuple[exp.Expr, exp.Expr]], default: exp.Expr) -> Expression:
        tests = [as_flag(self._node(test)) for test, _ in branches]
        values = unify([*(self._node(value) for _, value in branches), self._node(default)])
        arms = " ".join(f"WHEN {test.sql} THEN {value.sql}" for test, value in zip(tests, values, strict=False))
        columns = frozenset().union(*(one.columns for one in (*tests, *values)))
        return Expression(sql=f"(CASE {arms} ELSE {values[-1].sql} END)", kind=values[0].kind, columns=columns)

    def _coalesce(self, node: exp.Expr) -> Expression:
        given = [self._node(one) for one in (node.this, *node.expressions)]
        nullable = all(one.kind.nullable for one in given)
        values = unify(given)
        columns = frozenset().union(*(one.columns for one in values))
        sql = f"coalesce({', '.join(one.sql for one in values)})"
        return Expression(sql=sql, kind=replace(values[0].kind, nullable=nullable), columns=columns)

    def _modulo(self, node: exp.Expr) -> Expression:
        return _by_number("%", self._node(node.this), self._node(node.expression))

    def _concat(self, node: exp.Expr) -> Expression:
        parts = [self._node(one) for one in (node.expressions or (node.this, node.expression))]
        if any(part.kind.family != "text" for part in parts):
            raise Untranslatable("concat of anything but texts")
        return _made(f"concat({', '.join(part.sql for part in parts)})", Kind(family="text"), *parts)

    def _length(self, node: exp.Expr) -> Expression:
        inner = _texts("length", self._node(node.this))
        return _made(f"CAST(octet_length({inner.sql}) AS {INTEGER})", integer(64, signed=False), inner)

    def _starts(self, node: exp.Expr) -> Expression:
        one, other = _texts("startsWith", self._node(node.this)), _texts("startsWith", self._node(node.expression))
        return _flag(f"startswith({one.sql}, {other.sql})", one, other)

    # --- time ------------------------------------------------------------------------------------------------------

    def _truncated(self, node: exp.Expr) -> Expression:
        value, unit = self._node(node.this), node.text("unit").upper()
        zone = _zone(value, node.args.get("zone"))
        if unit in _SUBDAY:
            return _to_minutes(value, _SUBDAY[unit], zone)
        if unit in _CALENDAR:
            sql = f"CAST(trunc({_local_day(value, zone)}, '{unit}') AS DATE)"
            return replace(
                _made(sql, Kind(family="date", name="Date"), value), span_days=_wider(value, _CALENDAR[unit])
            )
        if unit == "DAY" and value.kind.family == "instant" and zone == "UTC":
            return _to_minutes(value, 24 * 60, zone)
        raise Untranslatable(f"toStartOf{unit.capitalize()} of a {value.kind.family} in {zone or 'no zone'}")

    def _call(self, node: exp.Expr) -> Expression:
        name, args = str(node.this), node.expressions
        if name in ("isNull", "isNotNull") and len(args) == 1:
            return self._null_test(args[0], "IS NULL" if name == "isNull" else "IS NOT NULL")
        if name == "multiIf" and len(args) >= 3 and len(args) % 2:
            return self._choose(list(zip(args[0:-1:2], args[1:-1:2], strict=True)), args[-1])
        if name in ("empty", "notEmpty") and len(args) == 1:
            inner = _texts(name, self._node(args[0]))
            return _flag(f"({inner.sql} {'=' if name == 'empty' else '<>'} '')", inner)
        if name in ("intDiv", "modulo") and len(args) == 2:
            return _by_number("div" if name == "intDiv" else "%", self._node(args[0]), self._node(args[1]))
        if name in _CONVERSIONS and len(args) == 1:
            return _to_integer(self._node(args[0]), _CONVERSIONS[name])
        if name == "toString" and len(args) == 1:
            return _to_text(self._node(args[0]))
        if name == "toUnixTimestamp" and len(args) == 1:
            value = _instant(name, self._node(args[0]))
            return _made(f"CAST(unix_seconds({_in_range(value)}) AS {INTEGER})", integer(32, signed=False), value)
        if len(args) not in (1, 2):
            raise Untranslatable(f"{name}()")
        return self._time_call(name, args)

    def _time_call(self, name: str, args: Sequence[exp.Expr]) -> Expression:
        if name not in ("toDate", *_MINUTES, *_FIELDS):
            raise Untranslatable(f"{name}()")
        value = self._node(args[0])
        zone = _zone(value, args[1] if len(args) == 2 else None)
        if name == "toDate":
            if value.kind.family == "date" and value.kind.name == "Date":
                return replace(value, bare="")
            return replace(
                _made(_local_day(value, zone), Kind(family="date", name="Date"), value), span_days=_wider(value, 1)
            )
        if name in _MINUTES:
            return _to_minutes(value, _MINUTES[name], zone)
        template, bits = _FIELDS[name]
        if name in _CLOCK:
            moment = f"from_utc_timestamp({_in_range(_instant(name, value))}, '{zone}')"
        else:
            moment = _local_day(value, zone)
        return _made(f"CAST({template.replace('{}', moment)} AS {INTEGER})", integer(bits, signed=False), value)


# --- values --------------------------------------------------------------------------------------------------------


def number(value: int) -> Expression:
    """A literal in the smallest type that holds it, as ClickHouse reads it."""
    for bits in (8, 16, 32, 64):
        kind = integer(bits, signed=value < 0)
        if kind.bounds[0] <= value <= kind.bounds[1]:
            return Expression(sql=f"CAST({value} AS {INTEGER})", kind=kind, literal=value)
    raise Untranslatable(f"the number {value}")


def _literal(node: exp.Expr) -> Expression:
    text = str(node.this)
    if node.args.get("is_string"):
        return Expression(sql=quote(text), kind=Kind(family="text"), literal=text)
    if not text.isdigit():
        raise Untranslatable(f"the number {text}, a float")
    return number(int(text))


def _boolean(node: exp.Expr) -> Expression:
    return Expression(sql="TRUE" if node.this else "FALSE", kind=Kind(family="bool"))


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
    return _flag(f"({value.sql} <> 0)", value)


def as_integer(value: Expression) -> Expression:
    """A flag as the number that ClickHouse holds for it."""
    if value.kind.family not in ("flag", "bool"):
        return value
    kind = integer(8, signed=False, nullable=value.kind.nullable)
    return replace(value, sql=f"CAST(CAST({value.sql} AS INT) AS {INTEGER})", kind=kind, bare="")


def _flag(sql: str, *parts: Expression) -> Expression:
    return _made(sql, Kind(family="flag"), *parts)


def _made(sql: str, kind: Kind, *parts: Expression) -> Expression:
    nullable = any(part.kind.nullable for part in parts)
    columns = frozenset().union(*(part.columns for part in parts))
    return Expression(sql=sql, kind=replace(kind, nullable=nullable), columns=columns)


def guarded(sql: str, kind: Kind, what: str) -> str:
    """An integer that has to fit into its type; beyond it ClickHouse wraps, and Spark fails with a sentence."""
    low, high = kind.bounds
    sentence = quote(f"chmv: {what} does not fit into its type")
    # LEAST and GREATEST would hide it; a NULL stays one.
    return f"CAST(CASE WHEN ({sql}) < {low} OR ({sql}) > {high} THEN raise_error({sentence}) ELSE ({sql}) END AS {INTEGER})"


def calculate(sign: str, one: Expression, other: Expression) -> Expression:
    """`+`, `-` and `*` of integers and decimals."""
    one, other = as_integer(one), as_integer(other)
    families = {one.kind.family, other.kind.family}
    if families == {"int"}:
        bits = min(64, 2 * max(one.kind.bits, other.kind.bits))
        kind = integer(bits, signed=one.kind.signed or other.kind.signed or sign == "-")
        made = _made("", kind, one, other)
        return replace(made, sql=guarded(f"{one.sql} {sign} {other.sql}", made.kind, f"a result of {sign}"))
    if not families <= {"int", "decimal"}:
        raise Untranslatable(f"{sign} of a {one.kind.family} and a {other.kind.family}")
    scales = one.kind.scale, other.kind.scale
    scale = sum(scales) if sign == "*" else max(scales)
    digits = max(decimal_class(k.precision) if k.family == "decimal" else 0 for k in (one.kind, other.kind))
    if scale > digits:
        raise Untranslatable(f"{sign} of decimals with {scale} fractional digits")
    kind = Kind(family="decimal", precision=digits, scale=scale)
    return _made(f"CAST(({one.sql} {sign} {other.sql}) AS {kind.sql})", kind, one, other)


def _by_number(sign: str, value: Expression, divisor: Expression) -> Expression:
    by = divisor.literal
    if value.kind.family != "int" or not isinstance(by, int) or by <= 0 or value.kind.signed:
        raise Untranslatable("a division of anything but an unsigned integer by a positive number")
    kind = replace(value.kind if sign == "div" else divisor.kind, nullable=False)
    rest = f"({value.sql} % {by})"
    sql = (
        f"(({value.sql} - {rest}) / {by})" if sign == "div" else rest
    )  # `/` of decimals rounds, unless nothing is left over
    return _made(f"CAST({sql} AS {INTEGER})", kind, value)


def compare(sign: str, one: Expression, other: Expression) -> Expression:
    """A comparison of two values of one sort."""
    left, right = _comparable(sign, as_integer(one), as_integer(other))
    return _flag(f"({left} {sign} {right})", one, other)


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


def _to_integer(value: Expression, kind: Kind) -> Expression:
    value = as_integer(value)
    if value.kind.family != "int":
        raise Untranslatable(f"a conversion of a {value.kind.family} to an integer")
    return _made(guarded(value.sql, kind, "a converted number"), kind, value)


def _to_text(value: Expression) -> Expression:
    if value.kind.family not in ("int", "text"):
        raise Untranslatable(f"toString() of a {value.kind.family}")
    return _made(f"CAST({value.sql} AS STRING)", Kind(family="text"), value)


def _texts(name: str, value: Expression) -> Expression:
    if value.kind.family != "text":
        raise Untranslatable(f"{name}() of a {value.kind.family}")
    return value


# --- moments -------------------------------------------------------------------------------------------------------


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
    made = _made(sql, Kind(family="instant", name="DateTime", zone=zone), value)
    return replace(made, span_days=_wider(value, 1))


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


def _is_plain(node: exp.Expr, name: str) -> bool:
    return isinstance(node, exp.Column) and node.name == name


def _named(node: exp.Expr) -> str:
    """What to call something that is not translated."""
    text = node.sql(dialect="clickhouse")
    return text if len(text) <= 80 else f"{text[:77]}…"
