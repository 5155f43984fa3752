"""Looking at windows of a table that somebody else writes: what is there, how fresh it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.settings import ObjectPolicy
from chmv_assets.core.windows import Window, ch_partitions
from resources.clickhouse import Server
from resources.inner_tables import fetch_real_names
from resources.introspect import PartitionState, fetch_partitions, select_states


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """One window of a table as it is now."""

    rows: int
    bytes_on_disk: int
    parts: int
    newest_event: datetime | None = None
    newest_arrival: datetime | None = None

    def metadata(self) -> dict[str, Any]:
        """What the asset's page shows."""
        found: dict[str, Any] = {
            "dagster/partition_row_count": self.rows,
            "chmv/bytes": self.bytes_on_disk,
            "chmv/parts": self.parts,
        }
        if self.newest_event is not None:
            found["chmv/newest_event"] = self.newest_event.isoformat()
        if self.newest_arrival is not None:
            found["chmv/newest_arrival"] = self.newest_arrival.isoformat()
        return found


def observe_windows(
    server: Server, catalog: Catalog, node: Object, windows: Sequence[Window], zone: str, policy: ObjectPolicy
) -> list[WindowState]:
    """The state of each window; without windows, of the whole table. Two queries, however many windows, and one for an inner table's name."""
    table = fetch_real_names(server, catalog, [node.name])[node.name]
    if not node.engine.endswith("MergeTree"):  # no parts: Log, Memory, Set, …
        rows = int(server.rows(f"SELECT count() FROM {table.sql}")[0][0])
        return [WindowState(rows=rows, bytes_on_disk=0, parts=0) for _ in windows or (None,)]
    states = fetch_partitions(server, [table]).get(table, ())
    scheme = catalog.schemes.get(node.name)
    if scheme is None or not windows:
        whole = _sum(states, {})
        return [whole for _ in windows] or [whole]
    newest = _fetch_newest(server, table, policy, states)
    server_zone = server.timezone
    answer = []
    for window in windows:
        partitions = ch_partitions(window, scheme, zone, server_timezone=server_zone)
        answer.append(_sum(select_states(states, scheme, partitions), newest))
    return answer


def _fetch_newest(
    server: Server, table: QName, policy: ObjectPolicy, states: Sequence[PartitionState]
) -> dict[str, tuple[datetime | None, datetime | None]]:
    """Newest event and arrival per partition id, for the columns that the settings name."""
    wanted = [policy.event_time, policy.arrival]
    if not any(wanted) or not states:
        return {}
    columns = ", ".join(f"max({quote_identifier(name)})" if name else "NULL" for name in wanted)
    rows = server.rows(f"SELECT _partition_id, {columns} FROM {table.sql} GROUP BY _partition_id")
    return {str(partition): (event, arrival) for partition, event, arrival in rows}


def _sum(states: Sequence[PartitionState], newest: dict[str, tuple[datetime | None, datetime | None]]) -> WindowState:
    seen = [newest[s.partition_id] for s in states if s.partition_id in newest]
    return WindowState(
        rows=sum(s.rows for s in states),
        bytes_on_disk=sum(s.bytes_on_disk for s in states),
        parts=sum(s.parts for s in states),
        newest_event=max((event for event, _ in seen if event is not None), default=None),
        newest_arrival=max((arrival for _, arrival in seen if arrival is not None), default=None),
    )
