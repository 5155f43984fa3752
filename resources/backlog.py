"""Read how far merges lag behind inserts, for all declared tables at once. Three queries, whatever the number of tables; writes nothing.

One row per table comes back, its fullest partition: the rest decides nothing, and a hundred thousand partitions would have to
travel. What the numbers mean belongs to `sensors.merge_backlog_verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chmv_assets.core.backlog import Fullest
from chmv_assets.core.diversions import Diversion
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.journal.diversions import fetch_diversions

# Limits of a table: its own SETTINGS clause (engine_full shows it), else the server's default for MergeTree tables. engine_full is dear, and
# rendered for every row that is visited: views are left out by their engine. Tables of these databases that nobody asked for are
# dropped here: a thousand names in the statement cost more than their rows.
_FULLEST = """
WITH (SELECT toUInt64(value) FROM system.merge_tree_settings WHERE name = 'parts_to_delay_insert') AS delay_default,
     (SELECT toUInt64(value) FROM system.merge_tree_settings WHERE name = 'parts_to_throw_insert') AS throw_default,
     (SELECT toUInt64(value) FROM system.merge_tree_settings WHERE name = 'max_delay_to_insert') AS longest_default
SELECT counted.database, counted.table, counted.partition_id, counted.parts,
       ifNull(toUInt64OrNull(extract(tables.engine_full, '\\\\bparts_to_delay_insert = (\\\\d+)')), delay_default) AS delay,
       ifNull(toUInt64OrNull(extract(tables.engine_full, '\\\\bparts_to_throw_insert = (\\\\d+)')), throw_default) AS throw,
       ifNull(toUInt64OrNull(extract(tables.engine_full, '\\\\bmax_delay_to_insert = (\\\\d+)')), longest_default) AS longest
FROM
(
    SELECT database, table, argMax(id, (number, id)) AS partition_id, max(number) AS parts
    FROM
    (
        SELECT database, table, partition_id AS id, count() AS number FROM system.parts
        WHERE active AND database IN {databases:Array(String)} GROUP BY database, table, partition_id
    )
    GROUP BY database, table
) AS counted
INNER JOIN
(
    SELECT database, name, engine_full FROM system.tables WHERE database IN {databases:Array(String)} AND engine LIKE '%MergeTree'
) AS tables ON tables.database = counted.database AND tables.name = counted.table
ORDER BY counted.database, counted.table
"""
POOL_COLUMNS = """
       (SELECT sum(value) FROM system.metrics WHERE metric = 'BackgroundMergesAndMutationsPoolTask'),
       (SELECT sum(value) FROM system.metrics WHERE metric = 'BackgroundMergesAndMutationsPoolSize')
"""  # merges and mutations that run, and how many can
_POOL = f"""
SELECT {POOL_COLUMNS},
       (SELECT max(elapsed) FROM system.merges),
       (SELECT count() FROM system.mutations WHERE NOT is_done AND database IN {{databases:Array(String)}}),
       (SELECT count() FROM system.replication_queue WHERE database IN {{databases:Array(String)}})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What one tick saw."""

    fullest: Mapping[QName, Fullest] = field(default_factory=dict)  # tables without a part are missing
    pool_tasks: int = 0
    pool_size: int = 0
    oldest_merge_seconds: float = 0.0
    mutations: int = 0  # that are not done
    replication_queue: int = 0
    diversions: Mapping[QName, Diversion] = field(default_factory=dict)

    @property
    def pool_share(self) -> float:
        return self.pool_tasks / self.pool_size if self.pool_size else 0.0


def read_backlog(server: Server, tables: Iterable[QName], cluster: str = "") -> Backlog:
    """The parts of all these tables, the merge pool, and which sources are diverted."""
    wanted = sorted(tables)
    databases = sorted({name.database for name in wanted})
    fullest = read_fullest(server, wanted)
    tasks, size, oldest, mutations, queue = server.rows(_POOL, {"databases": databases})[0]
    return Backlog(
        fullest=fullest,
        pool_tasks=int(tasks or 0),
        pool_size=int(size or 0),
        oldest_merge_seconds=float(oldest or 0),
        mutations=int(mutations or 0),
        replication_queue=int(queue or 0),
        diversions=fetch_diversions(server, cluster),
    )


def read_fullest(
    server: Server, tables: Iterable[QName], settings: Mapping[str, object] | None = None
) -> dict[QName, Fullest]:
    """The fullest partition of each table."""
    wanted = set(tables)
    databases = sorted({name.database for name in wanted})
    rows = server.rows(_FULLEST, {"databases": databases}, settings) if wanted else []
    found = (
        Fullest(
            table=QName(str(database), str(table)), partition_id=str(partition), parts=int(parts), parts_to_delay=int(delay),
            parts_to_throw=int(throw), max_delay=int(longest),
        )
        for database, table, partition, parts, delay, throw, longest in rows
    )  # fmt: skip
    return {one.table: one for one in found if one.table in wanted}


def count_parts(server: Server, table: QName, partition_id: str) -> int:
    """Active parts of one partition."""
    return measure_partition(server, table, partition_id)[0]


def measure_partition(server: Server, table: QName, partition_id: str) -> tuple[int, int]:
    """Active parts of one partition, and their bytes on disk."""
    rows = server.rows(
        "SELECT count(), sum(bytes_on_disk) FROM system.parts WHERE active AND database = {database:String} AND table = {table:String} "
        "AND partition_id = {partition:String}",
        {"database": table.database, "table": table.table, "partition": partition_id},
    )
    return int(rows[0][0]), int(rows[0][1])
