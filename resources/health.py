"""How views stand on the server: what is there, what is hooked, what failed. Two queries, whatever the number of views; nothing here writes.

The first tells what exists, so that the second asks only tables that are there: log tables and parts of the journal differ from server
to server, and a missing one is "not known", not an error. What follows from it is decided in `sensors.view_health_verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.outages import OUTAGES, OutageStatus
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.rebuild_journal import REBUILDS, SQL_REBUILDING
from chmv_assets.core.recovery import ALIVE_SECONDS, RECOVERIES
from chmv_assets.core.serving_journal import GUARDS, render_least_offset
from resources.clickhouse import Server

FAILURES_KEPT = 100  # per view; more failures do not say more
PART_LOG = QName("system", "part_log")
CANCELLED = 394
_NOT_IMPLEMENTED = 48
_VIEW_ENGINE = "MaterializedView"
# The server names the view that threw, not those that only were in the same insert: `…: while pushing to view shop.daily. (CODE)`.
_CULPRIT = "extract(exception, 'while pushing to view ([^:(]+?)(?:\\\\. \\\\(| \\\\(|:|$)')"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A materialized view on the server."""

    name: QName
    sql: str
    select: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Inserts that a view has made fail."""

    moments_ms: tuple[int, ...]  # oldest first
    exception: str  # of the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRefresh:
    """A refreshable view whose last refresh failed, or that was stopped."""

    status: str
    exception: str
    succeeded_s: int  # 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A partition that a target held when it was copied, and does not hold any more."""

    partition_id: str
    max_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOutage:
    """The latest outage of a view that is not over, and when the last one was."""

    status: OutageStatus
    opened_ms: int
    closed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What was read, at one moment of the server's clock."""

    now_ms: int
    tables: frozenset[QName]
    views: Mapping[QName, LiveView]
    hooks: Mapping[QName, frozenset[QName]]  # table → views that an insert fires
    detached: frozenset[QName] | None = frozenset()  # None: not known
    failures: Mapping[QName, Failures] | None = field(default_factory=dict)  # None: not known, there is no log
    refreshes: Mapping[QName, FailedRefresh] = field(default_factory=dict)
    lost: Mapping[QName, tuple[Lost, ...]] = field(default_factory=dict)
    outages: Mapping[QName, KnownOutage] = field(default_factory=dict)
    rebuilding: frozenset[QName] = frozenset()  # targets
    repairing: frozenset[QName] = frozenset()  # subjects of repairs that run


def fetch_health(server: Server, databases: Iterable[str], since_ms: int) -> Health:
    """Read everything; failures of inserts since a moment."""
    wanted = sorted(set(databases))
    there = server.rows(_OBJECTS, {"databases": wanted, "own": OWN_DATABASE})
    names = {QName(str(row[0]), str(row[1])) for row in there}
    values = {"databases": wanted, "since": since_ms}
    try:
        rows = server.rows(_render_states(names), values)
    except ServerError as error:
        if error.code != _NOT_IMPLEMENTED:  # an embedded server cannot list what is detached from its `default`
            raise
        names -= {QName("system", "detached_tables")}
        rows = server.rows(_render_states(names), values)
    return _health(there, names, rows)


# The text of an object is the dearest column of `system.tables` (0.2 ms each on 26.7, ten times all others), and the server renders it for
# every row that it visits, even under an `if`. It visits only rows of the wanted engine, so views are a branch of their own.
_OBJECTS = f"""
SELECT database, name, engine, '' AS text, '' AS query, arrayZip(dependencies_database, dependencies_table) AS fired,
       toUnixTimestamp64Milli(now64(3)) AS moment
FROM system.tables
WHERE engine != '{_VIEW_ENGINE}' AND NOT is_temporary AND (database IN {{databases:Array(String)}}
   OR (database = {{own:String}} AND name NOT LIKE '%.%')
   OR (database = 'system' AND name IN ('query_log', 'query_views_log', 'part_log', 'detached_tables', 'view_refreshes')))
UNION ALL
SELECT database, name, engine, create_table_query, as_select, arrayZip(dependencies_database, dependencies_table),
       toUnixTimestamp64Milli(now64(3))
FROM system.tables WHERE engine = '{_VIEW_ENGINE}' AND NOT is_temporary AND database IN {{databases:Array(String)}}
"""


def _render_states(names: set[QName]) -> str:
    """The second query: rows of (kind, a, b, c, n, m, moments), from what is there."""
    pieces = [
        "SELECT 'now' AS kind, '' AS a, '' AS b, '' AS c, toInt64(0) AS n, toInt64(0) AS m, emptyArrayInt64() AS moments"
    ]
    for table, sql in _STATES.items():
        if table in names:
            pieces.append(sql)
    if GUARDS in names:
        pieces.append(_render_lost(has_log=PART_LOG in names))
    log = next((one for one in _LOGS if one in names), None)
    if log is not None:
        pieces.append(_render_failures(log))
    return " UNION ALL ".join(pieces)


_GUARDED = (
    f"SELECT replaceAll(target, '`', '') FROM {GUARDS.sql} WHERE max_block >= 0"  # only their parts are looked at
)
_STATES: dict[QName, str] = {
    QName("system", "detached_tables"): (
        "SELECT 'detached', database, table, '', toInt64(is_permanently), toInt64(0), emptyArrayInt64() "
        "FROM system.detached_tables WHERE database IN {databases:Array(String)}"
    ),
    QName("system", "view_refreshes"): (
        "SELECT 'refresh', database, view, concat(toString(status), '\\n', exception), "
        "toInt64(ifNull(toUnixTimestamp(last_success_time), 0)), toInt64(0), emptyArrayInt64() FROM system.view_refreshes "
        "WHERE database IN {databases:Array(String)} AND (exception != '' OR status = 'Disabled')"
    ),
    REBUILDS.name: (
        "SELECT 'rebuilding', target, '', '', toInt64(0), toInt64(0), emptyArrayInt64() "
        f"FROM ({SQL_REBUILDING})"
    ),
    OUTAGES.name: (
        "SELECT 'outage', view, argMax(status, (status != 'closed', opened_ms)), '', "
        "toInt64(argMax(opened_ms, (status != 'closed', opened_ms))), toInt64(max(closed_ms)), emptyArrayInt64() "
        f"FROM {OUTAGES.sql} FINAL GROUP BY view"
    ),
    RECOVERIES.name: (
        "SELECT 'repairing', subject, '', '', toInt64(0), toInt64(0), emptyArrayInt64() "
        f"FROM {RECOVERIES.sql} FINAL WHERE kind = 'view' AND status = 'running' "
        f"AND updated_at > now() - INTERVAL {ALIVE_SECONDS} SECOND GROUP BY subject"
    ),
}  # fmt: skip
_LOGS = (
    QName("system", "query_views_log"),
    QName("system", "query_log"),
)  # the first also knows errors that inserts ignored


def _render_lost(*, has_log: bool) -> str:
    """The rule of `core.serving.is_lost`, for all targets at once.

    The log of parts knows of a partition that was emptied even when merges have hidden it: what a DROP leaves for a moment is an empty part that covers
    the blocks of before, and rows that are merged with it look as old as those that are gone.
    """
    emptied = (
        " LEFT JOIN (SELECT concat(database, '.', table) AS plain, partition_id, "
        "max(toUnixTimestamp64Milli(toDateTime64(event_time_microseconds, 3))) AS ms FROM system.part_log "
        "WHERE event_type = 'NewPart' AND rows = 0 AND database IN {databases:Array(String)} "
        "AND event_date >= toDate(fromUnixTimestamp64Milli({since:Int64})) "
        "AND event_time_microseconds > fromUnixTimestamp64Milli({since:Int64}) GROUP BY database, table, partition_id) AS e "
        "ON e.plain = g.plain AND e.partition_id = g.partition_id"
    )
    return (
        "SELECT 'lost', g.target, g.partition_id, '', toInt64(g.max_block), toInt64(0), emptyArrayInt64() FROM "
        "(SELECT target, replaceAll(target, '`', '') AS plain, partition_id, max_block, table_uuid, copied, copied_ms "
        f"FROM {GUARDS.sql} FINAL WHERE max_block >= 0 AND partition_id != '') AS g LEFT JOIN "
        "(SELECT concat(database, '.', table) AS plain, partition_id, min(min_block_number) AS block, max(rows) AS largest, "
        "max(data_version != min_block_number) AS is_mutated FROM system.parts "
        f"WHERE active AND rows > 0 AND database IN {{databases:Array(String)}} AND concat(database, '.', table) IN ({_GUARDED}) "
        "GROUP BY database, table, partition_id) AS p "  # by columns, then the name: not one string per part
        "ON p.plain = g.plain AND p.partition_id = g.partition_id LEFT JOIN "
        "(SELECT concat(database, '.', name) AS plain, toString(uuid) AS uuid FROM system.tables "
        f"WHERE database IN {{databases:Array(String)}} AND concat(database, '.', name) IN ({_GUARDED})) AS t ON t.plain = g.plain"
        + (emptied if has_log else "")
        + " WHERE p.partition_id = '' OR p.block > g.max_block OR t.uuid != g.table_uuid"
        + f" OR (NOT p.is_mutated AND p.largest <= {render_least_offset('g.copied')})"
        + (" OR e.ms > g.copied_ms" if has_log else "")
    )


def _render_failures(log: QName) -> str:
    condition = "status = 'ExceptionWhileProcessing'" if log.table == "query_views_log" else (
        "type = 'ExceptionWhileProcessing' AND query_kind IN ('Insert', 'AsyncInsertFlush')"
    )  # fmt: skip
    return (
        "SELECT 'failure', culprit, '', argMax(left(text, 500), at), toInt64(count()), toInt64(0), "
        f"arraySort(groupArray({FAILURES_KEPT})(at)) FROM ("
        f"SELECT {_CULPRIT} AS culprit, initial_query_id, min(toUnixTimestamp64Milli(toDateTime64(event_time_microseconds, 3))) AS at, "
        f"any(exception) AS text FROM {log.sql} WHERE {condition} AND exception_code != {CANCELLED} "
        "AND event_date >= toDate(fromUnixTimestamp64Milli({since:Int64})) "
        "AND event_time_microseconds > fromUnixTimestamp64Milli({since:Int64}) "
        "GROUP BY culprit, initial_query_id HAVING culprit != '') GROUP BY culprit"
    )


def _health(there: Sequence[tuple[object, ...]], names: set[QName], rows: Sequence[tuple[object, ...]]) -> Health:
    views: dict[QName, LiveView] = {}
    hooks: dict[QName, frozenset[QName]] = {}
    now_ms = 0
    for database, table, engine, sql, select, fired, now in there:
        name = QName(str(database), str(table))
        now_ms = int(str(now))
        if engine == _VIEW_ENGINE:
            views[name] = LiveView(name=name, sql=str(sql), select=str(select))
        if fired:
            hooks[name] = frozenset(QName(*pair) for pair in fired)  # type: ignore[attr-defined]
    of: dict[str, list[tuple[object, ...]]] = {}
    for kind, *rest in rows:
        of.setdefault(str(kind), []).append(tuple(rest))
    has_log = any(log in names for log in _LOGS)
    lists_detached = QName("system", "detached_tables") in names
    return Health(
        now_ms=now_ms,
        tables=frozenset(names),
        views=views,
        hooks=hooks,
        detached=frozenset(QName(str(r[0]), str(r[1])) for r in of.get("detached", ())) if lists_detached else None,
        failures=_failures(of.get("failure", ())) if has_log else None,
        refreshes={QName(str(r[0]), str(r[1])): _refresh(r) for r in of.get("refresh", ())},
        lost=_lost(of.get("lost", ())),
        outages={_name(r[0]): _outage(r) for r in of.get("outage", ())},
        rebuilding=frozenset(_name(r[0]) for r in of.get("rebuilding", ())),
        repairing=frozenset(_name(r[0]) for r in of.get("repairing", ())),
    )


def _name(text: object) -> QName:
    return parse_qname(str(text), "default")


def _number(value: object) -> int:
    return int(str(value))


def _failures(rows: Sequence[tuple[object, ...]]) -> dict[QName, Failures]:
    found: dict[QName, Failures] = {}
    for culprit, _, text, _, _, moments in rows:
        try:
            name = _name(culprit)
        except ValueError:  # a name that the server prints without its quotes
            continue
        found[name] = Failures(moments_ms=tuple(_number(one) for one in moments), exception=str(text))  # type: ignore[attr-defined]
    return found


def _refresh(row: tuple[object, ...]) -> FailedRefresh:
    status, _, exception = str(row[2]).partition("\n")
    return FailedRefresh(status=status, exception=exception, succeeded_s=_number(row[3]))


def _lost(rows: Sequence[tuple[object, ...]]) -> dict[QName, tuple[Lost, ...]]:
    found: dict[QName, list[Lost]] = {}
    for target, partition, _, block, _, _ in rows:
        found.setdefault(_name(target), []).append(Lost(partition_id=str(partition), max_block=_number(block)))
    return {target: tuple(sorted(ones, key=lambda one: one.partition_id)) for target, ones in found.items()}


def _outage(row: tuple[object, ...]) -> KnownOutage:
    status, opened, closed = str(row[1]), _number(row[3]), _number(row[4])
    return KnownOutage(status=status, opened_ms=opened, closed_ms=closed)  # type: ignore[arg-type]
