"""Tables that keep rows for a while before they send them on: Distributed and Buffer tables, and what waits in them. Only reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName, quote_string
from chmv_assets.core.system_tables import system_table
from resources.clickhouse import Server

_NOBODY_ANSWERS = (279, 519)  # no connection, and therefore no structure of the table


@dataclass(frozen=True, slots=True)
class Forwarder:
    """A table that keeps rows for a while before it sends them on."""

    name: QName
    engine: str
    cluster: str = ""  # of a Distributed table: any server of it may hold rows for this one


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Files of a Distributed table that were not sent yet."""

    name: QName
    files: int
    error: str  # of the last try, if one failed
    error_at: int  # when, in seconds of the server's clock


def fetch_forwarders(server: Server, tables: Collection[QName], cluster: str = "") -> tuple[Forwarder, ...]:
    """Distributed and Buffer tables through which rows come into these tables, directly or not; the outermost first.

    They are asked of the server: who writes through one that no DDL declares is on the way as well. And of the servers of other shards, if a
    Distributed table here leads to them: the same table there may lead here. Who of those does not answer sends nothing either.
    """
    rows = _fetch_sending(server, cluster)
    others = {_cluster_of(engine, text) for _, _, engine, text in rows} - {"", cluster}
    for other in sorted(others):
        rows += [row for row in _fetch_sending(server, other, is_ours=False) if row not in rows]
    found: list[Forwarder] = []
    wanted = list(tables)
    while wanted:
        table = wanted.pop()
        aim = f"{quote_string(table.database)}, {quote_string(table.table)}"  # as the server prints the arguments
        for database, name, engine, text in rows:
            one = Forwarder(QName(str(database), str(name)), str(engine), _cluster_of(engine, text))
            if f"{aim}, " in text or f"{aim})" in text:
                found = [one, *(other for other in found if other != one)]
                if one.name != table:
                    wanted.append(one.name)
    return tuple(found)


def _ask(
    server: Server, sql: str, values: Mapping[str, object] | None = None, *, is_ours: bool
) -> list[tuple[Any, ...]]:
    """All replicas of a cluster; of one that is not ours, those who answer."""
    if is_ours:
        return server.rows(sql, values)
    try:
        return server.rows(sql, values, {"skip_unavailable_shards": 1})
    except ServerError as error:
        if error.code not in _NOBODY_ANSWERS:
            raise
        return []


def _fetch_sending(server: Server, cluster: str, *, is_ours: bool = True) -> list[tuple[str, str, str, str]]:
    rows = _ask(
        server,
        f"SELECT DISTINCT database, name, engine, engine_full FROM {system_table('tables', cluster)} "
        "WHERE engine IN ('Distributed', 'Buffer') ORDER BY database, name",
        is_ours=is_ours,
    )
    return [(str(database), str(name), str(engine), str(text)) for database, name, engine, text in rows]


def _cluster_of(engine: str, text: str) -> str:
    """The cluster of a Distributed table, from its engine as the server prints it.

    >>> _cluster_of("Distributed", "Distributed('main', 'd', 't', rand())"), _cluster_of("Buffer", "Buffer('d', 't', 1)")
    ('main', '')
    """
    found = re.match(r"Distributed\('((?:[^'\\]|\\.)*)'", text)
    return found.group(1) if engine == "Distributed" and found else ""


def fetch_undelivered(
    server: Server, tables: Collection[QName], cluster: str = "", *, is_ours: bool = True
) -> tuple[Undelivered, ...]:
    """What waits in the files of Distributed tables, for each shard that it waits for."""
    rows = _ask(
        server,
        "SELECT database, table, data_files, last_exception, toUnixTimestamp(last_exception_time) "
        f"FROM {system_table('distribution_queue', cluster)} "
        "WHERE data_files > 0 AND (database, table) IN {tables:Array(Tuple(String, String))} ORDER BY database, table, data_path",
        {"tables": [(name.database, name.table) for name in tables]},
        is_ours=is_ours,
    )
    return tuple(
        Undelivered(QName(str(database), str(table)), int(files), str(error), int(at))
        for database, table, files, error, at in rows
    )
