"""What kind of function a view is, seen from its target: append, additive, replacing or opaque.

The class decides how late rows are treated, how a window is compared and which lints apply. When in doubt the answer is
`opaque`: then only a rebuild from the source is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from chmv_assets.core.model import Object, ViewClass, family

_LATEST = frozenset(["argmax", "argmin", "max", "min", "any", "anylast", "last_value", "first_value"])
_SUMMABLE = frozenset(["sum", "count", "sumif", "countif", "sumwithoverflow", "summap", "sumorull", "counter"])


_CONVERSION = re.compile(r"to(?:U?Int|Float|Decimal|Date|String|LowCardinality|Nullable)\w*\Z|assumeNotNull\Z")
_NO_CTES: Mapping[str, exp.Expr] = {}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a SELECT does, as far as classes are concerned."""

    group_keys: tuple[str, ...]
    aggregates: tuple[tuple[str, str], ...]  # output column → function name
    grouped: bool
    obstacles: tuple[str, ...]  # clauses that make the result depend on more than the row's own group


def aggregate_name(node: exp.Expr) -> str:
    """The function's name in the server's spelling."""
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc | exp.ParameterizedAgg):
        return str(node.this)
    return node.sql(dialect="clickhouse").split("(")[0]


def read_shape(tree: exp.Query, ctes: Mapping[str, exp.Expr] = _NO_CTES) -> Shape:
    """Read what matters for the class off the first SELECT of a tree, through plain subqueries and CTEs."""
    obstacles: list[str] = []
    if isinstance(tree, exp.SetOperation):
        obstacles.append("it is a UNION, of which only the first branch fires")
    select = tree
    while isinstance(select, exp.SetOperation | exp.Subquery):
        select = select.this
    if not isinstance(select, exp.Select):
        return Shape((), (), False, ("its shape is not known",))
    for key, words in (
        ("limit", "LIMIT"), ("offset", "OFFSET"), ("distinct", "DISTINCT"), ("qualify", "QUALIFY"), ("having", "HAVING"),
    ):  # fmt: skip
        if select.args.get(key):
            obstacles.append(f"it has {words}")
    if any(True for _ in select.find_all(exp.Window)):
        obstacles.append("it has a window function")
    group = select.args.get("group")
    aggregates = tuple(
        (projection.alias_or_name or aggregate_name(node), aggregate_name(node))
        for projection in select.expressions
        for node in _aggregates_of(projection)
    )
    if select.find(exp.TableSample) is not None:
        obstacles.append("it has SAMPLE")
    scope = {**ctes, **_ctes_of(tree)}
    inner = _query_below(select, scope)
    if inner is not None:
        below = read_shape(inner, {name: query for name, query in scope.items() if query is not inner})
        if below.grouped or below.obstacles:
            obstacles.append("it computes over a subquery that groups or limits")
    obstacles += [
        f"{projection.alias_or_name} is computed from aggregates, whose partial results cannot be put together"
        for projection in select.expressions
        if _aggregates_of(projection) and not isinstance(_unwrapped(projection), exp.AggFunc)
    ]
    if group is not None and any(group.args.get(key) for key in ("rollup", "cube", "totals", "grouping_sets")):
        obstacles.append("it has ROLLUP, CUBE or TOTALS")
    return Shape(_group_keys(select, group), aggregates, group is not None or bool(aggregates), tuple(obstacles))


def _ctes_of(tree: exp.Expr) -> dict[str, exp.Expr]:
    with_ = tree.args.get("with_")
    return {cte.alias: cte.this for cte in with_.expressions} if with_ is not None else {}


def _query_below(select: exp.Select, ctes: Mapping[str, exp.Expr]) -> exp.Query | None:
    """The query that a SELECT reads from, if it reads from one."""
    source = select.args.get("from_")
    node = source.this if source is not None else None
    if isinstance(node, exp.Subquery):
        return node.this if isinstance(node.this, exp.Query) else None
    named = ctes.get(node.name) if isinstance(node, exp.Table) and not node.db else None
    return named if isinstance(named, exp.Query) else None


def _unwrapped(projection: exp.Expr) -> exp.Expr:
    """What stands below aliases, brackets and plain conversions of type."""
    node = projection
    while True:
        if isinstance(node, exp.Alias | exp.Paren | exp.Cast):
            node = node.this
        elif isinstance(node, exp.Anonymous) and _CONVERSION.match(str(node.this)) and node.expressions:
            node = node.expressions[0]
        else:
            return node


def _aggregates_of(projection: exp.Expr) -> Sequence[exp.Expr]:
    found: list[exp.Expr] = []
    stack = [projection]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Query | exp.Window):
            continue
        if isinstance(node, exp.AggFunc):
            found.append(node)
            continue
        stack += list(node.iter_expressions())
    return found


def _group_keys(select: exp.Select, group: exp.Expr | None) -> tuple[str, ...]:
    if group is None:
        return ()
    if group.args.get("all"):
        return tuple(p.alias_or_name for p in select.expressions if not _aggregates_of(p))
    texts = {_plain(p).sql(): p.alias_or_name for p in select.expressions}
    keys: list[str] = []
    for key in group.expressions:
        if isinstance(key, exp.Literal) and not key.is_string and key.this.isdigit():
            position = int(key.this) - 1
            keys.append(select.expressions[position].alias_or_name if position < len(select.expressions) else key.this)
        else:
            keys.append(texts.get(key.sql()) or key.alias_or_name or key.sql(dialect="clickhouse"))
    return tuple(dict.fromkeys(keys))


def _plain(projection: exp.Expr) -> exp.Expr:
    return projection.this if isinstance(projection, exp.Alias) else projection


def classify(
    shape: Shape | None, view: Object, target: Object | None, joins: Sequence[str], partial_source: bool
) -> tuple[ViewClass, str]:
    """Give the class and the reason for it, one sentence."""
    if view.kind == "refreshable_view":
        return "opaque", "it is refreshed as a whole, not row by row"
    if shape is None:
        return "opaque", "its SELECT could not be read in full"
    if joins:
        return "opaque", f"it reads {', '.join(joins)} beside its trigger, whose later changes it does not see"
    if shape.obstacles:
        return "opaque", shape.obstacles[0]
    kind = family(target.engine) if target is not None else ""
    if not kind:
        return "opaque", "its target is not a MergeTree table that is declared here"
    if not shape.grouped:
        return _classify_rowwise(kind, partial_source)
    return _classify_grouped(shape, kind, target)


def _classify_rowwise(kind: str, partial_source: bool) -> tuple[ViewClass, str]:
    if kind in ("replacing", "versionedcollapsing", "collapsing"):
        return (
            ("replacing", "row by row into a Replacing target") if kind == "replacing" else ("opaque", f"{kind} target")
        )
    if kind in ("summing", "aggregating"):
        return "additive", f"row by row into {'a Summing' if kind == 'summing' else 'an Aggregating'} target"
    if partial_source:
        return "opaque", "row by row over partial rows of an additive table, into one that does not merge them"
    return "append", "row by row"


def _classify_grouped(shape: Shape, kind: str, target: Object | None) -> tuple[ViewClass, str]:
    names = [function.lower() for _, function in shape.aggregates]
    if kind == "replacing":
        if names and all(name in _LATEST for name in names):
            return "replacing", "the latest state per key into a Replacing target"
        return "opaque", "it aggregates into a Replacing target, which keeps one partial result and drops the others"
    if kind not in ("summing", "aggregating"):
        return "opaque", "it aggregates into an engine that never merges the partial rows of a group"
    for column, function in shape.aggregates:
        if (problem := _merge_problem(column, function, kind, target)) is not None:
            return "opaque", problem
    return "additive", "mergeable aggregates into " + (
        "a Summing" if kind == "summing" else "an Aggregating"
    ) + " target"


def _merge_problem(column: str, function: str, kind: str, target: Object | None) -> str | None:
    lowered = function.lower()
    declared = target.column(column) if target is not None else None
    type_text = declared.type if declared is not None else ""
    is_state = re.search(r"(State|MergeState)(?:If|OrNull|OrDefault)?$", function)
    if is_state or re.search(r"(?<!Simple)AggregateFunction\(", type_text):
        return None
    simple = re.match(r"SimpleAggregateFunction\(\s*(\w+)", type_text)
    base = re.sub(r"(If|OrNull|OrDefault)+$", "", function, flags=re.IGNORECASE).lower()
    if simple:
        merger = simple.group(1).lower()
        sums = ("sum", "sumwithoverflow")
        if base == merger or (base in ("count", *sums) and merger in sums):
            return None
        return f"{column} is {function}() but its column merges by {simple.group(1)}"
    if kind == "summing" and (base in _SUMMABLE or lowered in _SUMMABLE):
        return None
    if target is not None and column in re.findall(r"\w+", target.order_by):
        return None
    how = "sums" if kind == "summing" else "keeps any one of"
    return f"{column} is {function}() but the target {how} the partial results"
