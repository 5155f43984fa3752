"""Parts of tables as a rebuild reads them: one by one, with their block numbers; and the end of their merges."""

from __future__ import annotations

from chmv_assets.core.errors import RebuildDisturbed
from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.whole import Part
from resources.clickhouse import Server
from resources.introspect import PartitionState
from resources.rebuild.workbench import Workbench

MERGE_SECONDS = 30.0
_POLL_SECONDS = 0.02


def fetch_parts(server: Server, table: QName) -> list[Part]:
    """The active parts of a table."""
    rows = server.rows(
        "SELECT name, partition_id, partition, rows, min_block_number, max_block_number, "
        "if(data_version = min_block_number, 0, data_version), dateDiff('second', modification_time, now()) "
        "FROM system.parts WHERE active AND database = {d:String} AND table = {t:String} ORDER BY name",
        {"d": table.database, "t": table.table},
    )
    return [
        Part(
            name=str(name), partition_id=str(partition_id), partition=str(partition), rows=int(count),
            min_block=int(first), max_block=int(last), data_version=int(version), age_seconds=float(age),
        )
        for name, partition_id, partition, count, first, last, version, age in rows
    ]  # fmt: skip


def fetch_source_parts(bench: Workbench, feed: Feed) -> list[Part]:
    """The source's active parts that can hold rows of a share."""
    parts = fetch_parts(bench.executor.server, feed.source.name)
    printed = {part.partition_id: part.partition for part in parts}
    states = [
        PartitionState(
            partition_id=partition_id,
            partition=partition,
            rows=0,
            bytes_on_disk=0,
            parts=0,
            max_block=0,
            data_version=0,
        )
        for partition_id, partition in printed.items()
    ]
    wanted = {state.partition_id for state in bench.overlapping(feed, states)}
    return [part for part in parts if part.partition_id in wanted]


def counts_rows(feed: Feed) -> bool:
    """Whether the source's row counts tell of inserts: merges of other families drop rows."""
    return family(feed.source.engine) == "plain"


def wait_for_merges(bench: Workbench, table: QName) -> None:
    """Merges that ran when they were stopped end by themselves; a part that comes out of one has another name."""
    deadline = bench.clock() + MERGE_SECONDS
    while bench.executor.server.rows(
        "SELECT 1 FROM system.merges WHERE database = {d:String} AND table = {t:String} LIMIT 1",
        {"d": table.database, "t": table.table},
    ):
        if bench.clock() > deadline:
            raise RebuildDisturbed(
                f"table {table}: a merge still runs after {MERGE_SECONDS:.0f} s but wanted none. Its parts change their names. "
                "Run it again."
            )
        bench.sleep(_POLL_SECONDS)
