"""Fenced rebuilds whose owner is gone are led to their end by whoever finds them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from chmv_assets.core.errors import LockRefused
from chmv_assets.core.fence import FenceState, decode_state, encode_state, plan_way_out
from chmv_assets.core.rebuild_journal import (
    RebuildRecord,
    RebuildStatus,
    lease_name,
    write_rebuild,
)
from resources.executor import Executor
from resources.journal import Journal
from resources.journal.lease import Lease, keep_lease
from resources.rebuild.unfence import WayOut

WAIT_SECONDS = 45.0


def status_of(state: FenceState) -> RebuildStatus:
    """What a rebuild has come to at its end."""
    if state.doubt:
        return "unverified"
    return "published" if state.published else "rolled_back"


def resume_if_free(executor: Executor, journal: Journal, record: RebuildRecord) -> RebuildRecord | None:
    """Lead a fenced rebuild to its end unless somebody works on one of its targets; None: left alone."""
    try:
        with keep_lease(journal, lease_name(record.target)):
            return resume(executor, journal, record, wait_seconds=0.0)
    except LockRefused:
        return None


def resume(
    executor: Executor, journal: Journal, record: RebuildRecord, wait_seconds: float = WAIT_SECONDS
) -> RebuildRecord:
    """Lead a fenced rebuild to its end; the caller holds the lease of its target, and maybe those of others behind it."""
    state = decode_state(record.detail)
    with ExitStack() as stack:
        leases: list[Lease] = []
        for name in sorted({shadow.target for shadow in state.shadows} - {record.target}):
            lock = lease_name(name)
            if not journal.locks.holder(lock).startswith(f"{journal.owner}#"):
                leases.append(
                    stack.enter_context(keep_lease(journal, lock, wait_seconds=wait_seconds, log=executor.log))
                )
        found = _read_again(journal, record)
        if found is None:  # somebody was faster
            return record
        executor.log(f"{record.target}: finishing the fenced rebuild {record.rebuild_id} of {record.owner}")
        return _finish(executor, journal, found, leases)


def _finish(executor: Executor, journal: Journal, record: RebuildRecord, leases: list[Lease]) -> RebuildRecord:
    latest = record

    def note(state: FenceState, status: RebuildStatus = "running") -> None:
        nonlocal latest
        version = journal.versions.next(above=latest.version)
        latest = replace(latest, status=status, detail=encode_state(state), version=version)
        journal.run(write_rebuild(latest, journal.cluster))

    def check() -> None:
        for lease in leases:
            lease.check()

    out = WayOut(executor, decode_state(record.detail), note, check)
    work = out.work()
    for step in plan_way_out(out.state):
        check()
        work[step.kind](step.name)
    note(out.state, status_of(out.state))
    if out.state.doubt:
        targets = ", ".join(str(shadow.target) for shadow in out.state.shadows)
        executor.log(
            f"{record.target} {record.window}: {out.state.doubt}. Rebuild this window, and those that got rows meanwhile, of {targets}"
        )
    return latest


def _read_again(journal: Journal, record: RebuildRecord) -> RebuildRecord | None:
    """The record as it is now that its target is ours; None if it is done."""
    running = journal.read_rebuilds(statuses=("running",))
    return next((one for one in running if one.rebuild_id == record.rebuild_id), None)
