"""The two statements of a comparison, and how their answers are read.

Both sides are grouped by key, tagged, united and grouped again: memory stays bounded, since a GROUP BY can spill to disk. The first statement
gives numbers only; the second some of the keys that differ, with both values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chmv_assets.core.measures import Measure
from chmv_assets.core.names import quote_identifier
from chmv_assets.core.normal_form import HASH, NormalForm
from chmv_assets.core.reconcile import Comparison

SAMPLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SumDifference:
    """By how much the sums of one column differ, over all keys that do."""

    column: str
    lacking: object  # int, Decimal or float
    too_much: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the first statement says, in keys."""

    keys: int
    equal: int
    missing: int  # only expected
    smaller: int
    extra: int  # only in the target
    larger: int
    changed: int  # on both sides, neither more nor less
    undecided: int  # of which some values could not be compared
    sums: tuple[SumDifference, ...] = ()

    @property
    def deficit(self) -> int:
        """Keys of which the target lacks something."""
        return self.missing + self.smaller

    @property
    def excess(self) -> int:
        """Keys of which the target has too much."""
        return self.extra + self.larger

    @property
    def is_equal(self) -> bool:
        return self.equal == self.keys


@dataclass(frozen=True, slots=True)
class Sample:
    """One key that differs; a side that does not have it is empty."""

    kind: str
    key: tuple[tuple[str, str], ...]
    expected: tuple[tuple[str, str], ...]
    actual: tuple[tuple[str, str], ...]


_FLAGS = ("missing", "smaller", "extra", "larger", "changed", "undecided")
_KIND = (
    "multiIf(missing, 'missing', extra, 'extra', smaller AND larger, 'smaller and larger', smaller, 'smaller', "
    "larger, 'larger', 'changed')"
)


def render_counts(comparison: Comparison) -> str:
    """One row of numbers, read by `decode_counts`."""
    numbers = ["count()", "countIf(NOT differs)", *(f"countIf({flag})" for flag in _FLAGS)]
    for at, measure in _numbered(comparison.form):
        expected, actual, zero = (measure.number.replace("{}", value) for value in (f"e{at}", f"a{at}", "0"))
        numbers += [
            f"sumIf(greatest({one} - {other}, {zero}), differs)"
            for one, other in ((expected, actual), (actual, expected))
        ]
    return f"SELECT {', '.join(numbers)} FROM ({_judged(comparison)})"


def decode_counts(comparison: Comparison, row: Sequence[object]) -> Counts:
    """Read the answer to `render_counts`."""
    keys, equal, missing, smaller, extra, larger, changed, undecided = (int(str(value)) for value in row[:8])
    pairs = zip(row[8::2], row[9::2], strict=True)
    sums = tuple(
        SumDifference(column=measure.label, lacking=lacking, too_much=too_much)
        for (_, measure), (lacking, too_much) in zip(_numbered(comparison.form), pairs, strict=True)
        if lacking or too_much
    )
    return Counts(
        keys=keys, equal=equal, missing=missing, smaller=smaller, extra=extra, larger=larger, changed=changed,
        undecided=undecided, sums=sums,
    )  # fmt: skip


def render_samples(comparison: Comparison, limit: int = SAMPLES) -> str:
    """Keys that differ, with both values as text, read by `decode_sample`."""
    form = comparison.form
    keys = _texts(f"k{at}" for at, label in enumerate(label for label, _ in form.keys) if label not in form.hidden_keys)
    values = [_texts(f"{side}{at}" for at in range(len(form.measures))) for side in "ea"]
    sides = ", ".join(f"if(has_{side}, {value}, [])" for side, value in zip("ea", values, strict=True))
    order = ", ".join(f"k{at}" for at in range(len(form.keys)))
    return f"SELECT {_KIND}, {keys}, {sides} FROM ({_judged(comparison)}) WHERE differs ORDER BY {order} LIMIT {limit}"


def decode_sample(comparison: Comparison, row: Sequence[object]) -> Sample:
    """Read one row of the answer to `render_samples`."""
    kind, keys, expected, actual = row
    form = comparison.form
    labels = [label for label, _ in form.keys if label not in form.hidden_keys]
    measures = [measure.label for measure in form.measures]
    assert isinstance(keys, Sequence) and isinstance(expected, Sequence) and isinstance(actual, Sequence)
    return Sample(
        str(kind),
        tuple(zip(labels, map(str, keys), strict=True)),
        tuple(zip(measures, map(str, expected), strict=False)),
        tuple(zip(measures, map(str, actual), strict=False)),
    )


def _texts(columns: Iterator[str]) -> str:
    inside = ", ".join(f"ifNull(toString({column}), 'NULL')" for column in columns)
    return f"[{inside}]" if inside else "emptyArrayString()"


def _numbered(form: NormalForm) -> list[tuple[int, Measure]]:
    return [(at, measure) for at, measure in enumerate(form.measures) if measure.number]


def _side(form: NormalForm, relation: str, number: int) -> str:
    """One side in normal form, tagged."""
    if form.row_hash:
        relation = f"SELECT *, {form.row_hash} AS {quote_identifier(HASH)} FROM ({relation})"
    keys = [f"{sql} AS k{at}" for at, (_, sql) in enumerate(form.keys)]
    values = [f"{measure.sql} AS v{at}" for at, measure in enumerate(form.measures)]
    flags = [f"{form.tie or '0'} AS tie", f"{form.maybe or '0'} AS maybe"]
    having = f" HAVING {form.having}" if form.having else ""
    group = ", ".join(f"k{at}" for at in range(len(keys)))
    return f"SELECT {number} AS side, {', '.join((*keys, *values, *flags))} FROM ({relation}) GROUP BY {group}{having}"


def _paired(comparison: Comparison) -> str:
    """Both sides in one row per key."""
    form = comparison.form
    keys = ", ".join(f"k{at}" for at in range(len(form.keys)))
    both = ", ".join(
        f"anyIf({column}, side = {number}) AS {name}"
        for number, side in enumerate("ea")
        for column, name in (*((f"v{at}", f"{side}{at}") for at in range(len(form.measures))), ("tie", f"{side}_tie"), ("maybe", f"{side}_maybe"))
    )  # fmt: skip
    sides = " UNION ALL ".join((_side(form, comparison.expected, 0), _side(form, comparison.actual, 1)))
    return f"SELECT {keys}, countIf(side = 0) > 0 AS has_e, countIf(side = 1) > 0 AS has_a, {both} FROM ({sides}) GROUP BY {keys}"


def _judged(comparison: Comparison) -> str:
    """A verdict per key."""
    form = comparison.form
    differing = [f"(has_e AND has_a AND {_differs(form, at)})" for at in range(len(form.measures))]
    lower, higher, other = [], [], []
    for at, (measure, differs) in enumerate(zip(form.measures, differing, strict=True)):
        less, more = (f"ifNull(a{at} {sign} e{at}, 0)" for sign in "<>")
        if measure.direction == "none":
            other.append(differs)
        else:
            lower.append(f"({differs} AND {less if measure.direction == 'up' else more})")
            higher.append(f"({differs} AND {more if measure.direction == 'up' else less})")
            other.append(f"({differs} AND NOT {less} AND NOT {more})")
    undecided = ["e_tie", "a_tie"] + [
        f"length({side}{at}) > 1" for at, one in enumerate(form.measures) if one.mode == "single" for side in "ea"
    ]
    flags = {
        "missing": "has_e AND NOT has_a AND NOT e_maybe",
        "extra": "has_a AND NOT has_e AND NOT a_maybe",
        "smaller": _any(lower),
        "larger": _any(higher),
        "changed": _any(other),
        "undecided": _any(undecided),
        "differs": _any(("missing", "extra", "smaller", "larger", "changed")),
    }
    return f"SELECT *, {', '.join(f'({sql}) AS {flag}' for flag, sql in flags.items())} FROM ({_paired(comparison)})"


def _any(conditions: Sequence[str]) -> str:
    return " OR ".join(conditions) or "0"


def _differs(form: NormalForm, at: int) -> str:
    """Whether two values of one measure are not the same, both sides being there."""
    measure, e, a = form.measures[at], f"e{at}", f"a{at}"
    unequal = f"ifNull({e} != {a}, isNull({e}) != isNull({a}))"
    if measure.mode == "near":
        if measure.is_array:
            away = f"arrayExists((x, y) -> {_away('x', 'y', measure.tolerance)}, {e}, arrayResize({a}, length({e})))"
            return f"(length({e}) != length({a}) OR {away})"
        return f"ifNull({_away(e, a, measure.tolerance)}, isNull({e}) != isNull({a}))"
    if measure.mode == "single":
        return f"(length({e}) < 2 AND length({a}) < 2 AND {e} != {a})"
    if measure.mode == "latest":
        same_version = " AND e0 = a0" if form.measures[0].mode == "exact" else ""
        return f"({unequal} AND NOT e_tie AND NOT a_tie{same_version})"
    if measure.mode == "sign":
        return f"({e} != {a} AND NOT (abs({e}) > 1 AND {a} = sign({e})))"
    return unequal


def _away(one: str, other: str, tolerance: float) -> str:
    near = f"abs({one} - {other}) <= {tolerance!r} * greatest(abs({one}), abs({other}))"
    return f"NOT ({one} = {other} OR (isNaN({one}) AND isNaN({other})) OR {near})"
