"""The demo's landing files: the same for the same demo, written once, with what the demo wants to show."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from clickhouse_connect.driver.client import Client

from resources.demo_data import DemoLoad, FactTable
from resources.demo_landing import LANDED_EVENTS, build_files, landing_load, write_landing

END = datetime(2026, 11, 10, 12, tzinfo=timezone.utc)
TABLES: tuple[FactTable, ...] = ("events", "order_changes", "payments")


@pytest.fixture
def load() -> DemoLoad:
    return landing_load(rows=100_000, seed=7, start=END - timedelta(days=10), end=END)


def test_files_have_late_rows_one_bad_event_and_a_file_that_is_sent_twice(clickhouse: Client, load: DemoLoad) -> None:
    files = {(file.table, file.name): file.content for file in build_files(clickhouse, load)}
    assert sorted(name for _, name in files) == [
        "events-0.parquet", "events-1.parquet", "order_changes-0.jsonl", "order_changes-1.jsonl",
        "payments-0.csv", "payments-1.csv", "resent/order_changes-0.jsonl",
    ]  # fmt: skip
    events = [
        row for at in (0, 1) for row in pq.read_table(io.BytesIO(files["events", f"events-{at}.parquet"])).to_pylist()
    ]
    assert len(events) == LANDED_EVENTS == len({row["event_id"] for row in events})
    assert sum(row["load_ms"] < 0 for row in events) == 1
    late = sum(row["ingested_at"] - row["event_time"] > timedelta(minutes=15) for row in events)
    assert 10 < late < 100
    assert all(END - timedelta(days=1) <= row["event_time"] < END for row in events)
    changes = [json.loads(line) for line in files["order_changes", "order_changes-0.jsonl"].decode().splitlines()]
    assert len(changes) > 100 and set(changes[0]) >= {"order_id", "ordered_at", "status", "amount"}
    assert files["order_changes", "resent/order_changes-0.jsonl"] == files["order_changes", "order_changes-0.jsonl"]
    payments = list(csv.DictReader(io.StringIO(files["payments", "payments-0.csv"].decode())))
    assert len(payments) > 50 and payments[0]["paid_at"].endswith("+00:00")


def test_files_are_written_once_and_never_changed(clickhouse: Client, load: DemoLoad, tmp_path: Path) -> None:
    roots = {table: tmp_path / table for table in TABLES}
    assert write_landing(clickhouse, load, roots) == 7
    assert list(tmp_path.rglob("*.tmp")) == []
    (tmp_path / "events" / "events-0.parquet").write_bytes(b"kept as it is")
    (tmp_path / "payments" / "payments-1.csv").unlink()
    assert write_landing(clickhouse, load, roots) == 1, "only what a broken first start had left out"
    assert (tmp_path / "events" / "events-0.parquet").read_bytes() == b"kept as it is"
    assert list(build_files(clickhouse, load)) == list(build_files(clickhouse, load))
