"""What targets hold and their sources have forgotten, as the server says (`core.deploy.forgotten`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.deploy.forgotten import (
    Edge,
    Forgotten,
    Partition,
    begin_of_rows,
    find_edge,
    is_older,
    select_forgotten,
)
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import find_source_time
from chmv_assets.core.windows import scheme_zone
from resources.clickhouse import Server
from resources.introspect import fetch_partitions, hide_secrets
from resources.rebuild.workbench import Workbench
from resources.reconcile_windows import fetch_ends


@dataclass(frozen=True)
class Memory:
    """What the sources of some targets remember. Where their rows begin is read once; what a TTL lets them forget moves on and is asked again and again."""

    server: Server
    declared: Catalog
    live: Catalog  # tables as they stand: their TTLs have deleted rows, their partitions are told by their keys
    zone: str
    begins: Mapping[QName, Edge] = field(
        default_factory=dict
    )  # target → where the rows of its sources begin, if it holds older ones

    @classmethod
    def read(cls, server: Server, declared: Catalog, live: Catalog, targets: Iterable[QName], zone: str) -> Memory:
        names = [name for name in targets if name in live.objects]
        begins: dict[QName, Edge] = {}

        @cache
        def fetch_oldest(source: QName, column: tuple[str, str], where: str) -> datetime | None:
            """Many views read the same source."""
            ends = fetch_ends(server, source, *column, where)
            return ends[0] if ends else None

        for name, held in _fetch_held(server, names).items():
            if (edge := _find_begin(server, fetch_oldest, declared, live, name, held, zone)) is not None:
                begins[name] = edge
        return cls(server, declared, live, zone, begins)

    @classmethod
    def of(cls, bench: Workbench, targets: Sequence[QName]) -> Memory:
        """The same for the targets of a cutover, whose tables it reads first."""
        triggers = {bench.catalog.trigger_of(view.name) for name in targets for view in bench.catalog.views_into(name)}
        names = sorted({*targets, *(name for name in triggers if name is not None)})
        server = bench.executor.server
        rows = server.rows(
            "SELECT database, name, create_table_query FROM system.tables WHERE (database, name) IN {names:Array(Tuple(String, String))}",
            {"names": [(name.database, name.table) for name in names]},
            hide_secrets(server),
        )
        live = build_catalog([SourceFile(path=f"{d}.{t}", text=str(sql)) for d, t, sql in rows])
        return cls.read(server, bench.catalog, live, targets, bench.timezone)

    def forgotten(self, targets: Iterable[QName], now: datetime | None = None) -> dict[QName, Forgotten]:
        """What of these targets cannot be computed anew by what is declared, now."""
        at = now or datetime.now(timezone.utc)
        edges = {name: found for name in targets if (found := self._edges(name, at))}
        lost = {}
        for name, held in _fetch_held(self.server, edges).items():
            scheme, zones = self.live.schemes.get(name), (self.zone, self.server.timezone)
            some = [one for edge in edges[name] if (one := select_forgotten(edge, scheme, held, *zones)) is not None]
            if some:
                lost[name] = max(some, key=lambda one: (not one.edge.is_timed, len(one.partitions)))
        return lost

    def _edges(self, target: QName, now: datetime) -> list[Edge]:
        by_ttl, by_rows = find_edge(self.declared, self.live.objects, target, now), self.begins.get(target)
        return [edge for edge in (by_ttl, by_rows) if edge is not None]


def _fetch_held(server: Server, targets: Iterable[QName]) -> dict[QName, list[Partition]]:
    found = fetch_partitions(server, targets)
    return {name: [(one.partition_id, one.partition, one.rows) for one in states] for name, states in found.items()}


def _find_begin(
    server: Server,
    fetch_oldest: Callable[[QName, tuple[str, str], str], datetime | None],
    declared: Catalog,
    live: Catalog,
    target: QName,
    held: Sequence[Partition],
    zone: str,
) -> Edge | None:
    """Where the rows of a target's sources begin, if it holds partitions that are older; nothing where time does not tell."""
    scheme, views = live.schemes.get(target), declared.views_into(target)
    if scheme is None or not views:
        return None
    found: list[tuple[datetime | None, Edge]] = []
    for view in views:
        trigger = declared.trigger_of(view.name)
        source = live.objects.get(trigger) if trigger is not None else None
        column = find_source_time(declared, view, source, scheme, zone, server.timezone) if source is not None else None
        if source is None or column is None or not source.engine.endswith("MergeTree"):
            return None
        mine = live.schemes.get(source.name)
        oldest = fetch_oldest(source.name, column, scheme_zone(scheme, zone, server.timezone))
        same = mine if mine is not None and mine.column == column[0] else None
        found.append((oldest, begin_of_rows(source.name, oldest, same, zone, server.timezone)))
    oldest, edge = min(found, key=lambda one: one[1].since)
    return edge if is_older(edge, oldest, scheme, held, zone, server.timezone) else None
