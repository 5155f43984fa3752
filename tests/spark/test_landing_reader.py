"""Landing files in Spark: every row is typed or has a reason, none is lost."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_jobs.landing_reader import FILE, RAW, REASON, LandingColumn, read_landing

COLUMNS = [
    LandingColumn("id", "UInt32", T.LongType()),
    LandingColumn("ts", "DateTime64(3, 'UTC')", T.TimestampType()),
    LandingColumn("kind", "LowCardinality(String)", T.StringType()),
    LandingColumn("attributes", "Map(String, String)", T.MapType(T.StringType(), T.StringType())),
    LandingColumn("q", "Nullable(UInt8)", T.ShortType()),
    LandingColumn("state", "Enum8('new' = 1, 'it\\'s' = 2)", T.StringType()),
    LandingColumn("code", "FixedString(2)", T.StringType()),
    LandingColumn("big", "UInt64", T.DecimalType(20, 0)),
]
GOOD = {
    "id": 1,
    "ts": "2026-11-01 00:00:00.5",
    "kind": "x",
    "attributes": {"k": "v"},
    "q": 3,
    "state": "it's",
    "code": "ab",
    "big": 2**64 - 1,
}


def reasons(
    spark: SparkSession, path: Path, file_format: str, columns: list[LandingColumn], found: list[str]
) -> list[str | None]:
    return [row[REASON] for row in read_landing(spark, [str(path)], file_format, found, columns).collect()]


def test_json_lines_keep_every_row_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[tuple[str, str | None]] = [
        (json.dumps(GOOD), None),
        (json.dumps({**GOOD, "q": None}), None),
        (json.dumps({**GOOD, "id": -1}), "id: out of range for UInt32"),
        (json.dumps({**GOOD, "id": 2**32}), "id: out of range for UInt32"),
        (json.dumps({**GOOD, "id": "x"}), "id: not a UInt32"),
        (json.dumps({**GOOD, "ts": "nope"}), "ts: not a DateTime64(3, 'UTC')"),
        (json.dumps({**GOOD, "kind": None}), "kind: null, but it is not Nullable"),
        (json.dumps({**GOOD, "q": 256}), "q: out of range for UInt8"),
        (json.dumps({**GOOD, "state": "old"}), "state: not a name of its Enum"),
        (json.dumps({**GOOD, "code": "abc"}), "code: longer than FixedString(2)"),
        (json.dumps({**GOOD, "big": 2**64}), "big: out of range for UInt64"),
        ("{broken", "not a readable record"),
        ("[1, 2]", "not a readable record"),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(text for text, _ in rows) + "\n")
    assert reasons(spark, path, "jsonl", COLUMNS, list(GOOD)) == [reason for _, reason in rows]
    first, *_, last = read_landing(spark, [str(path)], "jsonl", list(GOOD), COLUMNS).collect()
    half_past = datetime(2026, 11, 1, 0, 0, 0, 500000)  # noqa: DTZ001 - Spark gives naive times in its session zone
    assert (first["id"], first["ts"], first["attributes"]) == (1, half_past, {"k": "v"})
    assert last[RAW] == "[1, 2]" and last[FILE].endswith("a.jsonl")


def test_csv_columns_go_by_header_not_by_place(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('q,kind,extra,id\n3,"a,b",z,1\n,x,z,2\n300,x,z,3\n1,x,z,-4\n1,x\n1,x,z,5,more\n')
    columns = [column for column in COLUMNS if column.name in ("id", "kind", "q")]
    found = read_landing(spark, [str(path)], "csv", ["q", "kind", "extra", "id"], columns).collect()
    assert [(row["id"], row["kind"], row["q"], row[REASON]) for row in found[:2]] == [
        (1, "a,b", 3, None),
        (2, "x", None, None),
    ]
    assert [row[REASON] for row in found[2:]] == [
        "q: out of range for UInt8",
        "id: out of range for UInt32",
        "not a readable record",
        "not a readable record",
    ]


def test_parquet_is_checked_for_range_and_null(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": pa.array([1, -1, None, 2**40], pa.int64()), "q": pa.array([1, None, 2, 3], pa.int32())}), path
    )
    columns = [column for column in COLUMNS if column.name in ("id", "q")]
    assert reasons(spark, path, "parquet", columns, ["id", "q"]) == [
        None,
        "id: out of range for UInt32",
        "id: null, but it is not Nullable",
        "id: out of range for UInt32",
    ]
