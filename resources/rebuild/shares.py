"""Shares: scratches that materializing a view has filled, kept until the view's target is published or a day has passed.

Whoever fills, publishes or clears one holds its lock: neighbouring windows may share a partition of the same scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import covered_window, scratch_name
from chmv_assets.core.windows import Window
from resources.introspect import fetch_existing, fetch_partitions
from resources.journal import Journal
from resources.rebuild.workbench import SourceState, Workbench

_LEASE_SECONDS = 60.0  # a few looks and a swap


def share_lock(scratch: QName) -> str:
    """The lock of whoever fills, publishes or clears a share."""
    return f"share {scratch.table}"


def take_shares(
    bench: Workbench,
    journal: Journal,
    views: Sequence[Object],
    window: Window | None,
    states: Sequence[SourceState],
    held: ExitStack,
) -> list[QName]:
    """Scratches that hold the shares of all these views, made of these states of their sources; none if one is missing.

    They stay as they are until `held` ends.
    """
    found: list[QName] = []
    for view, state in zip(views, states, strict=True):
        if not bench.has_mark(view, window):
            return []
        scratch = scratch_name(view.target if view.target is not None else view.name, view.name)
        lock = journal.locks.try_acquire(share_lock(scratch), journal.owner, _LEASE_SECONDS)
        if lock is None:
            return []
        held.callback(journal.locks.release, lock)
        share = bench.find_share(view, window, state)
        if share is None:
            return []
        found.append(share)
    return found


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
