"""The owned protocol: every writer commits through chmv's journal, so holding their commit lock is gate enough.

Writers notice a pause between two commits and no error. The verification of the closed protocol stays: an insert that is on its way
for a driver that has died is seen, and the window is done again.
"""

from __future__ import annotations

from contextlib import ExitStack

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.rebuild_journal import commit_lock
from chmv_assets.core.rebuild_plan import find_roots
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.lease import keep_lease
from resources.rebuild.closed import publish_closed
from resources.rebuild.result import Published
from resources.rebuild.workbench import Workbench

COMMIT_WAIT_SECONDS = 300.0  # a commit of a large batch is waited for


def publish_owned(bench: Workbench, journal: Journal, target: Object, window: Window | None, why: str) -> Published:
    """Replace a window of a target while nobody commits."""
    roots = find_roots(bench.catalog, target.name)
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(
                keep_lease(
                    journal, commit_lock(root), lease_seconds=bench.lease_seconds, wait_seconds=COMMIT_WAIT_SECONDS
                )
            )
        staged = [one for one in journal.read_batches(10_000, status="staged") if one.source in roots]
        if staged:
            raise RebuildRefused(
                f"source {staged[0].source}: found batch {staged[0].batch} of {staged[0].owner} half committed but wanted none. Its driver "
                f"died, and finishing it after the rebuild would double its rows. Run `chmv ingest {staged[0].source}` first."
            )
        return publish_closed(bench, target, window, why, protocol="owned")
