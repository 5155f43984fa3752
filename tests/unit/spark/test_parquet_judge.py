"""Bad rows of Parquet files: found one by one, with the reason that Spark's path would give."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.landing_reader import LandingColumn
from spark_jobs.parquet_judge import is_plain, judge_rows
from spark_jobs.types import map_type

UTC = dt.timezone.utc


def column(kind: str, name: str = "c") -> LandingColumn:
    return LandingColumn(name, kind, map_type(name, kind).spark)


@pytest.mark.parametrize(
    ("kind", "given_type", "plain"),
    [
        ("UInt16", pa.int64(), True),
        ("UInt64", pa.int64(), True),
        ("UInt16", pa.string(), False),
        ("String", pa.string(), True),
        ("LowCardinality(String)", pa.dictionary(pa.int32(), pa.string()), True),
        ("String", pa.binary(), False),
        ("UUID", pa.string(), False),
        ("IPv4", pa.string(), False),
        ("JSON", pa.string(), False),
        ("Enum8('a' = 1)", pa.string(), True),
        ("FixedString(3)", pa.string(), True),
        ("Decimal(18, 2)", pa.decimal128(18, 2), True),
        ("Decimal(18, 2)", pa.decimal128(10, 1), True),
        ("Decimal(18, 2)", pa.decimal128(19, 2), False),
        ("Decimal(18, 2)", pa.decimal128(18, 3), False),
        ("DateTime64(3, 'UTC')", pa.timestamp("ms", "UTC"), True),
        ("DateTime64(3, 'UTC')", pa.timestamp("us"), True),
        ("DateTime64(9, 'UTC')", pa.timestamp("ns"), False),
        ("DateTime", pa.timestamp("us", "Europe/Berlin"), False),
        ("Date", pa.date32(), True),
        ("Date", pa.timestamp("us"), False),
        ("Float64", pa.float64(), True),
        ("Float32", pa.float64(), False),
        ("Map(LowCardinality(String), String)", pa.map_(pa.string(), pa.string()), True),
        ("Map(String, UInt8)", pa.map_(pa.string(), pa.int64()), False),
        ("Array(UInt8)", pa.list_(pa.uint8()), True),
        ("Array(Date)", pa.list_(pa.date32()), False),
        ("Tuple(a UInt8)", pa.struct([("a", pa.uint8())]), False),
    ],
)
def test_only_columns_that_cannot_fail_on_the_server_are_plain(kind: str, given_type: pa.DataType, plain: bool) -> None:
    assert is_plain(column(kind), given_type) is plain


def reasons(kind: str, values: pa.Array | pa.ChunkedArray) -> list[str | None]:
    judged = judge_rows(pa.table({"c": values}), [column(kind)])
    return [None] * len(values) if judged.reasons is None else judged.reasons.to_pylist()


@pytest.mark.parametrize(
    ("kind", "values", "bad"),
    [
        ("UInt16", pa.array([0, 65535, 65536, -1, None]), [2, 3, 4]),
        ("Nullable(UInt16)", pa.array([1, None, 70000]), [2]),
        ("UInt64", pa.array([0, -5]), [1]),
        ("Enum8('a' = 1, 'b' = 2)", pa.array(["a", "c", "b"]), [1]),
        ("Nullable(Enum8('a' = 1))", pa.array(["a", None]), []),
        ("FixedString(2)", pa.array(["ab", "abc", "é", "éé"]), [1, 3]),
        ("Date", pa.array([dt.date(1969, 12, 31), dt.date(2020, 1, 1)]), [0]),
        (
            "DateTime64(3, 'UTC')",
            pa.array([dt.datetime(1850, 1, 1, tzinfo=UTC), dt.datetime(2020, 1, 1, tzinfo=UTC)]),
            [0],
        ),
        ("Decimal(4, 2)", pa.array([Decimal("1.25"), None]), [1]),
        ("Array(UInt8)", pa.array([[1], [None, 2], [], None], pa.list_(pa.uint8())), [1, 3]),
        ("Array(Nullable(UInt8))", pa.array([[1], [None, 2]], pa.list_(pa.uint8())), []),
        ("Map(String, String)", pa.array([[("a", "b")], [("a", None)]], pa.map_(pa.string(), pa.string())), [1]),
    ],
)
def test_each_rule_names_exactly_its_rows(kind: str, values: pa.Array, bad: list[int]) -> None:
    found = reasons(kind, values)
    assert [at for at, reason in enumerate(found) if reason is not None] == bad
    assert all(reason.startswith("c: ") for reason in found if reason is not None)


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=4), max_size=8), st.integers(0, 4))
def test_nulls_inside_lists_are_found_in_slices_and_chunks_too(rows: list[list[int | None]], cut: int) -> None:
    whole = pa.array(rows, pa.list_(pa.uint8()))
    chunked = pa.chunked_array([whole.slice(0, cut), whole.slice(cut)])
    found = reasons("Array(UInt8)", chunked)
    assert [reason is not None for reason in found] == [None in row for row in rows]


def test_first_reason_in_column_order_counts() -> None:
    rows = pa.table({"a": pa.array([None, 1]), "b": pa.array([999, 999])})
    judged = judge_rows(rows, [column("UInt8", "a"), column("UInt8", "b")])
    assert judged.reasons is not None
    assert judged.reasons.to_pylist() == ["a: null, but it is not Nullable", "b: out of range for UInt8"]


def test_good_rows_have_no_reasons_at_all() -> None:
    assert judge_rows(pa.table({"c": [1, 2]}), [column("UInt8")]).reasons is None
