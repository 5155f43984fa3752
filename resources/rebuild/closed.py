"""The closed protocol: rebuild windows that see few or no inserts, verified before and after.

The source's highest block number and the running inserts are read before, between and after; if an insert came in between, the
window is done again, three times at most. Writers notice nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, write_rebuild
from chmv_assets.core.rebuild_plan import find_roots
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.rebuild.barrier import deliver, require_delivered
from resources.rebuild.recovery import clear_unverified
from resources.rebuild.result import Published
from resources.rebuild.settle import settle
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

MAX_TRIES = 3  # while the target is untouched
MAX_TRIES_AFTER_SWAP = 12  # a swap that an insert overtook has to be put right


def publish_closed(
    bench: Workbench, journal: Journal, target: Object, window: Window | None, why: str, protocol: Protocol = "closed"
) -> Published:
    """Replace a window of a target by what its views give, and leave nothing half done.

    From the swap to the last comparison the journal says so: who dies in between may have lost rows that came at that moment.
    """
    started = bench.clock()
    roots = find_roots(bench.catalog, target.name)
    require_delivered(bench, roots, deliver(bench, roots))
    record = RebuildRecord(
        rebuild_id=secrets.token_hex(6), target=target.name, window=window_key(window), protocol=protocol,
        status="running", steps=(), step=0, version=journal.versions.next(), owner=journal.owner,
    )  # fmt: skip
    views = bench.rebuildable_views(target)
    before = sum(state.rows for state in bench.target_states(target, window))
    swapped = False
    for attempt in range(1, MAX_TRIES_AFTER_SWAP + 1):
        if attempt > MAX_TRIES and not swapped:
            break
        fences = [bench.quiet_state(view, window) for view in views]
        for root in roots:  # each time: what failed half way since is among the rows that are computed now
            settle(bench, journal, root)
        shares = tuple(bench.build_scratch(view, window) for view in views)
        if [bench.block_state(view, window) for view in views] != fences:
            continue
        if not swapped:
            journal.run(write_rebuild(record, journal.cluster))
        try:
            changed = bench.swap(target, window, [share.scratch for share in shares])
        except RebuildRefused:  # it refuses before it changes anything
            if not swapped:
                _note(journal, record, "rolled_back")
            raise
        swapped = True
        bench.drain()
        if [bench.block_state(view, window) for view in views] == fences:
            _note(journal, record, "published")
            clear_unverified(journal, target.name, record.window)
            after = sum(state.rows for state in bench.target_states(target, window))
            bench.forget(target, window)
            return Published(
                protocol=protocol, why=why, partitions=changed, rows_before=before, rows_after=after, tries=attempt,
                seconds=bench.clock() - started, shares_reused=sum(share.reused for share in shares),
            )  # fmt: skip
    raise _disturbed(target, window, swapped)


def _note(journal: Journal, record: RebuildRecord, status: RebuildStatus) -> None:
    done = replace(record, status=status, version=journal.versions.next(above=record.version))
    journal.run(write_rebuild(done, journal.cluster))


def _disturbed(target: Object, window: Window | None, swapped: bool) -> RebuildDisturbed:
    tries = MAX_TRIES_AFTER_SWAP if swapped else MAX_TRIES
    state = (
        "The window was swapped in, but rows that arrived during the last swap may be missing from it"
        if swapped
        else "The target is untouched"
    )
    return RebuildDisturbed(
        f"target {target.name}: its source took inserts during each of {tries} tries for window {window_key(window)} "
        f"but wanted a quiet moment. {state}: the closed protocol cannot tell such rows apart. "
        "Run it again with `--protocol gated`, which stops writers for a moment, or when the window is closed."
    )
