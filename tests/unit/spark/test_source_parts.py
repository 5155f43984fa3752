"""The pure pieces of the data source: options, filters, read tasks, blocks, windows, retries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from chmv_assets.core.errors import ChmvError, ReadRefused, ServerError, TypeRefused, WriteRefused
from chmv_assets.core.names import QName
from spark_jobs.connection import Retry, read_connection, read_table, run_retrying
from spark_jobs.filters import build_condition
from spark_jobs.reader import pick_columns, plan_tasks
from spark_jobs.tables import Part, TableColumn
from spark_jobs.types import map_type
from spark_jobs.writer import cut_blocks, match_columns

COLUMNS = {
    name: map_type(name, kind)
    for name, kind in {
        "i": "UInt32", "u": "UInt64", "f": "Float64", "s": "LowCardinality(String)", "e": "Enum8('a' = 1)", "d": "Date",
        "t": "DateTime64(3, 'Asia/Tokyo')", "t9": "DateTime64(9)", "b": "Bool", "j": "JSON", "n": "Nullable(Int8)",
    }.items()
}  # fmt: skip
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("found", "sql", "values"),
    [
        (ds.EqualTo(("i",), 5), "`i` = {p_0:Int64}", [5]),
        (ds.GreaterThan(("u",), Decimal(2**64 - 1)), "`u` > {p_0:UInt64}", [2**64 - 1]),
        (ds.In(("s",), ("a", "b")), "`s` IN ({p_0:String}, {p_1:String})", ["a", "b"]),
        (ds.EqualTo(("e",), "zz"), "CAST(`e`, 'String') = {p_0:String}", ["zz"]),
        (ds.LessThanOrEqual(("d",), dt.date(2024, 1, 2)), "`d` <= {p_0:Date32}", ["2024-01-02"]),
        (ds.LessThan(("t",), NOON), "`t` < {p_0:DateTime64(6, 'UTC')}", ["2024-01-01 10:00:00.000000"]),
        (ds.EqualTo(("b",), True), "`b` = {p_0:Bool}", ["true"]),
        (ds.IsNull(("n",)), "`n` IS NULL", []),
        (ds.Not(ds.IsNull(("n",))), "NOT (`n` IS NULL)", []),
        (ds.Not(ds.EqualTo(("n",), 1)), "NOT (`n` = {p_0:Int64})", [1]),
        (ds.StringStartsWith(("s",), "x"), "startsWith(`s`, {p_0:String})", ["x"]),
    ],
)
def test_filters_become_conditions_with_bound_values(found: ds.Filter, sql: str, values: list[object]) -> None:
    condition = build_condition(found, COLUMNS, "p")
    assert condition is not None
    assert (condition.sql, list(condition.parameters.values())) == (sql, values)


@pytest.mark.parametrize(
    "found",
    [
        ds.GreaterThan(("f",), 1.0),  # NaN is above everything in Spark, above nothing in ClickHouse
        ds.EqualTo(("t9",), NOON),  # Spark sees microseconds
        ds.EqualTo(("j",), "{}"),
        ds.EqualTo(("a", "b"), 1),
        ds.EqualTo(("missing",), 1),
        ds.In(("i",), (1, None)),
        ds.LessThan(("t",), NOON.replace(tzinfo=None)),
        ds.EqualTo(("u",), Decimal("-1")),
        ds.EqualNullSafe(("i",), 1),
        ds.Not(ds.GreaterThan(("f",), 1.0)),
    ],
)
def test_what_clickhouse_would_answer_differently_is_left_to_spark(found: ds.Filter) -> None:
    assert build_condition(found, COLUMNS, "p") is None


@given(
    parts=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=20), split_rows=st.integers(0, 100)
)
def test_read_tasks_cover_every_part_once(parts: list[tuple[str, int]], split_rows: int) -> None:
    held = [Part(partition_id=p, name=f"{p}{n}", rows=rows) for n, (p, rows) in enumerate(sorted(parts))]
    covered: list[str] = []
    for task in plan_tasks(held, split_rows):
        covered += task.parts or [part.name for part in held if part.partition_id == task.partition_id]
    assert sorted(covered) == sorted(part.name for part in held)


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(0, 40), max_size=12), block=st.integers(1, 30), slice_rows=st.integers(1, 50))
def test_blocks_keep_all_rows_in_order_and_slices_depend_on_row_numbers_alone(
    sizes: list[int], block: int, slice_rows: int
) -> None:
    total = sum(sizes)
    rows = pa.record_batch({"n": pa.array(range(total), pa.int64())})
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    batches = [rows.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
    found = [
        (part, value) for part, table in cut_blocks(batches, block, slice_rows) for value in table["n"].to_pylist()
    ]
    assert found == [(n // slice_rows, n) for n in range(total)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://h:1", "password": "x"}, "CHMV_CLICKHOUSE_PASSWORD"),
        ({"url": "http://me:secret@h:1"}, "option url: found a user or password"),
        ({}, "option url: found nothing"),
        ({"url": "http://h:1", "tabel": "x"}, "option tabel: not known"),
    ],
)
def test_options_that_leak_or_mislead_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(WriteRefused, match=message) as refused:
        read_connection(options, {})
    assert "secret" not in str(refused.value)


def test_table_and_url_are_read_from_options_and_environment() -> None:
    assert read_connection({}, {"CHMV_CLICKHOUSE_URL": "h:8123"}).url == "http://h:8123"
    assert read_table({"table": "d.`odd.name`"}) == QName("d", "odd.name")
    with pytest.raises(WriteRefused, match="option table"):
        read_table({})


def _failing(*codes: int | None) -> Callable[[], str]:
    left = list(codes)

    def call() -> str:
        if left:
            raise ServerError("no", code=left.pop(0))
        return "done"

    return call


def test_only_passing_errors_are_tried_again_with_growing_waits() -> None:
    waits: list[float] = []
    retry = Retry(limit=4, sleep=waits.append, random=lambda: 1.0)
    assert run_retrying(_failing(252, None, 241), retry) == "done"
    assert waits == [2.0, 4.0, 8.0]
    with pytest.raises(ServerError):
        run_retrying(_failing(60), retry)
    with pytest.raises(ServerError):
        run_retrying(_failing(252, 252, 252, 252), retry)


def test_columns_are_matched_by_name_and_defects_are_named() -> None:
    columns = (
        TableColumn(name="a", type="UInt8", computed=False),
        TableColumn(name="m", type="UInt8", computed=True),
    )
    source = QName("d", "s")
    assert match_columns(source, columns, StructType().add("a", "integer")) == (("a", "UInt8"),)
    defects: list[tuple[str, str, type[ChmvError]]] = [
        ("x", "integer", WriteRefused),
        ("m", "integer", WriteRefused),
        ("a", "string", TypeRefused),
    ]
    for name, kind, error in defects:
        with pytest.raises(error):
            match_columns(source, columns, StructType().add(name, kind))
    assert pick_columns(source, columns, ()) == columns[:1]
    assert pick_columns(source, columns, ("m",)) == columns[1:]
    with pytest.raises(ReadRefused, match="column z"):
        pick_columns(source, columns, ("z",))
