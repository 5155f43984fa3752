"""The whole protocol, and targets without time partitions: exact whatever arrives, merges or disappears while it computes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from rebuild_cases import CASES, DAILY_SUM, ROWS, SOURCE, Case
from rebuild_oracle import NOW, Pipe

from chmv_assets.core.batches import COMMIT_SETTINGS
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.settings_values import Protocol
from resources.engine import EngineInfo
from resources.executor import Executor

DAY = "2026-07-05"
ROW = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-05 11:00:00', 'DE', 7, 1)"
BY_TENANT = Case(ddl=DAILY_SUM.replace("toYYYYMMDD(day)", "(toYYYYMM(day), country)"))


@pytest.fixture(autouse=True)
def everything_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a moment ago count as old, so that all source partitions are computed before the gate."""
    monkeypatch.setattr("resources.rebuild.whole.BUSY_SECONDS", -1.0)


THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))  # else each case rests or does not


def publish(pipe: Pipe, protocol: Protocol = "whole", **options: Any) -> Any:
    on_step = options.pop("on_step", lambda _number, _step: None)
    rebuilder = pipe.rebuilder(**options)
    return rebuilder.publish(pipe.catalog.objects[pipe.name(pipe.target)], None, protocol, on_step)


@pytest.mark.parametrize(
    ("name", "rests"),
    [(name, rests) for at, name in enumerate(CASES) for rests in (True, False) if rests == (at % 3 > 0) or THOROUGH],
)
def test_all_of_a_target_is_exact_after_one_publication(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    rests: bool,
) -> None:
    if not rests:
        monkeypatch.setattr("resources.rebuild.whole.BUSY_SECONDS", 120.0)
    pipe = make(CASES[name], f"whole_{name}")
    truth = pipe.truth()
    for how, partition in zip(itertools.cycle(("double", "drop", "delete")), sorted(truth), strict=False):
        pipe.damage(how, [partition])
    published = publish(pipe, timezone=CASES[name].timezone)
    assert pipe.rows(pipe.name("target")) == truth
    assert (published.protocol, published.tries) == ("whole", 1)
    assert set(published.partitions) == set(truth)
    assert left_over() == []


@pytest.mark.parametrize("protocol", ["closed", "gated", "whole"])
def test_partition_key_with_a_second_dimension(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    pipe = make(BY_TENANT, "tenants")
    truth = pipe.truth()
    assert len(truth) == 6  # two months, three countries
    pipe.damage("double", sorted(truth))
    published = publish(pipe, protocol)
    assert pipe.rows(pipe.name("target")) == truth and set(published.partitions) == set(truth)
    assert left_over() == []


def test_auto_rebuilds_a_target_as_a_whole_when_no_window_is_named(make: Callable[..., Pipe]) -> None:
    pipe = make(CASES["unpartitioned"], "auto_whole")
    node = pipe.catalog.objects[pipe.name("target")]
    chosen, why, steps = pipe.rebuilder().explain(node, None)
    assert chosen == "whole" and why.startswith("no window was named")
    kinds = [step.kind for step in steps]
    assert kinds.index("prebuild cold") < kinds.index("hold merges") < kinds.index("shut gate") < kinds.index("recheck")


@contextmanager
def writers(pipe: Pipe, engine: EngineInfo) -> Iterator[list[int]]:
    """Two writers of small inserts that send again what a gate refuses; gives how many were refused."""
    stop, refused, broken = threading.Event(), [0], []

    def write(number: int) -> None:
        client = clickhouse_connect.get_client(host="127.0.0.1", port=engine.http_port, autogenerate_session_id=False)
        try:
            for turn in itertools.count(1):
                if stop.is_set():
                    return
                sql = ROWS.format(db=pipe.database, case=pipe.case, first=100_000 * number + turn * 20, count=20)
                while True:
                    try:
                        client.command(sql, settings={"insert_deduplication_token": f"{number}-{turn}"})
                        break
                    except ClickHouseError as error:
                        if error.code != 469:
                            raise
                        refused[0] += 1
                        time.sleep(0.02)
        except BaseException as error:
            broken.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield refused
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert broken == []


@pytest.mark.parametrize(
    ("name", "protocol", "rests"),
    [
        ("unpartitioned", "gated", 120.0),
        ("unpartitioned", "whole", 120.0),
        ("unpartitioned", "whole", -1.0),
        ("two_views", "whole", -1.0),
        ("chained", "whole", -1.0),
        ("dimensions", "gated", 120.0),
    ],
)
def test_exact_under_writers(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    engine: EngineInfo,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    protocol: Protocol,
    rests: float,
) -> None:
    """Also where the guess of what rests is wrong for every partition."""
    monkeypatch.setattr("resources.rebuild.whole.BUSY_SECONDS", rests)
    pipe = make(CASES[name], f"fire_{name}", rows=600)
    pipe.damage("double", sorted(pipe.checksums()))
    with writers(pipe, engine):
        for _ in range(2):
            assert publish(pipe, protocol).gate_seconds < 10
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


@dataclass
class Meddling(Executor):
    """Runs a statement of somebody else during a fill of a scratch: after it, before anybody looks."""

    meddle: Callable[[], None] = lambda: None
    times: int = 1

    def insert_select(self, *arguments: Any, **options: Any) -> None:
        super().insert_select(*arguments, **options)
        if self.times:
            self.times -= 1
            self.meddle()


def test_rows_that_come_while_their_partition_is_computed_are_computed_later(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    pipe = make(CASES["additive"], "meanwhile")
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(ROW))
    published = publish(pipe, executor=executor)
    assert (executor.times, published.tries) == (0, 1)
    assert any("meanwhile; they are computed later" in line for line in pipe.logged)
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


AFTERWARDS = {
    "inserted": (ROW,),
    "merged": (ROW, "OPTIMIZE TABLE {db}.{case}_source PARTITION ID '20260705' FINAL"),
    "mutated": (
        "ALTER TABLE {db}.{case}_source DELETE IN PARTITION ID '20260705' WHERE ts < '2026-07-05 12:00:00' SETTINGS mutations_sync = 1",
    ),
    "dropped": ("ALTER TABLE {db}.{case}_source DROP PARTITION ID '20260705'",),
    "replaced": (
        "CREATE TABLE {db}.{case}_other AS {db}.{case}_source",
        "INSERT INTO {db}.{case}_other SELECT * REPLACE (amount + 1 AS amount) FROM {db}.{case}_source",
        "ALTER TABLE {db}.{case}_source REPLACE PARTITION ID '20260705' FROM {db}.{case}_other",
    ),
    "new day": ("INSERT INTO {db}.{case}_source VALUES (9, '2026-12-05 11:00:00', 'DE', 7, 1)",),
}


@pytest.mark.parametrize(
    ("what", "compacted"), [*((what, False) for what in AFTERWARDS), ("inserted", True), ("merged", True)]
)
def test_what_happens_to_computed_partitions_before_merges_are_held(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    compacted: bool,
) -> None:
    """A scratch whose parts were merged cannot be put right any more and is built once more."""
    name = f"after_{what.replace(' ', '_')}_{compacted}"
    pipe = make(CASES["two_views"], name)
    if compacted:
        monkeypatch.setattr("resources.rebuild.scratch_parts._FEW", 0)
        monkeypatch.setattr("resources.rebuild.scratch_parts._half", lambda _said: 1)
        monkeypatch.setattr("resources.rebuild.scratch_parts.PARTS_SECONDS", 0.3)
        monkeypatch.setattr("chmv_assets.core.whole.GROUP_ROWS", 500)
    done = False

    def on_step(_number: int, step: Step) -> None:
        nonlocal done
        if step.kind == "prebuild cold" and not done and step.name.table.endswith("other_mv"):
            done = True
            for sql in AFTERWARDS[what]:
                pipe.run(sql)

    pipe.damage("double", ["20260705"])
    published = publish(pipe, on_step=on_step)
    assert done and pipe.rows(pipe.name("target")) == pipe.truth()
    harmless = what in ("inserted", "new day")
    assert published.tries == 1 if harmless or not compacted else published.tries <= 2
    assert left_over() == []


@pytest.mark.parametrize("protocol", ["gated", "closed", "whole"])
def test_insert_that_fails_half_way_during_the_rebuild_is_not_doubled(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    """It was not in doubt when the rebuild began; its rows are in the scratch, and its writer sends it again afterwards."""
    pipe = make(CASES["additive"], f"half_way_{protocol}", rows=300)
    for table in ("source", "target"):
        pipe.client.command(
            f"ALTER TABLE {pipe.name(table).sql} MODIFY SETTING non_replicated_deduplication_window = 100"
        )
    pipe.run(
        "CREATE MATERIALIZED VIEW {db}.{case}_bad ENGINE = MergeTree ORDER BY x AS "
        "SELECT throwIf(amount = 4711)::UInt8 AS x FROM {db}.{case}_source"
    )
    insert = f"INSERT INTO {pipe.name('source').sql} VALUES (1, '2026-07-05 10:00:00', 'DE', 4711, 1)"
    settings = {**COMMIT_SETTINGS, "insert_deduplication_token": protocol, "parallel_view_processing": 0}
    sent = 0

    def fail() -> None:
        nonlocal sent
        sent += 1
        with pytest.raises(ClickHouseError):
            pipe.client.command(insert, settings=settings)

    def sleep(seconds: float) -> None:
        nonlocal sent
        if sent == 1:
            sent += 1
            pipe.run("DROP TABLE {db}.{case}_bad SYNC")
            pipe.client.command(insert, settings=settings)
        time.sleep(min(seconds, 0.1))

    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=fail)
    published = publish(pipe, protocol, executor=executor, sleep=sleep)
    assert sent == 2 and published.tries == 2
    pipe.client.command(insert, settings=settings)
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


def test_swap_that_writers_could_not_wait_for_is_refused(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chmv_assets.core.whole.SWAP_SECONDS_PER_PART", 1.0)
    pipe = make(CASES["additive"], "too_many")
    before = pipe.checksums()
    with pytest.raises(RebuildRefused, match=r"swapping \d+ parts may take \d+ s but wanted 24 s at most"):
        publish(pipe)
    assert pipe.checksums() == before and left_over() == []


def test_source_that_forgets_cannot_give_all_of_a_target(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    case = Case(ddl=DAILY_SUM, source=SOURCE.replace("ORDER BY id", "ORDER BY id TTL ts + INTERVAL 3650 DAY"))
    pipe = make(case, "forgets")
    before = pipe.checksums()
    for protocol in ("whole", "gated", "closed"):
        with pytest.raises(RebuildRefused, match=r"keeps rows only since .* \(TTL\)"):
            publish(pipe, protocol, now=lambda: NOW)
    assert pipe.checksums() == before


def test_hundreds_of_partitions_are_swapped_in_a_moment(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], clickhouse: Client
) -> None:
    pipe = make(CASES["additive"], "hundreds", rows=0)
    pipe.client.set_client_setting("max_partitions_per_insert_block", 0)
    clickhouse.command(
        f"INSERT INTO {pipe.name('source').sql} SELECT number, toDateTime('2025-01-01 00:00:00', 'UTC') + number % 400 * 86400, "
        "'DE', 1, 1 FROM numbers(2000)"
    )
    table = QName(pipe.database, "hundreds_target").sql
    clickhouse.command(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 100")
    published = publish(pipe)
    assert len(published.partitions) == 400 and published.gate_seconds < 10
    truth = pipe.truth()
    pipe.client.set_client_setting("max_partitions_per_insert_block", 100)
    assert pipe.rows(pipe.name("target")) == truth
    print(f"400 partitions: gate {published.gate_seconds:.2f} s, all {published.seconds:.2f} s")
    assert left_over() == []
