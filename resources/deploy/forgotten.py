"""What targets hold and their sources have forgotten, as the server says (`core.deploy.forgotten`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.deploy.forgotten import Forgotten, find_edge, select_forgotten
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.introspect import fetch_partitions, hide_secrets
from resources.rebuild.workbench import Workbench


def fetch_forgotten(
    server: Server, declared: Catalog, live: Catalog, targets: Iterable[QName], zone: str, now: datetime | None = None
) -> dict[QName, Forgotten]:
    """What of these targets cannot be computed anew by what is declared; one query, and none if no live source has a TTL."""
    at = now or datetime.now(timezone.utc)
    edges = {name: edge for name in targets if (edge := find_edge(declared, live.objects, name, at)) is not None}
    found = {}
    for name, states in fetch_partitions(server, edges).items():
        held = [(state.partition_id, state.partition, state.rows) for state in states]
        lost = select_forgotten(edges[name], live.schemes.get(name), held, zone, server.timezone)
        if lost is not None:
            found[name] = lost
    return found


@dataclass(frozen=True)
class Memory:
    """The sources and targets of a cutover as they stood when it began; what they have forgotten is asked again and again, since that moves."""

    bench: Workbench
    live: Catalog

    @classmethod
    def of(cls, bench: Workbench, targets: Sequence[QName]) -> Memory:
        """Read the tables that matter, if any of the sources forgets."""
        triggers = {bench.catalog.trigger_of(view.name) for name in targets for view in bench.catalog.views_into(name)}
        names = sorted({*targets, *(name for name in triggers if name is not None)})
        server = bench.executor.server
        rows = server.rows(
            "SELECT database, name, create_table_query, position(engine_full, ' TTL ') > 0 FROM system.tables "
            "WHERE (database, name) IN {names:Array(Tuple(String, String))}",
            {"names": [(name.database, name.table) for name in names]},
            hide_secrets(server),
        )
        is_needed = any(has_ttl and QName(str(d), str(t)) in triggers for d, t, _, has_ttl in rows)
        files = [SourceFile(path=f"{d}.{t}", text=str(sql)) for d, t, sql, _ in rows] if is_needed else []
        return cls(bench, build_catalog(files))

    def forgotten(self, targets: Iterable[QName]) -> dict[QName, Forgotten]:
        """What of these targets cannot be computed anew, now."""
        bench = self.bench
        return fetch_forgotten(bench.executor.server, bench.catalog, self.live, targets, bench.timezone, bench.now())
