"""What ran on the server lately, from `query_log` and `query_views_log`: counts, never the text of a query. It reads; only the flush of the logs is a command.

Three queries, whatever the number of tables, over a bounded time and with bounded answers. A log that is not there is "not known".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from chmv_assets.core.cluster import spread
from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.runtime_graph import REFRESH, Fired, Observed, Queries
from chmv_assets.core.system_tables import system_table
from resources.clickhouse import Server

MAX_GROUPS = 5_000
_SECONDS = 60
_VIEWS_LOG, _QUERY_LOG = "query_views_log", "query_log"
_OUR_CLIENTS = "chmv"
_REFRESHER = "refreshable materialized view"  # how the server calls itself then
_NAMED = "if(endsWith(t, '`'), position(query, splitByChar('`', t)[-2]) > 0, has(words, splitByChar('.', t)[-1]))"
_HOW = "A server keeps them by default (`<query_log>`, `<query_views_log>` in its configuration, `log_queries = 1`, `log_query_views = 1`)"
_PART = r"(?:`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"|[\w$]+)"
_INSERTED = (
    rf"(?is)^(?:\s|--[^\n]*\n|/\*.*?\*/)*INSERT\s+INTO\s+(?:TABLE\s+)?({_PART}(?:\s*\.\s*{_PART})?)"  # which table
)
_OF_FOLDER = (  # a name as the logs write it, of one of the databases
    "arrayExists(d -> startsWith({name}, concat(d, '.')) OR startsWith({name}, concat('`', d, '`.')), {{databases:Array(String)}})"
)


def fetch_observed(server: Server, databases: Iterable[str], hours: float, cluster: str = "") -> Observed:
    """Read what touched these databases in the last hours."""
    wanted = sorted(set(databases))
    notes = _flush(server, cluster)
    rows = server.rows(
        "SELECT database, name, arrayZip(dependencies_database, dependencies_table), toUnixTimestamp(now()) FROM system.tables "
        "WHERE (database = 'system' AND name IN {logs:Array(String)}) OR (database IN {databases:Array(String)} AND notEmpty(dependencies_table))",
        {"logs": [_VIEWS_LOG, _QUERY_LOG], "databases": wanted},
    )
    there = {str(name) for database, name, _, _ in rows if database == "system"}
    until = datetime.fromtimestamp(rows[0][3], timezone.utc) if rows else datetime.now(timezone.utc)
    since = until - timedelta(hours=hours)
    notes += [f"The server has no system.{log}." for log in (_VIEWS_LOG, _QUERY_LOG) if log not in there]
    if len(there) < 2:
        notes.append(f"{_HOW}.")
    values = {"databases": wanted, "since": int(since.timestamp()), "limit": MAX_GROUPS + 1}
    fired = _fetch_fired(server, values, cluster, notes) if _VIEWS_LOG in there else None
    queries = _fetch_queries(server, values, cluster, notes) if _QUERY_LOG in there else None
    hooks = {QName(str(d), str(t)): tuple(QName(*pair) for pair in views) for d, t, views, _ in rows if d != "system"}
    return Observed(since=since, until=until, fired=fired, queries=queries, hooks=hooks, notes=tuple(notes))


def _flush(server: Server, cluster: str) -> list[str]:
    """Here in any case; elsewhere if it goes."""
    try:
        server.command("SYSTEM FLUSH LOGS")
        if cluster:
            server.command(spread("SYSTEM FLUSH LOGS", cluster))
    except ServerError as error:
        return [
            f"The logs could not be flushed, so the last seconds may be missing: {str(error).splitlines()[0][:200]}"
        ]
    return []


_SINCE = "event_date >= toDate(fromUnixTimestamp({since:Int64})) AND event_time >= fromUnixTimestamp({since:Int64})"


def _fetch_fired(server: Server, values: dict[str, object], cluster: str, notes: list[str]) -> tuple[Fired, ...]:
    rows = server.rows(
        "SELECT view_name, view_target, count(), countIf(status = 'QueryFinish' AND written_rows > 0), "
        f"toUnixTimestamp(max(event_time)) FROM {system_table(_VIEWS_LOG, cluster)} "
        f"WHERE {_SINCE} AND view_type = 'Materialized' "
        f"AND ({_OF_FOLDER.format(name='view_name')} OR {_OF_FOLDER.format(name='view_target')}) "
        "GROUP BY view_name, view_target ORDER BY count() DESC, view_name, view_target LIMIT {limit:UInt32}",
        values, {"max_execution_time": _SECONDS},
    )  # fmt: skip
    return tuple(
        Fired(
            view=read_name(view), target=read_name(target) if target else None, count=int(count), wrote=int(wrote),
            last=datetime.fromtimestamp(last, timezone.utc),
        )
        for view, target, count, wrote, last in _bounded(rows, "views", notes)
    )  # fmt: skip


def _fetch_queries(server: Server, values: dict[str, object], cluster: str, notes: list[str]) -> tuple[Queries, ...]:
    of_folder = f"arrayFilter(t -> {_OF_FOLDER.format(name='t')}, tables)"
    rows = server.rows(
        "WITH if(query_kind = 'Insert', extractAll(left(query, 100000), '[A-Za-z0-9_]+'), []) AS words "  # they stay on the server
        "SELECT query_kind AS kind, user AS who, left(if(client_name != '', client_name, http_user_agent), 80) AS client, "
        f"arraySort({of_folder}) AS used, arraySort(views) AS passed, "
        "if(query_kind IN ('Insert', 'AsyncInsertFlush'), extract(left(query, 4000), {inserted:String}), '') AS written, "
        "if(written = '', '', current_database) AS home, "
        f"if(arrayExists(w -> upper(w) = 'SELECT', words), arrayFilter(t -> {_NAMED}, used), []) AS named, "
        "count() AS n, toUnixTimestamp(max(event_time)) AS last "
        f"FROM {system_table(_QUERY_LOG, cluster)} WHERE {_SINCE} AND type = 'QueryFinish' AND is_initial_query "
        "AND hasAny(databases, {databases:Array(String)}) AND notEmpty(used) "
        "GROUP BY kind, who, client, used, passed, written, home, named ORDER BY n DESC, used, kind, who, client LIMIT {limit:UInt32}",
        {**values, "inserted": _INSERTED}, {"max_execution_time": _SECONDS},
    )  # fmt: skip
    return tuple(_queries(*row) for row in _bounded(rows, "groups of queries", notes))


def _queries(
    kind: str, user: str, client: str, used: Sequence[str], passed: Sequence[str], written: str, home: str, named: Sequence[str],
    count: int, last: int,
) -> Queries:  # fmt: skip
    tables = frozenset(read_name(name) for name in used)
    target = read_name(written, home) if written else None
    if client == _REFRESHER or (target is not None and target.table.startswith(".tmp.inner")):
        kind = REFRESH
    if target not in tables:  # a table function, or a text that could not be read
        target = next(iter(tables)) if len(tables) == 1 and kind in ("Insert", "AsyncInsertFlush") else None
    return Queries(
        kind=kind, user=user, client=client, ours=client.startswith(_OUR_CLIENTS), tables=tables,
        views=frozenset(read_name(name) for name in passed), written=target,
        named=frozenset(read_name(name) for name in named), count=int(count),
        last=datetime.fromtimestamp(last, timezone.utc),
    )  # fmt: skip


def _bounded(rows: list[tuple[Any, ...]], what: str, notes: list[str]) -> Sequence[tuple[Any, ...]]:
    if len(rows) > MAX_GROUPS:
        notes.append(f"More than {MAX_GROUPS} {what}: only the most frequent are counted. Ask for fewer hours.")
    return rows[:MAX_GROUPS]


def read_name(text: object, database: str = "") -> QName:
    """A name as the logs write it; some are not quoted where they should be.

    >>> str(read_name("shop.`a b`")), str(read_name("shop..inner_id.7f")), str(read_name("x", "shop"))
    ('shop.`a b`', 'shop.`.inner_id.7f`', 'shop.x')
    """
    try:
        return parse_qname(str(text), database)
    except ValueError:
        first, _, rest = str(text).partition(".")
        return QName(first, rest)
