"""How one column of a target is compared: what brings its partial values to one, and what two such values mean.

The invariant: a measure never depends on how rows came in blocks or were merged. What does depend on that is compared only as far as it
does not (`single`), within a stated tolerance (`near`), or not at all, with the reason (`LeftOut`). Normal forms of whole
tables are in `normal_form`, the SQL of a comparison in `reconcile`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.names import quote_identifier
from chmv_assets.core.tokens import split_commas, tokenize

Mode = Literal[
    "exact",
    "near",  # equal within a relative tolerance
    "single",  # an array of at most two of the values: compared where either side has one only
    "latest",  # of the newest version: compared where both sides have the same version, and one row of it
    "sign",  # a sum of signs, which a Collapsing table cuts to -1 … 1
]
Direction = Literal[
    "up", "down", "none"
]  # what a target that lacks rows shows: a smaller value, a larger one, any other

FLOAT_TOLERANCE = 1e-9  # sums of floats depend on the order of their rows
MOMENT_TOLERANCE = 1e-6  # variances and their like
SKETCH_TOLERANCE = 0.02  # bins of quantileTiming are 16 ms wide from 1024 ms on


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One compared value per key."""

    label: str
    sql: str  # an aggregate over the columns of a side
    mode: Mode = "exact"
    direction: Direction = "none"
    tolerance: float = 0.0
    is_array: bool = False
    number: str = ""  # makes an exact number of a value, with `{}` for it; given where differences can be added up


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """A column that is not compared."""

    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class StateType:
    """`AggregateFunction(f(parameters), types…)`, read."""

    function: str
    parameters: str  # with parentheses, or ""
    arguments: tuple[str, ...]

    @property
    def has_floats(self) -> bool:
        return any("Float" in argument for argument in self.arguments)


_UP = ("count", "sum", "sumWithOverflow", "uniq", "uniqExact", "uniqCombined", "uniqCombined64", "uniqHLL12", "max", "groupBitOr")  # fmt: skip
_SUMS = ("count", "sum", "sumWithOverflow", "sumKahan")
_OTHER_EXACT = (
    "avg", "groupBitAnd", "groupBitXor", "groupBitmap", "sumMap", "minMap", "maxMap", "minMappedArrays", "maxMappedArrays",
    "sumMappedArrays", "sumCount", "quantileExact", "quantilesExact", "quantileExactLow", "quantilesExactLow",
    "quantileExactHigh", "quantilesExactHigh", "quantileExactWeighted", "quantilesExactWeighted", "quantileExactExclusive",
    "quantilesExactExclusive", "quantileExactInclusive", "quantilesExactInclusive", "quantileBFloat16", "quantilesBFloat16",
    "medianExact", "medianExactLow", "medianExactHigh", "medianExactWeighted", "medianBFloat16",
)  # fmt: skip
_MOMENTS = (
    "varPop", "varSamp", "stddevPop", "stddevSamp", "varPopStable", "varSampStable", "stddevPopStable", "stddevSampStable",
    "covarPop", "covarSamp", "corr", "skewPop", "skewSamp", "kurtPop", "kurtSamp", "avgWeighted", "entropy",
)  # fmt: skip
_SKETCHES = ("quantileTiming", "quantilesTiming", "medianTiming", "quantileTimingWeighted", "quantilesTimingWeighted")
_ARRAYS = ("groupArray", "groupUniqArray")  # their order depends on merges, their content does not
_ANY = ("any", "anyLast", "any_value", "first_value", "last_value", "any_respect_nulls", "anyLast_respect_nulls", "anyRespectNulls", "anyLastRespectNulls")  # fmt: skip
_KNOWN = frozenset((*_UP, *_OTHER_EXACT, *_MOMENTS, *_SKETCHES, *_ARRAYS, *_ANY, "min", "sumKahan"))
# Over the rows of one group these give the same whatever the order; anything else in a view is not repeatable.
_REPEATABLE = frozenset(name.lower() for name in (_KNOWN - {*_ANY, *_ARRAYS})) | {"median", "quantiledeterministic"}
_COMBINATOR = re.compile(r"(If|OrNull|OrDefault|Distinct|Array|State|SimpleState|MergeState|Merge)\Z")


def base_function(name: str) -> str:
    """The function below its combinators.

    >>> base_function("sumIf"), base_function("groupUniqArrayArray"), base_function("groupArray"), base_function("odd")
    ('sum', 'groupUniqArray', 'groupArray', 'odd')
    """
    while name not in _KNOWN and (match := _COMBINATOR.search(name)):
        name = name[: match.start()]
    return name


def is_repeatable(function: str, *, merges: bool) -> bool:
    """Whether a view's aggregate gives the same over the same rows, in whatever order they are read.

    A column that merges is judged by its type; there only the functions that pick any row are not repeatable.

    >>> is_repeatable("countIf", merges=False), is_repeatable("anyState", merges=True), is_repeatable("groupArray", merges=False)
    (True, False, False)
    """
    base = base_function(function)
    return base not in _ANY if merges else base.lower() in _REPEATABLE


def read_state_type(type_text: str) -> StateType | None:
    """Read the type of a column of states; None for any other.

    >>> read_state_type("AggregateFunction(quantilesTiming(0.5, 0.9), UInt32)")
    StateType(function='quantilesTiming', parameters='(0.5, 0.9)', arguments=('UInt32',))
    """
    return _read_type(type_text, "AggregateFunction(")


def read_simple_type(type_text: str) -> StateType | None:
    """Read the type of a column that merges by a function; None for any other."""
    return _read_type(type_text, "SimpleAggregateFunction(")


def _read_type(type_text: str, opening: str) -> StateType | None:
    if not type_text.startswith(opening) or not type_text.endswith(")"):
        return None
    body = type_text[len(opening) : -1]
    parts = [body[part[0].start : part[-1].end] for part in split_commas(tokenize(body)[0]) if part]
    if parts and parts[0].isdigit():  # the version of the state's format
        parts = parts[1:]
    if not parts:
        return None
    name, bracket, rest = parts[0].partition("(")
    return StateType(name.strip(), bracket + rest, tuple(parts[1:]))


def is_summable(type_text: str) -> bool:
    """Whether a SummingMergeTree adds up a column of this type.

    >>> is_summable("Nullable(Decimal(38, 2))"), is_summable("Bool"), is_summable("Date"), is_summable("String")
    (True, True, False, False)
    """
    return re.match(r"(U?Int\d+|Float\d+|BFloat16|Decimal\(|Bool\b)", _bare(type_text)) is not None


def _bare(type_text: str) -> str:
    """A type without what only says how it is stored.

    >>> _bare("LowCardinality(Nullable(UInt8))")
    'UInt8'
    """
    while match := re.match(r"(?:LowCardinality|Nullable)\((.*)\)\Z", type_text):
        type_text = match.group(1)
    return type_text


def number_form(type_text: str) -> str:
    """The expression that makes an exact, wide number of a value of this type; floats stay what they are."""
    bare = _bare(type_text)
    if match := re.match(r"Decimal\(\d+, (\d+)\)", bare):
        return f"toDecimal256(ifNull({{}}, 0), {match.group(1)})"
    return "toFloat64(ifNull({}, 0))" if "Float" in bare else "toInt256(ifNull({}, 0))"


def summed(column: str, type_text: str) -> Measure:
    """A column that the engine adds up, with the overflow that its type has."""
    return Measure(
        label=column,
        sql=f"sumWithOverflow({quote_identifier(column)})",
        mode="near" if "Float" in type_text else "exact",
        direction="up",
        tolerance=_float_tolerance(type_text),
        number=number_form(type_text),
    )


def _float_tolerance(type_text: str) -> float:
    if "Float" not in type_text:
        return 0.0
    return FLOAT_TOLERANCE if "Float64" in type_text else 1e-4


def kept(column: str) -> Measure:
    """A column of which merges keep any one value."""
    return Measure(label=column, sql=f"groupUniqArray(2)({quote_identifier(column)})", mode="single")


def measure_state(column: str, state: StateType) -> Measure | LeftOut:
    """A column of aggregate states, merged and finalised."""
    name = quote_identifier(column)
    if base_function(state.function) in _ANY:
        return Measure(label=column, sql=f"groupUniqArray(2)(finalizeAggregation({name}))", mode="single")
    return _measure(column, state, f"{state.function}Merge{state.parameters}({name})")


def measure_simple(column: str, simple: StateType) -> Measure | LeftOut:
    """A column that merges by a function."""
    if base_function(simple.function) in _ANY:
        return kept(column)
    return _measure(column, simple, f"{simple.function}{simple.parameters}({quote_identifier(column)})")


def _measure(column: str, state: StateType, sql: str) -> Measure | LeftOut:
    base = base_function(state.function)
    floats = state.has_floats
    if base in ("min", "max"):
        return Measure(
            label=column, sql=sql, mode="near" if floats else "exact", direction="up" if base == "max" else "down"
        )
    if base in _SUMS:
        tolerance = _float_tolerance(" ".join(state.arguments)) if floats and base != "count" else 0.0
        kind = next(iter(state.arguments), "UInt64") if base != "count" else "UInt64"
        return Measure(
            label=column, sql=sql, mode="near" if tolerance else "exact", direction="up", tolerance=tolerance,
            number=number_form(kind) if is_summable(kind) else "",
        )  # fmt: skip
    if base in _MOMENTS or (base == "avg" and floats):
        tolerance = FLOAT_TOLERANCE if base == "avg" else MOMENT_TOLERANCE
        return Measure(label=column, sql=sql, mode="near", tolerance=tolerance)
    if base in _SKETCHES:
        is_array = base.startswith("quantiles")
        return Measure(label=column, sql=sql, mode="near", tolerance=SKETCH_TOLERANCE, is_array=is_array)
    if base in _ARRAYS and not state.parameters:
        return Measure(label=column, sql=f"arraySort({sql})")
    if base in _UP:
        return Measure(label=column, sql=sql, direction="up")
    if base in _OTHER_EXACT and not floats:
        return Measure(label=column, sql=sql)
    why = "over floats may" if base in _OTHER_EXACT else "may"
    return LeftOut(
        column, f"{state.function}{state.parameters} {why} give another value when states merge in another order"
    )
