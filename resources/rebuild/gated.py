"""The gated protocol: exact on a hot window. Most is computed while writers go on; for the last step they wait a moment.

Parts that are there when it begins are computed online; then the gate shuts, running inserts end, what arrived meanwhile is added,
and the window is swapped. Every row is in the scratch or reaches the target after the swap, never both: nothing can arrive in
between. The steps are `core.rebuild_plan`'s; each is noted in the journal before it runs, neighbours of one kind together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.gate import GATE_SECONDS, MARGIN_SECONDS, gate_name, render_shut
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE, Feed
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, lease_name, write_rebuild
from chmv_assets.core.rebuild_plan import Layer, Step, StepKind, find_roots, last_of_kind, plan_gated
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.lease import Lease, keep_lease
from resources.rebuild.recovery import clear_unverified, recover_target
from resources.rebuild.result import Published
from resources.rebuild.settle import settle
from resources.rebuild.undo import open_gate, undo
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

MAX_TRIES = 3
MERGE_SECONDS = 30.0
MAX_PARTS = 5_000  # names that fit into one statement's settings
_POLL_SECONDS = 0.2

OnStep = Callable[[int, Step], None]


def explain_gated(
    bench: Workbench, target: Object, window: Window | None, downstream: Sequence[Object] = ()
) -> tuple[Step, ...]:
    """The steps that `publish_gated` would take."""
    return _prepare(bench, [target, *downstream], window, "plan").steps


def publish_gated(
    bench: Workbench,
    journal: Journal,
    target: Object,
    window: Window | None,
    why: str,
    on_step: OnStep = lambda _number, _step: None,
    downstream: Sequence[Object] = (),
) -> Published:
    """Replace a window of a target by what its views give, under live inserts.

    Targets `downstream` of it, in the order of their computation, are rebuilt from it behind the same gate.
    """
    started = bench.clock()
    targets = [target, *downstream]
    before = sum(state.rows for state in bench.target_states(target, window))
    with ExitStack() as stack:
        leases = [
            stack.enter_context(_lease(bench, journal, one.name)) for one in sorted(targets, key=lambda t: t.name)
        ]
        for one in targets:
            recover_target(bench.executor, journal, one.name)
        for attempt in range(1, MAX_TRIES + 1):
            run = _prepare(bench, targets, window, secrets.token_hex(6))
            try:
                changed = _GatedRun(bench, journal, leases, run, on_step).carry_out()
            except RebuildDisturbed:
                if attempt == MAX_TRIES:
                    raise
                continue
            after = sum(state.rows for state in bench.target_states(target, window))
            for one in targets:
                clear_unverified(journal, one.name, window_key(window))
                bench.forget(one, window)
            return Published(
                protocol="gated", why=why, partitions=changed, rows_before=before, rows_after=after, tries=attempt,
                seconds=bench.clock() - started, gate_seconds=run.gate_seconds,
                downstream=tuple(one.name for one in downstream),
            )  # fmt: skip
    raise AssertionError("unreachable: the last try returns or raises")


def _lease(bench: Workbench, journal: Journal, target: QName) -> AbstractContextManager[Lease]:
    return keep_lease(
        journal, lease_name(target), lease_seconds=bench.lease_seconds, wait_seconds=1.5 * bench.lease_seconds
    )


@dataclass
class _Prepared:
    """One try: its feeds, scratches, roots and steps."""

    rebuild_id: str
    targets: dict[QName, Object]  # in order; the first is the one that was asked for
    window: Window | None
    feeds: dict[QName, tuple[Feed, QName]]  # view → feed and scratch
    steps: tuple[Step, ...]
    gate_seconds: float = 0.0

    @property
    def target(self) -> Object:
        return next(iter(self.targets.values()))


def _prepare(bench: Workbench, targets: Sequence[Object], window: Window | None, rebuild_id: str) -> _Prepared:
    roots = sorted({root for target in targets for root in find_roots(bench.catalog, target.name)})
    for root in roots:
        node = bench.catalog.objects.get(root)
        if node is None or not node.engine.endswith("MergeTree"):
            raise RebuildRefused(
                f"target {targets[0].name}: its rows arrive in {root}, {node.engine if node else 'not declared here'}, but wanted a "
                "MergeTree table. Inserts into it cannot be held back. Use `--protocol closed` when no inserts run."
            )
    feeds: dict[QName, tuple[Feed, QName]] = {}
    layers: list[Layer] = []
    for number, target in enumerate(targets):
        views = bench.rebuildable_views(target)
        scratch = QName(SCRATCH_DATABASE, f"scratch.{rebuild_id}.{number}")
        feeds |= {view.name: (bench.feed(view, window)[0], scratch) for view in views}
        layers.append((target.name, views, scratch))
    return _Prepared(
        rebuild_id=rebuild_id,
        targets={target.name: target for target in targets},
        window=window,
        feeds=feeds,
        steps=plan_gated(bench.catalog, layers, roots),
    )


@dataclass
class _GatedRun:
    """Carries the steps out, one by one, and goes back if one fails."""

    bench: Workbench
    journal: Journal
    leases: Sequence[Lease]
    run: _Prepared
    on_step: OnStep
    _built: dict[QName, tuple[str, ...]] = field(default_factory=dict)  # view → parts that are computed
    _until_ms: int = 0
    _shut_at: float = 0.0
    _changed: tuple[str, ...] = ()
    _version: int = 0

    def carry_out(self) -> tuple[str, ...]:
        """All steps; gives the partitions that were published."""
        work: dict[StepKind, Callable[[QName], None]] = {
            "settle": lambda root: settle(self.bench, self.journal, root),
            "scratch": self._create_scratch,
            "hold merges": self.bench.executor.stop_merges,
            "prebuild": self._prebuild,
            "shut gate": self._shut,
            "drain": lambda _name: self._drain(),
            "complete": self._complete,
            "build": self._build,
            "publish": self._publish,
            "open gate": self._open,
            "release merges": self.bench.executor.start_merges,
            "drop scratch": self.bench.executor.drop_table,
        }
        noted = done = 0
        try:
            for done, step in enumerate(self.run.steps):
                self._check_leases()
                if done == 0 or step.kind != self.run.steps[done - 1].kind:
                    noted = last_of_kind(self.run.steps, done)
                    self._note("running", noted)
                work[step.kind](step.name)
                self.on_step(done, step)
        except BaseException:
            undo(self.bench.executor, self.run.rebuild_id, self.run.steps[: noted + 1], self.journal.cluster)
            self._note("rolled_back", done)
            raise
        self._note("published", done)
        return self._changed

    def _check_leases(self) -> None:
        for lease in self.leases:
            lease.check()

    def _create_scratch(self, name: QName) -> None:
        feed = next(feed for feed, scratch in self.run.feeds.values() if scratch == name)
        self.bench.check_room(feed)
        self.bench.executor.create_like(name, feed.target.name)

    def _note(self, status: RebuildStatus, step: int, detail: str = "") -> None:
        self._version = self.journal.versions.next(above=self._version)
        record = RebuildRecord(
            rebuild_id=self.run.rebuild_id, target=self.run.target.name, window=window_key(self.run.window),
            protocol="gated", status=status, steps=self.run.steps, step=step, detail=detail, owner=self.journal.owner,
            version=self._version,
        )  # fmt: skip
        self.journal.run(write_rebuild(record, self.journal.cluster))

    def _prebuild(self, view: QName) -> None:
        feed, scratch = self.run.feeds[view]
        self._wait_for_merges(feed.source.name)
        parts = self.bench.source_parts(feed)
        if len(parts) > MAX_PARTS:
            raise RebuildRefused(
                f"source {feed.source.name}: found {len(parts)} parts in this window but wanted at most {MAX_PARTS}. They have to be "
                "named one by one. Let merges catch up, or rebuild smaller windows."
            )
        if parts:
            self.bench.fill(feed, scratch, parts)
        self._built[view] = parts

    def _wait_for_merges(self, source: QName) -> None:
        """Merges that ran when they were stopped end by themselves; a part that comes out of one has another name."""
        deadline = self.bench.clock() + MERGE_SECONDS
        while self.bench.executor.server.rows(
            "SELECT 1 FROM system.merges WHERE database = {d:String} AND table = {t:String} LIMIT 1",
            {"d": source.database, "t": source.table},
        ):
            if self.bench.clock() > deadline:
                raise RebuildDisturbed(
                    f"source {source}: a merge still runs after {MERGE_SECONDS:.0f} s but wanted none. Its parts change their names. "
                    "Run it again."
                )
            self.bench.sleep(_POLL_SECONDS)

    def _shut(self, root: QName) -> None:
        if not self._until_ms:
            self._shut_at = self.bench.clock()
            self._until_ms = self._server_ms() + int(GATE_SECONDS * 1000)
        sql = render_shut(root, self.run.rebuild_id, self._until_ms, self.journal.cluster)
        self.bench.executor.run_ddl(f"shut gate of {root}", sql)

    def _drain(self) -> None:
        self.bench.executor.flush_async_inserts()
        self.bench.drain(GATE_SECONDS - MARGIN_SECONDS)

    def _complete(self, view: QName) -> None:
        feed, scratch = self.run.feeds[view]
        built = set(self._built[view])
        now = self.bench.source_parts(feed)
        if not built <= set(now):
            raise RebuildDisturbed(
                f"source {feed.source.name}: parts were merged, mutated or dropped during the rebuild but wanted them as they were. "
                "What is computed cannot be told from what is new. The target is untouched; run it again."
            )
        if fresh := [part for part in now if part not in built]:
            self.bench.fill(feed, scratch, fresh)

    def _build(self, view: QName) -> None:
        feed, scratch = self.run.feeds[view]
        self.bench.fill(feed, scratch)

    def _publish(self, target: QName) -> None:
        left = self._until_ms - self._server_ms()
        if left < MARGIN_SECONDS * 1000:
            raise RebuildDisturbed(
                f"target {target}: the gate opens in {left / 1000:.1f} s but wanted {MARGIN_SECONDS:.0f} s for the swap. Writers wait no "
                f"longer than {GATE_SECONDS:.0f} s. The target is untouched; rebuild smaller windows."
            )
        self._check_leases()
        scratch = next(scratch for feed, scratch in self.run.feeds.values() if feed.target.name == target)
        self._changed += self.bench.swap(self.run.targets[target], self.run.window, [scratch])
        if self._server_ms() >= self._until_ms:
            raise RebuildDisturbed(
                f"target {target}: the swap ended after the gate had opened but wanted it before. Rows that arrived in between may be "
                "missing from the window. Run it again at once."
            )

    def _open(self, root: QName) -> None:
        open_gate(self.bench.executor, root, gate_name(self.run.rebuild_id), self.journal.cluster)
        self.run.gate_seconds = self.bench.clock() - self._shut_at

    def _server_ms(self) -> int:
        return int(self.bench.executor.server.rows("SELECT toUnixTimestamp64Milli(now64(3))")[0][0])
