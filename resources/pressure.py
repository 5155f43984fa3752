"""Read the numbers that `core.pressure` decides by: two queries, however many tables and parts there are. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from chmv_assets.core.names import QName
from chmv_assets.core.pressure import Pressure
from resources.backlog import POOL_COLUMNS, read_fullest
from resources.clickhouse import Server


def read_pressure(server: Server, tables: Iterable[QName]) -> Pressure:
    """The pressure on the tables that an insert reaches: the source and all targets behind it."""
    fullest = read_fullest(server, tables)
    tasks, size = (int(value or 0) for value in server.rows(f"SELECT {POOL_COLUMNS}")[0])
    seen = [
        Pressure(
            parts=one.parts,
            parts_to_delay=one.parts_to_delay,
            parts_to_throw=one.parts_to_throw,
            pool_tasks=tasks,
            pool_size=size,
        )
        for one in fullest.values()
    ]
    empty = Pressure(parts=0, parts_to_delay=0, parts_to_throw=0, pool_tasks=tasks, pool_size=size)
    return max(seen, key=lambda one: max(one.delay_share, one.throw_share), default=empty)
