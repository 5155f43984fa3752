"""What of a target is compared, by the rules of its engine: keys, one measure per column, and what is left out, by name. Pure.

Invariant: a column is a measure only if Spark merges its values as the engine does.
"""

from __future__ import annotations

from collections.abc import Mapping

from chmv_assets.core.measures import LeftOut, is_summable, read_simple_type, read_state_type
from chmv_assets.core.normal_form import CannotCompare
from spark_jobs.aggregates import AGGREGATE
from spark_jobs.kinds import Kind, integer
from spark_jobs.opinion_model import How, OpinionColumn, OpinionTarget, SparkMeasure

_MERGED_BY: Mapping[str, How] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_NESTED = "its type has no equal in Spark that could be compared"


def build_form(
    target: OpinionTarget, kinds: Mapping[str, Kind | None]
) -> tuple[tuple[str, ...], tuple[SparkMeasure, ...], list[LeftOut]]:
    """Keys, measures, and columns that are not compared."""
    left_out: list[LeftOut] = []
    usable: list[OpinionColumn] = []
    for column in target.columns:
        if column.default_kind in ("ALIAS", "EPHEMERAL", "MATERIALIZED"):
            left_out.append(LeftOut(column.name, f"it is {column.default_kind}, computed by the server"))
        elif kinds[column.name] is None:
            left_out.append(LeftOut(column.name, _NESTED))
        else:
            usable.append(column)
    names = [column.name for column in usable]
    if target.family == "plain":
        rows = SparkMeasure(label="rows", how="rows", kind=integer(64, signed=False))
        return tuple(names), (rows,), left_out
    if target.family not in ("summing", "aggregating", "replacing"):
        raise CannotCompare(f"Spark does not know how {target.family or 'this engine'} merges rows")
    if not target.keys or any(key not in names for key in target.keys):
        raise CannotCompare(f"the sorting key of {target.name} is not made of columns that Spark could group by")
    measures: list[SparkMeasure] = []
    for column in usable:
        if column.name not in target.keys:
            found = _measure(target, column, kinds[column.name])
            measures += [found] if isinstance(found, SparkMeasure) else []
            left_out += [found] if isinstance(found, LeftOut) else []
    measures.sort(key=lambda measure: measure.how != "version")
    return tuple(target.keys), tuple(measures), left_out


def _measure(target: OpinionTarget, column: OpinionColumn, kind: Kind | None) -> SparkMeasure | LeftOut:
    assert kind is not None
    name = column.name
    if target.family == "replacing":
        return _replaced(target, name, kind)
    state, simple = read_state_type(column.type), read_simple_type(column.type)
    if state is not None:
        match = AGGREGATE.match(state.function)
        if match is None or match.group(3) or (match.group(2) and match.group(1) in ("min", "max")):
            return LeftOut(name, f"states of {state.function} are known to ClickHouse only")
        how: How | None = _MERGED_BY[match.group(1)]
    elif simple is not None:
        how = {"sum": "sum", "min": "min", "max": "max"}.get(simple.function)  # type: ignore[assignment]
    elif target.family == "summing" and is_summable(column.type) and name not in target.partition_words:
        how = "sum" if not target.arguments or name in target.arguments else None
    else:
        how = None
    if how is None:
        return LeftOut(name, "merges keep any one of a key's values, or merge them as Spark does not")
    if kind.nullable or kind.family not in (
        ("int", "decimal") if how == "sum" else ("int", "decimal", "date", "instant", "text")
    ):
        return LeftOut(name, f"{how} of {column.type} is not known to be the same in Spark")
    return SparkMeasure(label=name, how=how, kind=kind)


def _replaced(target: OpinionTarget, name: str, kind: Kind) -> SparkMeasure | LeftOut:
    if len(target.arguments) > 1:
        raise CannotCompare("Spark does not know which rows of a key an is_deleted column hides")
    if not target.one_partition and target.partition_words:
        raise CannotCompare("rows are replaced within a partition only, and the window is not one partition")
    if not target.arguments:
        return LeftOut(name, "the engine has no version, so the last insert wins")
    if name == target.arguments[0]:
        if kind.family not in ("int", "date", "instant") or kind.nullable:
            raise CannotCompare(f"its version {name} is not a number or a time")
        return SparkMeasure(label=name, how="version", kind=kind)
    return SparkMeasure(label=name, how="latest", kind=kind)
