"""What the picture of the graph shows of a server: statuses, rows, watermarks, repairs. Some twenty queries, whatever the number of objects. Only reads.

The flush of the log of views is the one command among them. A log or a table of the journal that is not there is "not known", never an
error. What the numbers mean for a node or an edge is `core.picture.state`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.outages import OPEN, decode_outage, read_outages
from chmv_assets.core.own_tables import Statement, read_settings
from chmv_assets.core.picture.state import Flow, Seen, TargetSeen
from chmv_assets.core.rebuild_journal import REBUILDS, decode_rebuild
from chmv_assets.core.recovery import decode_recovery, read_recoveries
from chmv_assets.core.settings import Settings
from chmv_assets.core.system_tables import system_table
from chmv_assets.core.watermarks import Watermark, decode_watermark, read_last_watermarks
from resources.clickhouse import Server
from resources.health import Health, fetch_health
from resources.introspect import fetch_existing
from resources.journal import open_journal
from resources.runtime import read_name
from resources.serving import Router
from resources.status import TargetStatus, read_status

_VIEWS_LOG = QName("system", "query_views_log")
_FAILING_SECONDS = 300  # a view that made inserts fail within them is failing
_LAST_WINDOWS = 6
_LAST_REPAIRS = 1_000
_SECONDS = 60


def read_graph_status(server: Server, catalog: Catalog, settings: Settings, *, hours: float = 24) -> Seen:
    """Read how everything in a catalog stands; rows through views are those of the last hours."""
    router = Router(server, open_journal(server), catalog, settings.limits.snapshot_max_age)
    cluster = router.journal.cluster
    databases = sorted({name.database for name in catalog.objects if name.database})
    health = fetch_health(server, databases, int((time.time() - _FAILING_SECONDS) * 1000))
    notes: list[str] = []
    flows = _fetch_flows(server, health, databases, hours, cluster, notes)
    refreshed, refresh_troubles = _fetch_refreshes(server, databases)
    return Seen(
        taken=datetime.fromtimestamp(health.now_ms // 1000, timezone.utc),
        tables=health.tables,
        rows=_fetch_rows(server, databases),
        hooks=health.hooks,
        troubles={**_failing(health), **refresh_troubles, **_fetch_dictionaries(server, databases)},
        targets={one.facts.target: _target(one) for one in read_status(router, settings)},
        flows=None if flows is None else {**refreshed, **flows},
        outages=tuple(map(decode_outage, server.fetch_if_there(read_outages(cluster, statuses=OPEN)))),
        watermarks=_fetch_watermarks(server, cluster),
        repairs=tuple(map(decode_recovery, server.fetch_if_there(read_recoveries(cluster, limit=_LAST_REPAIRS)))),
        rebuilds=tuple(map(decode_rebuild, server.fetch_if_there(_last_rebuilds(cluster)))),
        notes=tuple(notes),
    )


def _target(one: TargetStatus) -> TargetSeen:
    facts = one.facts
    return TargetSeen(
        status=one.status, why=one.why, route=facts.route, route_reason=facts.route_reason, serving_view=one.view,
        snapshot_age_seconds=facts.snapshot_age_seconds,
    )  # fmt: skip


def _failing(health: Health) -> dict[QName, str]:
    return {
        view: f"it made {len(failures.moments_ms)} insert(s) fail in the last {_FAILING_SECONDS // 60} minutes: {failures.exception[:300]}"
        for view, failures in (health.failures or {}).items()
    }


def _fetch_rows(server: Server, databases: list[str]) -> dict[QName, tuple[int, int]]:
    rows = server.rows(
        "SELECT database, name, total_rows, ifNull(total_bytes, 0) FROM system.tables "
        "WHERE database IN {databases:Array(String)} AND total_rows IS NOT NULL",
        {"databases": databases},
    )
    return {QName(str(database), str(name)): (int(count), int(size)) for database, name, count, size in rows}


def _fetch_flows(
    server: Server, health: Health, databases: list[str], hours: float, cluster: str, notes: list[str]
) -> dict[QName, Flow] | None:
    """Rows that inserts pushed through views lately."""
    try:
        server.command("SYSTEM FLUSH LOGS query_views_log")
    except ServerError as error:
        notes.append(f"The log of views could not be flushed, the last seconds may be missing: {_first(error)}")
    # A log begins to exist at its first flush, perhaps after the health was read.
    if _VIEWS_LOG not in health.tables and not fetch_existing(server, [_VIEWS_LOG]):
        notes.append("The server has no system.query_views_log: edges are as wide as their tables have rows.")
        return None
    rows = server.rows(
        "SELECT view_name, sum(read_rows), sum(written_rows) "
        f"FROM {system_table(_VIEWS_LOG.table, cluster)} WHERE view_type = 'Materialized' AND status = 'QueryFinish' "
        "AND event_date >= toDate(now() - {seconds:UInt32}) AND event_time >= now() - {seconds:UInt32} "
        "AND arrayExists(d -> startsWith(view_name, concat(d, '.')) OR startsWith(view_name, concat('`', d, '`.')), {databases:Array(String)}) "
        "GROUP BY view_name",
        {"databases": databases, "seconds": int(hours * 3600)},
        {"max_execution_time": _SECONDS},
    )
    if not rows:
        notes.append(f"No insert that fired a view is logged for the last {hours:g} hours: edges are as wide as their tables have rows.")  # fmt: skip
        return None
    basis = f"in the last {hours:g} hours"
    return {read_name(view): Flow(read=int(read), written=int(written), basis=basis) for view, read, written in rows}


def _fetch_refreshes(server: Server, databases: list[str]) -> tuple[dict[QName, Flow], dict[QName, str]]:
    rows = server.rows_if_there(
        "SELECT database, view, toString(status), exception, read_rows, written_rows, toString(last_success_time) "
        "FROM system.view_refreshes WHERE database IN {databases:Array(String)}",
        {"databases": databases},
    )
    flows: dict[QName, Flow] = {}
    troubles: dict[QName, str] = {}
    for database, view, status, exception, read, written, succeeded in rows:
        name = QName(str(database), str(view))
        flows[name] = Flow(read=int(read), written=int(written), basis="in its last refresh")
        if exception or status == "Disabled":
            told = str(exception)[:300] or "it is stopped"
            troubles[name] = f"its refresh is {status}: {told} (last success: {succeeded or 'never'})"
    return flows, troubles


def _fetch_dictionaries(server: Server, databases: list[str]) -> dict[QName, str]:
    rows = server.rows_if_there(
        "SELECT database, name, toString(status), last_exception FROM system.dictionaries "
        "WHERE database IN {databases:Array(String)} AND last_exception != ''",
        {"databases": databases},
    )
    return {
        QName(str(database), str(name)): f"the dictionary is {status}: {str(exception)[:300]}"
        for database, name, status, exception in rows
    }


def _fetch_watermarks(server: Server, cluster: str) -> tuple[Watermark, ...]:
    rows: Iterable[tuple[Any, ...]] = server.fetch_if_there(read_last_watermarks(_LAST_WINDOWS, cluster))
    return tuple(decode_watermark(row) for row in rows)


def _last_rebuilds(cluster: str) -> Statement:
    sql = f"SELECT {REBUILDS.selected}, updated_at FROM {REBUILDS.sql} FINAL ORDER BY updated_at DESC, rebuild_id LIMIT 1 BY target"
    return Statement(sql=sql, parameters={}, settings=read_settings(cluster))


def _first(error: ServerError) -> str:
    return str(error).splitlines()[0][:200]
