"""Rebuilds in the journal: which one runs, how far it has come, what it would leave behind. Pure records and SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from chmv_assets.core.locks import SQL_LOCKS
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings
from chmv_assets.core.rebuild_plan import Step, decode_steps, encode_steps
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.versions import CLOCK_BITS, PROCESS_BITS, SEQUENCE_BITS

REBUILDS = OwnTable(
    name=QName(OWN_DATABASE, "rebuilds"),
    key=("target", "rebuild_id"),
    columns={
        "rebuild_id": "String", "target": "String", "window": "String", "protocol": "LowCardinality(String)",
        "status": "LowCardinality(String)", "steps": "String", "step": "Int32", "detail": "String", "owner": "String",
    },
)  # fmt: skip
# When a rebuild began and when its row was written, in milliseconds by the writer's clock: the id begins with the one
# (`process_identity.new_rebuild_id`; ids of older versions have 12 digits and do not tell), the version holds the other.
SQL_TELLS_START = "length(rebuild_id) = 20"
SQL_STARTED_MS = "toInt64(reinterpretAsUInt64(reverse(unhex(substring(rebuild_id, 1, 12)))))"
SQL_NOTED_MS = f"toInt64(bitAnd(bitShiftRight(version, {SEQUENCE_BITS + PROCESS_BITS}), {2**CLOCK_BITS - 1}))"
COMMIT_LOCK_WAIT_SECONDS = 600.0  # for another ingest's batch, or an owned rebuild
RebuildStatus = Literal["running", "published", "rolled_back", "unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRecord:
    """One rebuild; `step` is the number of the last one that was begun."""

    rebuild_id: str
    target: QName
    window: str
    protocol: Protocol
    status: RebuildStatus
    steps: tuple[Step, ...]
    step: int
    version: int
    detail: str = ""
    owner: str = ""
    updated_at: datetime | None = field(default=None, compare=False)  # the server's clock, when it was read


def lease_name(target: QName) -> str:
    """The lock that a rebuild holds: one at a time per target, whatever its windows."""
    return f"rebuild {target}"


# Targets of rebuilds that run: they change views, partitions and constraints for a while. Who was killed keeps its row and lets its lock go.
SQL_REBUILDING = (
    f"SELECT DISTINCT target FROM {REBUILDS.sql} FINAL WHERE status = 'running' "
    f"AND concat('rebuild ', target) IN (SELECT lock FROM ({SQL_LOCKS}) WHERE held)"
)


def commit_lock(source: QName) -> str:
    """The lock under which chmv commits batches into a source; an owned rebuild holds it instead of a gate."""
    return f"commits {source}"


def write_rebuild(record: RebuildRecord, cluster: str = "") -> Statement:
    """Note how far a rebuild is; the row of the highest version counts."""
    values = (
        record.rebuild_id, str(record.target), record.window, record.protocol, record.status, encode_steps(record.steps),
        record.step, record.detail, record.owner, record.version,
    )  # fmt: skip
    return REBUILDS.render_insert(values, cluster)


def read_rebuilds(
    statuses: Sequence[RebuildStatus] = (), cluster: str = "", limit: int | None = None, target: str = ""
) -> Statement:
    """The present rows of rebuilds (of some statuses, of one target): what runs or is unverified first, then the newest."""
    sql = (
        f"SELECT {REBUILDS.selected}, updated_at FROM {REBUILDS.sql} FINAL WHERE (empty({{statuses:Array(String)}}) "
        "OR has({statuses:Array(String)}, status)) "
        "AND (empty({target:String}) OR target = {target:String}) "
        "ORDER BY indexOf(['published', 'rolled_back'], status) > 0, updated_at DESC, rebuild_id"
        + (f" LIMIT {int(limit)}" if limit is not None else "")
    )
    return Statement(
        sql=sql,
        parameters={"statuses": list(statuses), "target": target},
        settings=read_settings(cluster),
    )


def read_published(target: QName, origin: str, cluster: str = "") -> Statement:
    """The windows of a target that were published by owners whose name ends in an origin (`Rebuilder.origin`)."""
    sql = (
        f"SELECT DISTINCT window FROM {REBUILDS.sql} FINAL WHERE target = {{target:String}} AND status = 'published' "
        "AND endsWith(owner, {origin:String})"
    )
    return Statement(
        sql=sql, parameters={"target": str(target), "origin": f" {origin}"}, settings=read_settings(cluster)
    )


def decode_rebuild(row: Sequence[Any]) -> RebuildRecord:
    """A row of `read_rebuilds` as a record."""
    rebuild_id, target, window, protocol, status, steps, step, detail, owner, version, updated_at = row
    return RebuildRecord(
        rebuild_id=str(rebuild_id), target=parse_qname(str(target), ""), window=str(window), protocol=protocol,
        status=status, steps=decode_steps(str(steps)), step=int(step), detail=str(detail), owner=str(owner),
        version=int(version), updated_at=updated_at,
    )  # fmt: skip
