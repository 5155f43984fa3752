"""Every rule of the doctor: a healthy server gives nothing, and each case gives exactly its own finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chmv_assets.core.capabilities import needed_settings
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.doctor import RULES, examine, worst
from chmv_assets.core.doctor.facts import Disk, Facts, Grant, LiveTable, Sample, Setting
from chmv_assets.core.doctor.privileges import NEEDED, NEEDED_OF_SERVER, parse_grants
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings, parse_settings

WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
EVENTS, DAILY, VIEW = QName("d", "events"), QName("d", "daily"), QName("d", "daily_mv")
GIB = 2**30


def ddl(
    *,
    ttl: str = "",
    engine: str = "SummingMergeTree",
    order_by: str = "(day, kind)",
    partition_by: str = "toYYYYMM(day)",
) -> Catalog:
    text = (
        f"CREATE TABLE events (ts DateTime, kind String) ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY ts {ttl} {WINDOW};"
        f"CREATE TABLE daily (day Date, kind String, n UInt64) ENGINE = {engine} PARTITION BY {partition_by} ORDER BY {order_by} {WINDOW};"
        "CREATE MATERIALIZED VIEW daily_mv TO daily AS SELECT toDate(ts) AS day, kind, count() AS n FROM events GROUP BY day, kind;"
    )
    catalog = build_catalog([SourceFile(path="x.sql", text=text)], default_database="d")
    assert not catalog.errors
    return catalog


def settings_of(**thresholds: float) -> Settings:
    settings, findings = parse_settings({"version": 1, "thresholds": thresholds}, {})
    assert not findings
    return settings


def live(name: QName, **said: Any) -> LiveTable:
    return LiveTable(
        name=name, engine="MergeTree", engine_full=f"MergeTree ORDER BY x {WINDOW}", storage_policy="default", **said
    )


SESSION = {name: Setting(value="1") for name in needed_settings()} | {
    name: Setting(value=value)
    for name, value in {
        "async_insert": "1", "wait_for_async_insert": "1", "deduplicate_insert": "enable", "insert_quorum": "0", "insert_quorum_timeout": "600000",
        "insert_quorum_parallel": "1", "select_sequential_consistency": "0", "log_queries": "1", "log_query_views": "1", "readonly": "0",
        "materialized_views_ignore_errors": "0", "max_execution_time": "0", "max_partitions_per_insert_block": "100", "max_threads": "auto(4)",
        "throw_on_max_partitions_per_insert_block": "1", "timeout_overflow_mode": "throw", "sort_overflow_mode": "throw",
    }.items()
}  # fmt: skip
EVERYTHING = (
    Grant(privileges=frozenset(NEEDED), scope="d.*"),
    Grant(privileges=frozenset(NEEDED), scope="chmv.*"),
    Grant(privileges=frozenset(NEEDED), scope="serving.*"),
    Grant(privileges=frozenset(NEEDED_OF_SERVER), scope="*.*"),
)
HEALTHY = Facts(
    catalog=ddl(), settings=Settings(), user="chmv", version="26.7.2.1", cores=4, memory_bytes=16 * GIB, session=SESSION,
    merge_tree={"parts_to_delay_insert": "1000", "parts_to_throw_insert": "3000", "non_replicated_deduplication_window": "0"},
    server={"background_pool_size": "4", "background_merges_mutations_concurrency_ratio": "2"},
    pool_tasks=1, pool_size=8, disks=(Disk(name="default", free_bytes=60 * GIB, total_bytes=100 * GIB),), policies={"default": ("default",)},
    grants=EVERYTHING, tables={EVENTS: live(EVENTS), DAILY: live(DAILY)},
)  # fmt: skip


def session(**changed: str | None) -> Mapping[str, Setting]:
    kept = {name: setting for name, setting in SESSION.items() if changed.get(name, "") is not None}
    return kept | {name: Setting(value=value) for name, value in changed.items() if value is not None}


def having(**changes: Any) -> Facts:
    return replace(HEALTHY, **changes)


def tables(**said: Any) -> Mapping[QName, LiveTable]:
    return {EVENTS: live(EVENTS), DAILY: replace(live(DAILY), **said)}


def replicated(replicas: int, active: int) -> Mapping[QName, LiveTable]:
    full = "ReplicatedMergeTree ORDER BY x SETTINGS replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
    made = {"engine": "ReplicatedMergeTree", "engine_full": full, "replicas": replicas, "active_replicas": active}
    return {name: replace(live(name), **made) for name in (EVENTS, DAILY)}


def sample(partitions: int, **said: Any) -> tuple[Sample, ...]:
    return (Sample(view=VIEW, source=EVENTS, target=DAILY, part="all_1_1_0", rows=1000, partitions=partitions, **said),)


# rule, what is wrong, subject, severity, a word of what was measured, a word of the cure
CASES: list[tuple[str, Facts, str, str, str, str]] = [
    ("view-not-tried", having(untried=((VIEW, "names d.events 2 times"),)), "d.daily_mv", "advice", "2 times", "by hand"),
    ("server-version", having(version="23.8.1"), "server", "error", "23.8.1", "upgrade"),
    ("server-lacks-settings", having(session=session(insert_deduplication_token=None)), "server", "warn", "insert_deduplication_token", "26.2"),
    ("clock-skew", having(clock_skew_seconds=-3.5), "server", "warn", "3.5 s behind", "chronyc"),
    ("logs-missing", having(session=session(log_query_views="0")), "server", "warn", "log_query_views = 0", "<log_query_views>1"),
    ("logs-missing", having(missing_logs=("part_log",)), "server", "warn", "system.part_log", "<part_log>"),
    ("not-deployed", having(tables={EVENTS: live(EVENTS)}), "server", "advice", "d.daily", "chmv plan"),
    ("could-not-look", having(unread=(("system.disks", "not enough privileges"),)), "server", "warn", "system.disks", "GRANT SELECT"),
    ("merge-pool-size", having(pool_size=2, settings=settings_of(pool_per_table=2), server={}, pool_tasks=0), "server", "warn", "2 merges", "<background_pool_size>2<"),
    ("merge-pool-busy", having(pool_peak=7), "server", "warn", "88% of the merge pool at the peak", "--config-d"),
    ("merge-pool-busy", having(pool_tasks=8), "server", "advice", "100% of the merge pool at this moment", "--config-d"),
    ("pool-not-applied", having(server={"background_pool_size": "2"}), "server", "warn", "8 merges side by side run, 4", "restart"),
    ("inserts-held-back", having(rejected_inserts=3), "server", "advice", "3 refused", "larger batches"),
    ("parts-limits-crossed", having(merge_tree={**HEALTHY.merge_tree, "parts_to_delay_insert": "3000"}), "server", "error", "delay_insert = 3000", "<merge_tree>"),
    (
        "parts-limits-crossed", having(tables=tables(engine_full=f"MergeTree {WINDOW}, parts_to_throw_insert = 300")), "d.daily", "error",
        "parts_to_throw_insert = 300", "ALTER TABLE `d`.`daily` MODIFY SETTING parts_to_delay_insert = 333, parts_to_throw_insert = 1000",
    ),
    (
        "parts-limit-low", having(tables=tables(engine_full=f"MergeTree {WINDOW}, parts_to_delay_insert = 10")), "d.daily", "warn",
        "= 10", "parts_to_delay_insert = 100",
    ),
    ("partitions-per-insert", having(samples=sample(101)), "d.daily_mv", "error", "give 101 partitions", "max_partitions_per_insert_block = 202"),
    ("partitions-per-insert", having(samples=sample(81)), "d.daily_mv", "warn", "give 81 partitions", "coarsely"),
    ("partitions-per-insert", having(samples=sample(150, seen=20, refused=2)), "d.daily_mv", "error", "2 were refused", "coarsely"),
    ("partition-limit-off", having(session=session(max_partitions_per_insert_block="0"), samples=sample(500)), "server", "warn", "= 0", ">100<"),
    ("partition-limit-off", having(session=session(throw_on_max_partitions_per_insert_block="0")), "server", "warn", "= 0", ">1<"),
    ("partition-key-too-fine", having(tables=tables(partitions=2001, months=2)), "d.daily", "warn", "2001 partitions in 2", "PARTITION BY"),
    ("partition-key-too-fine", having(tables=tables(partitions=10_001)), "d.daily", "warn", "10001 partitions", "PARTITION BY"),
    ("partition-key-too-fine", having(catalog=ddl(partition_by="(toStartOfMinute(toDateTime(day)))")), "d.daily", "warn", "toStartOfMinute", "PARTITION BY"),
    ("order-by-lacks-group-key", having(catalog=ddl(order_by="day")), "d.daily_mv", "error", "groups by kind", "`kind`"),
    ("partition-outside-order-by", having(catalog=ddl(engine="ReplacingMergeTree(n)", order_by="kind")), "d.daily", "advice", "ordered by kind", "never changes"),
    ("ttl-shorter-than-target", having(catalog=ddl(ttl="TTL ts + INTERVAL 30 DAY")), "d.daily_mv", "warn", "30 days", "REMOVE TTL"),
    ("dedup-window", having(tables=tables(engine_full="MergeTree ORDER BY x")), "d.daily", "warn", "remembers 0 blocks", "deduplication_window = 10000"),
    ("disk-headroom", having(disks=(Disk(name="a", free_bytes=5 * GIB, total_bytes=100 * GIB),)), "disk a", "error", "5%", "disk a"),
    ("disk-headroom", having(disks=(Disk(name="a", free_bytes=15 * GIB, total_bytes=100 * GIB),)), "disk a", "warn", "15%", "disk a"),
    ("disk-headroom", having(tables=tables(largest_partition_bytes=55 * GIB)), "disk default", "error", "60 GiB", "MOVE PARTITION"),
    ("table-readonly", having(tables=tables(engine_full=f"MergeTree {WINDOW}, table_readonly = 1")), "d.daily", "error", "table_readonly = 1", "table_readonly = 0"),
    ("table-readonly", having(tables=tables(is_readonly=True)), "d.daily", "error", "read-only", "SYSTEM RESTART REPLICA"),
    ("table-readonly", having(disks=(replace(HEALTHY.disks[0], is_broken=True),)), "disk default", "error", "broken", "SYSTEM RESTART DISK"),
    ("broken-parts", having(tables=tables(broken_parts=("broken_202601_1_1_0",))), "d.daily", "warn", "broken_202601_1_1_0", "DROP DETACHED PART"),
    ("detached-parts", having(tables=tables(detached_parts=("202601_1_1_0",))), "d.daily", "advice", "202601_1_1_0", "DROP DETACHED PART"),
    (
        "object-storage-rate", having(tables=tables(storage_policy="s3"), policies={"s3": ("s3",)}, disks=(Disk(name="s3", free_bytes=0, total_bytes=0, is_object_storage=True),)),
        "d.daily", "advice", "disk s3", "s3_max_put_rps",
    ),
    ("views-ignore-errors", having(session=session(materialized_views_ignore_errors="1")), "user chmv", "error", "= 1", ">0<"),
    ("views-not-deduplicated", having(session=session(deduplicate_blocks_in_dependent_materialized_views="0")), "user chmv", "error", "= 0", ">1<"),
    ("dedup-off", having(session=session(deduplicate_insert="disable")), "user chmv", "error", "= disable", ">enable<"),
    ("async-unacknowledged", having(session=session(wait_for_async_insert="0")), "user chmv", "error", "= 0", ">1<"),
    ("overflow-not-thrown", having(session=session(timeout_overflow_mode="break")), "user chmv", "error", "= break", ">throw<"),
    ("overflow-not-thrown", having(session=session(group_by_overflow_mode="any")), "user chmv", "error", "= any", ">throw<"),
    ("recovery-bounds", having(session=session(readonly="1")), "user chmv", "error", "readonly = 1", ">0<"),
    (
        "recovery-bounds", having(session={**SESSION, "max_execution_time": Setting(value="20", highest="60")}), "user chmv", "error",
        "between any and 60", 'max_execution_time remove="1"',
    ),
    ("recovery-bounds", having(session={**SESSION, "max_execution_time": Setting(value="20", is_fixed=True)}), "user chmv", "error", "fixed at 20", "remove"),
    (
        "quorum-of-all", having(session=session(insert_quorum="auto", insert_quorum_timeout="9000"), tables=replicated(2, 2)), "user chmv", "advice",
        "2 tables have no more than 2 replicas", "add a replica",
    ),
    ("quorum-without-replicas", having(session=session(insert_quorum="2")), "user chmv", "warn", "none of 2 tables", ">0<"),
    (
        "quorum-timeout", having(session=session(insert_quorum="2"), tables=replicated(3, 3)), "user chmv", "warn", "600 s, our statements' timeout 315 s", ">60000<",
    ),
    (
        "quorum-timeout", having(session=session(insert_quorum="auto", insert_quorum_timeout="60000", max_execution_time="30"), tables=replicated(3, 3)),
        "user chmv", "warn", "60 s, max_execution_time 30 s", ">15000<",
    ),
    (
        "quorum-parallel", having(session=session(insert_quorum="2", insert_quorum_timeout="9000", select_sequential_consistency="1"), tables=replicated(3, 3)),
        "user chmv", "warn", "select_sequential_consistency = 1", "insert_quorum_parallel>0<",
    ),
    ("no-quorum", having(tables=replicated(2, 2)), "server", "advice", "2 tables", ">auto<"),
    ("privilege-missing", having(grants=EVERYTHING[:3]), "user chmv", "error", "lacks KILL QUERY, SYSTEM FLUSH LOGS", "ON *.* TO `chmv`"),
    (
        "privilege-missing", having(grants=(Grant(privileges=frozenset(NEEDED) - {"OPTIMIZE"}, scope="d.*"), *EVERYTHING[1:])), "user chmv", "error",
        "lacks OPTIMIZE on d", "GRANT OPTIMIZE ON `d`.* TO `chmv`",
    ),
    (
        "privilege-missing", having(grants=(*EVERYTHING, Grant(privileges=frozenset({"INSERT"}), scope="d.*", is_revoke=True))), "user chmv", "error",
        "lacks INSERT on d", "GRANT INSERT",
    ),
    ("privilege-excess", having(grants=(*EVERYTHING, Grant(privileges=frozenset({"CREATE USER"}), scope="*"))), "user chmv", "warn", "CREATE USER", "REVOKE CREATE USER"),
    ("privilege-excess", having(grants=(replace(EVERYTHING[0], with_option=True), *EVERYTHING[1:])), "user chmv", "warn", "may grant on d.*", "GRANT OPTION"),
]  # fmt: skip


def test_a_healthy_server_gives_nothing() -> None:
    assert examine(HEALTHY) == ()
    assert worst(()) is None


@pytest.mark.parametrize(
    ("rule", "facts", "subject", "severity", "measured", "fix"),
    CASES,
    ids=[f"{at}-{case[0]}" for at, case in enumerate(CASES)],
)
def test_a_fault_gives_exactly_its_finding(
    rule: str, facts: Facts, subject: str, severity: str, measured: str, fix: str
) -> None:
    (found,) = examine(facts)
    assert (found.rule, found.subject, found.severity) == (rule, subject, severity)
    assert measured in found.measured
    assert fix in "\n".join(found.fix)
    assert found.wanted and found.why.endswith(".")


def test_a_quorum_that_cannot_be_reached_is_found_beside_its_timeout() -> None:
    found = examine(having(session=session(insert_quorum="3", insert_quorum_timeout="9000"), tables=replicated(3, 1)))
    assert [(one.rule, one.subject) for one in found] == [
        ("quorum-unreachable", "d.events"),
        ("quorum-unreachable", "d.daily"),
    ]


def test_every_rule_is_tried_and_ids_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.id for rule in RULES} == {case[0] for case in CASES} | {"quorum-unreachable"}


def test_errors_come_first() -> None:
    found = examine(having(rejected_inserts=1, version="20.1", clock_skew_seconds=9))
    assert [one.severity for one in found] == ["error", "warn", "advice"]
    assert worst(found) == "error"


@pytest.mark.parametrize(
    "facts",
    [
        having(samples=sample(89, seen=74)),  # whole parts give more than any insert really made
        having(session=session(max_execution_time="20")),  # our statements set their own
        having(session={**SESSION, "max_execution_time": Setting(value="0", highest="300")}),
        having(session=session(async_insert="0", wait_for_async_insert="0")),
        having(session=session(insert_quorum="2", insert_quorum_timeout="60000"), tables=replicated(3, 3)),
        having(grants=None),  # not known
        having(grants=(Grant(privileges=frozenset({"CREATE USER", *NEEDED, *NEEDED_OF_SERVER}), scope="*.*", with_option=True),), is_own_engine=True),
        having(grants=(*parse_grants(["GRANT SELECT, INSERT, ALTER, CREATE, DROP, TRUNCATE, OPTIMIZE, SYSTEM BACKGROUND, SYSTEM FLUSH LOGS, KILL QUERY ON *.* TO chmv"]),),
               parents={"ALTER TABLE": "ALTER", "ALTER VIEW": "ALTER", "CREATE TABLE": "CREATE", "CREATE VIEW": "CREATE", "DROP TABLE": "DROP", "DROP VIEW": "DROP",
                        "SYSTEM MERGES": "SYSTEM BACKGROUND", "SYSTEM VIEWS": "SYSTEM BACKGROUND"}),
        having(disks=(Disk(name="s3", free_bytes=0, total_bytes=0, is_object_storage=True),)),
        having(tables=tables(partitions=744 * 13, months=13)),  # by the hour, for a year
        having(clock_skew_seconds=1.9),
        having(catalog=ddl(ttl="TTL ts + INTERVAL 30 DAY"), settings=parse_settings({"version": 1, "sources": {"d.events": {"landing": {"path": "x"}}}}, {})[0]),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_not_told(facts: Facts) -> None:
    assert examine(facts) == ()


def test_grants_are_read_as_the_server_prints_them() -> None:
    lines = [
        "GRANT SELECT, INSERT(a, b) ON shop.* TO chmv WITH GRANT OPTION",
        "GRANT KILL QUERY ON *.* TO chmv",
        "REVOKE SELECT ON `odd.db`.secret FROM chmv",
        "GRANT CREATE USER ON * TO chmv",
    ]
    assert parse_grants(lines) == (
        Grant(privileges=frozenset({"SELECT"}), scope="shop.*", with_option=True),
        Grant(privileges=frozenset({"KILL QUERY"}), scope="*.*"),
        Grant(privileges=frozenset({"SELECT"}), scope="odd.db.secret", is_revoke=True),
        Grant(privileges=frozenset({"CREATE USER"}), scope="*"),
    )


def test_thresholds_of_the_settings_file_decide() -> None:
    skewed = having(clock_skew_seconds=5)
    assert [one.rule for one in examine(skewed)] == ["clock-skew"]
    assert examine(replace(skewed, settings=settings_of(clock_skew=6))) == ()


def test_the_page_names_every_rule() -> None:
    page = (Path(__file__).parents[4] / "docs" / "doctor.md").read_text()
    assert [
        rule.id
        for rule in RULES
        if f"| `{rule.id}` | {rule.severity} | {rule.measured} | {rule.wanted} | {rule.why} |" not in page
    ] == []
