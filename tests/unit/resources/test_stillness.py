"""What a comparison asks before it trusts a difference, as far as it can be told without a Keeper: by the statements that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, cast

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.journal import cluster_from_environment, open_journal
from resources.reconcile import Reconciler
from resources.stillness import Watch

DDL = """
CREATE TABLE d.s (ts DateTime) ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/s', '{replica}') ORDER BY ts;
CREATE TABLE d.t (day Date, n UInt64) ENGINE = ReplicatedSummingMergeTree('/clickhouse/tables/{shard}/t', '{replica}', n) ORDER BY day;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day;
"""
SYNCS = ["SYSTEM SYNC REPLICA `d`.`s` LIGHTWEIGHT", "SYSTEM SYNC REPLICA `d`.`t` LIGHTWEIGHT"]


class Told:
    """A server without rows that keeps what it was told; it may refuse orders."""

    timezone = "UTC"

    def __init__(self, replicas: int = 1, refuses: int | None = None) -> None:
        self.replicas, self.refuses = replicas, refuses
        self.said: list[str] = []

    def rows(self, sql: str, *_: object) -> list[tuple[Any, ...]]:
        self.said.append(sql)
        return [(self.replicas,)] if "system.replicas" in sql else []

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None, settings: object = None) -> str:
        self.said.append(sql)
        if self.refuses is not None:
            raise ServerError("not enough privileges", code=self.refuses)
        return ""


def watch(told: Told, cluster: str = "") -> Watch:
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL)]).require_sound()
    now = datetime(2026, 8, 1, tzinfo=timezone.utc)
    bench = Reconciler(cast(Server, told), catalog, "UTC", now=lambda: now, cluster=cluster).bench
    feed, _ = bench.feed(catalog.objects[QName("d", "v")], None)
    return Watch(bench=bench, target=catalog.objects[QName("d", "t")], window=None, feeds=[feed])


def test_this_replica_catches_up_before_and_after_the_inserts_of_all_have_ended() -> None:
    told = Told()
    before = watch(told, "main").look()
    orders = [line for line in told.said if line.startswith("SYSTEM") or "processes" in line]
    assert orders[:2] == orders[3:] == SYNCS
    assert "clusterAllReplicas('main', system.processes)" in orders[2]
    assert (before.drained, before.behind) == (True, "")


def test_difference_counts_only_if_all_replicas_can_be_seen() -> None:
    for replicas, cluster, is_sure in ((1, "", True), (2, "main", True), (2, "", False)):
        one = watch(Told(replicas), cluster)
        before = one.look()
        assert one.is_still(before)
        assert (one.doubts(before) == "") is is_sure
    assert "found 2 replicas and no CHMV_CLICKHOUSE_CLUSTER" in one.doubts(before)


def test_who_may_only_read_is_told_that_this_replica_may_be_behind() -> None:
    one = watch(Told(refuses=497))
    assert one.doubts(one.look()).startswith("this replica may lack rows that others have")


def test_journal_is_on_the_cluster_of_the_environment() -> None:
    server = cast(Server, Told())
    assert open_journal(server, {"CHMV_CLICKHOUSE_CLUSTER": "main"}).cluster == "main"
    assert open_journal(server, {}).cluster == cluster_from_environment({}) == ""
