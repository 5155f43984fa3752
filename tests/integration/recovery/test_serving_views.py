"""Serving views on the real server: readers see every row once while partitions are dropped, rebuilt, copied, and the target itself goes."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest
from clickhouse_connect import get_client
from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.errors import RouteRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import window_of_key
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.health import fetch_health
from resources.journal import Journal
from resources.rebuild import Rebuilder
from resources.serving import Router

DDL = """
CREATE TABLE {db}.{t}_source (id UInt64, ts DateTime('UTC'), amount UInt32) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
CREATE TABLE {db}.{t} (id UInt64, ts DateTime('UTC'), amount UInt32, twice UInt64 MATERIALIZED amount * 2)
ENGINE = {engine} {partition} ORDER BY id;
CREATE MATERIALIZED VIEW {db}.{t}_mv TO {db}.{t} AS SELECT id, ts, amount FROM {db}.{t}_source;
"""
ROWS = 3000  # over ten days
DAYS = "PARTITION BY toYYYYMMDD(ts)"


class Site:
    """One target with its source, and readers of its serving view."""

    def __init__(self, engine: EngineInfo, client: Client, server: Server, database: str, ddl: str, table: str) -> None:
        self.engine, self.client, self.server = engine, client, server
        for statement in ddl.split(";\n"):
            if statement.strip():
                client.command(statement.strip())
        self.catalog: Catalog = build_catalog([SourceFile(path="ddl.sql", text=ddl)]).require_sound()
        self.name = QName(database, table)
        self.source = QName(database, f"{table}_source")
        self.router = Router(server, Journal(server), self.catalog, 3600.0)
        self.insert(0, ROWS)

    @property
    def target(self) -> Object:
        return self.catalog.objects[self.name]

    @property
    def view(self) -> str:
        return self.router.view_of(self.name).sql

    def insert(self, first: int, count: int, *, day: str = "number % 10") -> None:
        self.client.command(
            f"INSERT INTO {self.source.sql} SELECT number, toDateTime('2026-07-01 12:00:00', 'UTC') + 86400 * ({day}), 1 "
            f"FROM numbers({first}, {count})"
        )

    def count(self, where: str = "1") -> int:
        return int(self.client.command(f"SELECT count() FROM {self.view} WHERE {where}"))  # type: ignore[arg-type]

    def drop(self, day: str) -> None:
        self.client.command(f"ALTER TABLE {self.name.sql} DROP PARTITION ID '{day}'")

    def publish(self, protocol: Protocol, key: str | None = "2026-07-03") -> None:
        window = window_of_key(key, "day", "UTC") if key else None
        with Server(Endpoint(self.engine.url)) as server:
            rebuilder = Rebuilder(
                Executor(server, log=lambda _: None),
                self.catalog,
                "UTC",
                lambda: datetime(2026, 8, 1, tzinfo=timezone.utc),
            )
            rebuilder.publish(self.target, window, protocol)

    @contextmanager
    def readers(self, right: Callable[[int], bool], where: str = "1", in_flight: int = 0) -> Iterator[Counter[int]]:
        """Poll meanwhile; an answer that is not right (but for so many), or an error, fails the block."""
        wrong: Counter[int] = Counter()
        seen: Counter[int] = Counter()
        failed: list[str] = []
        done = threading.Event()

        def poll() -> None:
            with get_client(host="127.0.0.1", port=self.engine.http_port, autogenerate_session_id=False) as client:
                while not done.is_set():
                    try:
                        found = int(client.command(f"SELECT count() FROM {self.view} WHERE {where}"))  # type: ignore[arg-type]
                    except Exception as error:
                        failed.append(str(error))
                        return
                    seen[found] += 1
                    if not right(found):
                        wrong[found] += 1

        threads = [threading.Thread(target=poll) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            self._wait_for(seen, 4, failed)
            yield seen
            self._wait_for(seen, sum(seen.values()) + 4, failed)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert failed == []
        assert sum(wrong.values()) <= in_flight, dict(wrong)

    @staticmethod
    def _wait_for(seen: Counter[int], reads: int, failed: list[str]) -> None:
        """Until so many answers have come: before and after what is done to the target."""
        deadline = time.monotonic() + 60
        while sum(seen.values()) < reads and not failed and time.monotonic() < deadline:
            time.sleep(0.02)


Make = Callable[..., Site]


@pytest.fixture
def make(engine: EngineInfo, clickhouse: Client, server: Server, database: str) -> Iterator[Make]:
    made: list[Site] = []

    def build(engine_sql: str = "MergeTree", partition: str = DAYS) -> Site:
        table = f"t_{secrets.token_hex(3)}"
        ddl = DDL.format(db=database, t=table, engine=engine_sql, partition=partition)
        made.append(Site(engine, clickhouse, server, database, ddl, table))
        return made[-1]

    yield build
    for site in made:
        clickhouse.command(f"DROP VIEW IF EXISTS {site.view} SYNC")


def test_making_views_twice_makes_nothing(make: Make) -> None:
    site = make()
    assert site.router.ensure() == (site.router.view_of(site.name),)
    assert site.router.ensure() == ()
    assert site.count() == ROWS
    columns = site.client.query(f"SELECT * FROM {site.view} LIMIT 1").column_names
    assert columns == ("id", "ts", "amount"), "as SELECT * of the target gives them"


def test_only_partitions_that_changed_are_copied(make: Make) -> None:
    site = make()
    (first,) = site.router.refresh_snapshots()
    assert (len(first.copied), first.rows, first.skipped) == (10, ROWS, "")
    (second,) = site.router.refresh_snapshots()
    assert (second.copied, second.skipped) == ((), "")
    site.insert(ROWS, 10, day="2")
    site.client.command(f"OPTIMIZE TABLE {site.name.sql} PARTITION ID '20260705' FINAL")
    (third,) = site.router.refresh_snapshots()
    assert (third.copied, third.rows) == (("20260703",), ROWS // 10 + 10)


@pytest.mark.parametrize("hot", [False, True], ids=["closed", "hot"])
def test_a_dropped_partition_leaves_no_hole(make: Make, hot: bool) -> None:
    site = make()
    site.router.refresh_snapshots()
    written = 0
    with site.readers(
        lambda found: found >= ROWS if not hot else found == ROWS // 10,
        "1" if not hot else "ts < '2026-07-02 00:00:00'",
    ):
        for day in ("20260701", "20260703", "20260704"):
            site.drop(day)
            for _ in range(3):
                written += 1
                site.insert(ROWS + 100 * written, 5, day="5" if not hot else "1 + number % 3")
    (result,) = site.router.refresh_snapshots()
    assert result.lost == ("20260701", "20260703", "20260704")
    assert site.count("ts < '2026-07-02 00:00:00'") == ROWS // 10, "the copy of a lost partition is not copied over"


@pytest.mark.parametrize(
    "engine_sql",
    [
        "MergeTree",
        "SummingMergeTree",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("ReplacingMergeTree", "AggregatingMergeTree")),
    ],
)
def test_rows_that_are_merged_with_what_a_drop_leaves_hide_nothing(make: Make, engine_sql: str) -> None:
    """The soak found it: an empty part covers the blocks of before until it is cleared away, and new rows are merged with it. Here it is not cleared away;
    with two busy writers that happened in 12 of 25 drops.
    """
    site = make(engine_sql)
    site.client.command(f"ALTER TABLE {site.name.sql} MODIFY SETTING remove_empty_parts = 0")
    site.insert(ROWS, 1, day="2")
    merge = f"OPTIMIZE TABLE {site.name.sql} PARTITION ID '20260703' FINAL"
    site.client.command(merge)
    site.router.refresh_snapshots()
    site.insert(ROWS + 1, 1, day="2")
    site.client.command(merge)
    there, of_day = ROWS // 10 + 1, "toDate(ts) = '2026-07-03'"
    assert site.count(of_day) == there + 1, "a partition that only grew is read from the target"
    site.drop("20260703")
    site.insert(ROWS + 2, 5, day="2")
    site.client.command(merge)
    parts = "SELECT name, rows FROM system.parts WHERE active AND rows > 0 AND database = {d:String} AND table = {t:String} AND partition_id = '20260703'"
    ((part, rows),) = site.server.rows(parts, {"d": site.name.database, "t": site.name.table})
    guard = site.router.look([site.target]).guards[site.name]["20260703"]
    assert rows == 5 and int(part.split("_")[1]) <= guard.max_block, "the part looks as old as what is gone"
    assert site.count(of_day) == there
    assert Counter(one for (one,) in site.server.rows(f"SELECT id FROM {site.view}")).most_common(1)[0][1] == 1
    (result,) = site.router.refresh_snapshots()
    assert result.lost == ("20260703",) and site.count(of_day) == there
    unlogged = fetch_health(site.server, [site.name.database], since_ms=int(time.time() * 1000) + 60_000)
    assert [one.partition_id for one in unlogged.lost[site.name]] == ["20260703"], (
        "the sensor sees it without the log of parts"
    )
    site.publish("closed")
    assert site.count(of_day) == there + 6


def test_rows_that_are_deleted_on_purpose_stay_deleted(make: Make) -> None:
    """Of mutated partitions nothing is concluded from their size; also if the rows go with a merge after the copy."""
    site = make()
    site.router.refresh_snapshots()
    site.client.command(f"ALTER TABLE {site.name.sql} DELETE WHERE id % 1000 >= 10 SETTINGS mutations_sync = 2")
    assert site.count("toDate(ts) = '2026-07-03'") == 3
    site.client.command(f"DELETE FROM {site.name.sql} WHERE id >= 1000")
    assert site.count("toDate(ts) = '2026-07-03'") == 1
    assert site.router.refresh_snapshots()[0].lost == ()
    site.client.command(f"OPTIMIZE TABLE {site.name.sql} FINAL")
    assert site.count("toDate(ts) = '2026-07-03'") == 1
    assert site.router.refresh_snapshots()[0].lost == ()


def test_many_drops_show_no_hole_even_between_two_looks(make: Make) -> None:
    site = make()
    site.router.refresh_snapshots()
    with site.readers(lambda found: found == ROWS):
        for round_ in range(4):
            for day in range(1, 10):
                site.drop(f"2026070{day}")
            for day in range(1, 10):
                site.publish("closed", f"2026-07-0{day}") if round_ == 0 else None
            if round_ == 0:
                site.router.refresh_snapshots()
    assert site.count() == ROWS


@pytest.mark.parametrize("protocol", ["closed", "gated", "whole"])
def test_a_rebuild_shows_readers_every_row_once(make: Make, protocol: Protocol) -> None:
    site = make()
    site.router.refresh_snapshots()
    key = None if protocol == "whole" else "2026-07-03"
    with site.readers(lambda found: found == ROWS):
        for _ in range(3):
            site.publish(protocol, key)
        (result,) = site.router.refresh_snapshots()
        assert "20260703" in result.copied and not result.lost
        site.publish(protocol, key)
    assert int(site.client.command(f"SELECT count() FROM {site.name.sql}")) == ROWS  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ["closed", "gated"])
def test_a_lost_partition_is_rebuilt_and_read_from_the_primary_again(make: Make, protocol: Protocol) -> None:
    site = make()
    site.router.refresh_snapshots()
    with site.readers(lambda found: found == ROWS):
        site.drop("20260703")
        site.publish(protocol)
    assert site.router.look([site.target]).lost(site.name) == ()
    site.insert(ROWS, 7, day="2")
    assert site.count() == ROWS + 7, "rows that come after the repair are seen"
    (result,) = site.router.refresh_snapshots()
    assert (result.copied, result.lost) == (("20260703",), ())


def test_a_dropped_target_is_read_from_the_snapshot(make: Make) -> None:
    site = make()
    site.router.refresh_snapshots()
    # A query that has looked at the parts and not yet at the list of tables when it goes sees nothing: one per reader at most.
    with site.readers(lambda found: found == ROWS, in_flight=2):
        site.client.command(f"DROP TABLE {site.name.sql} SYNC")
    with site.readers(lambda found: found == ROWS):
        assert "no such table" in site.router.refresh_snapshots()[0].skipped
        site.client.command(site.target.sql)  # created anew: its blocks begin at 1 again
        site.insert(ROWS, 5, day="2")
    assert len(site.router.look([site.target]).lost(site.name)) == 10


def test_a_refresh_that_races_with_drops_never_loses_the_copy(make: Make) -> None:
    site = make()
    site.router.refresh_snapshots()
    done = threading.Event()

    def refresh() -> None:
        with Server(Endpoint(site.engine.url)) as server:
            router = Router(server, Journal(server), site.catalog, 3600.0)
            while not done.is_set():
                router.refresh_snapshots()

    thread = threading.Thread(target=refresh)
    with site.readers(lambda found: found >= ROWS // 10, "ts < '2026-07-02 00:00:00'"):
        thread.start()
        try:
            for number in range(6):
                site.insert(ROWS + number * 10, 3, day="number % 2")  # changed: it is going to be copied
                site.drop("20260702")
            site.drop("20260701")
            time.sleep(0.5)
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize("engine_sql", ["MergeTree", "ReplacingMergeTree"])
def test_a_target_without_partitions_is_one_partition(make: Make, engine_sql: str) -> None:
    site = make(engine_sql, "")
    (result,) = site.router.refresh_snapshots()
    assert result.copied == ("all",)
    with site.readers(lambda found: found == ROWS):
        site.client.command(f"ALTER TABLE {site.name.sql} DROP PARTITION ID 'all'")
    site.insert(0, 10)
    assert site.count() == ROWS


def test_rows_that_a_later_one_replaces_are_not_shown(make: Make) -> None:
    site = make("ReplacingMergeTree")
    site.client.command(f"SYSTEM STOP MERGES {site.name.sql}")
    site.router.refresh_snapshots()
    site.insert(0, 100)
    assert site.count() == ROWS
    site.drop("20260701")
    assert site.count() == ROWS


def test_switching_is_noted_and_keeps_the_copy_as_it_is(make: Make) -> None:
    site = make()
    with pytest.raises(RouteRefused, match="no complete snapshot"):
        site.router.switch(site.name, "snapshot", "test", "nothing")
    site.router.refresh_snapshots()
    with site.readers(lambda found: found == ROWS):
        site.router.switch(site.name, "snapshot", "a view is out", "evidence 1")
        noted = site.router.read_routes()[site.name]
        assert (noted.route, noted.reason, noted.evidence) == ("snapshot", "a view is out", "evidence 1")
        site.insert(ROWS, 10)
        (result,) = site.router.refresh_snapshots()
        assert (result.copied, result.skipped) == ((), "readers are on the snapshot")
    site.router.switch(site.name, "primary", "repaired", "evidence 2")
    assert site.count() == ROWS + 10
    assert site.router.ensure() == ()


def test_a_snapshot_that_is_too_old_is_refused(make: Make) -> None:
    site = make()
    site.router.refresh_snapshots()
    later = Router(site.server, Journal(site.server), site.catalog, 3600.0, clock=lambda: time.time() + 3700)
    with pytest.raises(RouteRefused, match="wanted 3600 s at most"):
        later.switch(site.name, "snapshot", "test", "nothing")
    assert site.count() == ROWS


def test_a_changed_target_gets_a_new_snapshot(make: Make) -> None:
    site = make()
    site.router.refresh_snapshots()
    site.client.command(f"ALTER TABLE {site.name.sql} ADD COLUMN note String DEFAULT 'x'")
    (result,) = site.router.refresh_snapshots()
    assert (len(result.copied), result.skipped) == (10, "")
    site.drop("20260703")
    assert site.count("note = 'x'") == ROWS


@pytest.mark.parametrize("table", ["a.b", "it's", "täglich", "x (1)|y", "back\\slash", "$^+*?[]{}"])
def test_odd_names_are_read_as_they_are(
    engine: EngineInfo, clickhouse: Client, server: Server, database: str, table: str
) -> None:
    odd = QName(database, table)
    source, view = QName(database, f"{table}_source"), QName(database, f"{table}_mv")
    ddl = (
        f"CREATE TABLE {source.sql} (id UInt64, ts DateTime('UTC'), amount UInt32) ENGINE = MergeTree ORDER BY id;\n"
        f"CREATE TABLE {odd.sql} (id UInt64, ts DateTime('UTC'), amount UInt32) ENGINE = MergeTree {DAYS} ORDER BY id;\n"
        f"CREATE MATERIALIZED VIEW {view.sql} TO {odd.sql} AS SELECT id, ts, amount FROM {source.sql};\n"
    )
    site = Site(engine, clickhouse, server, database, ddl, table)
    (result,) = site.router.refresh_snapshots()
    assert len(result.copied) == 10
    site.drop("20260703")
    assert site.count() == ROWS
    site.publish("closed")
    assert (site.count(), site.router.look([site.target]).lost(odd)) == (ROWS, ())
    clickhouse.command(f"DROP VIEW {site.view} SYNC")
