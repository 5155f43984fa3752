"""What the server and the journal say of targets, their snapshots, guards and routes: a constant number of queries. It writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chmv_assets.core.names import QName
from chmv_assets.core.outages import Outage, decode_outage, read_outages
from chmv_assets.core.serving import SERVING_DATABASE, WHOLE, Held, is_lost, snapshot_name, twin_name
from chmv_assets.core.serving_journal import Guard, RouteRecord, decode_guard, decode_route, read_guards, read_routes
from resources.clickhouse import Server

Columns = tuple[tuple[str, str, str], ...]  # name, type, default kind


@dataclass(frozen=True, slots=True)
class Live:
    """What one look at the server and the journal has found."""

    uuids: Mapping[QName, str]
    marks: Mapping[QName, str]  # comments of views
    columns: Mapping[QName, Columns]
    parts: Mapping[QName, dict[str, Held]]
    guards: Mapping[QName, dict[str, Guard]]
    routes: Mapping[QName, RouteRecord]
    outages: Mapping[QName, Outage]  # views with an open outage

    def snapshot_ms(self, target: QName) -> int:
        whole = self.guards.get(target, {}).get(WHOLE)
        return whole.copied_ms if whole else 0

    def lost(self, target: QName) -> tuple[str, ...]:
        """Partitions that readers get from the snapshot."""
        held, copied, uuid = (
            self.parts.get(target, {}),
            self.parts.get(snapshot_name(target), {}),
            self.uuids.get(target, ""),
        )
        guards = self.guards.get(target, {})
        return tuple(sorted(one for one in copied if is_lost(guards.get(one), held.get(one), uuid)))


def fetch_live(server: Server, cluster: str, names: Sequence[QName]) -> Live:
    """Seven queries, whatever the number of targets; tables of the journal that are not there yet count as empty."""
    tables = [*names, *(snapshot_name(name) for name in names), *(twin_name(name) for name in names)]
    wanted = {"tables": [(name.database, name.table) for name in tables], "serving": SERVING_DATABASE}
    made = server.rows(
        "SELECT database, name, toString(uuid), comment FROM system.tables "
        "WHERE (database, name) IN {tables:Array(Tuple(String, String))} OR database = {serving:String}",
        wanted,
    )
    columns: dict[QName, list[tuple[str, str, str]]] = {}
    for database, table, name, kind, default in server.rows(
        "SELECT database, table, name, type, default_kind FROM system.columns "
        "WHERE (database, table) IN {tables:Array(Tuple(String, String))} ORDER BY database, table, position",
        wanted,
    ):
        columns.setdefault(QName(database, table), []).append((str(name), str(kind), str(default)))
    guards: dict[QName, dict[str, Guard]] = {}
    for row in server.fetch_if_there(read_guards(names, cluster)):
        guard = decode_guard(row)
        guards.setdefault(guard.target, {})[guard.partition_id] = guard
    found = server.fetch_if_there(read_outages(cluster, statuses=("open", "isolated")))
    return Live(
        uuids={QName(database, name): str(uuid) for database, name, uuid, _ in made},
        marks={QName(database, name): str(comment) for database, name, _, comment in made},
        columns={name: tuple(listed) for name, listed in columns.items()},
        parts=_parts(server, [*names, *(snapshot_name(name) for name in names)]),
        guards=guards,
        routes=fetch_routes(server, cluster),
        outages={one.view: one for one in map(decode_outage, found)},
    )


def fetch_routes(server: Server, cluster: str) -> dict[QName, RouteRecord]:
    """The present route of each target that was ever switched."""
    return {record.target: record for record in map(decode_route, server.fetch_if_there(read_routes(cluster)))}


def _parts(server: Server, tables: Sequence[QName]) -> dict[QName, dict[str, Held]]:
    rows = server.rows(
        "SELECT database, table, partition_id, sum(rows), min(min_block_number), max(max_block_number), "
        "max(if(data_version = min_block_number, 0, data_version)), max(rows), maxIf(rows, level > 0) FROM system.parts "
        "WHERE active AND rows > 0 AND (database, table) IN {tables:Array(Tuple(String, String))} GROUP BY database, table, partition_id",
        {"tables": [(name.database, name.table) for name in tables]},
    )
    emptied = _emptied(server, tables)
    found: dict[QName, dict[str, Held]] = {}
    for database, table, partition_id, count, low, high, version, largest, merged in rows:
        at = emptied.get((database, table, partition_id), 0)
        held = Held(int(count), int(low), int(high), int(version), at, int(largest), int(merged))
        found.setdefault(QName(database, table), {})[str(partition_id)] = held
    return found


def _emptied(server: Server, tables: Sequence[QName]) -> dict[tuple[str, str, str], int]:
    """When partitions were emptied last, in ms, as far as the log of parts tells; nothing without one."""
    server.command("SYSTEM FLUSH LOGS part_log")
    rows = server.rows_if_there(
        "SELECT database, table, partition_id, max(toUnixTimestamp64Milli(toDateTime64(event_time_microseconds, 3))) "
        "FROM system.part_log WHERE event_type = 'NewPart' AND rows = 0 AND event_date >= today() - 1 "
        "AND (database, table) IN {tables:Array(Tuple(String, String))} GROUP BY database, table, partition_id",
        {"tables": [(name.database, name.table) for name in tables]},
    )
    return {(str(database), str(table), str(one)): int(at) for database, table, one, at in rows}
