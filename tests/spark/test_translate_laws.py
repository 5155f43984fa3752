"""The allow-list of the second opinion on both engines: random expressions over edge values give the same in Spark as on the server.

An expression may be refused by the translator, by the comparison of types, or at run time by one of our guards; it may never give another value.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import sqlglot
from clickhouse_connect.driver.client import Client
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chmv_assets.core.names import QName
from resources.engine import EngineInfo
from spark_jobs.aggregates import aggregate
from spark_jobs.expression import Expression, Untranslatable
from spark_jobs.finalized_source import FinalizedDataSource
from spark_jobs.kinds import agrees, parse_kind
from spark_jobs.opinion_model import TableRead
from spark_jobs.opinion_run import Place, configured, load
from spark_jobs.translate import Translator

TYPES = {
    "id": "UInt32", "u8": "UInt8", "u32": "UInt32", "u64": "UInt64", "i8": "Int8", "i64": "Int64", "n": "Nullable(Int32)",
    "d": "Decimal(18, 2)", "nd": "Nullable(Decimal(9, 3))", "s": "String", "lc": "LowCardinality(String)", "ns": "Nullable(String)",
    "e": "Enum8('a' = 1, 'b' = 2)", "b": "Bool", "day": "Date", "t": "DateTime('UTC')", "tb": "DateTime('Europe/Berlin')",
    "tn": "DateTime64(3, 'America/New_York')", "tk": "DateTime64(6, 'Asia/Kolkata')", "ts": "DateTime",
}  # fmt: skip
TEXTS = ["", "a", "A", "ä", "it's", "a\\b", " a", "x" * 40]
TIMES = ["t", "tb", "tn", "tk", "ts"]
ROWS = 240


def rows(seed: random.Random) -> list[list[Any]]:
    """Edge values and ordinary ones; times around changes of the clock."""
    turns = [datetime(2026, 10, 25, 1, tzinfo=timezone.utc), datetime(2026, 3, 29, 1, tzinfo=timezone.utc),
             datetime(2026, 11, 1, 6, tzinfo=timezone.utc), datetime(1975, 6, 1, tzinfo=timezone.utc),
             datetime(2026, 12, 31, 23, 30, tzinfo=timezone.utc), datetime(2100, 2, 28, 23, tzinfo=timezone.utc)]  # fmt: skip

    def moment() -> datetime:
        return seed.choice(turns) + timedelta(seconds=seed.randint(-7200, 7200))

    def whole(low: int, high: int) -> int:
        return seed.choice([low, high, 0, 1, 2, 7, seed.randint(0, 9), seed.randint(low, high)])

    return [
        [
            at, whole(0, 255), whole(0, 2**32 - 1), whole(0, 2**64 - 1), whole(-128, 127), whole(-(2**63), 2**63 - 1),
            seed.choice([None, whole(-(2**31), 2**31 - 1)]), Decimal(seed.choice([0, -1, 1, seed.randint(-(10**9), 10**9)])) / 100,
            seed.choice([None, Decimal(seed.randint(-(10**5), 10**5)) / 1000]), seed.choice(TEXTS), seed.choice(TEXTS),
            seed.choice([None, *TEXTS]), seed.choice("ab"), seed.choice([True, False]), moment().date(),
            *(moment() + timedelta(milliseconds=seed.randint(0, 999) if name in ("tn", "tk") else 0) for name in TIMES),
        ]
        for at in range(ROWS)
    ]  # fmt: skip


class Grammar:
    """Random expressions, mostly of the allow-list."""

    def __init__(self, seed: random.Random) -> None:
        self.seed = seed

    def one(self, *choices: str) -> str:
        return self.seed.choice(choices)

    def value(self, depth: int = 2) -> str:
        return self.seed.choice([self.whole, self.text, self.day, self.decimal, self.flag, self.moment])(depth)

    def whole(self, depth: int) -> str:
        if depth <= 0:
            return self.one("u8", "u32", "u64", "i8", "i64", "n", "0", "1", "300", "-1", "70000")
        left, right = self.whole(depth - 1), self.whole(depth - 1)
        return self.one(
            f"({left} {self.one('+', '-', '*')} {right})", f"intDiv({left}, {self.one('1', '3', '1000')})", f"{left} % {self.one('2', '7', '300')}",
            f"if({self.flag(depth - 1)}, {left}, {right})", f"ifNull({left}, {right})", f"length({self.text(depth - 1)})",
            f"toUInt{self.one('8', '16', '32', '64')}({left})", f"toInt{self.one('8', '64')}({left})", f"toYYYYMM({self.time()})", f"toYYYYMMDD({self.time()})",
            f"toHour({self.moment(0)})", f"toMinute({self.moment(0)})", f"toDayOfWeek({self.time()})", f"toYear({self.time()})", f"toMonth({self.time()})",
            f"toDayOfMonth({self.time()}, 'Asia/Tokyo')", f"toUnixTimestamp({self.moment(0)})",
            f"multiIf({self.flag(depth - 1)}, {left}, {self.flag(depth - 1)}, {right}, 5)", f"CASE WHEN {self.flag(depth - 1)} THEN {left} ELSE {right} END",
        )  # fmt: skip

    def text(self, depth: int) -> str:
        if depth <= 0:
            return self.one("s", "lc", "ns", "''", "'a'", "'it\\'s'", "'ä'")
        left, right = self.text(depth - 1), self.text(depth - 1)
        return self.one(f"concat({left}, {right})", f"{left} || {right}", f"ifNull({left}, {right})", f"toString({self.whole(depth - 1)})", f"if({self.flag(depth - 1)}, {left}, {right})", "e", "lower(s)")  # fmt: skip

    def decimal(self, depth: int) -> str:
        if depth <= 0:
            return self.one("d", "nd")
        left = self.decimal(depth - 1)
        return self.one(
            f"({left} {self.one('+', '-', '*')} {self.whole(0)})", f"({left} {self.one('+', '-', '*')} {self.decimal(0)})",
            f"if({self.flag(0)}, {left}, 0)", f"if({self.flag(0)}, {left}, {self.decimal(0)})", f"coalesce({left}, d)", f"ifNull(nd, {self.one('0', '5')})",
        )  # fmt: skip

    def flag(self, depth: int) -> str:
        if depth <= 0:
            return self.one("b", "u8", "u8 > 3", "lc = 'a'", "n IS NULL", "n > 0")
        sign = self.one("=", "!=", "<", "<=", ">", ">=")
        return self.one(
            f"({self.whole(depth - 1)} {sign} {self.whole(depth - 1)})", f"({self.text(depth - 1)} {sign} {self.text(depth - 1)})",
            f"({self.decimal(0)} {sign} {self.one('0', '1', '-5')})", f"({self.day(0)} {sign} {self.one('day', chr(39) + '2026-10-25' + chr(39))})",
            f"({self.moment(0)} {sign} {self.moment(0)})", f"({self.flag(depth - 1)} AND {self.flag(depth - 1)})",
            f"({self.flag(depth - 1)} OR {self.flag(depth - 1)})", f"(NOT {self.flag(depth - 1)})", "e = 'a'", "lc IN ('a', '')", "u8 NOT IN (1, 2, 255)",
            "n NOT IN (1, 2)", "empty(s)", "notEmpty(ns)", "startsWith(s, lc)", "u32 BETWEEN 1 AND 1000", "isNull(ns)", "isNotNull(nd)", "b = 1", "b = true",
        )  # fmt: skip

    def time(self) -> str:
        return self.one("day", *TIMES)

    def day(self, depth: int) -> str:
        time = self.time()
        return self.one("day", f"toDate({time})", f"toMonday({time})", f"toStartOfMonth({time})", f"toStartOfQuarter({time})", f"toStartOfYear({time})", f"toDate({self.one(*TIMES)}, 'Asia/Kolkata')", f"toStartOfWeek({time})")  # fmt: skip

    def moment(self, depth: int) -> str:
        if depth <= 0:
            return self.one(*TIMES)
        name = self.one(
            "toStartOfHour",
            "toStartOfMinute",
            "toStartOfFiveMinutes",
            "toStartOfFifteenMinutes",
            "toStartOfDay",
            "toStartOfTenMinutes",
        )
        return f"{name}({self.moment(depth - 1)})"

    def folded(self) -> str:
        inner = self.seed.choice([self.whole, self.decimal, self.day, self.text, self.flag, self.moment])(1)
        name = self.one("sum", "sum", "min", "max", "count")
        number = self.seed.choice([self.whole, self.decimal])(1)
        return self.one(f"{name}({inner})", f"sum({number})", f"sumIf({number}, {self.flag(1)})", f"countIf({self.flag(1)})", f"sumSimpleState({self.whole(0)})", f"maxIf({number}, b)", "count()")  # fmt: skip


class Stage:
    def __init__(self, client: Client, spark: SparkSession, engine: EngineInfo, database: str) -> None:
        self.client, self.spark, self.table = client, spark, QName(database, "edges")
        columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
        client.command(f"CREATE TABLE {self.table.sql} ({columns}) ENGINE = MergeTree ORDER BY id")
        client.insert("edges", rows(random.Random(1)), database=database, column_names=list(TYPES))
        self.zone = str(client.query("SELECT serverTimezone()").result_rows[0][0])
        spark.dataSource.register(FinalizedDataSource)
        read = TableRead(table=self.table, columns=tuple(TYPES))
        with configured(spark):
            load(spark, Place(url=engine.url), read).cache().createOrReplaceTempView("edges")

    def translator(self) -> Translator:
        columns = {}
        for at, (name, type_text) in enumerate(TYPES.items()):
            kind = parse_kind(type_text, self.zone)
            assert kind is not None
            columns[name] = (f"CAST(c{at} AS {kind.sql})", kind)
        return Translator(columns=columns, aliases={}, tables=["edges"])

    def described(self, expression: str, group: str) -> str | None:
        try:
            sql = f"DESCRIBE (SELECT {expression} AS x FROM {self.table.sql}{group})"
            return str(self.client.query(sql).result_rows[0][1])
        except Exception:  # the server has no such expression, or it has no type
            return None

    def on_server(self, expression: str, group: str) -> dict[Any, Any] | None:
        key = "lc" if group else "id"
        try:
            found = self.client.query(f"SELECT {key}, {expression} AS x FROM {self.table.sql}{group}").result_rows
        except Exception:  # a decimal overflowed
            return None
        return {row[0]: _plain(row[1]) for row in found}

    def in_spark(self, made: Expression, group: str) -> dict[Any, Any] | None:
        at = list(TYPES).index("lc" if group else "id")
        tail = f" GROUP BY c{at}" if group else ""
        with configured(self.spark):
            try:
                found = self.spark.sql(f"SELECT c{at} AS k, {made.sql} AS x FROM edges{tail}").collect()
            except PySparkException as error:
                assert "chmv: " in str(error) or "OVERFLOW" in str(error) or "OUT_OF_RANGE" in str(error), error
                return None
        return {row["k"]: _plain(row["x"]) for row in found}


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return value.normalize() + 0
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)
    return value


@pytest.fixture(scope="module")
def stage(clickhouse: Client, spark: SparkSession, engine: EngineInfo, database: str) -> Stage:
    return Stage(clickhouse, spark, engine, database)


@pytest.mark.parametrize(("folds", "seed", "wanted"), [(False, 11, 40), (True, 12, 20)])
def test_what_is_translated_means_the_same_on_the_server(stage: Stage, folds: bool, seed: int, wanted: int) -> None:
    grammar, group = Grammar(random.Random(seed)), " GROUP BY lc" if folds else ""
    compared = refused = 0
    for _ in range(1200):
        text = grammar.folded() if folds else grammar.value()
        node = sqlglot.parse_one(f"SELECT {text}", dialect="clickhouse").expressions[0]
        try:
            made = aggregate(node, "", stage.translator()).value if folds else stage.translator().translate(node)
        except Untranslatable:
            refused += 1
            continue
        described = stage.described(text, group)
        if described is None or not agrees(made.kind, parse_kind(described, stage.zone)):
            refused += 1
            continue
        expected, actual = stage.on_server(text, group), stage.in_spark(made, group)
        if expected is None or actual is None:
            continue
        assert actual == expected, text
        compared += 1
        if compared >= wanted:
            break
    assert compared >= wanted, f"{compared} compared, {refused} refused"
