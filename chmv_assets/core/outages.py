"""Outages of views: from when to when a view did not give what it should, and whether it was taken off. Pure records and SQL text.

    open ──repaired──▶ closed        a repair works on it
    open ──────▶ isolated ──probe works──▶ closed

Invariant: an outage is closed only after every window that it touched was rebuilt and compared. Who opens and closes them
belongs to `chmv_assets.recovery`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings

OUTAGES = OwnTable(
    name=QName(OWN_DATABASE, "outages"),
    key=("view", "opened_ms"),
    columns={
        "view": "String", "opened_ms": "Int64", "closed_ms": "Int64", "damage": "LowCardinality(String)",
        "status": "LowCardinality(String)", "strikes": "UInt32", "evidence": "String",
    },
)  # fmt: skip
OutageStatus = Literal["open", "isolated", "closed"]
OPEN: tuple[OutageStatus, ...] = ("open", "isolated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One outage; `opened_ms` is the last moment at which the view was known to be right."""

    view: QName  # or the target, where that is what was damaged
    opened_ms: int
    damage: str
    status: OutageStatus
    closed_ms: int = 0
    strikes: int = 0  # how often it was tried in vain
    evidence: str = ""
    version: int = 0


def write_outage(outage: Outage, cluster: str = "") -> Statement:
    """Note how an outage stands; the row of the highest version counts."""
    values = (
        str(outage.view), outage.opened_ms, outage.closed_ms, outage.damage, outage.status, outage.strikes, outage.evidence,
        outage.version,
    )  # fmt: skip
    return OUTAGES.render_insert(values, cluster)


def read_outages(cluster: str = "", *, view: str = "", statuses: Sequence[OutageStatus] = ()) -> Statement:
    """Outages (of one view, of some statuses), the newest first."""
    sql = (
        f"SELECT {OUTAGES.selected} FROM {OUTAGES.sql} FINAL WHERE (empty({{view:String}}) OR view = {{view:String}}) "
        "AND (empty({statuses:Array(String)}) OR has({statuses:Array(String)}, status)) ORDER BY opened_ms DESC, view"
    )
    values = {"view": view, "statuses": list(statuses)}
    return Statement(sql=sql, parameters=values, settings=read_settings(cluster))


def decode_outage(row: Sequence[Any]) -> Outage:
    """A row of `read_outages`."""
    view, opened, closed, damage, status, strikes, evidence, version = row
    return Outage(
        view=parse_qname(str(view), "default"), opened_ms=int(opened), closed_ms=int(closed), damage=str(damage), status=status,
        strikes=int(strikes), evidence=str(evidence), version=int(version),
    )  # fmt: skip
