"""The type mapping, both ways: what Spark sees, what the server casts to, what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from chmv_assets.core.errors import TypeRefused
from spark_jobs.types import accepts, map_type, spark_arrow, split_type, to_clickhouse

INSTANT = "DateTime64(6, 'UTC')"


@pytest.mark.parametrize(
    ("declared", "spark", "cast"),
    [
        ("Int8", "tinyint", "Int8"),
        ("UInt8", "smallint", "Int16"),
        ("UInt16", "int", "Int32"),
        ("UInt32", "bigint", "Int64"),
        ("UInt64", "decimal(20,0)", "Decimal(20, 0)"),
        ("Int128", "string", "String"),
        ("Float32", "float", "Float32"),
        ("Bool", "boolean", "Bool"),
        ("Decimal(18, 4)", "decimal(18,4)", "Decimal(18, 4)"),
        ("Decimal(76, 4)", "string", "String"),
        ("Date", "date", "Date32"),
        ("DateTime('Europe/Berlin')", "timestamp", INSTANT),
        ("DateTime64(3, 'Asia/Tokyo')", "timestamp", INSTANT),
        ("Nullable(DateTime)", "timestamp", f"Nullable({INSTANT})"),
        ("UUID", "string", "String"),
        ("FixedString(16)", "string", "String"),
        ("Enum8('a' = 1, 'b, (c)' = 2)", "string", "String"),
        ("LowCardinality(Nullable(String))", "string", "Nullable(String)"),
        ("JSON(max_dynamic_paths = 8)", "string", "String"),
        ("SimpleAggregateFunction(sum, UInt64)", "decimal(20,0)", "Decimal(20, 0)"),
        ("Array(Nullable(UUID))", "array<string>", "Array(Nullable(String))"),
        ("Map(LowCardinality(String), Array(UInt16))", "map<string,array<int>>", "Map(String, Array(Int32))"),
        ("Tuple(UInt8, Date)", "struct<_1:smallint,_2:date>", "Tuple(`_1` Int16, `_2` Date32)"),
        ("Tuple(a UInt8, `b c` Array(Tuple(x Date)))", "struct<a:smallint,b c:array<struct<x:date>>>",
         "Tuple(`a` Int16, `b c` Array(Tuple(`x` Date32)))"),
    ],
)  # fmt: skip
def test_declared_types_become_spark_types(declared: str, spark: str, cast: str) -> None:
    found = map_type("c", declared)
    assert (found.spark.simpleString(), found.cast) == (spark, cast)


@pytest.mark.parametrize(
    "declared", ["AggregateFunction(uniq, UInt8)", "Array(Dynamic)", "Tuple(a Point)", "IntervalDay"]
)
def test_what_spark_cannot_hold_is_refused_by_name(declared: str) -> None:
    with pytest.raises(TypeRefused, match="column c: ") as refused:
        map_type("c", declared)
    assert refused.value.kind == declared


def test_parameters_are_split_outside_of_quotes_and_brackets() -> None:
    assert split_type("Enum8('a, b' = 1, 'it\\'s (' = 2)") == ("Enum8", ("'a, b' = 1", "'it\\'s (' = 2"))
    assert split_type("String") == ("String", ())


@pytest.mark.parametrize(
    ("declared", "given", "fits"),
    [
        ("UInt32", T.LongType(), True),
        ("UInt64", T.DecimalType(20, 0), True),
        ("UInt64", T.DecimalType(20, 2), False),
        ("Int128", T.StringType(), False),  # the server wraps what is too long
        ("Float32", T.DoubleType(), False),
        ("Float64", T.FloatType(), True),
        ("UUID", T.StringType(), True),
        ("String", T.IntegerType(), False),
        ("Date", T.TimestampType(), False),
        ("DateTime", T.TimestampNTZType(), False),
        ("Array(UInt8)", T.ArrayType(T.IntegerType()), True),
        ("Array(UInt8)", T.ArrayType(T.StringType()), False),
        ("Map(String, UInt8)", T.MapType(T.StringType(), T.IntegerType()), True),
        ("Tuple(a UInt8)", T.StructType().add("a", "integer"), True),
        ("Tuple(a UInt8)", T.StructType().add("b", "integer"), False),
    ],
)
def test_only_types_that_keep_their_values_are_written(declared: str, given: T.DataType, fits: bool) -> None:
    assert accepts(map_type("c", declared), given) is fits


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("UInt8", pa.array([256])),
        ("UInt64", pa.array([Decimal(-1)], pa.decimal128(20, 0))),
        ("Decimal(4, 1)", pa.array([Decimal("1.25")], pa.decimal128(6, 2))),
        ("Date", pa.array([dt.date(1969, 12, 31)])),
        ("DateTime", pa.array([dt.datetime(2107, 1, 1, tzinfo=dt.timezone.utc)], pa.timestamp("us", "UTC"))),
        ("Array(Date)", pa.array([[dt.date(2020, 1, 1)], [dt.date(2150, 1, 1)]])),
        ("String", pa.array(["a", None])),
        ("Array(String)", pa.array([["a", None]])),
        ("Array(String)", pa.array([None, ["a"]])),
        ("Map(String, Date)", pa.array([[("a", dt.date(1900, 1, 1))]], pa.map_(pa.string(), pa.date32()))),
        ("Tuple(a Date)", pa.array([{"a": dt.date(1900, 1, 1)}])),
        ("UInt8", pa.array([[1], [2]])),  # Arrow knows no such cast
    ],
)
def test_values_that_would_wrap_clip_or_default_are_refused(declared: str, values: pa.Array) -> None:
    with pytest.raises(TypeRefused, match="column c: "):
        to_clickhouse("c", values, map_type("c", declared))


def test_values_that_fit_arrive_in_the_columns_own_type() -> None:
    assert to_clickhouse("c", pa.array([[0, 255], []]), map_type("c", "Array(UInt8)")).type == pa.list_(pa.uint8())
    assert to_clickhouse("c", pa.array([1, None]), map_type("c", "Nullable(UInt16)")).to_pylist() == [1, None]


def test_spark_types_have_the_arrow_form_that_the_jvm_expects() -> None:
    kind = (
        T.StructType()
        .add("a", T.ArrayType(T.IntegerType()))
        .add("m", T.MapType(T.StringType(), T.DecimalType(9, 2)))
        .add("t", T.TimestampType())
    )
    assert spark_arrow(kind) == pa.struct(
        [
            ("a", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.decimal128(9, 2))),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    with pytest.raises(TypeRefused):
        spark_arrow(T.DayTimeIntervalType())
