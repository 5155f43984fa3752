"""Read the numbers that `core.pressure` decides by: two queries, however many tables and parts there are. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from chmv_assets.core.names import QName
from chmv_assets.core.pressure import Pressure
from resources.clickhouse import Server

# Limits of a table: its own SETTINGS clause (engine_full shows it), else the server's default for MergeTree tables.
_FULLEST = """
WITH (SELECT toUInt64(value) FROM system.merge_tree_settings WHERE name = 'parts_to_delay_insert') AS delay_default,
     (SELECT toUInt64(value) FROM system.merge_tree_settings WHERE name = 'parts_to_throw_insert') AS throw_default
SELECT counted.parts,
       ifNull(toUInt64OrNull(extract(tables.engine_full, '\\\\bparts_to_delay_insert = (\\\\d+)')), delay_default) AS delay,
       ifNull(toUInt64OrNull(extract(tables.engine_full, '\\\\bparts_to_throw_insert = (\\\\d+)')), throw_default) AS throw
FROM
(
    SELECT database, table, max(parts) AS parts
    FROM
    (
        SELECT database, table, partition_id, count() AS parts FROM system.parts
        WHERE active AND (database, table) IN {tables:Array(Tuple(String, String))}
        GROUP BY database, table, partition_id
    )
    GROUP BY database, table
) AS counted
INNER JOIN system.tables AS tables ON tables.database = counted.database AND tables.name = counted.table
ORDER BY counted.parts / delay DESC LIMIT 1
"""
_POOL = """
SELECT sumIf(value, metric = 'BackgroundMergesAndMutationsPoolTask'), sumIf(value, metric = 'BackgroundMergesAndMutationsPoolSize')
FROM system.metrics WHERE metric LIKE 'BackgroundMergesAndMutationsPool%'
"""


def read_pressure(server: Server, tables: Iterable[QName]) -> Pressure:
    """The pressure on the tables that an insert reaches: the source and all targets behind it."""
    wanted = [(name.database, name.table) for name in tables]
    fullest = server.rows(_FULLEST, {"tables": wanted}) if wanted else []
    parts, delay, throw = fullest[0] if fullest else (0, 0, 0)
    tasks, size = server.rows(_POOL)[0]
    return Pressure(
        parts=int(parts),
        parts_to_delay=int(delay),
        parts_to_throw=int(throw),
        pool_tasks=int(tasks),
        pool_size=int(size),
    )
