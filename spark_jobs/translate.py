"""A ClickHouse expression → Spark SQL that means the same, or the reason why there is none. Pure; no session, no server.

An allow-list: only what was tried on both engines, edge values included (tests/spark/test_translate_laws.py), is translated; all else is
`Untranslatable`, by name. Invariant: a translated expression gives the server's value, or Spark fails with our sentence: where ClickHouse would
wrap or clip, a guard raises. Left out on purpose: lower and upper (bytes here, letters there), `/` and floats, LIKE. What the functions mean is in
`arithmetic` and `moments`; here the tree is walked and names are resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from spark_jobs import moments
from spark_jobs.arithmetic import CONVERSIONS, calculate, compare, divide, require_text, to_integer, to_text, unify
from spark_jobs.expression import Expression, Untranslatable, as_flag, made, made_flag, number, quote
from spark_jobs.kinds import INTEGER, Kind, integer

_MAX_CHARS = 100_000
_COMPARISONS: Mapping[type[exp.Expr], str] = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}  # fmt: skip
_ARITHMETIC: Mapping[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}


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
            found = self._node(node)
        finally:
            self._open.pop()
        if len(found.sql) > _MAX_CHARS:
            raise Untranslatable("an expression that is too long")
        return found

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
        return made_flag(f"({one.sql} {word} {other.sql})", one, other)

    def _not(self, node: exp.Expr) -> Expression:
        inner = as_flag(self._node(node.this))
        return made_flag(f"(NOT {inner.sql})", inner)

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
        return made_flag("(" + " OR ".join(test.sql for test in tests) + ")", left)

    def _between(self, node: exp.Expr) -> Expression:
        if node.args.get("symmetric"):
            raise Untranslatable("BETWEEN SYMMETRIC")
        value, low, high = (self._node(node.args[key]) for key in ("this", "low", "high"))
        one, other = compare(">=", value, low), compare("<=", value, high)
        return made_flag(f"({one.sql} AND {other.sql})", one, other)

    def _is(self, node: exp.Expr) -> Expression:
        if not isinstance(node.expression, exp.Null):
            raise Untranslatable(f"IS {node.expression.sql(dialect='clickhouse')}")
        return self._null_test(node.this, "IS NULL")

    def _null_test(self, node: exp.Expr, words: str) -> Expression:
        inner = self._node(node)
        return replace(made_flag(f"({inner.sql} {words})", inner), kind=Kind(family="flag"))

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
        return divide("%", self._node(node.this), self._node(node.expression))

    def _concat(self, node: exp.Expr) -> Expression:
        parts = [self._node(one) for one in (node.expressions or (node.this, node.expression))]
        if any(part.kind.family != "text" for part in parts):
            raise Untranslatable("concat of anything but texts")
        return made(f"concat({', '.join(part.sql for part in parts)})", Kind(family="text"), *parts)

    def _length(self, node: exp.Expr) -> Expression:
        inner = require_text("length", self._node(node.this))
        return made(f"CAST(octet_length({inner.sql}) AS {INTEGER})", integer(64, signed=False), inner)

    def _starts(self, node: exp.Expr) -> Expression:
        one, other = (
            require_text("startsWith", self._node(node.this)),
            require_text("startsWith", self._node(node.expression)),
        )
        return made_flag(f"startswith({one.sql}, {other.sql})", one, other)

    def _truncated(self, node: exp.Expr) -> Expression:
        return moments.truncate(self._node(node.this), node.text("unit").upper(), node.args.get("zone"))

    def _call(self, node: exp.Expr) -> Expression:
        name, args = str(node.this), node.expressions
        if name in ("isNull", "isNotNull") and len(args) == 1:
            return self._null_test(args[0], "IS NULL" if name == "isNull" else "IS NOT NULL")
        if name == "multiIf" and len(args) >= 3 and len(args) % 2:
            return self._choose(list(zip(args[0:-1:2], args[1:-1:2], strict=True)), args[-1])
        if name in ("empty", "notEmpty") and len(args) == 1:
            inner = require_text(name, self._node(args[0]))
            return made_flag(f"({inner.sql} {'=' if name == 'empty' else '<>'} '')", inner)
        if name in ("intDiv", "modulo") and len(args) == 2:
            return divide("div" if name == "intDiv" else "%", self._node(args[0]), self._node(args[1]))
        if name in CONVERSIONS and len(args) == 1:
            return to_integer(self._node(args[0]), CONVERSIONS[name])
        if name == "toString" and len(args) == 1:
            return to_text(self._node(args[0]))
        if name == "toUnixTimestamp" and len(args) == 1:
            return moments.to_seconds(name, self._node(args[0]))
        if name in moments.TIME_FUNCTIONS and len(args) in (1, 2):
            return moments.call(name, self._node(args[0]), args[1] if len(args) == 2 else None)
        raise Untranslatable(f"{name}()")


def _literal(node: exp.Expr) -> Expression:
    text = str(node.this)
    if node.args.get("is_string"):
        return Expression(sql=quote(text), kind=Kind(family="text"), literal=text)
    if not text.isdigit():
        raise Untranslatable(f"the number {text}, a float")
    return number(int(text))


def _boolean(node: exp.Expr) -> Expression:
    return Expression(sql="TRUE" if node.this else "FALSE", kind=Kind(family="bool"))


def _is_plain(node: exp.Expr, name: str) -> bool:
    return isinstance(node, exp.Column) and node.name == name


def _named(node: exp.Expr) -> str:
    """What to call something that is not translated."""
    text = node.sql(dialect="clickhouse")
    return text if len(text) <= 80 else f"{text[:77]}…"
