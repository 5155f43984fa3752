"""Ingest on the real server with real Spark: good, late, duplicate and malformed files; every row is accounted for, once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clickhouse_connect.driver.client import Client
from pyspark.sql import SparkSession

from chmv_assets.core.catalog import SourceFile
from chmv_assets.core.landing import LandingRefused
from chmv_assets.core.names import QName
from chmv_assets.core.statements import split_statements
from chmv_assets.core.versions import VersionAllocator
from chmv_assets.core.windows import Window
from chmv_assets.ingest import Ingester
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Server
from resources.journal import Journal

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=timezone.utc)
DDL = """
CREATE TABLE {db}.hits (at DateTime64(3, 'UTC'), page LowCardinality(String), ms UInt16, note Nullable(String),
    arrived DateTime64(6) DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at
    SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE {db}.daily (day Date, page LowCardinality(String), hits UInt64, ms UInt64) ENGINE = SummingMergeTree
    PARTITION BY toYYYYMM(day) ORDER BY (day, page) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS
    SELECT toDate(at) AS day, page, count() AS hits, sum(ms) AS ms FROM {db}.hits GROUP BY day, page;
"""


class Site:
    """One small pipeline with a landing folder."""

    def __init__(self, client: Client, server: Server, spark: SparkSession, folder: Path) -> None:
        self.client, self.server, self.spark = client, server, spark
        self.database = f"ingest_{secrets.token_hex(3)}"
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.ddl = folder / "ddl"
        self.ddl.mkdir()
        self.text = DDL.replace("{db}", self.database)
        (self.ddl / "all.sql").write_text(self.text)
        client.command(f"CREATE DATABASE {self.database}")
        for statement in split_statements(SourceFile(path="x", text=self.text))[0]:
            client.command(statement.text)

    def pipeline(self, form: str, rate: float) -> Pipeline:
        (self.ddl / "chmv.yaml").write_text(
            f"version: 1\nsources:\n  {self.database}.hits:\n    event_time: at\n    arrival: arrived\n"
            f"    landing: {{path: {self.landing}, format: {form}, tolerated_bad_rate: {rate}}}\n"
        )
        return load_pipeline(self.ddl, cache=self.ddl.parent / "cache").require_sound()

    def ingester(self, form: str = "jsonl", rate: float = 0.5) -> Ingester:
        pipeline = self.pipeline(form, rate)
        name = QName(self.database, "hits")
        landing = pipeline.settings.policy(name).landing
        assert landing is not None
        return Ingester(
            pipeline=pipeline,
            source=pipeline.catalog.objects[name],
            landing=landing,
            journal=Journal(self.server, versions=VersionAllocator(clock_ms=lambda: int(NOW.timestamp() * 1000))),
            spark=lambda: self.spark,
        )

    def write(self, name: str, rows: list[dict[str, object] | str]) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (self.landing / name).write_text("\n".join(lines) + "\n")

    def write_parquet(self, name: str, rows: list[dict[str, object]], **options: Any) -> None:
        table = pa.Table.from_pylist([{**row, "at": datetime.fromisoformat(str(row["at"]))} for row in rows])
        pq.write_table(table, self.landing / name, **options)

    def count(self) -> int:
        return int(self.client.query(f"SELECT count() FROM {self.database}.hits").result_rows[0][0])

    def assert_target_equals_its_query(self) -> None:
        target = (
            f"SELECT day, page, sum(hits), sum(ms) FROM {self.database}.daily GROUP BY day, page ORDER BY day, page"
        )
        query = f"SELECT toDate(at) AS day, page, count(), sum(ms) FROM {self.database}.hits GROUP BY day, page ORDER BY day, page"
        assert self.client.query(target).result_rows == self.client.query(query).result_rows

    def staging(self) -> list[str]:
        found = self.client.query(
            f"SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE 'stage.{self.database}.%'"
        )
        return [name for (name,) in found.result_rows]


@pytest.fixture
def site(clickhouse: Client, server: Server, spark: SparkSession, tmp_path: Path) -> Iterator[Site]:
    made = Site(clickhouse, server, spark, tmp_path)
    yield made
    clickhouse.command(f"DROP DATABASE {made.database} SYNC")


def hit(minutes_ago: float, page: str = "p", **more: object) -> dict[str, object]:
    return {"at": (NOW - timedelta(minutes=minutes_ago)).isoformat(), "page": page, "ms": 5, **more}


def test_good_late_duplicate_and_malformed_files_add_up(site: Site) -> None:
    site.write("good.jsonl", [hit(1), hit(2, "q", note="hello"), hit(14)])
    site.write("late.jsonl", [hit(16), hit(60 * 24 * 3), hit(3)])
    site.write("copy_of_good.jsonl", [hit(1), hit(2, "q", note="hello"), hit(14)])
    site.write("bad.jsonl", [hit(1), {**hit(1), "ms": -1}, {**hit(1), "page": None}, "{broken"])
    report = site.ingester().run(str(site.landing))
    summary = report.summary
    assert (summary.files, summary.files_duplicate, summary.files_known) == (3, 1, 0)
    assert (summary.rows_read, summary.rows_on_time, summary.rows_late, summary.rows_quarantined) == (10, 5, 2, 3)
    assert report.reasons == {
        "ms: out of range for UInt16": 1,
        "not a readable record": 1,
        "page: null, but it is not Nullable": 1,
    }
    assert site.count() == 7
    site.assert_target_equals_its_query()
    again = site.ingester().run(str(site.landing))
    assert (again.summary.files, again.summary.files_known, again.summary.rows_read) == (0, 3, 0)
    assert site.count() == 7
    assert site.staging() == []


def test_watermarks_move_for_source_and_target(site: Site) -> None:
    site.write("a.jsonl", [hit(1), hit(60 * 24)])
    site.ingester().run(str(site.landing))
    marks = Journal(site.server).read_watermarks(source=QName(site.database, "hits"))
    seen = {(mark.target_table.table, f"{mark.window_start:%Y-%m-%d}") for mark in marks}
    assert seen == {("hits", "2026-11-10"), ("hits", "2026-11-09"), ("daily", "2026-11-01")}
    newest = next(mark for mark in marks if mark.target_table.table == "daily")
    assert newest.last_processed_ts == NOW - timedelta(minutes=1) and newest.last_arrival_ts == NOW


def test_too_many_bad_rows_commit_nothing_and_say_so(site: Site) -> None:
    site.write("a.jsonl", [hit(1), "{broken"])
    with pytest.raises(LandingRefused, match=r"1 of 2 rows \(50\.00%\) are bad but wanted at most 10\.00%"):
        site.ingester(rate=0.1).run(str(site.landing))
    assert site.count() == 0
    assert site.ingester(rate=0.5).run(str(site.landing)).summary.rows_on_time == 1
    assert site.count() == 1
    site.assert_target_equals_its_query()


STEPS = {
    "jsonl": ["take_files", "stage_batch", "resume_staged", "commit_staged", "move_watermarks"],
    "parquet": ["take_files", "survey_batch", "commit_direct", "move_watermarks"],
}


@pytest.mark.parametrize(("form", "step"), [(form, step) for form, steps in STEPS.items() for step in steps])
def test_crash_at_any_step_is_finished_by_the_next_ingest(
    site: Site, monkeypatch: pytest.MonkeyPatch, form: str, step: str
) -> None:
    rows = [hit(minute, f"p{minute % 3}") for minute in range(40)]
    if form == "jsonl":
        site.write("a.jsonl", rows)
    else:
        site.write_parquet("a.parquet", rows)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "resume_staged":  # dies while it finishes what another has left
            patch.setattr("chmv_assets.ingest.commit_staged", crash)
            with pytest.raises(KeyboardInterrupt):
                site.ingester(form).run(str(site.landing))
        patch.setattr(f"chmv_assets.ingest.{step}", crash)
        with pytest.raises(KeyboardInterrupt):
            site.ingester(form).run(str(site.landing))
    report = site.ingester(form).run(str(site.landing))
    assert (report.summary.rows_read, report.summary.rows_late) == (40, 24)
    assert site.count() == 40
    site.assert_target_equals_its_query()
    assert site.staging() == []
    marks = Journal(site.server).read_watermarks(source=QName(site.database, "hits"))
    assert {mark.target_table.table for mark in marks} == {"hits", "daily"}


def test_csv_and_parquet_land_too(site: Site) -> None:
    (site.landing / "a.csv").write_text("ms,page,at\n5,p,2026-11-10 11:59:00\n6,q,2026-11-10 11:58:00\n")
    assert site.ingester("csv").run(str(site.landing)).summary.rows_on_time == 2
    site.spark.createDataFrame(
        [(7, "r", datetime(2026, 11, 10, 11, 57, tzinfo=timezone.utc))], "ms int, page string, at timestamp"
    ).write.parquet(str(site.landing / "part"))
    assert site.ingester("parquet").run(str(site.landing)).summary.rows_on_time == 1
    assert site.count() == 3
    site.assert_target_equals_its_query()


def test_unreadable_file_is_named_and_its_neighbours_load(site: Site) -> None:
    (site.landing / "broken.parquet").write_bytes(b"PAR1 nothing")
    site.spark.createDataFrame(
        [(7, "r", datetime(2026, 11, 10, 11, 57, tzinfo=timezone.utc))], "ms int, page string, at timestamp"
    ).write.parquet(str(site.landing / "part"))
    report = site.ingester("parquet").run(str(site.landing))
    assert [path for path, _ in report.unreadable] == ["broken.parquet"]
    assert site.count() == 1


def test_columns_that_do_not_fit_are_refused_before_anything_is_read(site: Site) -> None:
    site.write("a.jsonl", [{**hit(1), "surprise": 1}])
    with pytest.raises(LandingRefused, match="surprise stand in the files but not in the table"):
        site.ingester().run(str(site.landing))
    assert site.count() == 0


def test_parquet_goes_directly_and_its_bad_rows_to_quarantine(site: Site) -> None:
    rows = [hit(minute % 20, "p") for minute in range(50)]
    rows[7]["ms"], rows[9]["page"], rows[11]["ms"] = -1, None, 70_000
    site.write_parquet("a.parquet", rows, row_group_size=8)
    site.write_parquet("b.parquet", [hit(2, note="only here")])
    report = site.ingester("parquet").run(str(site.landing))
    assert (report.summary.rows_read, report.summary.rows_quarantined) == (51, 3)
    assert report.reasons == {"ms: out of range for UInt16": 2, "page: null, but it is not Nullable": 1}
    (batch,) = Journal(site.server).read_batches(source=QName(site.database, "hits"))
    assert batch.slices[0].attempt.startswith("direct:500000:") and batch.rows == site.count() == 48
    site.assert_target_equals_its_query()
    found = site.client.query(
        f"SELECT row FROM chmv.quarantine WHERE source = '{site.database}.hits' AND reason LIKE 'page%'"
    ).result_rows
    assert json.loads(found[0][0])["ms"] == 5


def test_arrival_is_stamped_once_per_batch(site: Site) -> None:
    site.write_parquet("a.parquet", [hit(1), hit(2)])
    site.ingester("parquet").run(str(site.landing))
    site.write("b.jsonl", [hit(3), hit(4)])
    site.ingester("jsonl").run(str(site.landing))
    found = site.client.query(f"SELECT toUnixTimestamp64Milli(arrived), count() FROM {site.database}.hits GROUP BY 1")
    assert found.result_rows == [(int(NOW.timestamp() * 1000), 4)]


def test_file_that_changed_after_it_was_written_down_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_parquet("a.parquet", [hit(1), hit(2)])
    with monkeypatch.context() as patch:
        patch.setattr("chmv_assets.ingest.commit_direct", _crash)
        with pytest.raises(KeyboardInterrupt):
            site.ingester("parquet").run(str(site.landing))
    kept = (site.landing / "a.parquet").read_bytes()
    site.write_parquet("a.parquet", [hit(1), hit(3)])
    report = site.ingester("parquet").run(str(site.landing))
    (unfinished,) = report.unfinished
    assert "found 0 of its 1 files but wanted all" in unfinished[1] and "Bring a.parquet back" in unfinished[1]
    assert site.count() == 2  # the new content is a batch of its own
    (site.landing / "old.parquet").write_bytes(kept)
    assert site.ingester("parquet").run(str(site.landing)).unfinished == ()
    assert site.count() == 4
    site.assert_target_equals_its_query()


def _crash(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_window_takes_only_files_that_touch_it(site: Site, form: str) -> None:
    for name, minutes in (("today", 5), ("yesterday", 60 * 24)):
        rows = [hit(minutes), hit(minutes + 1)]
        if form == "jsonl":
            site.write(f"{name} a.jsonl", rows)
        else:
            site.write_parquet(f"{name} a.parquet", rows)
    day = NOW.replace(hour=0)
    window = Window(day, day + timedelta(days=1))
    assert site.ingester(form).run(str(site.landing), window).summary.rows_read == 2
    assert site.ingester(form).run(str(site.landing), window).summary.files_known == 1
    assert site.ingester(form).run(str(site.landing)).summary.rows_read == 2
    assert site.count() == 4
