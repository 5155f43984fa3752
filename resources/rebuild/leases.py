"""Who may rebuild a target: one at a time. The lock is the journal's; its lease is the workbench's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import lease_name
from resources.journal import Journal
from resources.journal.lease import Lease, keep_lease
from resources.rebuild.workbench import Workbench

_WAIT_LEASES = 1.5  # a dead owner's lease has ended by then


def hold_target(bench: Workbench, journal: Journal, target: QName) -> AbstractContextManager[Lease]:
    """Keep every other rebuild away from a target for the length of a block."""
    seconds = bench.lease_seconds
    return keep_lease(
        journal, lease_name(target), lease_seconds=seconds, wait_seconds=_WAIT_LEASES * seconds, log=bench.executor.log
    )
