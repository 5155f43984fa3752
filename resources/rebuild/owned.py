"""The owned protocol: every writer commits through chmv's journal, so holding their commit lock is gate enough.

Writers notice a pause between two commits and no error. The verification of the closed protocol stays: an insert that is on its way
for a driver that has died is seen, and the window is done again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE, covered_window
from chmv_assets.core.rebuild_journal import RebuildRecord, commit_lock
from chmv_assets.core.rebuild_plan import find_roots
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.lease import keep_lease
from resources.rebuild.closed import publish_closed
from resources.rebuild.result import Published
from resources.rebuild.workbench import Workbench

Replay = Callable[
    [Object, Window | None, QName], int
]  # a source's rows of a window into a new table; gives their number
COMMIT_WAIT_SECONDS = 300.0  # a commit of a large batch is waited for


def publish_owned(
    bench: Workbench,
    journal: Journal,
    target: Object,
    window: Window | None,
    why: str,
    replay: Replay | None = None,
    unverified: Sequence[RebuildRecord] = (),
) -> Published:
    """Replace a window of a target while nobody commits; with `replay`, from landing files instead of the sources."""
    roots = find_roots(bench.catalog, target.name)
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(
                keep_lease(
                    journal,
                    commit_lock(root),
                    lease_seconds=bench.lease_seconds,
                    wait_seconds=COMMIT_WAIT_SECONDS,
                    log=bench.executor.log,
                )
            )
        staged = [one for root in roots for one in journal.read_batches(source=root, status="staged")]
        if staged:
            raise RebuildRefused(
                f"source {staged[0].source}: found batch {staged[0].batch} of {staged[0].owner} half committed but wanted none. Its driver "
                f"died, and finishing it after the rebuild would double its rows. Run `chmv ingest {staged[0].source}` first."
            )
        if replay is not None:
            stack.enter_context(_archives(bench, target, window, replay))
        return publish_closed(bench, journal, target, window, why, protocol="owned", unverified=unverified)


@contextmanager
def _archives(bench: Workbench, target: Object, window: Window | None, replay: Replay) -> Iterator[None]:
    """Tables with the replayed rows of every source of a target, for the length of the block."""
    triggers = {bench.catalog.trigger_of(view.name) for view in bench.rebuildable_views(target)}
    sources = sorted(trigger for trigger in triggers if trigger is not None)
    scheme = bench.catalog.schemes.get(target.name)
    covered, _ = covered_window(scheme, window, bench.timezone, bench.server_zone)
    made = {source: QName(SCRATCH_DATABASE, f"replay.{secrets.token_hex(6)}") for source in sources}
    try:
        for source, archive in made.items():
            rows = replay(bench.catalog.objects[source], covered, archive)
            bench.executor.log(f"{source}: {rows} rows replayed from its landing files")
        bench.archives.update(made)
        yield
    finally:
        for source, archive in made.items():
            bench.archives.pop(source, None)
            bench.executor.drop_table(archive)
