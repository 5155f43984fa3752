"""Rows that are on their way when a rebuild begins: in files of a Distributed table, in a Buffer, on another replica.

On a server of its own, which is a cluster of itself: `solo` is one shard with one replica, reached over the network; `dead` is one that nobody answers for. Distributed DDL needs a
Keeper, which the embedded server has not; for ON CLUSTER only the grammar is checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from engines import bare_client, own_engine
from rebuild_cases import DAILY_SUM, ROWS, SOURCE
from rebuild_oracle import Pipe, apply_ddl, day

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused, ServerError
from chmv_assets.core.gate import GATE_PREFIX, read_in_doubt, read_troubles, render_shut
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.settings_values import Protocol
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.engine.ports import free_ports
from resources.executor import Executor
from resources.forwarders import fetch_forwarders, fetch_undelivered
from resources.introspect import fetch_running_inserts
from resources.reconcile import Reconciler
from resources.runtime import fetch_observed

CLUSTER = "solo"
NO_KEEPER = (139, 392)  # parsed, understood, and then there is no Keeper


@pytest.fixture(scope="module")
def solo() -> Iterator[EngineInfo]:
    """A server with a cluster of itself, and with the background senders that the embedded one leaves out."""
    (port,) = free_ports(1)
    config = (
        "<clickhouse><background_distributed_schedule_pool_size>2</background_distributed_schedule_pool_size>"
        "<background_buffer_flush_schedule_pool_size>2</background_buffer_flush_schedule_pool_size>"
        "<remote_servers><solo><shard><internal_replication>true</internal_replication><replica><host>127.0.0.1</host>"
        f"<port>{port}</port></replica></shard></solo><dead><shard><internal_replication>true</internal_replication><replica>"
        "<host>127.0.0.1</host><port>9</port></replica></shard></dead></remote_servers></clickhouse>"
    )
    with own_engine({"config.d/solo.xml": config}, port, name="solo") as info:
        yield info


@pytest.fixture(scope="module")
def client(solo: EngineInfo) -> Iterator[Client]:
    with bare_client(solo) as found:
        yield found


@pytest.fixture(scope="module")
def connection(solo: EngineInfo) -> Iterator[Server]:
    with Server(Endpoint(solo.url)) as server:
        yield server


@pytest.fixture
def piped(client: Client, connection: Server) -> Iterator[Callable[[str], Pipe]]:
    """A pipeline with a Distributed table `<case>_all` in front of its source."""
    made: list[Pipe] = []

    def build(case: str) -> Pipe:
        client.command("CREATE DATABASE IF NOT EXISTS barrier")
        text = (SOURCE.strip() + "\n" + DAILY_SUM).replace("{db}", "barrier").replace("{case}", case)
        pipe = Pipe(client, connection, "barrier", case, apply_ddl(client, text))
        pipe.run(ROWS.format(db="barrier", case=case, first=0, count=2000))
        pipe.run(
            f"CREATE TABLE {{db}}.{{case}}_all AS {{db}}.{{case}}_source ENGINE = Distributed({CLUSTER}, {{db}}, {{case}}_source)"
        )
        made.append(pipe)
        return pipe

    yield build
    for pipe in made:
        for suffix in ("all", "buffer", "bad", "mv", "target", "source", "twin"):
            pipe.run(f"DROP TABLE IF EXISTS {{db}}.{{case}}_{suffix} SYNC")


def send(pipe: Pipe, first: int, count: int = 10) -> None:
    """Rows of one day into the Distributed table: written to its files, sent by the server later."""
    pipe.client.command(
        f"INSERT INTO {pipe.name('all').sql} SELECT number, toDateTime('2026-07-05 10:00:00', 'UTC'), 'DE', 7, 1 "
        f"FROM numbers({first}, {count})",
        settings={"prefer_localhost_replica": 0},
    )


def files(pipe: Pipe) -> int:
    return sum(one.files for one in fetch_undelivered(pipe.server, [pipe.name("all")]))


def wait_until(holds: Callable[[], bool], seconds: float = 45.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def arrived(pipe: Pipe, first: int, count: int) -> int:
    rows = pipe.client.query(
        f"SELECT count() FROM {pipe.name('source').sql} WHERE amount = 7 AND id >= {first} AND id < {first + count}"
    ).result_rows
    return int(rows[0][0])


def test_forwarders_are_found_whatever_is_declared(piped: Callable[[str], Pipe], connection: Server) -> None:
    pipe = piped("found")
    pipe.run(
        "CREATE TABLE {db}.{case}_buffer AS {db}.{case}_all ENGINE = Buffer({db}, {case}_all, 1, 9, 99, 99, 999, 9999, 99999)"
    )
    for cluster in ("", CLUSTER):
        found = fetch_forwarders(connection, [pipe.name("source")], cluster)
        assert [one.name for one in found] == [pipe.name("buffer"), pipe.name("all")], "the outermost is flushed first"
        assert fetch_forwarders(connection, [pipe.name("sour")], cluster) == ()


def test_rows_that_are_refused_behind_the_gate_arrive_once_after_it(
    piped: Callable[[str], Pipe], connection: Server
) -> None:
    """The server's own sender and the Buffer keep what a gate refuses."""
    pipe = piped("refused")
    pipe.run(
        "CREATE TABLE {db}.{case}_buffer AS {db}.{case}_source ENGINE = Buffer({db}, {case}_source, 1, 1, 1, 9999, 9999, 999999, 999999)"
    )
    until = connection.rows("SELECT toUnixTimestamp64Milli(now64(3)) + 6000")[0][0]
    connection.command(render_shut(pipe.name("source"), "x", int(until)))
    for first in (1000, 2000, 3000):
        send(pipe, first)
    pipe.run(
        "INSERT INTO {db}.{case}_buffer SELECT number, toDateTime('2026-07-05 10:00:00', 'UTC'), 'DE', 7, 1 FROM numbers(4000, 10)"
    )
    wait_until(lambda: "__chmv_fence_" in fetch_undelivered(connection, [pipe.name("all")])[0].error)
    assert files(pipe) == 3
    time.sleep(2.5)  # the Buffer is refused too
    assert arrived(pipe, 1000, 4000) == 0
    wait_until(lambda: arrived(pipe, 1000, 4000) == 40)
    wait_until(lambda: files(pipe) == 0)
    assert arrived(pipe, 1000, 4000) == 40
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize("protocol", ["closed", "gated"])
def test_what_waits_is_delivered_first(piped: Callable[[str], Pipe], protocol: Protocol) -> None:
    pipe = piped(f"first_{protocol}")
    pipe.protocol = protocol
    pipe.run("SYSTEM STOP DISTRIBUTED SENDS {db}.{case}_all")
    send(pipe, 1000)
    pipe.run("SYSTEM START DISTRIBUTED SENDS {db}.{case}_all")
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"))
    assert (files(pipe), arrived(pipe, 1000, 10)) == (0, 10)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_files_that_cannot_be_delivered_are_not_quiet(piped: Callable[[str], Pipe]) -> None:
    """A shard is down: closed says so; gated need not mind, since nothing of them was written."""
    pipe = piped("unsent")
    before = pipe.checksums()
    pipe.run("DROP TABLE {db}.{case}_all SYNC")
    pipe.run("CREATE TABLE {db}.{case}_all AS {db}.{case}_source ENGINE = Distributed(dead, {db}, {case}_source)")
    send(pipe, 1000)
    words = r"1 file\(s\) of barrier\.unsent_all are not delivered yet but wanted none\. The last try said: .*All connection tries failed"
    with pytest.raises(RebuildDisturbed, match=words):
        pipe.publish(day("2026-07-05"))
    assert pipe.checksums() == before
    pipe.damage("double", ["20260705"])
    pipe.protocol = "auto"
    assert pipe.publish(day("2026-07-05")).protocol == "gated"
    assert (files(pipe), arrived(pipe, 1000, 10)) == (1, 0)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_rows_sent_through_the_distributed_table_during_gated_rebuilds_are_exact(
    piped: Callable[[str], Pipe], solo: EngineInfo
) -> None:
    """A writer that never sees an error, since it only writes files; the server sends and sends again."""
    pipe = piped("exact")
    pipe.protocol = "gated"
    ended = threading.Event()
    sent: list[int] = []
    other = clickhouse_connect.get_client(host="127.0.0.1", port=solo.http_port, autogenerate_session_id=False)
    writer = Pipe(other, pipe.server, pipe.database, pipe.case, pipe.catalog)

    def write() -> None:
        while not ended.is_set():
            send(writer, 10_000 + 10 * len(sent))
            sent.append(10)
            time.sleep(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3):
            pipe.publish(day("2026-07-05"))
    finally:
        ended.set()
        thread.join()
        other.close()
    wait_until(lambda: files(pipe) == 0)
    assert len(sent) > 3
    assert arrived(pipe, 10_000, 10 * len(sent)) == 10 * len(sent)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize("when", ["before", "during"])
def test_file_that_fails_half_way_is_in_doubt(piped: Callable[[str], Pipe], when: str) -> None:
    """Its rows are in the source, a view failed, and the server sends it again and again: what then is counted twice?"""
    pipe = piped(f"halfway_{when}")
    pipe.run(
        "CREATE MATERIALIZED VIEW {db}.{case}_bad ENGINE = MergeTree ORDER BY x AS "
        "SELECT throwIf(id >= 1000)::UInt8 AS x FROM {db}.{case}_source"
    )

    def send_bad(_number: int, step: Step) -> None:
        if step.kind == "shut gate":  # as if it had been on its way then, and failed now
            gate = pipe.client.query(f"SHOW CREATE TABLE {pipe.name('source').sql}").result_rows[0][0]
            name = gate.split("CONSTRAINT ")[1].split()[0]
            pipe.run(f"ALTER TABLE {{db}}.{{case}}_source DROP CONSTRAINT {name}")
            send(pipe, 1000)
            wait_until(lambda: any(one.error for one in fetch_undelivered(pipe.server, [pipe.name("all")])))

    if when == "before":
        send(pipe, 1000)
    before = pipe.checksums()
    target = pipe.catalog.objects[pipe.name("target")]
    on_step = send_bad if when == "during" else lambda _number, _step: None
    with pytest.raises(RebuildDisturbed, match="sending one of its files failed during the rebuild"):
        pipe.rebuilder().publish(target, day("2026-07-05"), "gated", on_step=on_step)
    assert set(pipe.checksums()) == set(before)


def test_file_that_failed_half_way_is_in_doubt_also_when_the_gate_has_refused_it_since(
    piped: Callable[[str], Pipe],
) -> None:
    """A busy machine found it: the server tried it once more behind the gate, and only that error was left to see."""
    pipe = piped("halfway_twice")
    pipe.run(
        "CREATE MATERIALIZED VIEW {db}.{case}_bad ENGINE = MergeTree ORDER BY x AS "
        "SELECT throwIf(id >= 1000)::UInt8 AS x FROM {db}.{case}_source"
    )

    def try_again(_number: int, step: Step) -> None:
        if step.kind == "shut gate":
            with suppress(ClickHouseError):
                pipe.run("SYSTEM FLUSH DISTRIBUTED {db}.{case}_all")
            (left,) = fetch_undelivered(pipe.server, [pipe.name("all")])
            assert GATE_PREFIX in left.error

    send(pipe, 1000)
    before = pipe.checksums()
    with pytest.raises(RebuildDisturbed, match="sending one of its files failed during the rebuild"):
        pipe.rebuilder().publish(
            pipe.catalog.objects[pipe.name("target")], day("2026-07-05"), "gated", on_step=try_again
        )
    assert set(pipe.checksums()) == set(before)


def test_writers_who_wait_for_no_answer_are_not_shut_out(piped: Callable[[str], Pipe]) -> None:
    pipe = piped("unanswered")
    pipe.protocol = "gated"
    pipe.client.command(
        f"INSERT INTO {pipe.name('source').sql} SETTINGS async_insert = 1, wait_for_async_insert = 0 "
        "VALUES (1, '2026-07-05 11:00:00', 'DE', 5, 1)"
    )
    with pytest.raises(RebuildRefused, match=r"found 1 insert\(s\) of the last hour with wait_for_async_insert = 0"):
        pipe.publish(day("2026-07-05"))
    pipe.protocol = "closed"
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


# --- every replica ---------------------------------------------------------------------------------------------------


def test_what_is_asked_of_every_replica_is_answered_by_a_cluster_of_one(
    piped: Callable[[str], Pipe], connection: Server
) -> None:
    pipe = piped("replicas")
    values = {"database": "barrier", "table": pipe.name("source").table, "seconds": 3600}
    connection.command("SYSTEM FLUSH LOGS query_log, part_log")
    assert connection.rows(read_in_doubt(CLUSTER), values) == connection.rows(read_in_doubt(), values) == []
    assert connection.rows(read_troubles(CLUSTER), values) == connection.rows(read_troubles(), values) == [(0, 0)]
    assert fetch_undelivered(connection, [pipe.name("all")], CLUSTER) == ()
    assert fetch_running_inserts(connection, CLUSTER) == frozenset()


def test_what_ran_is_asked_of_every_replica(piped: Callable[[str], Pipe], connection: Server) -> None:
    piped("ran")
    one, all_ = (fetch_observed(connection, ["barrier"], 1, cluster) for cluster in ("", CLUSTER))
    views = {fired.view for fired in all_.fired or ()}
    assert any(name.table.startswith("ran") for name in views), views
    assert views == {fired.view for fired in one.fired or ()}
    assert any("could not be flushed" in note for note in all_.notes) and not one.notes  # ON CLUSTER needs a Keeper


def test_reconcile_asks_the_cluster(piped: Callable[[str], Pipe], connection: Server) -> None:
    pipe = piped("compared")
    target, window = pipe.catalog.get(str(pipe.name("target"))), day("2026-07-05")
    found = [Reconciler(connection, pipe.catalog, "UTC", cluster=one).run(target, window) for one in (CLUSTER, "dead")]
    assert [one.status for one in found] == ["equal", "cannot tell"], found
    pipe.run("ALTER TABLE {db}.{case}_target DROP PARTITION ID '20260705'")
    assert Reconciler(connection, pipe.catalog, "UTC", cluster=CLUSTER).run(target, window).status == "different"


def test_insert_on_a_replica_is_seen(solo: EngineInfo, connection: Server) -> None:
    client = clickhouse_connect.get_client(host="127.0.0.1", port=solo.http_port, autogenerate_session_id=False)

    def run() -> None:
        with pytest.raises(ClickHouseError):
            client.command(
                "INSERT INTO FUNCTION null('x UInt8') SELECT sleepEachRow(0.05) FROM numbers(100000) "
                "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0",
                settings={"query_id": "slow-replica"},
            )

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: bool(fetch_running_inserts(connection)))
    try:
        assert fetch_running_inserts(connection, CLUSTER) == {"slow-replica"}
    finally:
        connection.command("KILL QUERY WHERE query_id = 'slow-replica' SYNC")
        thread.join()
        client.close()


def test_statements_for_every_replica_are_understood(piped: Callable[[str], Pipe], connection: Server) -> None:
    """Without a Keeper they cannot be carried out; a mistake in them would be another error."""
    pipe = piped("grammar")
    executor = Executor(connection, cluster=CLUSTER)
    source = pipe.name("source")
    statements: list[Callable[[], None]] = [
        lambda: executor.stop_merges(source),
        lambda: executor.start_merges(source),
        lambda: executor.flush_async_inserts(),
        lambda: executor.flush_distributed(pipe.name("all")),
        lambda: executor.flush_buffer(pipe.name("all")),
        lambda: executor.run_ddl("gate", render_shut(source, "x", 1)),
        lambda: connection.command("SYSTEM FLUSH LOGS ON CLUSTER `solo` query_log, part_log") and None,
    ]
    for statement in statements:
        with pytest.raises(ServerError) as caught:
            statement()
        assert caught.value.code in NO_KEEPER, caught.value


def test_scratches_live_on_one_server(connection: Server) -> None:
    """Their merges are not stopped on a cluster, where nobody else has them: this would need a Keeper."""
    Executor(connection, cluster=CLUSTER).stop_merges(QName("chmv", "scratch.nothing"))
