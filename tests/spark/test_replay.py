"""Replay: windows that the source has lost come back from landing files, the same to the row as from the source."""

from __future__ import annotations

import json
import secrets
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clickhouse_connect.driver.client import Client
from pyspark.sql import SparkSession

from chmv_assets.core.catalog import SourceFile
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.statements import split_statements
from chmv_assets.core.windows import window_of_key
from chmv_assets.ingest import Ingester
from chmv_assets.pipeline import load_pipeline
from chmv_assets.replay import Replayer
from resources.clickhouse import Server
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild import Rebuilder

DAY = datetime(2026, 11, 10, tzinfo=timezone.utc)
WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
DDL = f"""
CREATE TABLE {{db}}.hits (at DateTime64(3, 'UTC'), page LowCardinality(String), ms UInt16,
    arrived DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = {{engine}};
CREATE TABLE {{db}}.daily (day Date, page LowCardinality(String), hits UInt64, ms UInt64, last SimpleAggregateFunction(max, DateTime64(6, 'UTC')))
    ENGINE = SummingMergeTree PARTITION BY day ORDER BY (day, page) {WINDOW};
CREATE MATERIALIZED VIEW {{db}}.daily_mv TO {{db}}.daily AS
    SELECT toDate(at) AS day, page, count() AS hits, sum(ms) AS ms, max(arrived) AS last FROM {{db}}.hits GROUP BY day, page;
CREATE TABLE {{db}}.users (day Date, u AggregateFunction(uniq, String)) ENGINE = AggregatingMergeTree PARTITION BY day ORDER BY day {WINDOW};
CREATE MATERIALIZED VIEW {{db}}.users_mv TO {{db}}.users AS SELECT toDate(at) AS day, uniqState(toString(page)) AS u FROM {{db}}.hits GROUP BY day;
"""
STORED = f"MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at {WINDOW}"


class Site:
    """A pipeline, its landing folder and a rebuilder that can replay."""

    def __init__(
        self, client: Client, server: Server, spark: SparkSession, folder: Path, engine: str, form: str
    ) -> None:
        self.client, self.server, self.spark, self.form = client, server, spark, form
        self.database = f"replay_{secrets.token_hex(3)}"
        self.landing, ddl = folder / "landing", folder / "ddl"
        self.landing.mkdir()
        ddl.mkdir()
        text = DDL.replace("{db}", self.database).replace("{engine}", engine)
        (ddl / "all.sql").write_text(text)
        (ddl / "chmv.yaml").write_text(
            f"version: 1\nsources:\n  {self.database}.hits:\n    event_time: at\n    arrival: arrived\n"
            f"    landing: {{path: {self.landing}, format: {form}, tolerated_bad_rate: 0.5}}\n"
        )
        client.command(f"CREATE DATABASE {self.database}")
        for statement in split_statements(SourceFile(path="x", text=text))[0]:
            client.command(statement.text)
        self.pipeline = load_pipeline(ddl, cache=folder / "cache").require_sound()
        self.name = QName(self.database, "hits")

    def land(self, name: str, rows: list[dict[str, Any]]) -> None:
        if self.form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), self.landing / f"{name}.parquet")
        else:
            lines = [json.dumps({**row, "at": row["at"].isoformat()}) for row in rows]
            (self.landing / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def ingest(self) -> int:
        landing = self.pipeline.settings.policy(self.name).landing
        assert landing is not None
        ingester = Ingester(
            pipeline=self.pipeline,
            source=self.pipeline.catalog.objects[self.name],
            landing=landing,
            journal=Journal(self.server),
            spark=lambda: self.spark,
        )
        return ingester.run(str(self.landing)).summary.rows_loaded

    def rebuild(self, target: str, key: str, feed: Any = "replay", protocol: Any = "auto") -> Any:
        rebuilder = Rebuilder(
            Executor(self.server, log=lambda _line: None),
            self.pipeline.catalog,
            "UTC",
            lambda: datetime.now(timezone.utc),
            replay=Replayer(self.pipeline, Journal(self.server), lambda: self.spark),
        )
        node = self.pipeline.catalog.objects[QName(self.database, target)]
        return rebuilder.publish(node, window_of_key(key, "day", "UTC"), protocol, feed=feed)

    def daily(self) -> list[Any]:
        return list(self.client.query(f"SELECT * FROM {self.database}.daily FINAL ORDER BY ALL").result_rows)

    def users(self) -> list[Any]:
        sql = f"SELECT day, uniqMerge(u) FROM {self.database}.users GROUP BY day ORDER BY day"
        return list(self.client.query(sql).result_rows)

    def archives(self) -> int:
        sql = "SELECT count() FROM system.tables WHERE database = 'chmv' AND (name LIKE 'replay.%' OR name LIKE '%replay.%')"
        return int(self.client.query(sql).result_rows[0][0])


def rows(day: int, count: int = 30) -> list[dict[str, Any]]:
    return [{"at": DAY + timedelta(days=day, minutes=at), "page": f"p{at % 7}", "ms": at} for at in range(count)]


@pytest.mark.parametrize(
    ("table_engine", "form"),
    [
        (STORED, "parquet"),
        ("Null", "jsonl"),
        pytest.param(STORED, "jsonl", marks=pytest.mark.thorough),
        pytest.param("Null", "parquet", marks=pytest.mark.thorough),
    ],
)
def test_replay_gives_what_the_live_views_gave(
    clickhouse: Client, server: Server, spark: SparkSession, tmp_path: Path, table_engine: str, form: str
) -> None:
    site = Site(clickhouse, server, spark, tmp_path, table_engine, form)
    site.land("a", [*rows(0), *rows(1)])
    assert site.ingest() == 60
    site.land("b", [*rows(1, 10), *rows(2)])
    assert site.ingest() == 40
    truth, users = site.daily(), site.users()
    clickhouse.command(f"TRUNCATE TABLE {site.database}.daily")
    clickhouse.command(
        f"INSERT INTO {site.database}.users SELECT day, uniqState('x') FROM {site.database}.users GROUP BY day"
    )
    if table_engine != "Null":
        clickhouse.command(f"ALTER TABLE {site.name.sql} DROP PARTITION ID '20261110'")  # what a TTL would do
    feed, why = ("auto", f"{site.name} is a Null table") if table_engine == "Null" else ("replay", "asked for a replay")
    for key in ("2026-11-10", "2026-11-11", "2026-11-12"):
        published = site.rebuild("daily", key, feed)
        assert (published.protocol, published.why) == ("owned", f"replayed: {why}")
        site.rebuild("users", key, feed)
    assert site.daily() == truth and site.users() == users
    assert site.archives() == 0
    clickhouse.command(f"DROP DATABASE {site.database} SYNC")


def test_replay_without_all_files_or_with_foreign_rows_is_refused(
    clickhouse: Client, server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    site = Site(clickhouse, server, spark, tmp_path, STORED, "parquet")
    with pytest.raises(RebuildRefused, match="found 0 of 0 committed files"):
        site.rebuild("daily", "2026-11-10")
    site.land("a", rows(0))
    site.ingest()
    truth = site.daily()
    with pytest.raises(RebuildRefused, match="found protocol gated with a replay but wanted owned or auto"):
        site.rebuild("daily", "2026-11-10", protocol="gated")
    clickhouse.command(f"INSERT INTO {site.name.sql} (at, page, ms) VALUES ('2026-11-10 05:00:00', 'other', 1)")
    with pytest.raises(RebuildRefused, match="holds 31 rows of the window but its landing files only 30"):
        site.rebuild("daily", "2026-11-10")
    kept = (site.landing / "a.parquet").read_bytes()
    (site.landing / "a.parquet").unlink()
    with pytest.raises(RebuildRefused, match=r"found 0 of 1 committed files .* wanted all \(a\.parquet\)"):
        site.rebuild("daily", "2026-11-10")
    (site.landing / "moved.parquet").write_bytes(kept)
    assert len(site.daily()) == len(truth) + 1 and site.archives() == 0
    clickhouse.command(f"DROP DATABASE {site.database} SYNC")


def test_expired_window_is_replayed_by_itself(
    clickhouse: Client, server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    engine = f"MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at TTL toDateTime(at) + INTERVAL 30 DAY {WINDOW}"
    site = Site(clickhouse, server, spark, tmp_path, engine, "parquet")
    old = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=60)
    site.land("old", [{"at": old + timedelta(minutes=at), "page": "p", "ms": 1} for at in range(20)])
    site.ingest()
    truth = site.daily()
    assert truth[0][2] == 20
    clickhouse.command(f"ALTER TABLE {site.database}.daily DELETE WHERE 1 SETTINGS mutations_sync = 2")
    clickhouse.command(f"OPTIMIZE TABLE {site.name.sql} FINAL")
    published = site.rebuild("daily", f"{old:%Y-%m-%d}", feed="auto")
    assert "keeps rows only since" in published.why
    assert site.daily() == truth
    with pytest.raises(RebuildRefused, match="keeps rows only since"):
        site.rebuild("daily", f"{old:%Y-%m-%d}", feed="pushdown")
    clickhouse.command(f"DROP DATABASE {site.database} SYNC")
