"""A cutover: targets computed with the declared queries, then swapped in behind one gate together with the views that write them.

Invariant: when the gate opens, all targets and views of the cutover are the new ones, or all are the old ones. Whoever dies behind the gate leaves a
deployment that is not done; the gate opens by itself, and the cutover is simply done again from the sources (`applier`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.cluster import STORAGE_PREFIX
from chmv_assets.core.deploy.changes import Cutover, Switch
from chmv_assets.core.deploy.cutover_plan import plan_cutover
from chmv_assets.core.deploy.forgotten import find_irrecoverable
from chmv_assets.core.deploy.texts import create_if_missing, find_standing, with_name
from chmv_assets.core.errors import ChmvError, CutoverHalfDone, DeployRefused, RebuildDisturbed
from chmv_assets.core.gate import GATE_SECONDS, MARGIN_SECONDS
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE, Feed
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, write_rebuild
from chmv_assets.core.rebuild_plan import Layer, Step, StepKind
from chmv_assets.core.render_create import statement_of
from chmv_assets.core.whole import Part
from chmv_assets.process_identity import new_rebuild_id
from resources.clickhouse import Server
from resources.deploy.forgotten import Memory
from resources.deploy.hooks import attach_detached, clear_hook, require_hook
from resources.deploy.kept import KeptCopies, uuid_of
from resources.deploy.verify import verify_scratch
from resources.journal import Journal
from resources.rebuild.gated_run import GatedRun, OnStep, Prepared
from resources.rebuild.guards import unguard
from resources.rebuild.leases import hold_target
from resources.rebuild.parts import fetch_source_parts, wait_for_merges
from resources.rebuild.recovery import recover_targets
from resources.rebuild.shares import forget_shares
from resources.rebuild.whole import ColdShares
from resources.rebuild.workbench import Workbench

MAX_TRIES = 3
CUTOVER = "deploy"  # in place of a window in the journal of rebuilds


def layers_of(catalog: Catalog, cutover: Cutover, deploy_id: str) -> list[Layer]:
    """The targets with their views and scratches, in the order of their computation."""
    return [
        (name, [one for one in catalog.views_into(name) if one.kind == "materialized_view"], _scratch_name(cutover, deploy_id, at))
        for at, name in enumerate(cutover.targets)
    ]  # fmt: skip


def _scratch_name(cutover: Cutover, deploy_id: str, at: int) -> QName:
    """A table that is to take the target's place is on every replica, as the target is (`core.cluster.is_local`)."""
    prefix = STORAGE_PREFIX if cutover.targets[at] in cutover.storage else "scratch."
    return QName(SCRATCH_DATABASE, f"{prefix}{deploy_id}.{at}")


def explain_cutover(catalog: Catalog, cutover: Cutover) -> tuple[Step, ...]:
    """The steps that `cut_over` takes."""
    switches = [one.view for one in cutover.switches]
    return plan_cutover(catalog, layers_of(catalog, cutover, "plan"), cutover.roots, switches)


def cut_over(bench: Workbench, journal: Journal, cutover: Cutover, deploy_id: str, on_step: OnStep) -> float:
    """Do it, three times at most if inserts disturb it; gives the seconds for which writers waited."""
    hot: set[tuple[QName, str]] = set()
    not_restored: dict[str, str] = {}
    subjects = sorted({*cutover.targets, *(one.view for one in cutover.switches)})
    with ExitStack() as stack:
        leases = [stack.enter_context(hold_target(bench, journal, name)) for name in subjects]
        recover_targets(bench.executor, journal, set(subjects))
        for attempt in range(1, MAX_TRIES + 1):
            rebuild_id = new_rebuild_id()
            kept = KeptCopies(bench, deploy_id, cutover.targets, cutover.storage)
            kept.tidy()
            standing = _as_it_stands(bench.executor.server, cutover) if kept.are_there() else cutover
            run = _prepare(bench, cutover, rebuild_id)
            memory = _remember(bench, cutover)
            carrier = CutoverRun(
                bench, journal, leases, run, on_step, ColdShares(bench, hot), cutover=standing, deploy_id=deploy_id, subject=subjects[0],
                kept=kept, memory=memory,
            )  # fmt: skip
            carrier.cold.check = carrier.check_leases
            try:
                carrier.carry_out()
            except ChmvError as error:
                not_restored |= {str(name): why for name, why in carrier.not_restored.items()}
                if isinstance(error, RebuildDisturbed) and attempt < MAX_TRIES:
                    bench.executor.log(f"{cutover.title}: disturbed, once more. {error}")
                    continue
                if not_restored:
                    raise CutoverHalfDone(cutover.title, not_restored, error) from error
                raise
            finally:
                bench.shaped_like.clear()
            kept.tidy()
            for target in run.targets.values():
                forget_shares(bench, journal, target, None)
            return run.gate_seconds
    raise AssertionError("unreachable: the last try returns or raises")


def _as_it_stands(server: Server, cutover: Cutover) -> Cutover:
    """What a try comes back to that follows one which has published: the new views that it has made, with the targets that they have written since.

    One that it has dropped, and not made again, is made anew: its target is the new one already.
    """
    rows = server.rows(
        "SELECT database, name, create_table_query FROM system.tables WHERE (database, name) IN {names:Array(Tuple(String, String))}",
        {"names": [(one.view.database, one.view.table) for one in cutover.switches]},
    )
    texts = {QName(str(database), str(name)): str(text) for database, name, text in rows}
    return replace(cutover, switches=tuple(find_standing(one, texts.get(one.view, "")) for one in cutover.switches))


def _prepare(bench: Workbench, cutover: Cutover, rebuild_id: str) -> Prepared:
    layers = layers_of(bench.catalog, cutover, rebuild_id)
    bench.begin()
    feeds: dict[QName, tuple[Feed, QName]] = {}
    for _, views, scratch in layers:
        feeds |= {view.name: (bench.feed(view, None, partly=True)[0], scratch) for view in views}
    bench.shaped_like.update({name: scratch for name, _, scratch in layers if name in cutover.storage})
    return Prepared(
        rebuild_id=rebuild_id, protocol="whole", targets={name: bench.catalog.objects[name] for name, _, _ in layers}, window=None,
        feeds=feeds, steps=plan_cutover(bench.catalog, layers, cutover.roots, [one.view for one in cutover.switches]), states=(),
    )  # fmt: skip


def _remember(bench: Workbench, cutover: Cutover) -> Memory:
    """Refuse to lose what only the targets hold; the plan has said so, unless the sources have forgotten more since."""
    memory = Memory.of(bench, cutover.targets)
    if why := find_irrecoverable(memory.forgotten(cutover.targets, bench.now()), cutover):
        raise DeployRefused(f"{cutover.title}: {why}. Nothing was changed.")
    return memory


@dataclass
class CutoverRun(GatedRun):
    """The steps of a cutover; what it has published and switched it takes back if a later step fails."""

    cutover: Cutover = field(kw_only=True)
    deploy_id: str = field(kw_only=True)
    subject: QName = field(kw_only=True)
    kept: KeptCopies = field(kw_only=True)
    memory: Memory = field(kw_only=True)
    not_restored: dict[QName, str] = field(default_factory=dict)  # what the way back could not put right, and why
    _frozen: dict[QName, list[Part]] = field(default_factory=dict)  # source → parts that are computed before the gate
    _swapped: list[tuple[Object, str]] = field(default_factory=list)  # begun; with the identity of the table before
    _switched: list[Switch] = field(default_factory=list)
    _build_seconds: dict[QName, float] = field(default_factory=dict)  # target → what its views took behind the gate

    def work(self) -> dict[StepKind, Callable[[QName], None]]:
        return {**super().work(), "verify": self._verify, "switch": self._switch}

    def note(self, status: RebuildStatus, step: int) -> None:
        self._version = self.journal.versions.next(above=self._version)
        record = RebuildRecord(
            rebuild_id=self.run.rebuild_id, target=self.subject, window=CUTOVER, protocol=self.run.protocol, status=status,
            steps=self.run.steps, step=step, owner=self.journal.owner, version=self._version, detail=f"deployment {self.deploy_id}",
        )  # fmt: skip
        self.journal.run(write_rebuild(record, self.journal.cluster))

    # --- before the gate -------------------------------------------------------------------------------------------

    def _create_scratch(self, name: QName) -> None:
        target = self._target_of(name)
        if target.name in self.cutover.storage:
            self._require_exchangeable(target)
            sql = with_name(statement_of(target, self.bench.catalog.default_database), name)
            self.bench.executor.run_ddl(f"create {name}", sql, target.name.database)
            self._new.add(name)
        else:
            self.bench.executor.create_like(name, target.name)

    def _require_exchangeable(self, target: Object) -> None:
        """A table of a database that hands DDL on by itself cannot change places with one of another database."""
        executor = self.bench.executor
        if executor.cluster and target.name.database in executor.topology.self_spreading:
            raise DeployRefused(
                f"target {target.name}: is in a database of engine Replicated but wanted one of engine Atomic. The server exchanges no tables between it "
                "and ours, so the new table could not take the old one's place. Nothing was changed. Make the new table under another name, and its views."
            )

    def _target_of(self, scratch: QName) -> Object:
        feed = next(feed for feed, into in self.run.feeds.values() if into == scratch)
        return feed.target

    def _scratch_of(self, target: QName) -> QName:
        return next(into for feed, into in self.run.feeds.values() if feed.target.name == target)

    def _prebuild(self, view: QName) -> None:
        """As ever, but from the same parts for all views of a source: what they gave together is compared with one query."""
        feed, scratch = self.run.feeds[view]
        source = feed.source.name
        if source not in self._frozen:
            wait_for_merges(self.bench, source)
            self._frozen[source] = fetch_source_parts(self.bench, feed)
        parts = self._frozen[source]
        done = self.cold.computed(feed, parts)
        self._fill(feed, scratch, [part for part in parts if part.name not in done])
        self._built[view] = {part.name for part in parts}

    def _verify(self, target: QName) -> None:
        """Before the gate over the parts that were computed; behind it, where nothing arrives, over all there is, if writers need not wait long for it."""
        feeds = [feed for feed, _ in self.run.feeds.values() if feed.target.name == target]
        parts: dict[QName, set[str]] = {}
        seconds: float | None = None
        if self._shut_at:
            seconds = (self._shut_at + GATE_SECONDS - MARGIN_SECONDS - self.bench.clock()) / 2  # the rest is for others
            if 2 * self._build_seconds.get(target, 0.0) > seconds:
                self.bench.executor.log(
                    f"{target}: not compared before the swap, since writers would wait for {seconds:.0f} s more"
                )
                return
        else:
            for feed in feeds:
                parts.setdefault(feed.reads, set()).update(self._built[feed.view.name])
        named = {name: sorted(some) for name, some in parts.items()}
        scratch = self._scratch_of(target)
        found = verify_scratch(self.bench, self.run.targets[target], scratch, feeds, named, seconds)
        self.bench.executor.log(f"{target}: {found}")

    def _build(self, view: QName) -> None:
        started = self.bench.clock()
        super()._build(view)
        target = self.run.feeds[view][0].target.name
        self._build_seconds[target] = self._build_seconds.get(target, 0.0) + self.bench.clock() - started

    def _check_size(self) -> None:
        """Tables are exchanged, or their partitions linked: what takes long is looked at by `_check_time`."""

    # --- behind it -------------------------------------------------------------------------------------------------

    def _publish(self, target: QName) -> None:
        self._check_time(target)
        self.check_leases()
        made = self.run.targets[target]
        if target in self.cutover.storage:
            unguard(self.bench, target)
            self._exchange(made)
        else:
            self.kept.link(made, lambda: self._check_time(target))
            stays = self._stays(target)
            self._swapped.append((made, ""))
            scratches, check_time = [self._scratch_of(target)], partial(self._check_time, target, begun=True)
            self.bench.swap(made, None, scratches, check_time, stays)
        self._published.append(target)

    def _stays(self, target: QName) -> tuple[str, ...]:
        """Partitions that its sources have forgotten by now, behind the gate."""
        lost = self.memory.forgotten([target], self.bench.now()).get(target)
        if lost is None:
            return ()
        self.bench.executor.log(
            f"{target}: {len(lost.partitions)} partition(s) with {lost.rows} rows stay as they are, since {lost.why}"
        )
        return lost.partitions

    def _exchange(self, made: Object) -> None:
        """The new table takes the name in one statement; the old one is kept aside."""
        target, executor = made.name, self.bench.executor
        scratch, before = self._scratch_of(target), uuid_of(executor.server, target)
        self._swapped.append((made, before))
        if before:
            self.kept.exchange(target, scratch, before)
        else:
            executor.run_ddl(f"publish {target}", f"RENAME TABLE {scratch.sql} TO {target.sql}")
        executor.start_merges(target)  # stopped while it was filled, under whatever name: it would never merge again

    def _switch(self, view: QName) -> None:
        switch = next(one for one in self.cutover.switches if one.view == view)
        self._check_time(view, begun=True)
        self._switched.append(switch)
        executor = self.bench.executor
        attach_detached(executor, view)
        cleared = clear_hook(executor, view)
        self._check_time(view, begun=True)
        executor.run_ddl(f"drop {view}", f"DROP TABLE IF EXISTS {view.sql} SYNC")
        if switch.after:
            executor.run_ddl(f"create {view}", create_if_missing(switch.after), switch.session)
            if not cleared and clear_hook(executor, view):  # the server may remember one that somebody has dropped
                executor.run_ddl(f"drop {view}", f"DROP TABLE IF EXISTS {view.sql} SYNC")
                executor.run_ddl(f"create {view}", create_if_missing(switch.after), switch.session)
            require_hook(self.bench, view)
        if self._server_ms() >= self._until_ms:
            raise RebuildDisturbed(
                f"view {view}: was exchanged after the gate had opened but wanted it before. Rows that arrived in between may be missing. Run it again at once."
            )

    # --- the way back ----------------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """The old views and the old rows again, while the gate is still shut; each by itself, so that one that fails holds back no other."""
        executor = self.bench.executor

        def drop(view: QName) -> None:
            executor.run_ddl(f"drop {view}", f"DROP TABLE IF EXISTS {view.sql} SYNC")

        def create(switch: Switch) -> None:
            executor.run_ddl(f"restore {switch.view}", create_if_missing(switch.before), switch.session)

        for switch in reversed(self._switched):
            self._restore(switch.view, partial(drop, switch.view))
        for target, before in reversed(self._swapped):
            self._restore(target.name, partial(self.kept.restore, target, before))
        for switch in self._switched:
            if switch.before and switch.view not in self.not_restored:
                self._restore(switch.view, partial(create, switch))
        self.kept.try_to_tidy()

    def _restore(self, name: QName, action: Callable[[], None]) -> None:
        try:
            action()
        except ChmvError as error:
            self.not_restored[name] = str(error)
            self.bench.executor.log(f"{self.cutover.title}: {name} could not be taken back: {error}")
