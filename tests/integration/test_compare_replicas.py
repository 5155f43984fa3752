"""Declared against every replica of a cluster: what differs on one is said of that one; one that is away cannot be told.

On a server of its own, which is a cluster of itself: `solo` is one replica, `pair` that one and another that nobody answers for,
`turned` the same as two shards, the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines import own_engine

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName
from chmv_assets.live import compare_replicas, compare_with_live
from resources.clickhouse import Endpoint, Server
from resources.engine.ports import free_ports
from resources.introspect import fetch_objects

DDL = """
CREATE TABLE r.s (a UInt64, t DateTime) ENGINE = MergeTree ORDER BY a;
CREATE TABLE r.x (n UInt64) ENGINE = SummingMergeTree ORDER BY n;
CREATE MATERIALIZED VIEW r.v TO r.x AS SELECT count() AS n FROM r.s;
CREATE TABLE r.gone (a UInt8) ENGINE = Memory
"""


@pytest.fixture(scope="module")
def replicated() -> Iterator[Server]:
    (port,) = free_ports(1)
    here = f"<replica><host>127.0.0.1</host><port>{port}</port></replica>"
    away = "<replica><host>127.0.0.2</host><port>9</port></replica>"
    config = (
        f"<clickhouse><remote_servers><solo><shard>{here}</shard></solo><pair><shard>{here}{away}</shard></pair>"
        f"<turned><shard>{away}</shard><shard>{here}</shard></turned>"
        "</remote_servers></clickhouse>"
    )
    with (
        own_engine({"config.d/clusters.xml": config}, port, name="replicas") as info,
        Server(Endpoint(info.url)) as server,
    ):
        server.command("CREATE DATABASE r")
        for statement in DDL.split(";")[:3]:
            server.command(statement)
        yield server


class Counting:
    """A server that counts what it is asked."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        verb = getattr(self.server, name)

        def count(sql: str, *args: object, **kwargs: object) -> object:
            self.asked.append(sql)
            return verb(sql, *args, **kwargs)

        return count


def test_every_replica_is_compared(replicated: Server) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)], default_database="r")
    names = sorted(catalog.objects)
    missing = {QName("r", "gone"): Comparison("missing")}
    equal = {**dict.fromkeys(names, Comparison("equal")), **missing}
    assert compare_replicas(replicated, catalog, names, "solo") == {"127.0.0.1": equal}
    for cluster in ("pair", "turned"):
        found = compare_replicas(replicated, catalog, names, cluster)
        assert found == {"127.0.0.1": equal, "127.0.0.2": dict.fromkeys(names, Comparison("cannot tell"))}
    assert compare_replicas(replicated, catalog, [], "solo") == {"127.0.0.1": {}}


def test_number_of_queries_does_not_grow_with_equal_objects(replicated: Server) -> None:
    tables = ";\n".join(
        f"CREATE TABLE r.many{i} (a UInt64, b String CODEC(ZSTD(1))) ENGINE = MergeTree ORDER BY a" for i in range(30)
    )
    for statement in tables.split(";"):
        replicated.command(statement)
    spelled = tables.replace("ORDER BY a", "order by (a)").replace("CREATE TABLE r.", "CREATE TABLE IF NOT EXISTS ")
    catalog = build_catalog([SourceFile(path="x.sql", text=spelled)], default_database="r")
    objects = fetch_objects(replicated, ["r"])
    counts = []
    for names in (sorted(catalog.objects)[:1], sorted(catalog.objects)):
        counting = Counting(replicated)
        verdicts = compare_with_live(catalog, objects, counting, names)  # type: ignore[arg-type]
        assert {verdict.state for verdict in verdicts.values()} == {"equal"}
        counts.append(len(counting.asked))
    assert counts == [1, 1]


def test_a_view_that_is_not_hooked_differs_by_its_hook(replicated: Server) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)], default_database="r")
    view = QName("r", "v")
    objects = fetch_objects(replicated, ["r"])
    assert compare_with_live(catalog, objects, replicated, [view])[view] == Comparison("equal")
    other = build_catalog(
        [SourceFile(path="x.sql", text=DDL.replace("FROM r.s", "FROM r.gone, r.s").replace("r.gone (", "r.many (")
                    .replace("FROM r.gone", "FROM r.x AS y"))], default_database="r",
    )  # fmt: skip
    verdict = compare_with_live(other, objects, replicated, [view])[view]
    assert [difference.what for difference in verdict.differences] == ["query", "hook"]
    assert str(verdict.differences[1]) == "hook: declared fires on r.x, live nothing"
    alone = [live for live in objects if live.name == view]
    assert [d.what for d in compare_with_live(other, alone, replicated, [view])[view].differences] == ["query"]


def test_a_gate_is_no_change_and_a_constraint_is(replicated: Server) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)], default_database="r")
    name = QName("r", "s")
    replicated.command("ALTER TABLE r.s ADD CONSTRAINT __chmv_fence_1 CHECK now64(3) >= fromUnixTimestamp64Milli(1)")
    assert compare_replicas(replicated, catalog, [name], "solo")["127.0.0.1"][name] == Comparison("equal")
    replicated.command("ALTER TABLE r.s ADD CONSTRAINT mine CHECK a > 0, DROP CONSTRAINT __chmv_fence_1")
    verdict = compare_replicas(replicated, catalog, [name], "solo")["127.0.0.1"][name]
    assert [difference.what for difference in verdict.differences] == ["constraint mine"]


def test_a_history_of_statements_is_compared_by_its_outcome(replicated: Server) -> None:
    history = """CREATE TABLE r.first (a UInt64, b String, INDEX i b TYPE set(5)) ENGINE = MergeTree ORDER BY a;
    ALTER TABLE r.first ADD COLUMN c UInt8 DEFAULT 1 AFTER a, DROP INDEX i, ADD PROJECTION p (SELECT a ORDER BY b), MODIFY COMMENT 'it''s';
    ALTER TABLE r.first MODIFY COLUMN b CODEC(ZSTD(3)), MODIFY SETTING ttl_only_drop_parts = 1;
    RENAME TABLE r.first TO r.last"""
    for statement in history.split(";"):
        replicated.command(statement)
    catalog = build_catalog([SourceFile(path="x.sql", text=history)], default_database="r")
    name = QName("r", "last")
    assert compare_replicas(replicated, catalog, [name], "solo")["127.0.0.1"][name] == Comparison("equal")
    replicated.command("ALTER TABLE r.last DROP COLUMN c")
    verdict = compare_replicas(replicated, catalog, [name], "solo")["127.0.0.1"][name]
    assert [difference.what for difference in verdict.differences] == ["column c"]
