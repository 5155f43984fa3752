"""The fenced rebuild on the real server: exact under writers that know no retry, no error for any of them, nothing left behind."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from engines import own_engine
from fenced_site import ARRIVAL, CHAIN, HOT, HOT_DAY, LEAD, ONE, TWO, Site

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.rebuild.unfence import LATE_RAISE, LATE_ROWS, WayOut

SHAPES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "one view": (ONE, ("s",), ("t",)),
    "two views": (TWO, ("s", "s2"), ("t",)),
    "chain of three": (CHAIN, ("s",), ("t", "t2", "t3")),
}


@pytest.fixture
def site(engine: EngineInfo, server: Server) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def build(ddl: str = ONE, sources: tuple[str, ...] = ("s",), targets: tuple[str, ...] = ("t",)) -> Site:
        made.append(Site(engine.http_port, server, f"fenced_{secrets.token_hex(3)}", ddl, sources, targets))
        return made[-1]

    yield build
    for one in made:
        server.command(f"DROP DATABASE {one.database} SYNC")


@pytest.mark.parametrize(
    "shape", SHAPES if os.environ.get("CHMV_THOROUGH") else ["two views"]
)  # tests/torture has a chain
def test_exact_under_writers_without_retry(site: Callable[..., Site], shape: str) -> None:
    made = site(*SHAPES[shape])
    made.damage()
    waited: list[int] = []

    def look(_number: int, step: Step) -> None:
        if step.kind == "move back":
            waited.append(len(made.sent))

    with made.under_fire():
        published = made.publish(on_step=look)
    made.check()
    assert (published.protocol, published.gate_seconds) == ("fenced", 0.0)
    assert HOT_DAY.replace("-", "") in published.partitions and waited
    assert [line for line in made.logged if line.startswith("run DDL move")], "rows waited and were moved in"


@pytest.mark.thorough
def test_twice_in_a_row_and_the_server_knows_the_view_as_before(site: Callable[..., Site]) -> None:
    made = site()
    with made.under_fire(2):
        made.publish()
        made.publish()
    made.check()
    (hooks,) = made.server.rows(
        "SELECT dependencies_table FROM system.tables WHERE database = {d:String} AND name = 's'", {"d": made.database}
    )
    assert hooks == (["v"],)


def test_writer_that_says_its_own_arrival(site: Callable[..., Site]) -> None:
    """Rows dated before the fence come between computing and swapping: done again, and nothing is lost or doubled."""
    made = site()
    made.damage()
    with made.client() as client:
        numbers = iter(range(900_000, 901_000))

        def meanwhile(_number: int, step: Step) -> None:
            if step.kind in ("twin", "divert", "drain", "compute", "publish", "compare arrivals", "restore view"):
                made.send(client, "s", [(HOT_DAY, next(numbers))], "now64(6) - 3600")

        with made.under_fire(2):
            published = made.publish(on_step=meanwhile)
    assert any("came late, computing again" in line for line in made.logged)
    assert published.protocol == "fenced"
    made.check()


def test_rows_dated_behind_the_fence_that_come_after_it(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dates rows into the fence while it is closed may fall between two readings: that is seen, and repaired gated."""
    made = site()
    with made.client() as client:
        count, seen = WayOut._count_waiting, []

        def late(out: WayOut, raised: int, lowered: int) -> int:
            found = count(out, raised, lowered)
            if not seen:
                seen.append(found)
                made.send(
                    client,
                    "s",
                    [(HOT_DAY, 900_001), ("2026-07-20", 900_002)],
                    f"fromUnixTimestamp64Micro({raised}, 'UTC')",
                )
            return found

        monkeypatch.setattr(WayOut, "_count_waiting", late)
        published = made.publish()
    assert f"{made.database}.t: {LATE_ROWS}. What it may have touched is rebuilt gated." in made.logged
    assert "20260720" in published.partitions
    made.check()


def test_fence_that_came_too_late_publishes_nothing_and_is_repaired(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server or we were frozen while F was set: it may have come before it could be seen, and inserts have gone two ways."""
    made = site()
    made.damage()
    run = Executor.run_ddl

    def slow(executor: Executor, name: str, sql: str) -> None:
        run(executor, name, sql)
        if name == "raise fence":
            time.sleep(LEAD + 1.1)

    monkeypatch.setattr(Executor, "run_ddl", slow)
    kinds: list[str] = []
    published = made.publish(on_step=lambda _number, step: kinds.append(step.kind))
    assert "publish" not in kinds and "drop fence" in kinds
    assert f"{made.database}.t: {LATE_RAISE}. What it may have touched is rebuilt gated." in made.logged
    assert published.partitions == (HOT_DAY.replace("-", ""),)
    made.check()


@pytest.mark.thorough
def test_insert_that_outlasts_the_lead_is_waited_for_with_a_longer_one(site: Callable[..., Site]) -> None:
    made = site()
    made.damage()
    slow: list[threading.Thread] = []

    def insert() -> None:
        with made.client() as client:
            client.command(
                f"INSERT INTO {made.database}.s (d, id) SELECT '{HOT_DAY}', 800000 + number + sleepEachRow(0.3) FROM numbers(10) "
                "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0"
            )

    def meanwhile(_number: int, step: Step) -> None:
        if step.kind == "hold commits" and not slow:
            slow.append(threading.Thread(target=insert))
            slow[0].start()
            time.sleep(0.3)

    published = made.publish(on_step=meanwhile)
    slow[0].join()
    made.sent |= dict.fromkeys(range(800_000, 800_010), 1)
    assert published.tries > 1
    made.check()


@pytest.mark.parametrize("kind", ["raise fence", "publish"])
def test_failure_of_ours_goes_to_the_end_at_once(site: Callable[..., Site], kind: str) -> None:
    made = site()

    def fail(_number: int, step: Step) -> None:
        if step.kind == kind:
            raise ZeroDivisionError

    with made.under_fire(1, pause_seconds=0.02), pytest.raises(ZeroDivisionError):
        made.publish(on_step=fail)
    made.check()


def test_rows_from_the_future_are_refused(site: Callable[..., Site]) -> None:
    made = site()
    with made.client() as client:
        made.send(client, "s", [(HOT_DAY, 900_001)], "'2100-01-01 00:00:00'")
    with pytest.raises(RebuildRefused, match="1 rows have arrival in the future but wanted none"):
        made.publish()
    made.check()


BARE = ONE.replace(f"{ARRIVAL}, ", "")
JOINED = ONE.replace(
    "SELECT d, id, count() AS n FROM {db}.s GROUP BY d, id",
    "SELECT s.d AS d, s.id AS id, o.n AS n FROM {db}.s AS s LEFT ANY JOIN {db}.o AS o ON o.id = s.id",
)
JOINED = "CREATE TABLE {db}.o (id UInt64, n UInt64) ENGINE = MergeTree ORDER BY id;" + JOINED
LAST_WINS = ONE.replace("SummingMergeTree", "ReplacingMergeTree").replace(
    "count() AS n FROM {db}.s GROUP BY d, id", "toUInt64(1) AS n FROM {db}.s"
)


@pytest.mark.parametrize(
    ("ddl", "target", "message"),
    [
        (BARE, "t", "no arrival column but wanted a column DateTime64 with DEFAULT now64"),
        (ONE.replace(ARRIVAL, ARRIVAL.replace("DateTime64(6, 'UTC')", "Nullable(DateTime64(6, 'UTC'))")), "t", "no arrival column"),
        (JOINED, "t", "found class opaque"),
        (CHAIN, "t2", "is written by other views but wanted a source in which rows first arrive"),
        (LAST_WINS, "t", "found ReplacingMergeTree but wanted"),
        (ONE.replace("MergeTree PARTITION BY d ORDER BY id", "ReplacingMergeTree PARTITION BY d ORDER BY id"), "t", "wanted a plain MergeTree"),
        (ONE.replace("TO {db}.t AS", "TO {db}.t (d Date, id UInt32, n UInt64) AS"), "t", "columns that were declared by hand"),
    ],
    ids=["no arrival", "nullable arrival", "opaque", "chain above", "order", "merging source", "own columns"],
)  # fmt: skip
def test_refused_with_the_way_that_remains(site: Callable[..., Site], ddl: str, target: str, message: str) -> None:
    made = site(ddl)
    with pytest.raises(RebuildRefused, match=message) as refusal:
        made.rebuilder().explain(made.catalog.objects[QName(made.database, target)], HOT, "fenced")
    assert "--protocol gated" in str(refusal.value)
    assert made.left() == []


def test_view_behind_the_target_that_nobody_declared_is_refused(site: Callable[..., Site]) -> None:
    made = site()
    made.server.command(
        f"CREATE MATERIALIZED VIEW {made.database}.stranger ENGINE = MergeTree ORDER BY id AS SELECT id FROM {made.database}.t"
    )
    with pytest.raises(RebuildRefused, match=r"stranger: found it is fired by .* and declared nowhere"):
        made.publish()


def test_arrival_that_nobody_can_supply(site: Callable[..., Site]) -> None:
    made = site(ONE.replace("DEFAULT now64", "MATERIALIZED now64"))
    made.damage()
    with made.under_fire(2):
        made.publish()
    made.check()


def test_auto_never_chooses_it(site: Callable[..., Site]) -> None:
    made = site()
    chosen, _, _ = made.rebuilder().explain(made.catalog.objects[QName(made.database, "t")], HOT)
    assert chosen == "gated"
    chosen, why, steps = made.rebuilder().explain(made.catalog.objects[QName(made.database, "t")], HOT, "fenced")
    assert (chosen, why) == ("fenced", "asked for")
    assert "must not send a finished insert again" in " ".join(map(str, steps))
    assert made.left() == []


RIGHTS = """<clickhouse><users><writer><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>
<quota>default</quota><grants><query>GRANT INSERT ON fenced_rights.*</query></grants></writer></users></clickhouse>"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[EngineInfo]:
    """A server with a user that may do nothing but insert."""
    with own_engine({"users.d/writer.xml": RIGHTS}, name="guarded") as info:
        yield info


@pytest.mark.parametrize(
    "rights", ["DEFINER = default SQL SECURITY DEFINER", pytest.param("SQL SECURITY NONE", marks=pytest.mark.thorough)]
)
def test_writer_who_may_only_insert_sees_no_error(guarded: EngineInfo, rights: str) -> None:
    with Server(Endpoint(guarded.url)) as server:
        made = Site(guarded.http_port, server, "fenced_rights", ONE.replace("TO {db}.t AS", f"TO {{db}}.t {rights} AS"))
        try:
            made.damage()
            with made.under_fire(2, "writer"):
                made.publish()
            made.check()
        finally:
            server.command("DROP DATABASE fenced_rights SYNC")


def test_view_that_would_read_the_fence_with_its_writers_rights_is_refused(guarded: EngineInfo) -> None:
    with Server(Endpoint(guarded.url)) as server:
        made = Site(guarded.http_port, server, "fenced_rights", ONE)
        try:
            with pytest.raises(RebuildRefused, match="no SQL SECURITY, and writer who may insert but wanted a definer"):
                made.publish()
            made.check()
        finally:
            server.command("DROP DATABASE fenced_rights SYNC")
