"""The closed protocol: rebuild windows that see few or no inserts, verified before and after.

The source's highest block number and the running inserts are read before, between and after; if an insert came in between, the
window is done again, three times at most. Writers notice nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, write_rebuild
from chmv_assets.core.rebuild_plan import Step, find_roots
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from chmv_assets.process_identity import new_rebuild_id
from resources.introspect import PartitionState
from resources.journal import Journal
from resources.rebuild.barrier import deliver, require_delivered
from resources.rebuild.recovery import clear_unverified
from resources.rebuild.result import Published
from resources.rebuild.settle import settle
from resources.rebuild.shares import forget_shares, take_shares
from resources.rebuild.workbench import SourceState, Workbench
from resources.scratch_marks import window_key

MAX_TRIES = 3  # while the target is untouched
MAX_TRIES_AFTER_SWAP = 12  # a swap that an insert overtook has to be put right


def publish_closed(
    bench: Workbench,
    journal: Journal,
    target: Object,
    window: Window | None,
    why: str,
    protocol: Protocol = "closed",
    unverified: Sequence[RebuildRecord] = (),
) -> Published:
    """Replace a window of a target by what its views give, and leave nothing half done. For whoever holds the target.

    From the swap to the last comparison the journal says so: who dies in between may have lost rows that came at that moment.
    """
    started = bench.clock()
    roots = find_roots(bench.catalog, target.name)
    require_delivered(bench, roots, deliver(bench, roots))
    run = _ClosedRun(bench, journal, target, window, roots, bench.rebuildable_views(target), protocol)
    for attempt in range(1, MAX_TRIES_AFTER_SWAP + 1):
        if attempt > MAX_TRIES and run.changed is None:
            break
        after = run.try_once()
        if after is not None:
            clear_unverified(journal, unverified, window_key(window))
            forget_shares(bench, journal, target, window)
            return Published(
                protocol=protocol, why=why, partitions=run.changed or (), rows_before=run.before or 0, rows_after=after,
                tries=attempt, seconds=bench.clock() - started, shares_reused=run.reused,
            )  # fmt: skip
    raise _disturbed(target, window, swapped=run.changed is not None)


class _ClosedRun:
    """The tries of one rebuild; its journal record names the scratch before there is one."""

    def __init__(
        self,
        bench: Workbench,
        journal: Journal,
        target: Object,
        window: Window | None,
        roots: Sequence[QName],
        views: Sequence[Object],
        protocol: Protocol,
    ) -> None:
        self.bench, self.journal = bench, journal
        self.target, self.window, self.roots, self.views = target, window, roots, views
        self.before: int | None = None
        self.changed: tuple[str, ...] | None = None  # partitions that were swapped
        self.reused = 0
        rebuild_id = new_rebuild_id()
        self._scratch = QName(SCRATCH_DATABASE, f"scratch.{rebuild_id}.0")
        self._record = RebuildRecord(
            rebuild_id=rebuild_id, target=target.name, window=window_key(window), protocol=protocol, status="running",
            steps=(Step("scratch", self._scratch), Step("publish", target.name)), step=-1, version=0, owner=journal.owner,
        )  # fmt: skip

    def try_once(self) -> int | None:
        """Compute, swap, and look whether an insert came in between: rows of the window now, None if one came."""
        bench = self.bench
        fences, states = bench.look(self.target, self.window, self.views)
        self.before = sum(state.rows for state in states) if self.before is None else self.before
        bench.drain()
        bench.catch_up_all(self.views)  # a block that another replica got earlier and wrote later
        for root in self.roots:  # each time: what failed half way since is among the rows that are computed now
            settle(bench, self.journal, root)
        with ExitStack() as held:
            scratches = self._compute(fences, states, held)
            if bench.look(self.target, self.window, self.views)[0] != fences:
                return None
            self._swap(scratches)
        bench.drain()
        now, states = bench.look(self.target, self.window, self.views)
        if now != fences:
            return None
        bench.executor.drop_table(self._scratch)
        self._note("published", 1)
        return sum(state.rows for state in states)

    def _compute(self, fences: Sequence[SourceState], states: Sequence[PartitionState], held: ExitStack) -> list[QName]:
        """Scratches with all shares: those that the views' own materialization has left, or a new one for all of them."""
        bench = self.bench
        kept = take_shares(bench, self.journal, self.views, self.window, fences, held)
        self.reused = len(kept) if len(kept) == len(self.views) else 0
        if self.reused:
            return kept
        if self._record.step >= 0:
            bench.executor.drop_table(self._scratch)  # of the try before
        self._note("running", max(self._record.step, 0))
        bench.executor.create_like(self._scratch, self.target.name)
        for number, view in enumerate(self.views):
            feed, _ = bench.feed(view, self.window)
            bench.check_room(feed, states)
            bench.fill(feed, self._scratch, is_new=number == 0)
        return [self._scratch]

    def _swap(self, scratches: Sequence[QName]) -> None:
        self._note("running", 1)
        try:
            self.changed = self.bench.swap(self.target, self.window, scratches).partitions
        except RebuildRefused:  # it refuses before it changes anything
            if self.changed is None:
                self.bench.executor.drop_table(self._scratch)
                self._note("rolled_back", 0)
            raise

    def _note(self, status: RebuildStatus, step: int) -> None:
        """Tell the journal, unless it knows."""
        if (self._record.status, self._record.step) == (status, step):
            return
        version = self.journal.versions.next(above=self._record.version)
        self._record = replace(self._record, status=status, step=step, version=version)
        self.journal.run(write_rebuild(self._record, self.journal.cluster))


def _disturbed(target: Object, window: Window | None, *, swapped: bool) -> RebuildDisturbed:
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
