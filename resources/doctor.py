"""Read what the doctor's rules look at. A constant number of queries whatever the number of tables; writes nothing.

What a user may not read, or a server does not have, is noted in `Facts.unread` and the rest is read nevertheless.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from chmv_assets.core.capabilities import needed_settings
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.doctor.facts import Disk, Facts, LiveTable, Sample, Setting, read_number
from chmv_assets.core.doctor.privileges import parse_grants
from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from resources.clickhouse import Server
from resources.doctor_sample import read_samples
from resources.engine.model import DEFAULT_USER

_SESSION = (
    "async_insert", "wait_for_async_insert", "deduplicate_blocks_in_dependent_materialized_views", "deduplicate_insert", "insert_deduplicate",
    "distinct_overflow_mode", "group_by_overflow_mode", "insert_quorum", "insert_quorum_parallel", "insert_quorum_timeout", "join_overflow_mode",
    "log_queries", "log_query_views", "materialized_views_ignore_errors", "max_execution_time", "max_insert_block_size", "max_partitions_per_insert_block",
    "max_threads", "read_overflow_mode", "readonly", "result_overflow_mode", "select_sequential_consistency", "set_overflow_mode", "sort_overflow_mode",
    "throw_on_max_partitions_per_insert_block", "timeout_overflow_mode", "max_memory_usage", "max_bytes_before_external_sort",
    "max_bytes_before_external_group_by", "max_bytes_to_sort", "max_rows_to_group_by",
)  # fmt: skip
_MERGE_TREE = (
    "parts_to_delay_insert", "parts_to_throw_insert", "non_replicated_deduplication_window", "replicated_deduplication_window",
    "replicated_deduplication_window_seconds",
)  # fmt: skip
_SERVER = (
    "background_pool_size", "background_merges_mutations_concurrency_ratio", "background_schedule_pool_size", "background_fetches_pool_size",
    "max_server_memory_usage", "max_concurrent_queries",
)  # fmt: skip
_POOL = "BackgroundMergesAndMutationsPool"
_COUNTED = ("DelayedInserts", "RejectedInserts")
_SETTLED_SECONDS = 60  # a log that is configured has its table after a flush or two
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_BROKEN = ("broken", "unexpected", "noquorum", "covered-by-broken")
_PARTS = """
SELECT database, table, count(), max(bytes), if(min(first) = 0, 0, dateDiff('month', toDate(min(first)), toDate(max(last))) + 1)
FROM
(
    SELECT database, table, partition_id, sum(bytes_on_disk) AS bytes,
           min(if(toUInt32(min_time) > 0, toUInt32(min_time), toUInt32(min_date) * 86400)) AS first,
           max(if(toUInt32(max_time) > 0, toUInt32(max_time), toUInt32(max_date) * 86400)) AS last
    FROM system.parts WHERE active AND database IN {databases:Array(String)} GROUP BY database, table, partition_id
)
GROUP BY database, table
"""


@dataclass
class _Reading:
    """Reads that may fail one by one."""

    server: Server
    unread: list[tuple[str, str]] = field(default_factory=list)
    untried: list[tuple[QName, str]] = field(default_factory=list)

    def rows(self, what: str, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        try:
            return self.server.rows(sql, parameters)
        except ServerError as error:
            self.unread.append((what, str(error).splitlines()[0][:200]))
            return []

    def rows_if_there(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Rows of a table that a server need not have; nothing if it cannot be read either."""
        try:
            return self.server.rows(sql, parameters)
        except ServerError:
            return []

    def named(self, table: str, names: Collection[str], key: str = "name") -> dict[str, str]:
        sql = f"SELECT {key}, toString(value) FROM system.{table} WHERE {key} IN {{names:Array(String)}}"
        return {str(name): str(value) for name, value in self.rows(f"system.{table}", sql, {"names": sorted(names)})}


def read_facts(
    server: Server,
    catalog: Catalog,
    settings: Settings,
    *,
    clock: Callable[[], float] = time.time,
    sampled: Collection[QName] | None = None,
) -> Facts:
    """Look at a server for a pipeline; `sampled` are the views whose SELECT is tried on recent rows (None: all)."""
    reading = _Reading(server)
    before = clock()
    user, now_ms, uptime = server.rows("SELECT currentUser(), toUnixTimestamp64Milli(now64(3)), uptime()")[
        0
    ]  # without an answer: no facts
    after = clock()
    session = _session(reading)
    metrics = reading.named("metrics", (f"{_POOL}Task", f"{_POOL}Size"), "metric")
    events = reading.named("events", _COUNTED, "event")
    server_settings = reading.named("server_settings", _SERVER)
    tables = _tables(reading, catalog)
    samples = _samples(reading, catalog, settings, session, tables, sampled)
    logs = {
        str(name)
        for (name,) in reading.rows("system.tables", "SELECT name FROM system.tables WHERE database = 'system'")
    }
    configured = read_number(server_settings.get("background_pool_size", "")) * read_number(
        server_settings.get("background_merges_mutations_concurrency_ratio", ""), 2
    )
    return Facts(
        catalog=catalog,
        settings=settings,
        user=str(user),
        is_own_engine=_is_own(server, str(user), logs),
        version=server.version,
        clock_skew_seconds=_skew(int(now_ms) / 1000, before, after),
        cores=_cores(session),
        memory_bytes=int(read_number(server_settings.get("max_server_memory_usage", ""))),
        session=session,
        merge_tree=reading.named("merge_tree_settings", _MERGE_TREE),
        server=server_settings,
        pool_tasks=int(read_number(metrics.get(f"{_POOL}Task", ""))),
        pool_size=int(read_number(metrics.get(f"{_POOL}Size", "")) or configured),  # 0 before the first table was made
        pool_peak=_peak(reading) if "metric_log" in logs else None,
        delayed_inserts=int(events.get("DelayedInserts", 0)),
        rejected_inserts=int(events.get("RejectedInserts", 0)),
        missing_logs=_missing_logs(reading, logs, float(uptime)),
        disks=_disks(reading),
        policies=_policies(reading),
        grants=_grants(reading),
        parents={str(one): str(group or "") for one, group in reading.rows_if_there("SELECT privilege, parent_group FROM system.privileges")},
        tables=tables,
        samples=samples,
        untried=tuple(reading.untried),
        unread=tuple(reading.unread),
    )  # fmt: skip


def _skew(server_now: float, before: float, after: float) -> float:
    """How far the server's clock is ahead of ours, less what the round trip can explain."""
    ahead, slack = server_now - (before + after) / 2, (after - before) / 2
    return max(ahead - slack, 0.0) if ahead > 0 else min(ahead + slack, 0.0)


def _is_own(server: Server, user: str, system_tables: Collection[str]) -> bool:
    """The embedded engine: on this machine, with its one user, and (being clickhouse-local) without asynchronous metrics."""
    host = urlsplit(server.endpoint.url if "//" in server.endpoint.url else f"//{server.endpoint.url}").hostname
    return host in _LOOPBACK and user == DEFAULT_USER and "asynchronous_metrics" not in system_tables


def _session(reading: _Reading) -> dict[str, Setting]:
    rows = reading.rows(
        "system.settings", "SELECT name, value, min, max, readonly FROM system.settings WHERE name IN {names:Array(String)}",
        {"names": sorted({*_SESSION, *needed_settings()})},
    )  # fmt: skip
    return {
        str(name): Setting(
            value=str(value), lowest=None if low is None else str(low), highest=None if high is None else str(high), is_fixed=bool(fixed)
        )
        for name, value, low, high, fixed in rows
    }  # fmt: skip


def _cores(session: Mapping[str, Setting]) -> int:
    found = re.search(r"\d+", session["max_threads"].value) if "max_threads" in session else None
    return int(found.group()) if found else 0


def _peak(reading: _Reading) -> int | None:
    rows = reading.rows_if_there(
        f"SELECT max(CurrentMetric_{_POOL}Task), count() FROM system.metric_log WHERE event_date >= yesterday() AND event_time > now() - 86400"
    )
    return int(rows[0][0]) if rows and rows[0][1] else None


def _missing_logs(reading: _Reading, there: Collection[str], uptime: float) -> tuple[str, ...]:
    """Logs without a table though something has happened that would be in them."""
    if uptime < _SETTLED_SECONDS:
        return ()
    if "query_log" not in there:
        return ("query_log",)
    missing = [] if "part_log" in there else ["part_log"]
    if "query_views_log" not in there:
        fired = reading.rows_if_there(
            "SELECT 1 FROM system.query_log WHERE event_date >= yesterday() AND event_time BETWEEN now() - {up:UInt32} AND now() - {settled:UInt32} "
            "AND notEmpty(views) AND type = 'QueryFinish' LIMIT 1",
            {"up": int(uptime), "settled": _SETTLED_SECONDS},
        )
        missing += ["query_views_log"] if fired else []
    return tuple(missing)


def _disks(reading: _Reading) -> tuple[Disk, ...]:
    rows = reading.rows(
        "system.disks",
        "SELECT name, unreserved_space, total_space, type, is_read_only, is_broken FROM system.disks ORDER BY name",
    )
    return tuple(
        Disk(
            name=str(name), free_bytes=int(free), total_bytes=int(total), is_object_storage=str(kind).lower() != "local",
            is_read_only=bool(read_only), is_broken=bool(broken),
        )
        for name, free, total, kind, read_only, broken in rows
    )  # fmt: skip


def _policies(reading: _Reading) -> dict[str, tuple[str, ...]]:
    rows = reading.rows(
        "system.storage_policies",
        "SELECT policy_name, groupUniqArrayArray(disks) FROM system.storage_policies GROUP BY policy_name",
    )
    return {str(policy): tuple(sorted(disks)) for policy, disks in rows}


def _grants(reading: _Reading) -> Any:
    for sql in (
        "SHOW GRANTS FINAL",
        "SHOW GRANTS",
    ):  # the first, with what comes by roles, is not known to older servers
        if rows := reading.rows_if_there(sql):
            return parse_grants(str(line) for (line,) in rows)
    reading.unread.append(("grants", "SHOW GRANTS gave nothing"))
    return None


def _tables(reading: _Reading, catalog: Catalog) -> dict[QName, LiveTable]:
    declared = {
        name
        for name, made in catalog.objects.items()
        if made.kind not in ("function", "external", "view", "dictionary")
    }
    databases = {"databases": sorted({name.database for name in declared})}
    rows = reading.rows(
        "system.tables",
        "SELECT database, name, engine, engine_full, storage_policy FROM system.tables WHERE database IN {databases:Array(String)} AND engine NOT LIKE '%View'",
        databases,
    )
    counted = {QName(str(row[0]), str(row[1])): row[2:] for row in reading.rows("system.parts", _PARTS, databases)}
    replicas = {
        QName(str(row[0]), str(row[1])): row[2:]
        for row in reading.rows(
            "system.replicas", "SELECT database, table, total_replicas, active_replicas, is_readonly FROM system.replicas WHERE database IN {databases:Array(String)}", databases
        )
    }  # fmt: skip
    apart = _detached(reading, databases)
    found: dict[QName, LiveTable] = {}
    for database, table, engine, full, policy in rows:
        name = QName(str(database), str(table))
        if name not in declared:
            continue
        partitions, size, months = counted.get(name, (0, 0, 0))
        known, active, readonly = replicas.get(name, (0, 0, 0))
        broken, detached = apart.get(name, ((), ()))
        found[name] = LiveTable(
            name=name, engine=str(engine), engine_full=str(full), storage_policy=str(policy), partitions=int(partitions), months=int(months),
            largest_partition_bytes=int(size), broken_parts=broken, detached_parts=detached, replicas=int(known),
            active_replicas=int(active), is_readonly=bool(readonly),
        )  # fmt: skip
    return found


def _detached(reading: _Reading, databases: Mapping[str, Any]) -> dict[QName, tuple[tuple[str, ...], tuple[str, ...]]]:
    rows = reading.rows(
        "system.detached_parts",
        "SELECT database, table, name, ifNull(reason, '') FROM system.detached_parts WHERE database IN {databases:Array(String)} ORDER BY 1, 2, 3 LIMIT 100 BY 1, 2",
        databases,
    )
    found: dict[QName, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for database, table, part, reason in rows:
        broken, detached = found.get(QName(str(database), str(table)), ((), ()))
        if str(reason).startswith(_BROKEN):
            broken = (*broken, str(part))
        else:
            detached = (*detached, str(part))
        found[QName(str(database), str(table))] = (broken, detached)
    return found


def _samples(
    reading: _Reading,
    catalog: Catalog,
    settings: Settings,
    session: Mapping[str, Setting],
    tables: Mapping[QName, LiveTable],
    sampled: Collection[QName] | None,
) -> tuple[Sample, ...]:
    block = (
        int(read_number(session["max_insert_block_size"].value, 1_048_449))
        if "max_insert_block_size" in session
        else 1_048_449
    )
    views = [
        made
        for made in catalog.objects.values()
        if made.kind == "materialized_view" and (sampled is None or made.name in sampled)
    ]
    return read_samples(
        reading.server, catalog, views, tables, int(settings.limits.sample_rows), block, reading.unread, reading.untried
    )
