"""Telling readers' guards that a rebuild replaces partitions (`core.serving`): its parts are younger than the copies in the snapshot.

A partition that is there is loosened before its swap: from then on any part of it counts. One that was lost is read from the snapshot,
before its swap and after, until `release`, which comes a moment later: a reader that still sees the parts of before must not see the guard of
after. Who dies in between leaves readers with the snapshot; the partition still counts as lost and is rebuilt again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from chmv_assets.core.names import QName
from chmv_assets.core.serving import ANY_BLOCK, UNGUARDED
from chmv_assets.core.serving_journal import GUARDS, Guard, render_least_offset, write_guards
from chmv_assets.process_identity import VERSIONS

if TYPE_CHECKING:
    from resources.rebuild.workbench import Workbench

SETTLE_SECONDS = 0.5  # longer than a query takes from its look at parts to its look at guards


def loosen(bench: Workbench, target: QName, replaced: Sequence[str], dropped: Sequence[str]) -> None:
    """Before a swap: one short query, and one insert if readers are guarded there."""
    found = _read(bench, target, [*replaced, *dropped])
    if not found:
        return
    lost = {partition_id for partition_id, _, is_lost in found if is_lost}
    uuid = found[0][1]
    guarded = [partition_id for partition_id, _, _ in found]
    _write(bench, target, [one for one in guarded if one not in lost], dropped, uuid)
    if lost:
        bench.lost_before.setdefault(target, set()).update(lost)


def unguard(bench: Workbench, target: QName) -> None:
    """Let readers have all of a target as it is: before another table takes its name, whose parts the guards do not know."""
    rows = bench.executor.server.rows_if_there(
        f"SELECT partition_id FROM {GUARDS.sql} FINAL WHERE target = {{target:String}} AND max_block >= 0",
        {"target": str(target)},
    )
    ids = [str(one) for (one,) in rows]
    _write(bench, target, ids, ids, "")


def release(bench: Workbench) -> None:
    """After a publication: readers get the primary's partitions back that were lost and are there now."""
    if not bench.lost_before:
        return
    bench.sleep(SETTLE_SECONDS)
    for target, lost in bench.lost_before.items():
        found = _read(bench, target, sorted(lost))
        there = _present(bench, target)
        if found:
            ids = [partition_id for partition_id, _, _ in found]
            _write(bench, target, ids, [one for one in ids if one not in there], found[0][1])
    bench.lost_before.clear()


def _read(bench: Workbench, target: QName, ids: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Guarded partitions among these: id, the table's uuid now, whether it is lost."""
    if not ids or not _is_guarded(bench, target):
        return []
    rows = bench.executor.server.rows_if_there(
        "WITH (SELECT toString(any(uuid)) FROM system.tables WHERE database = {d:String} AND name = {t:String}) AS uuid, "
        "(SELECT mapFromArrays(groupArray(id), groupArray((block, largest, is_mutated))) FROM (SELECT partition_id AS id, "
        "min(min_block_number) AS block, max(rows) AS largest, max(data_version != min_block_number) AS is_mutated "
        "FROM system.parts WHERE active AND rows > 0 AND database = {d:String} AND table = {t:String} GROUP BY id)) AS held "
        "SELECT partition_id, uuid, table_uuid != uuid OR NOT mapContains(held, partition_id) OR held[partition_id].1 > max_block "
        f"OR (NOT held[partition_id].3 AND held[partition_id].2 <= {render_least_offset()}) "
        f"FROM {GUARDS.sql} FINAL WHERE target = {{target:String}} AND max_block >= 0 AND has({{ids:Array(String)}}, partition_id)",
        {"d": target.database, "t": target.table, "target": str(target), "ids": list(ids)},
    )
    return [(str(partition_id), str(uuid), bool(lost)) for partition_id, uuid, lost in rows]


def _is_guarded(bench: Workbench, target: QName) -> bool:
    """Whether readers of a target have guards at all: a third of the full question's time, and most targets have none."""
    sql = f"SELECT 1 FROM {GUARDS.sql} WHERE target = {{target:String}} LIMIT 1"
    return bool(bench.executor.server.rows_if_there(sql, {"target": str(target)}))


def _present(bench: Workbench, target: QName) -> set[str]:
    rows = bench.executor.server.rows(
        "SELECT DISTINCT partition_id FROM system.parts WHERE active AND rows > 0 AND database = {d:String} AND table = {t:String}",
        {"d": target.database, "t": target.table},
    )
    return {str(one) for (one,) in rows}


def _write(bench: Workbench, target: QName, ids: Sequence[str], dropped: Collection[str], uuid: str) -> None:
    guards = [
        Guard(
            target=target, partition_id=one, max_block=UNGUARDED if one in dropped else ANY_BLOCK, table_uuid=uuid,
            copied_ms=int(time.time() * 1000), version=VERSIONS.next(),
        )
        for one in ids
    ]  # fmt: skip
    if guards:
        statement = write_guards(guards, bench.cluster)
        bench.executor.server.run(statement)
