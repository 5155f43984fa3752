"""What the tuner decides by: a sample of the server (two queries, whatever the number of tables) and the journal of tunings (one). Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from chmv_assets.core.names import QName
from chmv_assets.core.tuner import MEMORY_SECONDS, Reading, Sample
from chmv_assets.core.tunings import Tuning, decode_tuning, read_ceiling, read_tunings
from resources.backlog import POOL_COLUMNS, read_fullest
from resources.clickhouse import Server

_SERVER = f"""
SELECT {POOL_COLUMNS},
       (SELECT sum(value) FROM system.events WHERE event = 'InsertQuery'),
       (SELECT sum(value) FROM system.events WHERE event = 'DelayedInserts'),
       (SELECT sum(value) FROM system.events WHERE event = 'RejectedInserts')
"""


def read_sample(server: Server, tables: Iterable[QName], now: float) -> Sample:
    """The numbers of this moment."""
    fullest = read_fullest(server, tables)
    tasks, size, inserts, delayed, rejected = (int(value or 0) for value in server.rows(_SERVER)[0])
    readings = {
        name: Reading(
            parts=one.parts,
            parts_to_delay=one.parts_to_delay,
            parts_to_throw=one.parts_to_throw,
            max_delay=one.max_delay,
        )
        for name, one in fullest.items()
    }
    return Sample(
        at=now, pool_tasks=tasks, pool_size=size, readings=readings, inserts=inserts, delayed=delayed, rejected=rejected
    )


def fetch_tunings(server: Server, cluster: str, now: float, subjects: Iterable[QName] = ()) -> list[Tuning]:
    """Active tunings and those of the last hours, the oldest first; none without a journal. One query; creates nothing."""
    statement = read_tunings(cluster, since_ms=int((now - MEMORY_SECONDS) * 1000), subjects=subjects)
    rows = server.fetch_if_there(statement)
    return [decode_tuning(row) for row in rows]


def fetch_ceiling(server: Server, source: QName, cluster: str = "") -> int | None:
    """How many inserts an ingest of this source may run side by side; None: no tuning says so. One query."""
    statement = read_ceiling(source, cluster)
    rows = server.fetch_if_there(statement)
    return max(1, int(rows[0][0])) if rows else None
