"""The ingest on a real standalone cluster that loses a worker and then an executor: finished by the same call, every row once.

Parquet goes straight from the executors into the source, JSON lines through staging. When an executor's first insert comes by,
SIGKILL ends a worker with its executor (Parquet), then the executor of the other worker (JSON lines), while the server carries that
insert out: it may be a write of the dead.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.processes import command_line, descendants, kill_all
from chaos.proxy import Fault, Proxy, Step
from clickhouse_connect.driver.client import Client
from cluster import run_script, standalone_cluster

from resources.engine import EngineInfo

PARQUET_ROWS, JSON_ROWS, FILES = 600_000, 6_000, 6  # Parquet is sent in inserts of 500,000 rows
START_US = 1_793_610_000_000_000
DDL = """
CREATE TABLE {db}.{name} (id UInt64, at DateTime64(6, 'UTC'), ms UInt16) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at)
    ORDER BY id SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE {db}.{name}_daily (day Date, hits UInt64, ms UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day)
    ORDER BY day SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW {db}.{name}_mv TO {db}.{name}_daily AS
    SELECT toDate(at) AS day, count() AS hits, sum(ms) AS ms FROM {db}.{name} GROUP BY day;
"""
JOB = """
import json, sys
from pathlib import Path
from chmv_assets.core.names import QName
from chmv_assets.ingest import Ingester
from chmv_assets.pipeline import load_pipeline
from resources.clickhouse import Server, endpoint_from_environment
from resources.journal import Journal
from resources.spark_session import open_session

database, ddl = {database!r}, Path({ddl!r})
pipeline = load_pipeline(ddl).require_sound()
told = {{}}
with open_session() as spark:
    for table in ("packed", "lines"):
        name = QName(database, table)
        landing = pipeline.settings.policy(name).landing
        with Server(endpoint_from_environment()) as server:
            report = Ingester(pipeline=pipeline, source=pipeline.catalog.objects[name], landing=landing,
                              journal=Journal(server), spark=lambda: spark).run(landing.path)
        told[table] = [report.summary.files, report.summary.rows_read, len(report.batches), len(report.unfinished)]
print(json.dumps(told))
"""
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Victims:
    """When an executor's insert comes by: first a worker dies with all below it, then the executor of the one that is left."""

    def __init__(self, proxy: Proxy, labels: tuple[str, str]) -> None:
        self.proxy, self.killed = proxy, 0
        self._second = labels[1]
        self._arm(labels[0], self.kill_worker)

    def _arm(self, label: str, action: Callable[[], None]) -> None:
        self.proxy.arm(Fault(kind="act before", step=Step(label=label, nth=1), name="a process dies", action=action))

    def kill_worker(self) -> None:
        workers = below(os.getpid(), "deploy.worker.Worker")
        busy = [pid for pid in workers if below(pid, "pyspark")]
        assert len(workers) == 2 and busy, (workers, busy)
        kill_all([busy[0], *descendants(busy[0])])
        self.killed += 1
        self._arm(self._second, self.kill_executor)

    def kill_executor(self) -> None:
        [executor] = below(os.getpid(), "CoarseGrainedExecutorBackend")
        kill_all([executor, *descendants(executor)])
        self.killed += 1


def below(pid: int, word: str) -> list[int]:
    """The processes below one that have a word in their command line."""
    return [one for one in descendants(pid) if word in command_line(one)]


@pytest.fixture
def database(clickhouse: Client) -> Iterator[str]:
    name = f"cluster_{secrets.token_hex(3)}"
    clickhouse.command(f"CREATE DATABASE {name}")
    yield name
    clickhouse.command(f"DROP DATABASE {name} SYNC")


def write_landing(folder: Path) -> None:
    """Ids from 0; a row every 100 microseconds in Parquet, on one of three days in JSON."""
    for name in ("packed", "lines"):
        (folder / name).mkdir()
    for number in range(FILES):
        ids = np.arange(number * PARQUET_ROWS // FILES, (number + 1) * PARQUET_ROWS // FILES)
        at = pa.array(START_US + ids * 100).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"id": ids, "at": at, "ms": (ids % 1000).astype("int32")})
        pq.write_table(table, folder / "packed" / f"{number}.parquet", row_group_size=50_000)
        some = range(number * JSON_ROWS // FILES, (number + 1) * JSON_ROWS // FILES)
        lines = [json.dumps({"id": one, "at": f"2026-11-0{1 + one % 3} 10:00:00", "ms": one % 1000}) for one in some]
        (folder / "lines" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def prepare(clickhouse: Client, database: str, folder: Path) -> Path:
    ddl = folder / "ddl"
    ddl.mkdir()
    text = "".join(DDL.replace("{db}", database).replace("{name}", name) for name in ("packed", "lines"))
    (ddl / "all.sql").write_text(text)
    policies = [
        f"  {database}.{name}:\n    event_time: at\n    landing: {{path: {folder / name}, format: {form}}}\n"
        for name, form in (("packed", "parquet"), ("lines", "jsonl"))
    ]
    (ddl / "chmv.yaml").write_text("version: 1\nsources:\n" + "".join(policies))
    for statement in filter(str.strip, text.split(";")):
        clickhouse.command(statement)
    return ddl


def test_an_ingest_survives_the_loss_of_a_worker_and_of_an_executor(
    clickhouse: Client, engine: EngineInfo, database: str, tmp_path: Path
) -> None:
    write_landing(tmp_path)
    ddl = prepare(clickhouse, database, tmp_path)
    driver = tmp_path / "driver"
    driver.mkdir()
    proxy = Proxy(engine.http_port)
    victims = Victims(proxy, (f"insert {database}.packed", "insert stage"))
    try:
        with standalone_cluster(tmp_path / "cluster", workers=2) as master:
            variables = {
                "CHMV_SPARK_MASTER": master,
                "CHMV_SPARK_CONF": ";".join(f"{key}={value}" for key, value in CONF.items()),
                "CHMV_SPARK_ARCHIVE": "off",
                "CHMV_CACHE_DIR": str(tmp_path / "cache"),
                "CHMV_CLICKHOUSE_URL": proxy.url,
            }
            told = run_script(JOB.format(database=database, ddl=str(ddl)), driver, variables)
    finally:
        proxy.close()
    assert not proxy.defects, proxy.defects
    assert victims.killed == 2
    assert {name: told[name] for name in ("packed", "lines")} == {
        "packed": [FILES, PARQUET_ROWS, 1, 0],
        "lines": [FILES, JSON_ROWS, 1, 0],
    }
    for name, rows in (("packed", PARQUET_ROWS), ("lines", JSON_ROWS)):
        ids = clickhouse.query(
            f"SELECT count(), uniqExact(id), min(id), max(id), sum(ms) FROM {database}.{name}"
        ).result_rows
        assert ids == [(rows, rows, 0, rows - 1, int((np.arange(rows) % 1000).sum()))]
        query = f"SELECT toDate(at) AS day, count(), sum(ms) FROM {database}.{name} GROUP BY day ORDER BY day"
        target = f"SELECT day, sum(hits), sum(ms) FROM {database}.{name}_daily GROUP BY day ORDER BY day"
        assert clickhouse.query(target).result_rows == clickhouse.query(query).result_rows
    left = clickhouse.query(
        f"SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE 'stage.{database}.%'"
    )
    assert left.result_rows == []
