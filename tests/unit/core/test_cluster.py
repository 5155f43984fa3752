"""Statements for a cluster: what goes to every replica, what does not, and which clusters are refused."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.cluster import Topology, find_unfit, find_unnamed, refuse_unspread, spread
from chmv_assets.core.deploy import cutovers
from chmv_assets.core.deploy.changes import Cutover
from chmv_assets.core.names import QName
from chmv_assets.core.replication import taken_path, written_path

HERE = "`chmv`.`scratch.0123456789ab.0`"
EVERYWHERE = [
    ("CREATE TABLE a.b (x UInt8) ENGINE = Null", "CREATE TABLE a.b @ (x UInt8) ENGINE = Null"),
    ("CREATE TABLE IF NOT EXISTS b AS c", "CREATE TABLE IF NOT EXISTS b @ AS c"),
    ("create or replace view `a`.`b c` as select 1", "create or replace view `a`.`b c` @ as select 1"),
    ("CREATE MATERIALIZED VIEW a.v UUID '1-2' TO a.t AS SELECT 1", "CREATE MATERIALIZED VIEW a.v UUID '1-2' @ TO a.t AS SELECT 1"),
    ("CREATE DICTIONARY a.d (k UInt8) PRIMARY KEY k", "CREATE DICTIONARY a.d @ (k UInt8) PRIMARY KEY k"),
    ("CREATE DATABASE IF NOT EXISTS shop", "CREATE DATABASE IF NOT EXISTS shop @"),
    ("CREATE DATABASE IF NOT EXISTS `chmv`", "CREATE DATABASE IF NOT EXISTS `chmv` @"),
    ("CREATE TABLE a.b ON CLUSTER '{cluster}' (x UInt8)", "CREATE TABLE a.b @ (x UInt8)"),
    ("ALTER TABLE a.b DROP COLUMN x", "ALTER TABLE a.b @ DROP COLUMN x"),
    ("ALTER TABLE a.b MODIFY QUERY SELECT 1", "ALTER TABLE a.b @ MODIFY QUERY SELECT 1"),
    ("DROP TABLE IF EXISTS a.b SYNC", "DROP TABLE IF EXISTS a.b @ SYNC"),
    ("DROP TABLE IF EXISTS `chmv`.`kept.1f.a.b` SYNC", "DROP TABLE IF EXISTS `chmv`.`kept.1f.a.b` @ SYNC"),
    ("CREATE TABLE IF NOT EXISTS `chmv`.`storage.1f.0` (x UInt8)", "CREATE TABLE IF NOT EXISTS `chmv`.`storage.1f.0` @ (x UInt8)"),
    ("DETACH TABLE IF EXISTS a.b PERMANENTLY SYNC", "DETACH TABLE IF EXISTS a.b @ PERMANENTLY SYNC"),
    ("ATTACH TABLE a.b", "ATTACH TABLE a.b @"),
    ("UNDROP TABLE a.b", "UNDROP TABLE a.b @"),
    ("RENAME TABLE a.b TO `chmv`.`kept.1f.a.b`", "RENAME TABLE a.b TO `chmv`.`kept.1f.a.b` @"),
    ("EXCHANGE TABLES a.b AND `chmv`.`kept.1f.a.b`", "EXCHANGE TABLES a.b AND `chmv`.`kept.1f.a.b` @"),
    ("SYSTEM START MERGES a.b", "SYSTEM START MERGES @ a.b"),
    ("SYSTEM FLUSH DISTRIBUTED a.b", "SYSTEM FLUSH DISTRIBUTED @ a.b"),
    ("SYSTEM FLUSH ASYNC INSERT QUEUE", "SYSTEM FLUSH ASYNC INSERT QUEUE @"),
    ("SYSTEM FLUSH LOGS query_log", "SYSTEM FLUSH LOGS @ query_log"),
]  # fmt: skip
AS_IT_IS = [
    f"ALTER TABLE a.b REPLACE PARTITION ID '1' FROM {HERE}",
    f"ALTER TABLE a.b REPLACE PARTITION ID '1' FROM {HERE}, REPLACE PARTITION ID '2' FROM {HERE}",
    "ALTER TABLE a.b DROP PARTITION ID '1'",
    "ALTER TABLE a.b DROP PART 'x'",
    "ALTER TABLE a.b ATTACH PARTITION ID '1' FROM c.d",
    f"DROP TABLE IF EXISTS {HERE} SYNC",
    f"CREATE TABLE {HERE} AS a.b",
    f"SYSTEM STOP MERGES {HERE}",
    "CREATE DATABASE IF NOT EXISTS `serving`",
    "CREATE OR REPLACE VIEW `serving`.`t` AS SELECT 1",
    "DROP TABLE IF EXISTS `chmv_snapshots`.`a.b` SYNC",
    "INSERT INTO a.b SELECT 1",
    "OPTIMIZE TABLE a.b PARTITION ID '1' FINAL",
    "SYSTEM SYNC REPLICA a.b LIGHTWEIGHT",
    "SYSTEM REFRESH VIEW a.b",
    "DELETE FROM `chmv`.`scratch_marks` WHERE scratch = 'x'",
    "SELECT 1",
    "",
]


@pytest.mark.parametrize(("sql", "wanted"), EVERYWHERE)
def test_what_every_replica_has_by_itself_goes_to_every_replica(sql: str, wanted: str) -> None:
    wide = wanted.replace("@", "ON CLUSTER `main 1`")
    assert spread(sql, "main 1") == wide
    assert spread(wide, "main 1") == wide
    assert spread(sql, "") == sql


@pytest.mark.parametrize("sql", AS_IT_IS)
def test_what_is_replicated_or_only_here_stays_as_it_is(sql: str) -> None:
    assert spread(sql, "main") == sql


def test_database_that_hands_ddl_on_by_itself_gets_no_cluster() -> None:
    wide = "ALTER TABLE a.b ON CLUSTER `main` DROP COLUMN x"
    assert spread(wide, "main", ["a"]) == "ALTER TABLE a.b DROP COLUMN x"
    assert spread("DROP TABLE b", "main", ["a"], "a") == "DROP TABLE b"
    assert spread("SYSTEM STOP MERGES a.b", "main", ["a"]) == "SYSTEM STOP MERGES ON CLUSTER `main` a.b"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Topology(cluster="main", shards=1, replicas=3), ""),
        (Topology(cluster="main", shards=2, replicas=1), "found 2 shards but wanted one"),
        (Topology(cluster="main", shards=1, is_member=False), "is none of its replicas but wanted one of them"),
        (Topology(cluster="mian", shards=0, known=("main", "x")), r"found no such one on the server but wanted it in its `remote_servers` (main)"),
    ],
)  # fmt: skip
def test_clusters_that_chmv_cannot_work_on(found: Topology, said: str) -> None:
    assert said in find_unfit(found) and bool(find_unfit(found)) == bool(said)


def test_plain_table_on_several_replicas_is_refused() -> None:
    said = refuse_unspread("source", QName("d", "s"), "MergeTree", 2)
    assert "source d.s: found MergeTree on 2 replicas but wanted its Replicated form" in said
    assert not refuse_unspread("source", QName("d", "s"), "Null", 2)
    assert not refuse_unspread("source", QName("d", "s"), "SharedMergeTree", 2)


def test_second_table_needs_a_place_of_its_own_in_keeper() -> None:
    path = written_path("ReplicatedSummingMergeTree", "'/t/{shard}/x', '{replica}', (n)")
    assert path == "/t/{shard}/x"
    assert written_path("SummingMergeTree", "'a', 'b'") == written_path("ReplicatedMergeTree", "") == ""
    assert "is taken by the table that it replaces" in taken_path(path, path)
    assert "follows its name" in taken_path("/t/{shard}/{table}", path)


DDL = """
CREATE TABLE d.s ON CLUSTER main (ts DateTime) ENGINE = ReplicatedMergeTree ORDER BY ts;
CREATE TABLE d.t (day Date, n UInt64) ENGINE = ReplicatedSummingMergeTree('/t/{shard}/t', '{replica}', n) ORDER BY day;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day;
"""


@pytest.mark.parametrize(
    ("path", "why"),
    [("/t/{shard}/t", "d.t has to become another table, but its Keeper path /t/{shard}/t is taken"), ("/t/{uuid}/{shard}", ""), ("/t/{shard}/t_2", "")],
)  # fmt: skip
def test_target_becomes_another_table_only_on_another_path(path: str, why: str) -> None:
    live = build_catalog([SourceFile(path="x.sql", text=DDL)])
    text = DDL.replace("/t/{shard}/t", path).replace("ORDER BY day", "ORDER BY (day, n)")
    declared = build_catalog([SourceFile(path="x.sql", text=text)])
    target = QName("d", "t")
    found = cutovers.find_unfit(declared, live, Cutover(roots=(QName("d", "s"),), targets=(target,), storage=(target,)))
    assert found.startswith(why) and bool(found) == bool(why)


def test_folder_that_says_on_cluster_needs_its_name() -> None:
    objects = build_catalog([SourceFile(path="x.sql", text=DDL)]).objects.values()
    assert find_unnamed(objects, "").startswith(
        "table d.s: found ON CLUSTER main in its declaration and no CHMV_CLICKHOUSE_CLUSTER"
    )
    assert not find_unnamed(objects, "main_1")
    assert not find_unnamed([one for one in objects if one.name != QName("d", "s")], "")
