"""Reconciliation while rows arrive: never a false difference, and a real one is still found."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from reconcile_bench import Bench, bench_of

from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.reconcile import MAX_TRIES

DDL = """
CREATE TABLE {db}.live_source (ts DateTime('UTC'), k UInt32, n UInt64) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY k;
CREATE TABLE {db}.live (day Date, k UInt32, n UInt64) ENGINE = SummingMergeTree PARTITION BY day ORDER BY (day, k);
CREATE MATERIALIZED VIEW {db}.live_mv TO {db}.live AS SELECT toDate(ts) AS day, k, sum(n) AS n FROM {db}.live_source GROUP BY day, k;
"""
INSERT = "INSERT INTO {db}.live_source SELECT toDateTime('2026-11-01 10:00:00', 'UTC') + number, number % 50, 1 FROM numbers(2000)"


@pytest.fixture(scope="module")
def live(clickhouse: Client, server: Server, database: str) -> Bench:
    bench = bench_of(clickhouse, server, database, DDL)
    bench.run(INSERT)
    return bench


@pytest.fixture
def writer(engine: EngineInfo, live: Bench) -> Iterator[None]:
    """Inserts without a pause, on a connection of its own."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=engine.http_port, autogenerate_session_id=False)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            client.command(INSERT.replace("{db}", live.database))

    thread = threading.Thread(target=write)
    thread.start()
    yield
    stop.set()
    thread.join()
    client.close()


@pytest.mark.usefixtures("writer")
def test_live_inserts_never_look_like_a_difference(live: Bench) -> None:
    found = [live.verdict("live") for _ in range(8)]
    assert {one.status for one in found} <= {"equal", "cannot tell"}, [one.sentence() for one in found]
    assert any(one.status == "equal" for one in found)


def test_after_the_inserts_all_is_equal(live: Bench) -> None:
    found = live.verdict("live")
    assert (found.status, found.tries) == ("equal", 1)


class Meddling(Server):
    """A connection on which every comparison is overtaken by an insert."""

    def __init__(self, server: Server, bench: Bench, sql: str) -> None:
        self._client = server.driver
        self.bench, self.sql, self.meddled = bench, sql, 0

    def rows(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        found = super().rows(sql, parameters, settings)
        if "countIf(missing)" in sql:
            self.meddled += 1
            self.bench.run(self.sql)
        return found


def test_differences_that_move_with_the_inserts_cannot_be_told(live: Bench) -> None:
    sql = "INSERT INTO {db}.live_source VALUES ('2026-11-03 10:00:00', 1, 1)"
    live.run(sql)
    live.add("live", "VALUES ('2026-11-03', 1, 5)")
    server = Meddling(live.server, live, sql)
    waits: list[float] = []
    found = live.verdict("live", "2026-11-03", server=server, sleep=waits.append)
    assert (found.status, found.tries, server.meddled) == ("cannot tell", MAX_TRIES, MAX_TRIES)
    assert "Inserts kept arriving" in found.sentence()
    assert waits == [0.2, 0.4, 0.8, 1.6]


def test_a_key_that_stays_wrong_is_a_difference_although_inserts_arrive(live: Bench) -> None:
    live.run("INSERT INTO {db}.live_source VALUES ('2026-11-04 10:00:00', 1, 1), ('2026-11-04 10:00:00', 2, 1)")
    live.add("live", "VALUES ('2026-11-04', 2, 5)")
    server = Meddling(live.server, live, "INSERT INTO {db}.live_source VALUES ('2026-11-04 10:00:00', 1, 1)")
    found = live.verdict("live", "2026-11-04", server=server, sleep=lambda _: None)
    assert (found.status, found.tries) == ("different", 2)
    assert [dict(sample.key)["k"] for sample in found.samples] == ["2"]


def test_inserts_into_other_windows_do_not_disturb(live: Bench) -> None:
    live.run("INSERT INTO {db}.live_source VALUES ('2026-11-05 10:00:00', 1, 1)")
    live.add("live", "VALUES ('2026-11-05', 1, 5)")
    server = Meddling(live.server, live, "INSERT INTO {db}.live_source VALUES ('2026-11-06 10:00:00', 1, 1)")
    found = live.verdict("live", "2026-11-05", server=server)
    assert (found.status, found.tries) == ("different", 1)
