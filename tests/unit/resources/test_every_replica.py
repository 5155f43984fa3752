"""What a rebuild does on replicated sources, as far as it can be told without a Keeper: by the statements that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, cast

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.executor import Executor
from resources.rebuild.barrier import require_every_replica
from resources.rebuild.workbench import Workbench

SOURCE = QName("d", "s")
DDL = """
CREATE TABLE d.s (ts DateTime) ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/s', '{replica}') ORDER BY ts;
CREATE TABLE d.t (day Date, n UInt64) ENGINE = ReplicatedSummingMergeTree('/clickhouse/tables/{shard}/t', '{replica}', n) ORDER BY day;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day;
"""


class Told:
    """Gives the same rows to every question and keeps what it was told."""

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
    told = Told()
    bench(told, "main").executor.run_ddl("gate", "ALTER TABLE x")
    assert told.said == [("ALTER TABLE x", {"alter_sync": 2})]


def test_replica_catches_up_before_its_parts_are_read() -> None:
    told = Told()
    one = bench(told)
    one.catch_up(one.catalog.objects[SOURCE])
    assert told.said == [("SYSTEM SYNC REPLICA `d`.`s` LIGHTWEIGHT", {})]
