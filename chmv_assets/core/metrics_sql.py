"""What the metrics endpoint asks a server, as SQL text. Pure.

Five statements, whatever the number of tables: `read_objects`, `read_server`, `read_journal_counts`, and those of `resources.backlog` (parts) and
`core.freshness` (refreshes). Rows of the first and the third have one shape: what it is about, labels, numbers. A table that a journal does
not have yet says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from chmv_assets.core.batches import BATCHES
from chmv_assets.core.deploy.deploy_journal import DEPLOYS
from chmv_assets.core.freshness import JOURNAL_TABLES, read_journal
from chmv_assets.core.locks import SQL_LOCKS
from chmv_assets.core.manifest import QUARANTINE
from chmv_assets.core.metrics import BUCKETS
from chmv_assets.core.names import QName, quote_string
from chmv_assets.core.own_tables import OWN_DATABASE, Statement, read_settings
from chmv_assets.core.rebuild_journal import REBUILDS, SQL_NOTED_MS, SQL_STARTED_MS, SQL_TELLS_START
from chmv_assets.core.recovery import RECOVERIES
from chmv_assets.core.watermarks import WATERMARKS

_MERGES = "BackgroundMergesAndMutationsPool"
_MINE = "database IN {databases:Array(String)}"


def _metric(name: str) -> str:
    return f"SELECT sum(value) FROM system.metrics WHERE metric = {quote_string(name)}"


def _event(name: str) -> str:
    return f"SELECT sum(value) FROM system.events WHERE event = {quote_string(name)}"


# One number each, by the metric that shows it. system.replicas asks Keeper only for columns that are not named here.
SERVER_NUMBERS: Mapping[str, str] = {
    "chmv_merge_pool_tasks": _metric(f"{_MERGES}Task"),
    "chmv_merge_pool_size": _metric(f"{_MERGES}Size"),
    "chmv_oldest_merge_seconds": "SELECT max(elapsed) FROM system.merges",
    "chmv_mutations_pending": f"SELECT count() FROM system.mutations WHERE NOT is_done AND {_MINE}",
    "chmv_mutations_failing": f"SELECT count() FROM system.mutations WHERE NOT is_done AND latest_fail_reason != '' AND {_MINE}",
    "chmv_inserts_delayed": _metric("DelayedInserts"),
    "chmv_inserts_delayed_total": _event("DelayedInserts"),
    "chmv_inserts_rejected_total": _event("RejectedInserts"),
    "chmv_async_insert_queue": _metric("PendingAsyncInsert"),
    "chmv_distributed_files": _metric("DistributedFilesToInsert"),
    "chmv_replication_queue": f"SELECT count() FROM system.replication_queue WHERE {_MINE}",
    "chmv_replication_delay_seconds": f"SELECT max(absolute_delay) FROM system.replicas WHERE {_MINE}",
    "chmv_replicas_readonly": f"SELECT countIf(is_readonly) FROM system.replicas WHERE {_MINE}",
}  # fmt: skip


def read_server(databases: Sequence[str]) -> Statement:
    """Pairs of a metric's name and its value."""
    sql = " UNION ALL ".join(
        f"SELECT {quote_string(name)}, toFloat64(ifNull(({one}), 0))" for name, one in SERVER_NUMBERS.items()
    )
    return Statement(sql=sql, parameters={"databases": list(databases)}, settings={})


def read_objects(databases: Sequence[str]) -> Statement:
    """What there is: tables of these databases, tables of the journal, and how many locks are held by what they are for.

    The first word of a lock's name says what for.
    """
    sql = (
        f"SELECT 'object', [database, name], [0.] FROM system.tables WHERE {_MINE} "
        "UNION ALL SELECT 'journal', [name], [0.] FROM system.tables WHERE database = {own:String} AND name IN {journal:Array(String)} "
        f"UNION ALL SELECT 'lock', [splitByChar(' ', lock)[1]], [toFloat64(countIf(held))] FROM ({SQL_LOCKS}) GROUP BY ALL"
    )
    values = {"databases": list(databases), "own": OWN_DATABASE, "journal": [name.table for name in _JOURNAL]}
    return Statement(sql=sql, parameters=values, settings={})


def _spread(seconds: str, condition: str) -> str:
    """Count, sum and buckets of a duration; the buckets are empty where nothing fulfils the condition."""
    edges = ", ".join(f"toFloat64({edge})" for edge in BUCKETS)
    buckets = f"sumForEachIf(arrayMap(edge -> toFloat64({seconds} <= edge), [{edges}]), {condition})"
    return f"[toFloat64(countIf({condition})), sumIf({seconds}, {condition})], {buckets}"


def _seconds(start: str, end: str) -> str:
    return f"greatest(0., ({end} - {start}) / 1000.)"  # clocks of two hosts may differ


_REBUILT = _spread(_seconds(SQL_STARTED_MS, SQL_NOTED_MS), SQL_TELLS_START)
_REPAIRED = _spread(_seconds("started_ms", "ended_ms"), "ended_ms > 0 AND started_ms > 0")
_DETECTED = _spread(_seconds("detected_ms", "ended_ms"), "ended_ms > 0 AND detected_ms > 0")
_EDGES = len(BUCKETS)
_JOURNAL: Mapping[QName, str] = {
    WATERMARKS: "SELECT 'watermark', [target_table, source_id, toString(status)], "
    "[toFloat64(ifNull(max(toUnixTimestamp64Micro(last_processed_ts)), 0)) / 1e6, toFloat64(count())] "
    "FROM {table} FINAL GROUP BY target_table, source_id, status",
    REBUILDS.name: f"SELECT 'rebuild', [toString(protocol), toString(status)], arrayConcat([toFloat64(count())], {_REBUILT}) "
    "FROM {table} FINAL GROUP BY protocol, status",
    RECOVERIES.name: "SELECT 'recovery', [toString(kind), toString(status)], "
    f"arrayConcat([toFloat64(count())], arrayResize(arrayConcat({_REPAIRED}), {_EDGES + 2}), arrayResize(arrayConcat({_DETECTED}), {_EDGES + 2})) "
    "FROM {table} FINAL GROUP BY kind, status "
    "UNION ALL SELECT 'late', [subject, toString(damage)], [sum(toFloat64OrZero(JSONExtractString(detail, 'seen', 'late rows'))), "
    "sum(toFloat64OrZero(JSONExtractString(detail, 'seen', 'windows')))] FROM {table} FINAL WHERE kind = 'late' GROUP BY subject, damage",
    BATCHES.name: "SELECT 'batch', [source, toString(status)], [toFloat64(count()), toFloat64(sum(rows))] "
    "FROM {table} FINAL GROUP BY source, status",
    QUARANTINE: "SELECT 'quarantine', [toString(source)], [toFloat64(count())] FROM {table} GROUP BY source",
    DEPLOYS.name: "SELECT 'deploy', [toString(status)], [toFloat64(count())] FROM {table} FINAL GROUP BY status",
    **{QName(OWN_DATABASE, name): "" for name in ("outages", "diversions", "routes")},  # read as lags
}  # fmt: skip


def read_journal_counts(present: Collection[str], now_ms: int, cluster: str = "") -> Statement | None:
    """Everything that the journal tells, lags and routes of `core.freshness` included; None if there is nothing to ask.

    >>> read_journal_counts([], 0) is None, read_journal_counts(["deploys"], 0).sql.count("UNION ALL")
    (True, 0)
    """
    parts = [text.replace("{table}", name.sql) for name, text in _JOURNAL.items() if text and name.table in present]
    lags = read_journal([name for name in JOURNAL_TABLES if name in present], now_ms, cluster)
    if lags is not None:
        words = ", ".join(f"toString(one.{at})" for at in range(1, 6))
        parts.append(f"SELECT 'lag', [{words}], [0.] FROM (SELECT tuple(*) AS one FROM ({lags.sql}))")
    if not parts:
        return None
    values = dict(lags.parameters) if lags is not None else {}
    return Statement(sql=" UNION ALL ".join(parts), parameters=values, settings=read_settings(cluster))
