"""Shares: scratches that materializing a view has filled, kept until the view's target is published or a day has passed.

Whoever fills or clears one holds its lock. A share is only used while its mark says that it is made of the present state of its
source, so nobody has a reason to fill it anew meanwhile.
"""

from __future__ import annotations

from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import covered_window, scratch_name
from chmv_assets.core.windows import Window
from resources.introspect import fetch_existing, fetch_partitions
from resources.journal import Journal
from resources.rebuild.workbench import Workbench

_LEASE_SECONDS = 30.0


def share_lock(scratch: QName) -> str:
    """The lock of whoever fills or clears a share."""
    return f"share {scratch.table}"


def forget_shares(bench: Workbench, journal: Journal, target: Object, window: Window | None) -> None:
    """Shares of a published window are not needed any more; one that is being filled is left to who fills it."""
    shares = [scratch_name(target.name, view.name) for view in bench.catalog.views_into(target.name)]
    union = scratch_name(target.name, None)  # left by one that died inside its swap
    there = fetch_existing(bench.executor.server, [*shares, union])
    if union in there:
        bench.executor.drop_table(union)
    for scratch in (share for share in shares if share in there):
        held = journal.locks.try_acquire(share_lock(scratch), journal.owner, _LEASE_SECONDS)
        if held is None:
            continue
        try:
            _forget(bench, scratch, target, window)
        finally:
            journal.locks.release(held)


def _forget(bench: Workbench, scratch: QName, target: Object, window: Window | None) -> None:
    scheme = bench.catalog.schemes.get(target.name)
    _, partitions = covered_window(scheme, window, bench.timezone, bench.server_zone)
    held = fetch_partitions(bench.executor.server, [scratch]).get(scratch, ())
    mine = bench.of_window(held, target, partitions)
    bench.marks.forget(scratch, window)
    if len(mine) == len(held):
        bench.executor.drop_table(scratch)
        return
    for state in mine:
        bench.executor.drop_partition(scratch, state.partition_id)
