"""Guards and routes in the journal: where copied partitions stood, and where readers are sent. Pure records and SQL text.

What they mean for a query belongs to `serving`; who writes them are `resources.serving` and `resources.rebuild.guards`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import (
    OWN_DATABASE,
    OwnTable,
    Statement,
    read_settings,
    render_own_table,
    write_settings,
)

Route = Literal["primary", "snapshot"]
GUARDS = QName(OWN_DATABASE, "guards")
_GUARD_COLUMNS = {
    "target": "String", "partition_id": "String", "max_block": "Int64", "table_uuid": "String", "copied": "String", "copied_ms": "Int64",
    "version": "UInt64",
}  # fmt: skip
ROUTES = OwnTable(
    name=QName(OWN_DATABASE, "routes"),
    key=("target",),
    columns={
        "target": "String", "route": "LowCardinality(String)", "reason": "String", "evidence": "String", "snapshot_ms": "Int64",
        "owner": "String",
    },
    moment="switched_at",
    moment_digits=3,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One copied partition: where the primary stood then. For `WHOLE`, when everything was looked at last."""

    target: QName
    partition_id: str
    max_block: int
    table_uuid: str = ""
    copied: str = ""  # at that moment: the table's uuid, rows, highest block, data version, and the offset that a part reaches since
    copied_ms: int = 0
    version: int = 0

    @property
    def state(self) -> str:
        """What was copied: while the primary is just so, there is nothing new to copy."""
        return " ".join(self.copied.split(" ")[:4])

    @property
    def least_offset(self) -> int:
        """See `serving.least_offset`; 0 also where an older chmv has written the guard."""
        return int("".join(self.copied.split(" ")[4:5]) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRecord:
    """Where readers of a target are sent, since when and why."""

    target: QName
    route: Route
    reason: str = ""
    evidence: str = ""
    snapshot_ms: int = 0  # when the snapshot was last complete, at the switch
    owner: str = ""
    version: int = 0
    switched_ms: int = 0


def render_create_guards(cluster: str = "") -> str:
    """The journal's table of copied partitions."""
    columns = [f"{name} {kind}" for name, kind in _GUARD_COLUMNS.items()]
    return render_own_table(GUARDS, columns, ("target", "partition_id"), cluster)


def render_least_offset(copied: str = "copied") -> str:
    """`Guard.least_offset` in SQL."""
    return f"toInt64OrZero(splitByChar(' ', {copied})[5])"


def write_guards(guards: Sequence[Guard], cluster: str = "") -> Statement:
    """Note where copied partitions stood; one statement."""
    sql = (
        f"INSERT INTO {GUARDS.sql} ({', '.join(_GUARD_COLUMNS)}) SELECT one.1, one.2, one.3, one.4, one.5, one.6, one.7 FROM "
        f"(SELECT arrayJoin({{guards:Array(Tuple({', '.join(_GUARD_COLUMNS.values())}))}}) AS one)"
    )
    rows = [
        (str(one.target), one.partition_id, one.max_block, one.table_uuid, one.copied, one.copied_ms, one.version)
        for one in guards
    ]
    return Statement(sql=sql, parameters={"guards": rows}, settings=write_settings(cluster))


def read_guards(targets: Iterable[QName], cluster: str = "") -> Statement:
    """Guards of some targets."""
    sql = (
        f"SELECT {', '.join(_GUARD_COLUMNS)} FROM {GUARDS.sql} FINAL "
        "WHERE target IN {targets:Array(String)} ORDER BY target, partition_id"
    )
    return Statement(sql=sql, parameters={"targets": [str(name) for name in targets]}, settings=read_settings(cluster))


def decode_guard(row: Sequence[Any]) -> Guard:
    target, partition_id, max_block, table_uuid, copied, copied_ms, version = row
    return Guard(
        target=parse_qname(str(target), "default"), partition_id=str(partition_id), max_block=int(max_block), table_uuid=str(table_uuid),
        copied=str(copied), copied_ms=int(copied_ms), version=int(version),
    )  # fmt: skip


def write_route(record: RouteRecord, cluster: str = "") -> Statement:
    """Note a switch."""
    values = (
        str(record.target), record.route, record.reason, record.evidence, record.snapshot_ms, record.owner, record.version,
    )  # fmt: skip
    return ROUTES.render_insert(values, cluster)


def read_routes(cluster: str = "") -> Statement:
    """The present route of every target that was ever switched."""
    sql = f"SELECT {ROUTES.selected}, toUnixTimestamp64Milli(switched_at) FROM {ROUTES.sql} FINAL ORDER BY target"
    return Statement(sql=sql, parameters={}, settings=read_settings(cluster))


def decode_route(row: Sequence[Any]) -> RouteRecord:
    target, route, reason, evidence, snapshot_ms, owner, version, switched_ms = row
    return RouteRecord(
        target=parse_qname(str(target), "default"), route=route, reason=str(reason), evidence=str(evidence), snapshot_ms=int(snapshot_ms),
        owner=str(owner), version=int(version), switched_ms=int(switched_ms),
    )  # fmt: skip
