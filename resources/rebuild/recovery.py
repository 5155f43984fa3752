"""Clear away what a rebuild left that died: its gate, its stopped merges, its scratches. Called by whoever starts first.

Safe at any time: the old data serves until publication, and from then on the new data is whole (`core.rebuild_plan`). A
rebuild whose lease still runs is left alone; so is a gate that still has time, unless its rebuild is known to be over. A closed
or owned rebuild that died between its swap and its last comparison is noted as unverified, until its window is rebuilt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.gate import GATE_PREFIX, read_gates
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import (
    RebuildRecord,
    RebuildStatus,
    lease_name,
    write_rebuild,
)
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild.fence_recovery import resume, resume_if_free
from resources.rebuild.undo import open_gate, undo

_LEASE_SECONDS = 10.0  # opening a gate and dropping tables; who dies meanwhile is not waited for any longer


def recover_rebuilds(executor: Executor, journal: Journal) -> list[RebuildRecord]:
    """Roll back every rebuild whose owner is gone; gives what was rolled back."""
    journal.prepare()
    recovered: list[RebuildRecord] = []
    for record in journal.read_rebuilds(statuses=("running",)):
        if record.protocol == "fenced":  # rows may wait in its shadow: it is finished, never rolled back
            if finished := _finish_other(executor, journal, record):
                recovered.append(finished)
            continue
        held = journal.locks.try_acquire(lease_name(record.target), journal.owner, _LEASE_SECONDS)
        if held is None:
            continue
        try:
            recovered.append(_roll_back(executor, journal, record))
        finally:
            journal.locks.release(held)
    _remove_expired_gates(executor, journal)
    return recovered


def _finish_other(executor: Executor, journal: Journal, record: RebuildRecord) -> RebuildRecord | None:
    """Finish a fenced rebuild of somebody; one that cannot be finished now keeps its shadow and holds up nobody else."""
    try:
        return resume_if_free(executor, journal, record)
    except ChmvError as error:
        executor.log(f"{record.target}: the fenced rebuild {record.rebuild_id} could not be finished yet: {error}")
        return None


def recover_targets(executor: Executor, journal: Journal, targets: Collection[QName]) -> list[RebuildRecord]:
    """Roll back what is left of earlier rebuilds of targets whose leases we hold: their owners are gone.

    Gives the records of these targets that are unverified now: nobody else can add one while we hold the leases.
    """
    journal.prepare()
    found = [record for record in journal.read_rebuilds(statuses=("running", "unverified")) if record.target in targets]
    now = [_roll_back(executor, journal, record) if record.status == "running" else record for record in found]
    return [record for record in now if record.status == "unverified"]


def clear_unverified(journal: Journal, records: Iterable[RebuildRecord], window: str) -> None:
    """A window is right now, whatever happened to earlier rebuilds of it (`recover_targets` gave them)."""
    for record in records:
        if record.window == window:
            done = replace(record, status="published", version=journal.versions.next(above=record.version))
            journal.run(write_rebuild(done, journal.cluster))


def _roll_back(executor: Executor, journal: Journal, record: RebuildRecord) -> RebuildRecord:
    if record.protocol == "fenced":
        return resume(executor, journal, record)
    if record.protocol in ("gated", "whole"):
        executor.log(f"{record.target}: rolling back rebuild {record.rebuild_id} of {record.owner}")
        undo(executor, record.rebuild_id, record.steps[: record.step + 1])
        status: RebuildStatus = "rolled_back"
    elif record.steps and record.steps[record.step].kind != "publish":  # closed or owned, while it computed
        undo(executor, record.rebuild_id, record.steps[: record.step + 1])
        status = "rolled_back"
    else:  # it died between its swap and the comparison: rows that came in between may be missing
        undo(executor, record.rebuild_id, record.steps)
        executor.log(
            f"{record.target} {record.window}: was swapped in by {record.owner}, who died before it was verified"
        )
        status = "unverified"
    done = replace(
        record,
        status=status,
        detail=f"its owner was gone; found by {journal.owner}",
        version=journal.versions.next(above=record.version),
    )
    journal.run(write_rebuild(done, journal.cluster))
    return done


def _remove_expired_gates(executor: Executor, journal: Journal) -> None:
    """Constraints that hold nobody back any more, whoever made them."""
    for database, table, constraint, until_ms, now_ms in journal.server.rows(read_gates()):
        if int(until_ms) < int(now_ms) and str(constraint).startswith(GATE_PREFIX):
            open_gate(executor, QName(str(database), str(table)), str(constraint))
