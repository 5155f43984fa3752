"""Whether a quorum can be reached: the settings of an INSERT against the replicas that there are. Pure; for the journal and `chmv doctor`.

A write with a quorum waits until so many replicas have it. More than there are never have it; more than are alive have it when somebody comes back,
and the writer gets an error whose row may be there or not. So it is told before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUORUM_TIMEOUT_MS = 60_000
_AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """How many replicas a write waits for."""

    size: int | str = 0  # 0: one replica is enough; `auto`: more than half of them
    timeout_ms: int = 600_000
    parallel: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "insert_quorum": self.size, "insert_quorum_parallel": int(self.parallel), "insert_quorum_timeout": self.timeout_ms,
        }  # fmt: skip


# Of our journal: a majority has every row, one write after another, so that a sequential read sees it on any replica.
JOURNAL_QUORUM = Quorum(size=_AUTO, timeout_ms=QUORUM_TIMEOUT_MS, parallel=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """A replicated table as one of its replicas sees it (system.replicas), and what its cluster says (system.clusters)."""

    table: str
    total: int
    active: int
    readonly: bool = False  # this one: it has lost Keeper
    in_cluster: int | None = None  # replicas that the cluster should have; None: not asked


def quorum_of(settings: Mapping[str, Any]) -> Quorum:
    """The quorum that settings ask for, as the server prints them.

    >>> quorum_of({"insert_quorum": "2", "insert_quorum_timeout": "1000", "insert_quorum_parallel": "1"})
    Quorum(size=2, timeout_ms=1000, parallel=True)
    """
    said = str(settings.get("insert_quorum", 0)).strip("'")
    return Quorum(
        size=_AUTO if said == _AUTO else int(said),
        timeout_ms=int(settings.get("insert_quorum_timeout", 600_000)),
        parallel=bool(int(settings.get("insert_quorum_parallel", 1))),
    )


def needed(quorum: Quorum, total: int) -> int:
    """How many replicas have to take a write.

    >>> [needed(JOURNAL_QUORUM, total) for total in (1, 2, 3, 4, 5)], needed(Quorum(size=2), 3)
    ([1, 2, 2, 3, 3], 2)
    """
    return total // 2 + 1 if quorum.size == _AUTO else int(quorum.size)


def find_unreachable(quorum: Quorum, replicas: Replicas) -> str:
    """Why a write cannot reach its quorum, as a message without a prefix; nothing if it can."""
    wanted = needed(quorum, replicas.total)
    name = replicas.table
    if replicas.readonly:
        return (
            f"table {name}: found this replica read-only but wanted one that takes writes. It has lost Keeper. Look at zookeeper_exception in "
            "system.replicas, bring Keeper back, then run again."
        )
    if wanted > replicas.total:
        return (
            f"table {name}: found insert_quorum = {quorum.size} and {replicas.total} replica(s) but wanted no more than there are. No write can ever "
            f"reach it. Lower insert_quorum to {replicas.total // 2 + 1} (or 'auto'), or add replicas."
        )
    if wanted > replicas.active:
        return (
            f"table {name}: found {replicas.active} of {replicas.total} replicas alive but wanted {wanted} for insert_quorum = {quorum.size}. A row "
            "that fewer hold may be lost, so the server refuses it. Bring the replicas back, then run again."
        )
    if replicas.in_cluster is not None and replicas.total < replicas.in_cluster:
        return (
            f"table {name}: found {replicas.total} replica(s) but wanted {replicas.in_cluster}, as many as the cluster has. The others read nothing "
            "of it. Look at system.distributed_ddl_queue for what they missed, create it there, then run again."
        )
    return ""
