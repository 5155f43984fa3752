"""What a rebuild does on replicated sources, as far as it can be told without a Keeper: by the statements that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, cast

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.errors import ClusterRefused, RebuildRefused
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild.barrier import require_every_replica
from resources.rebuild.workbench import Workbench

SOURCE = QName("d", "s")
ONE_SHARD = (1, 2, 1, ["main"], [])  # as `read_topology` gives it: one shard with two replicas, we are on one of them
DDL = """
CREATE TABLE d.s (ts DateTime) ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/s', '{replica}') ORDER BY ts;
CREATE TABLE d.t (day Date, n UInt64) ENGINE = ReplicatedSummingMergeTree('/clickhouse/tables/{shard}/t', '{replica}', n) ORDER BY day;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day;
"""


class Told:
    """Gives the same rows to every question and keeps what it was told."""

    timezone = "UTC"

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.answer = list(rows)
        self.said: list[tuple[str, Mapping[str, Any]]] = []

    def rows(self, *_: object) -> list[tuple[Any, ...]]:
        return self.answer

    def command(self, sql: str, settings: Mapping[str, Any] | None = None) -> str:
        self.said.append((sql, settings or {}))
        return ""


def bench(told: Told, cluster: str = "") -> Workbench:
    executor = Executor(cast(Server, told), log=lambda _line: None, cluster=cluster)
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)]).require_sound()
    return Workbench(executor, catalog, "UTC", lambda: datetime(2026, 8, 1, tzinfo=timezone.utc))


def test_source_with_other_replicas_needs_the_name_of_its_cluster() -> None:
    with pytest.raises(RebuildRefused, match=r"source d\.s: found 2 replicas and no CHMV_CLICKHOUSE_CLUSTER"):
        require_every_replica(bench(Told((2,))), SOURCE)
    require_every_replica(bench(Told((1,))), SOURCE)
    require_every_replica(bench(Told()), SOURCE)
    require_every_replica(bench(Told((2,)), "main"), SOURCE)


def test_scratch_of_a_replicated_target_is_not_replicated() -> None:
    told = Told(("ReplicatedSummingMergeTree('/clickhouse/tables/{shard}/t', '{replica}', n) ORDER BY day",))
    bench(told, "main").executor.create_like(QName("chmv", "scratch"), QName("d", "t"))
    assert told.said == [
        ("CREATE TABLE IF NOT EXISTS `chmv`.`scratch` AS `d`.`t` ENGINE = SummingMergeTree(n) ORDER BY day", {})
    ]


def test_gate_is_shut_on_every_replica_before_the_next_step() -> None:
    told = Told(ONE_SHARD)
    bench(told, "main").executor.run_ddl("gate", "ALTER TABLE x ADD CONSTRAINT y CHECK 0")
    assert told.said == [
        (
            "ALTER TABLE x ON CLUSTER `main` ADD CONSTRAINT y CHECK 0",
            {"alter_sync": 2, "distributed_ddl_output_mode": "throw"},
        )
    ]


def test_nothing_is_written_to_a_cluster_of_several_shards() -> None:
    told = Told((2, 1, 1, ["main"], []))
    with pytest.raises(ClusterRefused, match="cluster main: found 2 shards but wanted one"):
        bench(told, "main").executor.run_ddl("gate", "ALTER TABLE x ADD CONSTRAINT y CHECK 0")
    with pytest.raises(ClusterRefused, match="found 2 shards"):
        Journal(cast(Server, told), "main").prepare()
    assert told.said == []


def test_database_that_hands_ddl_on_by_itself_gets_it_once() -> None:
    told = Told((1, 2, 1, ["main"], ["d"]))
    bench(told, "main").executor.run_ddl("gate", "ALTER TABLE d.x ADD CONSTRAINT y CHECK 0")
    assert [sql for sql, _ in told.said] == ["ALTER TABLE d.x ADD CONSTRAINT y CHECK 0"]


def test_tables_that_are_not_replicated_are_not_rebuilt_on_two_replicas() -> None:
    told = Told(ONE_SHARD)
    one = bench(told, "main")
    feed, _ = one.feed(one.catalog.objects[QName("d", "v")], None)
    plain = replace(feed, target=replace(feed.target, engine="SummingMergeTree"))
    with pytest.raises(
        RebuildRefused, match=r"target d\.t: found SummingMergeTree on 2 replicas but wanted its Replicated form"
    ):
        one.fill(plain, QName("chmv", "scratch.1.0"))
    assert told.said == []


def test_replica_catches_up_before_its_parts_are_read() -> None:
    told = Told()
    one = bench(told)
    one.catch_up(one.catalog.objects[SOURCE])
    assert told.said == [("SYSTEM SYNC REPLICA `d`.`s` LIGHTWEIGHT", {})]
