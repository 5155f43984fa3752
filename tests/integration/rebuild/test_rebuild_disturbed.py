"""The closed rebuild where it cannot be exact or is disturbed: refused with the target untouched, or tried again until it is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError
from rebuild_cases import CASES, DAILY_SUM, SOURCE, Case
from rebuild_oracle import UTC, Pipe, day

from chmv_assets.core.batches import COMMIT_SETTINGS
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from resources.engine import EngineInfo
from resources.executor import Executor


@pytest.mark.parametrize("suffix", ["", "_views"])
def test_emptied_source_is_refused_and_the_target_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], suffix: str
) -> None:
    pipe = make(CASES["two_views" if suffix else "additive"], f"emptied{suffix}")
    before = pipe.checksums()
    pipe.run("TRUNCATE TABLE {db}.{case}_source")
    with pytest.raises(
        RebuildRefused, match=r"holds rows for this window but its views give none from test_\w+\.emptied"
    ):
        pipe.publish(day("2026-07-05"))
    assert pipe.checksums() == before


def test_expired_window_is_refused_with_the_dates(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    case = Case(ddl=DAILY_SUM, source=SOURCE.replace("ORDER BY id", "ORDER BY id TTL ts + INTERVAL 3650 DAY"))
    pipe = make(case, "expired")
    before = pipe.checksums()
    later = datetime(2036, 7, 20, 12, tzinfo=UTC)
    with pytest.raises(
        RebuildRefused, match=r"starts 2026-07-05 00:00 but .* keeps rows only since 2026-07-23 12:00 \(TTL\)"
    ):
        pipe.publish(day("2026-07-05"), now=lambda: later)
    assert pipe.checksums() == before
    pipe.damage("double", ["20260724"])
    pipe.publish(day("2026-07-24"), now=lambda: later)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize(
    "ttl", ["ts + INTERVAL 1 DAY TO DISK 'default'", "ts + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(3))"]
)
def test_rows_that_only_move_are_still_there(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], ttl: str
) -> None:
    name = "moved" if "DISK" in ttl else "recompressed"
    pipe = make(Case(ddl=DAILY_SUM, source=SOURCE.replace("ORDER BY id", f"ORDER BY id TTL {ttl}")), name)
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_null_source_is_refused(make: Callable[..., Pipe]) -> None:
    source = "CREATE TABLE {db}.{case}_source (id UInt64, ts DateTime('UTC'), country String, amount UInt32, version UInt32) ENGINE = Null;"
    pipe = make(Case(ddl=DAILY_SUM, source=source), "null_source")
    before = pipe.checksums()
    assert before
    with pytest.raises(
        RebuildRefused, match=r"null_source_source is a Null table but wanted a table that holds its rows"
    ):
        pipe.publish(day("2026-07-05"))
    assert pipe.checksums() == before


@dataclass
class Meddling(Executor):
    """Runs a statement of somebody else after each fill of a scratch, so many times."""

    meddle: Callable[[], None] = lambda: None
    times: int = 1
    when: str = "insert"

    def insert_select(self, *arguments: Any, **options: Any) -> None:
        super().insert_select(*arguments, **options)
        self._disturb("insert")

    def replace_partition(self, target: QName, partition_id: str, scratch: QName) -> None:
        self._disturb("swap")
        super().replace_partition(target, partition_id, scratch)

    def _disturb(self, when: str) -> None:
        if when == self.when and self.times:
            self.times -= 1
            self.meddle()


@pytest.mark.parametrize("when", ["insert", "swap"])
def test_insert_into_the_window_during_the_build_is_noticed(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], when: str
) -> None:
    pipe = make(CASES["additive"], f"noticed_{when}")
    pipe.damage("double", ["20260705"])
    row = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-05 11:00:00', 'DE', 7, 1)"
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(row), when=when)
    published = pipe.publish(day("2026-07-05"), executor=executor)
    assert (executor.times, published.tries) == (0, 2)
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


def test_inserts_elsewhere_do_not_disturb(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(CASES["additive"], "elsewhere")
    pipe.damage("double", ["20260705"])
    row = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-06 11:00:00', 'DE', 7, 1)"
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(row), times=3)
    assert pipe.publish(day("2026-07-05"), executor=executor).tries == 1
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize("name", ["additive", "chained"])
def test_merges_of_the_source_are_no_inserts(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], name: str
) -> None:
    """Parts become fewer, and a Summing source loses rows; nothing else happens."""
    pipe = make(CASES[name], f"merging_{name}")
    source = pipe.name("hours" if name == "chained" else "source")
    window = CASES[name].window
    state = (
        f"SELECT count() FROM system.parts WHERE active AND database = '{source.database}' AND table = '{source.table}'"
    )
    before = pipe.client.query(state).result_rows
    meddle = lambda: pipe.run(f"OPTIMIZE TABLE {source.sql} FINAL")  # noqa: E731
    published = pipe.publish(window, executor=Meddling(pipe.server, log=pipe.logged.append, meddle=meddle))
    assert pipe.client.query(state).result_rows < before
    assert published.tries == 1
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_window_that_never_rests_is_refused_and_the_target_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    pipe = make(CASES["additive"], "restless")
    row = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-05 11:00:00', 'DE', 7, 1)"
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(row), times=99)
    with pytest.raises(RebuildRefused, match="took inserts during each of 3 tries"):
        pipe.publish(day("2026-07-05"), executor=executor)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.fixture
def slow_insert(engine: EngineInfo, make: Callable[..., Pipe]) -> Iterator[Callable[[], None]]:
    """An INSERT that runs until it is killed; gives the function that ends it."""
    pipe = make(CASES["additive"], "slow")
    client = clickhouse_connect.get_client(host="127.0.0.1", port=engine.http_port, autogenerate_session_id=False)
    query_id = f"slow-{random.random()}"

    def run() -> None:
        try:
            client.command(
                "INSERT INTO FUNCTION null('x UInt8') SELECT sleepEachRow(0.05) FROM numbers(100000) "
                "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0",
                settings={"query_id": query_id},
            )
        except clickhouse_connect.driver.exceptions.DatabaseError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    while not pipe.client.query(f"SELECT 1 FROM system.processes WHERE query_id = '{query_id}'").result_rows:
        pass

    def end() -> None:
        pipe.client.command(f"KILL QUERY WHERE query_id = '{query_id}' SYNC")

    yield end
    end()
    thread.join()
    client.close()


@dataclass
class Clock:
    """Time that passes by sleeping only."""

    seconds: float = 0.0
    on_sleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds * 100
        self.on_sleep()


def test_insert_that_does_not_end_is_refused(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], slow_insert: Callable[[], None]
) -> None:
    pipe = make(CASES["additive"], "slow")
    before, clock = pipe.checksums(), Clock()
    with pytest.raises(RebuildRefused, match=r"1 insert\(s\) still run after 60 s"):
        pipe.publish(day("2026-07-05"), clock=clock.now, sleep=clock.sleep)
    assert clock.seconds > 60
    assert pipe.checksums() == before


def test_insert_that_ends_is_waited_for(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], slow_insert: Callable[[], None]
) -> None:
    pipe = make(CASES["additive"], "slow")
    clock = Clock(on_sleep=slow_insert)
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"), clock=clock.now, sleep=clock.sleep)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize("protocol", ["closed", "gated", "owned"])
def test_insert_in_doubt_is_waited_for_and_never_doubled(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    """The source has the rows, a later view failed: a rebuild now and the writer's retry after it would double them."""
    pipe = make(CASES["additive"], f"doubt_{protocol}", rows=300)
    pipe.protocol = protocol
    pipe.run(
        "CREATE MATERIALIZED VIEW {db}.{case}_bad ENGINE = MergeTree ORDER BY x AS "
        "SELECT throwIf(amount = 4711)::UInt8 AS x FROM {db}.{case}_source"
    )
    insert = f"INSERT INTO {pipe.name('source').sql} VALUES (1, '2026-07-05 10:00:00', 'DE', 4711, 1)"
    settings = {
        **COMMIT_SETTINGS,
        "insert_deduplication_token": f"doubt-{protocol}",
        "parallel_view_processing": 0,
    }
    pipe.client.command(
        f"ALTER TABLE {pipe.name('source').sql} MODIFY SETTING non_replicated_deduplication_window = 100"
    )
    pipe.client.command(
        f"ALTER TABLE {pipe.name('target').sql} MODIFY SETTING non_replicated_deduplication_window = 100"
    )
    before = pipe.client.query(f"SELECT count() FROM {pipe.name('source').sql}").result_rows
    with pytest.raises(ClickHouseError):
        pipe.client.command(insert, settings=settings)
    after = pipe.client.query(f"SELECT count() FROM {pipe.name('source').sql}").result_rows
    if after == before:
        pytest.fail("the insert failed before it wrote: nothing is in doubt")
    clock = Clock()
    with pytest.raises(
        RebuildRefused, match="failed and was not repeated yet but wanted every insert done or given up"
    ):
        pipe.publish(day("2026-07-05"), clock=clock.now, sleep=clock.sleep)
    pipe.run("DROP TABLE {db}.{case}_bad SYNC")
    pipe.client.command(insert, settings=settings)  # the writer's retry
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()
