"""Aggregate functions of ClickHouse in Spark SQL. Pure.

Invariant: as in `translate`, the server's value or a failure with our sentence; a state is the value that it would be finalized to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sqlglot import exp

from spark_jobs.expression import Expression, Untranslatable, as_flag, as_integer, guarded
from spark_jobs.kinds import INTEGER, Kind, integer
from spark_jobs.translate import Translator

AGGREGATE = re.compile(r"(count|sum|min|max)((?:If)?)((?:State|SimpleState)?)((?:If)?)\Z")  # function, -If, -State, -If


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A projection: over a row, over a group, or the key of one."""

    value: Expression
    is_state: bool = False
    function: str = ""  # of an aggregate
    argument: Expression | None = None


def aggregate(node: exp.Expr, alias: str, translator: Translator) -> Output:
    """Translate an aggregate function."""
    name, args = _function(node)
    match = AGGREGATE.match(name)
    if match is None or (match.group(2) and match.group(4)):
        raise Untranslatable(f"{name}()")
    function, has_condition = match.group(1), bool(match.group(2) or match.group(4))
    values = [translator.translate(one, alias) for one in args]
    condition = as_flag(values.pop()) if has_condition and values else None
    if len(values) > 1 or (function != "count" and not values) or (has_condition and condition is None):
        raise Untranslatable(f"{name}() of {len(args)} arguments")
    argument = values[0] if values else None
    made = _count(argument, condition) if function == "count" else _fold(function, values[0], condition)
    used = frozenset().union(*(one.columns for one in (argument, condition) if one is not None))
    seen = (
        replace(argument or made, columns=used)
        if condition is None
        else replace(argument or made, columns=used, bare="")
    )
    return Output(value=made, is_state=match.group(3) == "State", function=function, argument=seen)


def _function(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    known: dict[type[exp.Expr], str] = {
        exp.Count: "count",
        exp.Sum: "sum",
        exp.Min: "min",
        exp.Max: "max",
        exp.CountIf: "countIf",
    }
    if type(node) in known:
        args = [one for one in (node.args.get("this"),) if one is not None and not isinstance(one, exp.Star)]
        return known[type(node)], [*args, *node.expressions]
    if isinstance(node, exp.CombinedAggFunc):
        return str(node.this), list(node.expressions)
    return node.sql(dialect="clickhouse").split("(")[0], []


def _count(argument: Expression | None, condition: Expression | None) -> Expression:
    if argument is not None and condition is not None:
        raise Untranslatable("countIf() of two arguments")
    what = (
        f"CASE WHEN {condition.sql} THEN 1 END"
        if condition is not None
        else argument.sql
        if argument is not None
        else "1"
    )
    return Expression(sql=f"CAST(count({what}) AS {INTEGER})", kind=integer(64, signed=False))


def _fold(function: str, argument: Expression, condition: Expression | None) -> Expression:
    value = as_integer(argument) if argument.kind.family == "flag" or function == "sum" else argument
    family = value.kind.family
    if function != "sum":
        if condition is not None or family not in ("int", "bool", "decimal", "date", "instant", "text"):
            raise Untranslatable(f"{function}() with a condition, or of a {family}")
        return Expression(sql=f"{function}({value.sql})", kind=value.kind)
    if family not in ("int", "decimal") or (condition is not None and value.kind.nullable):
        raise Untranslatable(f"sum() of a {'Nullable with a condition' if family in ('int', 'decimal') else family}")
    what = value.sql if condition is None else f"CASE WHEN {condition.sql} THEN {value.sql} ELSE 0 END"
    if family == "decimal":
        kind = Kind(family="decimal", precision=38, scale=value.kind.scale, nullable=value.kind.nullable)
        return Expression(sql=f"CAST(sum(CAST({what} AS {kind.sql})) AS {kind.sql})", kind=kind)
    kind = integer(64, signed=value.kind.signed, nullable=value.kind.nullable)
    return Expression(sql=guarded(f"sum({what})", kind, "a sum"), kind=kind)
