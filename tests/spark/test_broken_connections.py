"""Answers that never arrive: inserts that the server has done and the client has to send again. No Spark session needed."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from pyspark.sql.types import StructType

from chmv_assets.core.names import QName
from resources.engine import EngineInfo
from spark_jobs.commit import plan_batch, record_winners, resume_batch
from spark_jobs.connection import Connection, Retry
from spark_jobs.writer import stage_task, start_write

SCHEMA = StructType().add("id", "long")
PATIENT = Retry(limit=6, sleep=lambda _: None)


class Cutter:
    """A proxy that swallows the answers to the next `cuts` inserts and hangs up instead."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.cuts = 0
        self.done = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self.upstream))
        doubt = threading.Event()

        def forward() -> None:
            with contextlib.suppress(OSError):
                while data := client.recv(1 << 16):
                    if b"INSERT" in data and self.cuts > 0:
                        self.cuts -= 1
                        doubt.set()
                    server.sendall(data)
                server.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=forward, daemon=True).start()
        with contextlib.suppress(OSError), closing(client), closing(server):
            while data := server.recv(1 << 16):
                if doubt.is_set():
                    self.done += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


@pytest.fixture
def cutter(engine: EngineInfo) -> Iterator[Cutter]:
    made = Cutter(engine.http_port)
    yield made
    made.close()


@pytest.mark.parametrize("cuts", [1, 3])
def test_inserts_in_doubt_are_sent_again_and_counted_once(
    clickhouse: Client, database: str, cutter: Cutter, cuts: int
) -> None:
    name = f"doubt_{secrets.token_hex(3)}"
    window = "SETTINGS non_replicated_deduplication_window = 10000"
    clickhouse.command(f"CREATE TABLE {database}.{name} (id UInt64) ENGINE = MergeTree ORDER BY id {window}")
    clickhouse.command(
        f"CREATE TABLE {database}.{name}_t (k UInt8, n UInt64) ENGINE = SummingMergeTree ORDER BY k {window}"
    )
    clickhouse.command(
        f"CREATE MATERIALIZED VIEW {database}.{name}_v TO {database}.{name}_t AS SELECT 1 AS k, count() AS n FROM {database}.{name}"
    )
    connection = Connection(url=f"http://127.0.0.1:{cutter.port}")
    source = QName(database, name)
    job = start_write(connection, source, "b", SCHEMA)
    with closing(connection.connect()) as client:
        slices = []
        for task in range(2):
            rows = pa.table({"id": pa.array(range(task * 1000, task * 1000 + 1000), pa.int64())})
            cutter.cuts = cuts
            slices += stage_task(client, job, task, "a", rows.to_batches(max_chunksize=100), PATIENT)
        cutter.cuts = cuts
        record_winners(client, plan_batch(client, source, "b", "test"), slices, retry=PATIENT)
        cutter.cuts = cuts
        resume_batch(client, source, "b", connect=connection.connect, retry=PATIENT)
    assert cutter.done >= 4 * cuts
    assert clickhouse.query(f"SELECT count(), uniqExact(id) FROM {source.sql}").result_rows == [(2000, 2000)]
    assert clickhouse.query(f"SELECT sum(n) FROM {database}.{name}_t").result_rows == [(2000,)]
