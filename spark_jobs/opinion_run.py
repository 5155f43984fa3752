"""A plan of `second_opinion`, run on a Spark session: two tables read in parallel, merged and compared by Spark.

Invariant: the session's configuration is as before afterwards, and so is its list of views. Numbers that do not fit fail (ANSI), with our sentence where
there is one, and become `CannotCompare`; they never become a verdict.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from chmv_assets.core.names import quote_identifier
from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.reconcile_sql import SAMPLES, Counts, Sample, SumDifference
from spark_jobs.clickhouse_source import PUSHDOWN_CONF
from spark_jobs.expression import guarded
from spark_jobs.finalized_source import FORMAT, FinalizedDataSource
from spark_jobs.opinion_model import OpinionPlan, SparkMeasure, TableRead

_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    PUSHDOWN_CONF: "true",
}
_OURS = re.compile(r"chmv: ([^'\"\n\[]+)")
_FLAGS = ("missing", "smaller", "extra", "larger", "changed", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the server is; the password is in the environment of Spark's processes."""

    url: str
    user: str = ""


def run_opinion(spark: SparkSession, place: Place, plan: OpinionPlan) -> tuple[Counts, tuple[Sample, ...]]:
    """Compare; samples only where something differs. Raises CannotCompare."""
    with configured(spark), _judged(spark, place, plan) as judged:
        try:
            counts = _counts(plan, judged)
            return counts, () if counts.is_equal else _samples(plan, judged)
        except PySparkException as error:
            raise CannotCompare(_reason(error)) from error


def _reason(error: PySparkException) -> str:
    text = str(error)
    if found := _OURS.search(text):
        return f"Spark met {found.group(1).strip()}"
    condition = error.getCondition() or type(error).__name__
    return f"Spark could not compute it ({condition}): {text.strip().splitlines()[0][:300]}"


@contextmanager
def configured(spark: SparkSession) -> Iterator[None]:
    """A session that counts as the server does: ANSI, UTC, names as they are spelled. As before afterwards."""
    before: dict[str, Any] = {key: spark.conf.get(key, None) for key in _CONF}
    for key, value in _CONF.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


@contextmanager
def _judged(spark: SparkSession, place: Place, plan: OpinionPlan) -> Iterator[DataFrame]:
    """A row per key: both values, and what is to be said of them."""
    spark.dataSource.register(FinalizedDataSource)
    names: list[str] = []

    def view(read: TableRead) -> str:
        names.append(f"chmv_opinion_{secrets.token_hex(6)}")
        load(spark, place, read).createOrReplaceTempView(names[-1])
        return names[-1]

    try:
        shares = [sql.replace("{source}", view(read)) for read, sql in plan.shares]
        actual = _stored(plan, view(plan.target))
        yield spark.sql(_judged_sql(plan, " UNION ALL ".join(f"({share})" for share in shares), actual))
    except PySparkException as error:
        raise CannotCompare(_reason(error)) from error
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


def load(spark: SparkSession, place: Place, read: TableRead) -> DataFrame:
    """The rows of a table as they are stored; its columns are `c0`, `c1`, …"""
    if odd := [name for name in read.columns if "," in name or name != name.strip()]:
        raise CannotCompare(f"the column {odd[0]!r} of {read.table} cannot be named to Spark's reader")
    reader = spark.read.format(FORMAT).option("url", place.url).option("table", read.table.sql)
    if place.user:
        reader = reader.option("user", place.user)
    frame = reader.option("columns", ",".join(read.columns)).load()
    if read.time is not None:
        name, _, start, end = read.time
        column = F.col(quote_identifier(name))
        frame = frame.where((column >= F.lit(start)) & (column < F.lit(end)))
    return frame.toDF(*(f"c{at}" for at in range(len(read.columns))))


def _stored(plan: OpinionPlan, view: str) -> str:
    fields = ", ".join(f"CAST(c{at} AS {kind.sql}) AS t{at}" for at, (_, kind) in enumerate(plan.columns))
    return f"SELECT {fields} FROM {view}"


# --- SQL -----------------------------------------------------------------------------------------------------------


def _side(plan: OpinionPlan, relation: str, number: int) -> str:
    """One side, merged by the rules of the engine."""
    where = f" WHERE {plan.condition}" if plan.condition else ""
    keys = ", ".join(f"{plan.at(name)} AS k{at}" for at, name in enumerate(plan.keys)) or "0 AS k0"
    group = ", ".join(plan.at(name) for name in plan.keys) or "1"
    rows = f"(SELECT * FROM ({relation}){where})"
    latest = [measure for measure in plan.measures if measure.how == "latest"]
    if any(measure.how == "version" for measure in plan.measures):
        version = plan.at(next(measure.label for measure in plan.measures if measure.how == "version"))
        ends = ", ".join(f"{plan.at(one.label)} AS x{at}" for at, one in enumerate(latest))
        packed = f"struct({ends})" if latest else "struct(0 AS x0)"
        by_version = f"(SELECT {group}, {version} AS v, min({packed}) AS low, max({packed}) AS high FROM {rows} GROUP BY {group}, {version})"
        values = "max(v) AS m0, max_by(struct(low, high), v) AS row"
        return f"SELECT {number} AS side, {keys}, {values} FROM {by_version} GROUP BY {group}"
    values = "".join(f", {_merged(plan, measure)} AS m{at}" for at, measure in enumerate(plan.measures))
    zeros = [f"m{at} <> 0" for at, measure in enumerate(plan.measures) if measure.how == "sum"]
    kept = f" WHERE {' OR '.join(zeros)}" if plan.drops_zeros and zeros else ""
    return f"SELECT * FROM (SELECT {number} AS side, {keys}{values} FROM {rows} GROUP BY {group}){kept}"


def _merged(plan: OpinionPlan, measure: SparkMeasure) -> str:
    if measure.how == "rows":
        return "CAST(count(1) AS DECIMAL(20, 0))"
    column = plan.at(measure.label)
    if measure.how == "sum" and measure.kind.family == "int":
        return guarded(f"sum({column})", measure.kind, f"the sum of {_plain(measure.label)}")
    if measure.how == "sum":
        return f"CAST(sum(CAST({column} AS DECIMAL(38, {measure.kind.scale}))) AS {measure.kind.sql})"
    return f"{measure.how}({column})"


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _judged_sql(plan: OpinionPlan, expected: str, actual: str) -> str:
    replaces = any(measure.how == "version" for measure in plan.measures)
    values = ["m0", "row"] if replaces else [f"m{at}" for at in range(len(plan.measures))]
    keys = ", ".join(f"k{at}" for at in range(len(plan.keys) or 1))
    both = "".join(
        f", max(CASE WHEN side = {number} THEN {value} END) AS {side}_{value}"
        for number, side in enumerate("ea")
        for value in values
    )
    sides = f"({_side(plan, expected, 0)}) UNION ALL ({_side(plan, actual, 1)})"
    paired = f"SELECT {keys}, max(side = 0) AS has_e, max(side = 1) AS has_a{both} FROM ({sides}) GROUP BY {keys}"
    lower, higher, other = [], [], []
    for at, measure in enumerate(plan.measures):
        if measure.how == "latest":
            continue
        differs = f"(has_e AND has_a AND NOT (e_m{at} <=> a_m{at}))"
        less, more = (f"({differs} AND coalesce(a_m{at} {sign} e_m{at}, FALSE))" for sign in "<>")
        lower.append(less if measure.direction == "up" else more)
        higher.append(more if measure.direction == "up" else less)
    tie = "(coalesce(NOT (e_row.low <=> e_row.high), FALSE) OR coalesce(NOT (a_row.low <=> a_row.high), FALSE))"
    if replaces:
        other.append(f"(has_e AND has_a AND e_m0 = a_m0 AND NOT {tie} AND NOT (e_row.low <=> a_row.low))")
    flags = {
        "missing": "has_e AND NOT has_a", "extra": "has_a AND NOT has_e", "smaller": _any(lower), "larger": _any(higher), "changed": _any(other),
        "undecided": tie if replaces else "FALSE",
    }  # fmt: skip
    flagged = f"SELECT *, {', '.join(f'({sql}) AS {flag}' for flag, sql in flags.items())} FROM ({paired})"
    return f"SELECT *, (missing OR extra OR smaller OR larger OR changed) AS differs FROM ({flagged})"


def _any(conditions: list[str]) -> str:
    return " OR ".join(conditions) or "FALSE"


# --- answers -------------------------------------------------------------------------------------------------------


def _counts(plan: OpinionPlan, judged: DataFrame) -> Counts:
    sums = [(at, one) for at, one in enumerate(plan.measures) if one.how in ("sum", "rows")]
    numbers = [F.expr("count(1)").alias("keys"), F.expr("count_if(NOT differs)").alias("equal")]
    numbers += [F.expr(f"count_if({flag})").alias(flag) for flag in _FLAGS]
    for at, _ in sums:
        expected, actual = (f"CASE WHEN differs THEN coalesce({side}_m{at}, 0) ELSE 0 END" for side in "ea")
        numbers += [F.expr(f"sum(greatest({expected} - {actual}, 0))").alias(f"lack{at}")]
        numbers += [F.expr(f"sum(greatest({actual} - {expected}, 0))").alias(f"much{at}")]
    row = judged.agg(*numbers).collect()[0]
    found = tuple(
        SumDifference(column=one.label, lacking=row[f"lack{at}"], too_much=row[f"much{at}"])
        for at, one in sums
        if row[f"lack{at}"] or row[f"much{at}"]
    )
    return Counts(keys=row["keys"], equal=row["equal"], **{flag: row[flag] for flag in _FLAGS}, sums=found)


def _samples(plan: OpinionPlan, judged: DataFrame) -> tuple[Sample, ...]:
    order = [f"k{at}" for at in range(len(plan.keys) or 1)]
    rows = judged.where("differs").orderBy(*order).limit(SAMPLES).collect()
    return tuple(_sample(plan, row) for row in rows)


def _sample(plan: OpinionPlan, row: Row) -> Sample:
    kinds = ("missing", "extra", "smaller", "larger", "changed")
    said = [kind for kind in kinds if row[kind]]
    keys = tuple((name, _text(row[f"k{at}"])) for at, name in enumerate(plan.keys))
    expected, actual = (_values(plan, row, side) if row[f"has_{side}"] else () for side in "ea")
    return Sample(" and ".join(said), keys, expected, actual)


def _values(plan: OpinionPlan, row: Row, side: str) -> tuple[tuple[str, str], ...]:
    latest = [measure.label for measure in plan.measures if measure.how == "latest"]
    merged = [measure for measure in plan.measures if measure.how != "latest"]
    found = [(measure.label, _text(row[f"{side}_m{at}"])) for at, measure in enumerate(merged)]
    if latest:
        newest = row[f"{side}_row"]["low"]
        found += [(name, _text(newest[f"x{at}"])) for at, name in enumerate(latest)]
    return tuple(found)


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value)
