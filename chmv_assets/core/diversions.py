"""Diversions: sources whose batches wait in staging because their tables have too many parts. Pure records and SQL text.

    (none) ──parts near the throw limit──▶ diverted ──calm again──▶ draining ──all staged batches are in──▶ clear

Invariant: an ingest of a source that is diverted or draining stages its batches and commits none; what is staged is committed
exactly once, by the drain or by the first ingest after it. Who decides about it is `sensors.merge_backlog_verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings

DIVERSIONS = OwnTable(
    name=QName(OWN_DATABASE, "diversions"),
    key=("source",),
    columns={
        "source": "String",
        "status": "LowCardinality(String)",
        "reason": "String",
        "since_ms": "Int64",
        "owner": "String",
    },
)
DiversionStatus = Literal["diverted", "draining", "clear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """How one source stands."""

    source: QName
    status: DiversionStatus
    reason: str
    since_ms: int = 0  # when it was diverted; kept until the next diversion, so that it names this one
    owner: str = ""
    version: int = 0

    @property
    def holds(self) -> bool:
        """Whether batches of this source wait."""
        return self.status != "clear"


def holds_commits(found: Diversion | None) -> bool:
    """Whether an ingest stages only; a source that the journal does not know commits.

    >>> holds_commits(None), holds_commits(Diversion(source=QName("d", "s"), status="draining", reason=""))
    (False, True)
    """
    return found is not None and found.holds


def write_diversion(diversion: Diversion, cluster: str = "") -> Statement:
    """Note how a source stands; the row of the highest version counts."""
    values = (
        str(diversion.source), diversion.status, diversion.reason, diversion.since_ms, diversion.owner, diversion.version,
    )  # fmt: skip
    return DIVERSIONS.render_insert(values, cluster)


def read_diversions(cluster: str = "", sources: Iterable[QName] = ()) -> Statement:
    """How sources stand, all or some of them; one that was never diverted is not in the answer."""
    sql = (
        f"SELECT {DIVERSIONS.selected} FROM {DIVERSIONS.sql} FINAL "
        "WHERE empty({sources:Array(String)}) OR has({sources:Array(String)}, source) ORDER BY source"
    )
    names = [str(source) for source in sources]
    return Statement(sql=sql, parameters={"sources": names}, settings=read_settings(cluster))


def decode_diversion(row: Sequence[Any]) -> Diversion:
    """A row of `read_diversions`."""
    source, status, reason, since, owner, version = row
    return Diversion(
        source=parse_qname(str(source), ""), status=status, reason=str(reason), since_ms=int(since), owner=str(owner),
        version=int(version),
    )  # fmt: skip
