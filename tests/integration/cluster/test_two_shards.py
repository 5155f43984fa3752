"""A Distributed table over two real servers: reads, writes, what is on its way, a rebuild of one shard under writers, drift by host."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import clickhouse_connect
import pytest
from two_servers import Pair, Recorder

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import Comparison
from chmv_assets.core.errors import ClusterRefused, RebuildDisturbed
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import window_of_key
from chmv_assets.drift import Known, read_drift
from chmv_assets.live import compare_replicas
from resources.clickhouse import Server
from resources.executor import Executor
from resources.forwarders import fetch_forwarders, fetch_undelivered
from resources.introspect import fetch_running_inserts
from resources.journal import Journal
from resources.rebuild import Rebuilder
from resources.rebuild.barrier import deliver, require_delivered

THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))
SECONDS = 20.0 if THOROUGH else 0.0  # two rebuilds at least
DDL = """
CREATE TABLE two.src (id UInt64, ts DateTime('UTC'), country String, amount UInt32)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE two.daily (day Date, country String, events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW two.daily_mv TO two.daily AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM two.src GROUP BY day, country;
"""
FRONT = """
CREATE TABLE two.src_all AS two.src ENGINE = Distributed('all', two, src, id);
CREATE TABLE two.daily_all AS two.daily ENGINE = Distributed('all', two, daily);
"""
DAY = window_of_key("2026-07-05", "day", "UTC")
COUNTRIES = ("DE", "FR", "US")
SYNC = {"distributed_foreground_insert": 1, "async_insert": 0}
QUEUED = {"distributed_foreground_insert": 0, "prefer_localhost_replica": 0, "async_insert": 0}


@pytest.fixture
def shards(pair: Pair) -> Iterator[Pair]:
    pair.both("CREATE DATABASE two")
    for statement in (DDL + FRONT).split(";")[:-1]:
        pair.both(statement)
    yield pair
    pair.both("DROP DATABASE two SYNC")
    pair.both("DROP DATABASE IF EXISTS chmv SYNC")


def rows_of(first: int, count: int) -> list[tuple[int, str, int]]:
    """The model: id, country, amount; all of one day."""
    return [(one, COUNTRIES[one % 3], one % 100) for one in range(first, first + count)]


def insert(server: Server, first: int, count: int, settings: dict[str, int], table: str = "src_all") -> None:
    server.command(
        f"INSERT INTO two.{table} SELECT number AS id, toDateTime('2026-07-05 10:00:00', 'UTC'), ['DE', 'FR', 'US'][number % 3 + 1], number % 100 "
        f"FROM numbers({first}, {count})",
        settings=settings,
    )


def expected(rows: list[tuple[int, str, int]]) -> dict[str, tuple[int, int]]:
    events, amounts = Counter(country for _, country, _ in rows), Counter[str]()
    for _, country, amount in rows:
        amounts[country] += amount
    return {country: (events[country], amounts[country]) for country in events}


def target_of(server: Server, table: str) -> dict[str, tuple[int, int]]:
    found = server.rows(f"SELECT country, sum(events), sum(amount) FROM two.{table} GROUP BY country")
    return {str(country): (int(events), int(amount)) for country, events, amount in found}


def source_of(server: Server, table: str) -> dict[str, tuple[int, int]]:
    found = server.rows(f"SELECT country, count(), sum(amount) FROM two.{table} GROUP BY country")
    return {str(country): (int(events), int(amount)) for country, events, amount in found}


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def flushed(server: Server) -> bool:
    server.command("SYSTEM FLUSH DISTRIBUTED two.src_all")
    return fetch_undelivered(server, [QName("two", "src_all")]) == ()


def rebuilder(server: Server, cluster: str = "main") -> Rebuilder:
    executor = Executor(server, log=lambda _line: None, cluster=cluster)
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)], default_database="two")
    return Rebuilder(executor, catalog, "UTC", lambda: datetime(2026, 8, 1, tzinfo=timezone.utc))


def test_writes_and_reads_through_distributed_tables_are_those_of_the_model(shards: Pair) -> None:
    """Sync and queued, from either server; views fire where rows arrive."""
    insert(shards.first, 0, 300, SYNC)
    insert(shards.second, 300, 300, QUEUED)
    shards.second.command("SYSTEM FLUSH DISTRIBUTED two.src_all")
    model = expected(rows_of(0, 600))
    assert source_of(shards.first, "src_all") == target_of(shards.first, "daily_all") == model
    assert target_of(shards.second, "daily_all") == model
    for server in (shards.first, shards.second):  # each holds its half, and its target what its own source gives
        assert source_of(server, "src") == target_of(server, "daily") != {}


def test_several_shards_are_refused_and_one_is_not(shards: Pair) -> None:
    with pytest.raises(ClusterRefused, match="cluster all: found 2 shards but wanted one"):
        Journal(shards.first, "all").prepare()
    with pytest.raises(
        ClusterRefused, match="cluster other: found that the server at CHMV_CLICKHOUSE_URL is none of its replicas"
    ):
        rebuilder(shards.first, "other").executor.stop_merges(QName("two", "src"))
    with pytest.raises(ClusterRefused, match=r"cluster mian: found no such one .* \(main"):
        Journal(shards.first, "mian").prepare()
    assert rebuilder(shards.first).executor.topology.replicas == 1
    assert shards.first.rows("SELECT 1 FROM system.databases WHERE name = 'chmv'") == []


def test_inserts_of_both_servers_are_seen(shards: Pair) -> None:
    """One that comes through the other server is seen on the shard itself, where it counts, and on the cluster as a whole."""
    client = clickhouse_connect.get_client(dsn=shards.second.endpoint.url, autogenerate_session_id=False)
    slow = (
        "INSERT INTO two.src_all SELECT number * 2, toDateTime('2026-07-05 10:00:00', 'UTC'), 'DE', 1 FROM numbers(100000) "
        "WHERE NOT ignore(sleepEachRow(0.001)) SETTINGS max_block_size = 100, distributed_foreground_insert = 1, min_insert_block_size_rows = 1"
    )
    settings = {"query_id": "slow-other", "function_sleep_max_microseconds_per_block": 0}

    def run() -> None:
        with pytest.raises(Exception, match="QUERY_WAS_CANCELLED"):
            client.command(slow, settings=settings)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: "slow-other" in fetch_running_inserts(shards.first, "all"))
        assert "slow-other" not in fetch_running_inserts(shards.first)
        wait_until(lambda: bool(fetch_running_inserts(shards.first)))  # its part for this shard, under an id of its own
    finally:
        shards.second.command("KILL QUERY WHERE query_id = 'slow-other' SYNC")
        thread.join()
        client.close()
    wait_until(lambda: not fetch_running_inserts(shards.first, "all"))


def test_files_that_wait_on_the_other_shard_are_seen(shards: Pair) -> None:
    """They will come here at any moment: the closed protocol refuses, whatever cluster chmv works on."""
    shards.second.command("SYSTEM STOP DISTRIBUTED SENDS two.src_all")
    insert(shards.second, 0, 100, QUEUED)
    source = QName("two", "src")
    (front,) = fetch_forwarders(shards.first, [source])
    assert (front.name, front.cluster) == (QName("two", "src_all"), "all")
    assert fetch_undelivered(shards.first, [front.name]) == ()
    with Recorder(shards.first.endpoint) as server:
        for cluster in ("", "main"):
            bench = rebuilder(server, cluster)
            with pytest.raises(
                RebuildDisturbed, match=r"file\(s\) of two\.src_all are not delivered yet but wanted none"
            ):
                require_delivered(bench, [source], deliver(bench, [source]))
        shards.second.command("SYSTEM START DISTRIBUTED SENDS two.src_all")
        shards.second.command("SYSTEM FLUSH DISTRIBUTED two.src_all")
        require_delivered(bench, [source], deliver(bench, [source]))
    assert target_of(shards.first, "daily_all") == expected(rows_of(0, 100))


@pytest.mark.parametrize("protocol", ["gated", "auto"] if THOROUGH else ["gated"])
def test_shard_is_rebuilt_while_writers_write_through_both(shards: Pair, protocol: Protocol) -> None:
    """A damaged partition of the first shard; writers on both servers, who send again what a gate refused. Nothing lost, nothing doubled."""
    insert(shards.first, 0, 3000, SYNC)
    sent: list[int] = []  # blocks of 100 rows
    stop, guard = threading.Event(), threading.Lock()
    refused: list[str] = []

    def write(server_of: Server, first_block: int) -> None:
        block = first_block
        with Server(server_of.endpoint) as server:
            while not stop.is_set():
                # A block whose ids are of one shard, with a token: it is in as a whole or not at all, and once.
                sql = (
                    "INSERT INTO two.src_all SELECT number * 2 + {odd:UInt8}, toDateTime('2026-07-05 10:00:00', 'UTC'), 'DE', 1 "
                    "FROM numbers({first:UInt64}, 100)"
                )
                values = {"odd": block % 2, "first": 1_000_000 + block * 100}
                settings = {
                    **SYNC,
                    "insert_deduplication_token": f"b{block}",
                    "deduplicate_blocks_in_dependent_materialized_views": 1,
                }
                while True:
                    try:
                        server.command(sql, values, settings)
                        break
                    except Exception as error:
                        assert "__chmv_fence_" in str(error), error
                        refused.append(str(error)[:80])
                        time.sleep(0.05)
                with guard:
                    sent.append(block)
                block += 2

    def queue() -> None:
        """Into files of the second server, which sends them when it can; nobody sees a refusal."""
        block = 200_001
        with Server(shards.second.endpoint) as server:
            while not stop.is_set():
                values = {"first": 1_000_000 + block * 100}
                sql = (
                    "INSERT INTO two.src_all SELECT number, toDateTime('2026-07-05 10:00:00', 'UTC'), 'DE', 1 "
                    "FROM numbers({first:UInt64}, 100)"
                )
                server.command(sql, values, QUEUED)
                with guard:
                    sent.append(block)
                block += 1
                time.sleep(0.3)

    writers = [threading.Thread(target=write, args=(server, at)) for server, at in ((shards.first, 0), (shards.second, 1), (shards.first, 100_001), (shards.second, 100_000))]  # fmt: skip
    writers.append(threading.Thread(target=queue))
    for one in writers:
        one.start()
    rebuilds = 0
    with Recorder(shards.first.endpoint) as server:
        bench = rebuilder(server)
        target = bench.catalog.objects[QName("two", "daily")]
        deadline = time.monotonic() + SECONDS
        try:
            while rebuilds < 2 or time.monotonic() < deadline:
                shards.first.command("ALTER TABLE two.daily DELETE WHERE country = 'FR' SETTINGS mutations_sync = 1")
                bench.publish(target, DAY, protocol)
                rebuilds += 1
        finally:
            stop.set()
            for one in writers:
                one.join()
    wait_until(lambda: flushed(shards.second), 60.0)
    events = 100 * len(sent)
    model = expected(rows_of(0, 3000))
    model["DE"] = (model["DE"][0] + events, model["DE"][1] + events)
    assert source_of(shards.first, "src_all") == model
    assert target_of(shards.first, "daily_all") == target_of(shards.second, "daily_all") == model
    assert target_of(shards.first, "daily") == source_of(shards.first, "src")
    assert "__chmv_fence_" not in str(shards.first.rows("SHOW CREATE TABLE two.src"))
    print(
        f"{protocol}: {rebuilds} rebuilds, {len(sent)} blocks of 100 rows, {len(refused)} refused and sent again, 0 lost, 0 doubled"
    )


def test_drift_names_the_host(shards: Pair) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)], default_database="two")
    names = sorted(catalog.objects)
    first, second = (f"127.0.0.1:{port}" for port in shards.ports)
    found = compare_replicas(shards.first, catalog, names, "all")
    assert {host: {verdict.state for verdict in verdicts.values()} for host, verdicts in found.items()} == {first: {"equal"}, second: {"equal"}}  # fmt: skip
    shards.second.command("ALTER TABLE two.daily ADD COLUMN extra UInt8")
    shards.second.command("DROP TABLE two.daily_mv SYNC")
    found = compare_replicas(shards.first, catalog, names, "all")
    wrong = {(host, str(name), verdict.state) for host, verdicts in found.items() for name, verdict in verdicts.items() if verdict.state != "equal"}  # fmt: skip
    assert wrong == {(second, "two.daily", "changed"), (second, "two.daily_mv", "missing")}
    seen = read_drift(shards.first, catalog, {}, cluster="all")
    told = {str(name): [(one.what, one.live) for one in verdict.differences] for name, verdict in seen.comparisons.items() if verdict.state != "equal"}  # fmt: skip
    assert told == {
        "two.daily": [(f"column extra on replica {second}", "UInt8")],
        "two.daily_mv": [(f"replica {second}", "missing")],
    }
    assert read_drift(shards.first, catalog, {}, cluster="main").comparisons == dict.fromkeys(
        names, Comparison("equal")
    )


def test_drift_of_equal_replicas_takes_one_query_more(shards: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)], default_database="two")
    known: Known = {}
    read_drift(shards.first, catalog, known, cluster="all")
    asked: list[str] = []
    rows = Server.rows
    monkeypatch.setattr(
        Server, "rows", lambda self, sql, *more, **named: (asked.append(sql), rows(self, sql, *more, **named))[1]
    )
    assert read_drift(shards.first, catalog, known, cluster="all").silent == ()
    assert len(asked) == 2
