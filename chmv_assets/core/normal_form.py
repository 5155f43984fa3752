"""Normal forms: what the rows of a target say, whatever merges have done to them so far, by engine.

Both sides of a comparison are brought to the same form: a key and measures per key. The form depends on the table's definition only. What an
engine leaves open (which of two equal versions wins) is not compared, and named. How columns are measured is in `measures`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.cadence import split_tuple
from chmv_assets.core.measures import (
    LeftOut,
    Measure,
    is_summable,
    kept,
    measure_simple,
    measure_state,
    number_form,
    read_simple_type,
    read_state_type,
    summed,
)
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import quote_identifier, unquote_identifier
from chmv_assets.core.tokens import tokenize

HASH = "chmv row hash"  # of the values of a row, where the newest version is looked for
_NOT_GROUPABLE = re.compile(r"\b(JSON|Dynamic|Variant|Object|Map)\b")


class CannotCompare(Exception):
    """No normal form; the text says why, as a sentence without its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalForm:
    """How a relation with the target's columns is grouped."""

    keys: tuple[tuple[str, str], ...]  # label → expression; labels are unique
    measures: tuple[Measure, ...]
    left_out: tuple[LeftOut, ...] = ()
    having: str = ""
    tie: str = ""  # true where several rows are the newest: only key and version count then
    maybe: str = ""  # true where one of them is a deletion: not even the key counts
    row_hash: str = ""  # what `HASH` is, if it is needed
    notes: tuple[str, ...] = ()
    hidden_keys: tuple[str, ...] = ()  # labels of keys that are only there to keep partitions apart


def build_normal_form(target: Object, types: Mapping[str, str], left_out: Sequence[LeftOut]) -> NormalForm:
    """The form of a target whose stored columns have these types; columns that are left out are in no measure."""
    missing = {one.column: one.reason for one in left_out}
    free = {name: kind for name, kind in types.items() if name not in missing}
    kind = family(target.engine)
    if kind == "plain":
        return _plain(free, left_out)
    makers = {"summing": _summing, "aggregating": _aggregating, "replacing": _replacing, "collapsing": _collapsing,
              "versionedcollapsing": _collapsing}  # fmt: skip
    if kind not in makers:
        raise CannotCompare(
            f"it is {target.engine or target.kind}, whose merges leave nothing that could be compared exactly"
        )
    for name in columns_in(f"{target.order_by} {target.partition_by}"):
        if name in missing:
            raise CannotCompare(f"its key column {name} cannot be computed again: {missing[name]}")
    return makers[kind](target, free, left_out)


def engine_arguments(target: Object) -> tuple[str, ...]:
    """The arguments of an engine without the path and the name of a replica.

    A Summing table may have its columns in brackets: they are given one by one.
    """
    text = target.engine_args.strip()
    parts = split_tuple(f"({text})") if text else ()
    if len(parts) == 1 and parts[0].startswith("("):
        parts = split_tuple(parts[0])
    return tuple(unquote_identifier(part) for part in parts if not part.startswith("'"))


def columns_in(expression: str) -> set[str]:
    """Every word of an expression that may be a column."""
    tokens, _ = tokenize(expression)
    return {unquote_identifier(token.text) for token in tokens if token.kind in ("word", "quoted")}


def _keys(target: Object) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The sorting key and the partition key, of which rows merge only where both are equal."""
    sorting = [re.sub(r"\s+(ASC|DESC)\Z", "", part, flags=re.IGNORECASE) for part in split_tuple(target.order_by)]
    keys = [(unquote_identifier(part), part) for part in sorting]
    extra = [(f"partition {part}", part) for part in split_tuple(target.partition_by) if part not in sorting]
    found = tuple(dict([*keys, *extra]).items()) or (("all rows", "0"),)
    return found, tuple(label for label, _ in extra) or (() if keys else ("all rows",))


def _plain(types: Mapping[str, str], left_out: Sequence[LeftOut]) -> NormalForm:
    """A multiset of rows."""
    if not types:
        raise CannotCompare("none of its columns can be computed again")
    keys = tuple((name, _groupable(name, kind)) for name, kind in types.items())
    rows = Measure(label="rows", sql="count()", direction="up", number=number_form("UInt64"))
    return NormalForm(keys=keys, measures=(rows,), left_out=tuple(left_out))


def _groupable(name: str, kind: str) -> str:
    column = quote_identifier(name)
    if kind.startswith("AggregateFunction("):
        return f"toString(finalizeAggregation({column}))"
    return f"toString({column})" if _NOT_GROUPABLE.search(kind) else column


def _comparable(value: str, kind: str) -> str:
    """Two floats that are no number are not equal; their texts are."""
    return f"toString({value})" if "Float" in kind else value


def _summing(target: Object, types: Mapping[str, str], left_out: Sequence[LeftOut]) -> NormalForm:
    form = _merging(target, types, left_out, engine_arguments(target))
    decided = [measure for measure in form.measures if measure.mode != "single"]
    if not decided or any(types[measure.label].startswith("AggregateFunction(") for measure in decided):
        return form
    note = "keys whose sums are all zero count as absent, since merges remove them"
    return replace(form, having=" OR ".join(map(_is_something, decided)), notes=(note,))


def _is_something(measure: Measure) -> str:
    zero = "0" if measure.number else f"defaultValueOfArgumentType({measure.sql})"
    return f"ifNull({measure.sql}, {zero}) != {zero}"


def _aggregating(target: Object, types: Mapping[str, str], left_out: Sequence[LeftOut]) -> NormalForm:
    return _merging(target, types, left_out, None)


def _merging(
    target: Object, types: Mapping[str, str], left_out: Sequence[LeftOut], added: Sequence[str] | None
) -> NormalForm:
    """Rows of a key become one; `added` are the columns that are summed: all that can be if it is empty, none if None."""
    in_keys = columns_in(f"{target.order_by} {target.partition_by}")
    plain_keys = {unquote_identifier(part) for part in split_tuple(target.order_by)}
    keys, hidden = _keys(target)
    measures: list[Measure] = []
    missing = list(left_out)
    for name, kind in types.items():
        if name in plain_keys:
            continue
        sums = added is not None and is_summable(kind) and name not in in_keys and (not added or name in added)
        found = _measured(name, kind, sums, nested_sums=added is not None)
        measures += [found] if isinstance(found, Measure) else []
        missing += [found] if isinstance(found, LeftOut) else []
    return NormalForm(keys=keys, measures=tuple(measures), left_out=tuple(missing), hidden_keys=hidden)


def _measured(name: str, kind: str, sums: bool, *, nested_sums: bool) -> Measure | LeftOut:
    if (state := read_state_type(kind)) is not None:
        return measure_state(name, state)
    if (simple := read_simple_type(kind)) is not None:
        return measure_simple(name, simple)
    if sums:
        return summed(name, kind)
    if nested_sums and re.match(r".*Map\.", name):
        return LeftOut(name, "merges add it up as a map, together with its siblings")
    return kept(name)


def _replacing(target: Object, types: Mapping[str, str], left_out: Sequence[LeftOut]) -> NormalForm:
    """The newest row of each key."""
    arguments = engine_arguments(target)
    version = quote_identifier(arguments[0]) if arguments else "0"
    deleted = quote_identifier(arguments[1]) if len(arguments) > 1 else ""
    for name in arguments[:2]:
        if name not in types:
            raise CannotCompare(f"its version or deletion column {name} cannot be computed again")
    keys, hidden = _keys(target)
    plain_keys = {unquote_identifier(part) for part in split_tuple(target.order_by)}
    values = [name for name in types if name not in plain_keys and name not in arguments[:1]]
    row_hash = quote_identifier(HASH)
    newest = f"({version}, {row_hash})"
    tie = f"argMax({row_hash}, {newest}) != argMax({row_hash}, ({version}, bitNot({row_hash})))"
    measures = [Measure(label=arguments[0], sql=f"max({version})", direction="up")] if arguments else []
    measures += [
        Measure(
            label=name,
            sql=_comparable(f"argMax(tuple({_groupable(name, types[name])}), {newest}).1", types[name]),
            mode="latest",
        )
        for name in values
    ]
    notes = "of several rows with the newest version any may win: there only key and version are compared"
    if not arguments:
        notes = (
            "the engine has no version, so the last insert wins: values are compared only where all rows of a key agree"
        )
    return NormalForm(
        keys=keys, measures=tuple(measures), left_out=tuple(left_out), tie=tie if values else "", hidden_keys=hidden,
        having=f"NOT argMax({deleted}, ({version}, bitNot(toUInt8({deleted}))))" if deleted else "",
        maybe=f"argMax({deleted}, ({version}, {deleted}))" if deleted else "",
        row_hash=f"sipHash64({', '.join(_groupable(name, types[name]) for name in values) or '0'})", notes=(notes,),
    )  # fmt: skip


def _collapsing(target: Object, types: Mapping[str, str], left_out: Sequence[LeftOut]) -> NormalForm:
    """The sum of signs per key, and per version where there is one."""
    arguments = engine_arguments(target)
    if not arguments or any(name not in types for name in arguments):
        raise CannotCompare("its sign or version column cannot be computed again")
    keys, hidden = _keys(target)
    versions = [name for name in arguments[1:] if name not in dict(keys)]
    keys = (*keys, *((name, quote_identifier(name)) for name in versions))
    total = f"sum({quote_identifier(arguments[0])})"
    sign = Measure(
        label=arguments[0],
        sql=total,
        mode="exact" if arguments[1:] else "sign",
        direction="up",
        number=number_form("Int64"),
    )
    why = "which of the rows of a key is left depends on how they came in; only the sums of signs are compared"
    others = [LeftOut(name, why) for name in types if name not in dict(keys) and name not in arguments]
    return NormalForm(
        keys=keys, measures=(sign,), left_out=(*left_out, *others), having=f"{total} != 0", hidden_keys=hidden
    )
