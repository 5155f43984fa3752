"""One try of a gated or whole rebuild: its steps carried out one by one, and the way back if one fails.

What a step leaves behind is in the journal before it is done (`core.rebuild_plan.notes_of`), so whoever comes after a crash can
clear it away. Which try this is, and who may try at all, is decided in `gated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.gate import GATE_SECONDS, MARGIN_SECONDS, gate_name, render_shut
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, write_rebuild
from chmv_assets.core.rebuild_plan import Step, StepKind, notes_of
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.system_tables import read_clocks
from chmv_assets.core.whole import Part, estimate_swap_seconds, group_parts
from chmv_assets.core.windows import Window
from resources.forwarders import Forwarder
from resources.introspect import PartitionState
from resources.journal import Journal
from resources.journal.lease import Lease
from resources.rebuild.barrier import deliver, refuse_half_delivered, refuse_unanswered
from resources.rebuild.parts import fetch_parts, fetch_source_parts, wait_for_merges
from resources.rebuild.settle import find_failed, settle
from resources.rebuild.undo import open_gate, undo
from resources.rebuild.whole import ColdShares
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

OnStep = Callable[[int, Step], None]


@dataclass
class Prepared:
    """One try: its feeds, scratches, roots and steps."""

    rebuild_id: str
    protocol: Protocol
    targets: dict[QName, Object]  # in order; the first is the one that was asked for
    window: Window | None
    feeds: dict[QName, tuple[Feed, QName]]  # view → feed and scratch
    steps: tuple[Step, ...]
    states: Sequence[PartitionState] | None = None  # of the target, if they were read already
    gate_seconds: float = 0.0

    @property
    def target(self) -> Object:
        return next(iter(self.targets.values()))


@dataclass
class GatedRun:
    """Carries the steps out, one by one, and goes back if one fails."""

    bench: Workbench
    journal: Journal
    leases: Sequence[Lease]
    run: Prepared
    on_step: OnStep
    cold: ColdShares
    rows: int = 0  # of the first target's window, as published
    _built: dict[QName, set[str]] = field(default_factory=dict)  # view → parts that are computed
    _until_ms: int = 0
    _shut_at: float = 0.0
    _changed: tuple[str, ...] = ()
    _published: list[QName] = field(default_factory=list)
    _new: set[QName] = field(default_factory=set)  # scratches without parts
    _version: int = 0
    _queues: tuple[Forwarder, ...] = ()  # Distributed tables that lead into the roots
    _delivered_at: int = 0

    def work(self) -> dict[StepKind, Callable[[QName], None]]:
        """What each kind of step does."""
        return {
            "settle": self._settle,
            "scratch": self._create_scratch,
            "prebuild cold": lambda view: self.cold.prebuild(*self.run.feeds[view]),
            "hold merges": self.bench.executor.stop_merges,
            "prebuild": self._prebuild,
            "shut gate": self._shut,
            "drain": lambda _name: self._drain(),
            "recheck": self._recheck,
            "complete": self._complete,
            "build": self._build,
            "publish": self._publish,
            "open gate": self._open,
            "release merges": self.bench.executor.start_merges,
            "drop scratch": self.bench.executor.drop_table,
        }

    def carry_out(self) -> tuple[str, ...]:
        """All steps; gives the partitions that were published."""
        work = self.work()
        notes = notes_of(self.run.steps)
        noted, done = -1, 0
        try:
            for done, step in enumerate(self.run.steps):
                self.check_leases()
                if done in notes:
                    noted = notes[done]
                    self.note("running", noted)
                work[step.kind](step.name)
                self.on_step(done, step)
        except BaseException:
            self.take_back()
            undo(self.bench.executor, self.run.rebuild_id, self.run.steps[: noted + 1])
            self.note("rolled_back", done)
            raise
        self.note("published", done)
        return self._changed

    def take_back(self) -> None:
        """After a failure, before the gate opens: a rebuild has nothing to take back, what it published is right."""

    def check_leases(self) -> None:
        for lease in self.leases:
            lease.check()

    def note(self, status: RebuildStatus, step: int) -> None:
        self._version = self.journal.versions.next(above=self._version)
        record = RebuildRecord(
            rebuild_id=self.run.rebuild_id, target=self.run.target.name, window=window_key(self.run.window),
            protocol=self.run.protocol, status=status, steps=self.run.steps, step=step, owner=self.journal.owner,
            version=self._version,
        )  # fmt: skip
        self.journal.run(write_rebuild(record, self.journal.cluster))

    def _settle(self, root: QName) -> None:
        refuse_unanswered(root, settle(self.bench, self.journal, root))

    def _create_scratch(self, name: QName) -> None:
        feed = next(feed for feed, scratch in self.run.feeds.values() if scratch == name)
        self.bench.check_room(feed, self.run.states if feed.target is self.run.target else None)
        self.bench.executor.create_like(name, feed.target.name)
        if self.run.protocol == "gated":
            self._new.add(name)

    def _prebuild(self, view: QName) -> None:
        feed, scratch = self.run.feeds[view]
        wait_for_merges(self.bench, feed.source.name)
        parts = fetch_source_parts(self.bench, feed)
        done = self.cold.computed(feed, parts)
        self._fill(feed, scratch, [part for part in parts if part.name not in done])
        self._built[view] = {part.name for part in parts}

    def _fill(self, feed: Feed, scratch: QName, parts: Sequence[Part], *, in_haste: bool = False) -> None:
        for names in group_parts(parts):
            is_new = scratch in self._new
            self._new.discard(scratch)
            self.bench.fill(feed, scratch, names, is_new=is_new, in_haste=in_haste)

    def _shut(self, root: QName) -> None:
        if not self._until_ms:
            self._check_size()
            asked_at, (slowest_ms, server_ms) = self.bench.clock(), self._clocks()
            self._deliver(slowest_ms)
            self._shut_at = self.bench.clock()
            self._until_ms = server_ms + int(1000 * (self._shut_at - asked_at + GATE_SECONDS))
        sql = render_shut(root, self.run.rebuild_id, self._until_ms)
        self.bench.executor.run_ddl(f"shut gate of {root}", sql)

    def _deliver(self, server_ms: int) -> None:
        """What waits on its way now need not wait behind the gate. A file that fails here is told now: once the gate has refused it too, nobody can tell."""
        self._delivered_at = server_ms // 1000
        self._queues = deliver(self.bench, [step.name for step in self.run.steps if step.kind == "shut gate"])
        refuse_half_delivered(self.bench, self._queues, self._delivered_at)

    def _check_size(self) -> None:
        """Refuse a swap that cannot end while writers wait; small windows are not even looked at."""
        if self.run.protocol != "whole":
            return
        scratches = {scratch for _, scratch in self.run.feeds.values()}
        parts = [part for scratch in scratches for part in fetch_parts(self.bench.executor.server, scratch)]
        seconds, limit = estimate_swap_seconds(parts), GATE_SECONDS - 2 * MARGIN_SECONDS
        if seconds > limit:
            raise RebuildRefused(
                f"target {self.run.target.name}: swapping {len(parts)} parts may take {seconds:.0f} s but wanted {limit:.0f} s at most. Writers "
                "wait behind the gate meanwhile. Nothing was published. Rebuild it range by range (`--window A..B`)."
            )

    def _drain(self) -> None:
        self.bench.drain(GATE_SECONDS - MARGIN_SECONDS)
        refuse_half_delivered(self.bench, self._queues, self._delivered_at)
        for source in {feed.source.name: feed.source for feed, _ in self.run.feeds.values()}.values():
            self.bench.catch_up(source)

    def _recheck(self, root: QName) -> None:
        """An insert that failed half way since `settle` has rows in the scratch by now; its retry would double them."""
        if problem := find_failed(self.journal, root):
            raise RebuildDisturbed(
                f"source {root}: {problem} but wanted every insert done or given up. Its retry after the rebuild would double its rows. "
                "Nothing was published. Let its writer finish and run it again."
            )

    def _complete(self, view: QName) -> None:
        feed, scratch = self.run.feeds[view]
        parts = fetch_source_parts(self.bench, feed)
        built = self._built[view]
        if not built.issubset(part.name for part in parts):
            raise RebuildDisturbed(
                f"source {feed.source.name}: parts were merged, mutated or dropped during the rebuild but wanted them as they were. "
                "What is computed cannot be told from what is new. Nothing was published. Run it again."
            )
        self._fill(feed, scratch, [part for part in parts if part.name not in built], in_haste=True)

    def _build(self, view: QName) -> None:
        feed, scratch = self.run.feeds[view]
        self.bench.fill(feed, scratch, in_haste=True)

    def _publish(self, target: QName) -> None:
        self._check_time(target)
        self.check_leases()
        scratch = next(scratch for feed, scratch in self.run.feeds.values() if feed.target.name == target)
        swapped = self.bench.swap(
            self.run.targets[target], self.run.window, [scratch], lambda: self._check_time(target, begun=True)
        )
        self._changed += swapped.partitions
        if target == self.run.target.name:
            self.rows = swapped.rows
        self._published.append(target)
        if self._server_ms() >= self._until_ms:
            raise RebuildDisturbed(
                f"target {target}: the swap ended after the gate had opened but wanted it before. Rows that arrived in between may be "
                "missing from the window. Run it again at once."
            )

    def _check_time(self, target: QName, *, begun: bool = False) -> None:
        """Begin nothing that could end behind an open gate. Trying again would only shut writers out again.

        By our clock, which was read before the server's; whether it ended in time is asked of the server.
        """
        left = self._shut_at + GATE_SECONDS - self.bench.clock()
        if left >= MARGIN_SECONDS:
            return
        done = [str(name) for name in self._published]
        state = f"{', '.join(done)} is published and right, the rest is as it was" if done else "Nothing was published"
        if begun:
            state = f"What was swapped of {target} is right, the rest of it is as it was"
        raise RebuildRefused(
            f"target {target}: the gate opens in {left:.1f} s but wanted {MARGIN_SECONDS:.0f} s for the swap. Writers wait no "
            f"longer than {GATE_SECONDS:.0f} s. {state}; rebuild smaller windows."
        )

    def _open(self, root: QName) -> None:
        open_gate(self.bench.executor, root, gate_name(self.run.rebuild_id))
        self.run.gate_seconds = self.bench.clock() - self._shut_at

    def _server_ms(self) -> int:
        """The clock by which the gate opens first."""
        return self._clocks()[1]

    def _clocks(self) -> tuple[int, int]:
        """The slowest clock of all replicas and the fastest (ms)."""
        ((slowest, fastest),) = self.bench.executor.server.rows(read_clocks(self.journal.cluster))
        return int(slowest), int(fastest)
