"""Applying a plan: exactly its units, wave by wave, each wave in the journal when it is done; and going on where somebody stopped.

The lines of a wave go side by side, each over a connection of its own (`core.deploy.waves`). Every unit may be done twice. Who finds a deployment that is not finished resumes it or rolls it back first; nobody begins another one meanwhile.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Plan, Risk
from chmv_assets.core.deploy.cutover_plan import is_fresh
from chmv_assets.core.deploy.cutovers import find_unfit
from chmv_assets.core.deploy.deploy_journal import DEPLOY_LOCK, DeployRecord, kept_name
from chmv_assets.core.deploy.sealing import require_known_secrets
from chmv_assets.core.deploy.waves import Line, Unit, Wave, build_waves
from chmv_assets.core.errors import ChmvError, CutoverHalfDone, DeployRefused, ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from resources.clickhouse import Server
from resources.deploy.compat import check_views, drop_trials
from resources.deploy.cutover import CUTOVER, cut_over
from resources.deploy.fresh import adopt_fresh
from resources.deploy.hooks import find_unfired
from resources.deploy.readers import narrowed_readers, refresh_copies, require_primary
from resources.deploy.store import DeployStore
from resources.executor import Executor
from resources.introspect import fetch_existing
from resources.journal import Journal
from resources.journal.lease import Lease, keep_lease
from resources.lanes import run_in_lanes
from resources.rebuild import Rebuilder
from resources.rebuild.gated_run import OnStep
from resources.rebuild.recovery import recover_rebuilds

_THERE_ALREADY = (57, 82)  # table, database
_NOT_THERE = 36  # says also much else, hence the words; of all that `core.deploy.alters` makes only REMOVE is refused the second time (26.7)
_GONE_ALREADY = (
    *(f" doesn't have {word}, cannot remove it" for word in ("DEFAULT", "MATERIALIZED", "ALIAS", "CODEC", "TTL")),
    "Table doesn't have any table TTL expression, cannot remove",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is told while it goes on."""

    begun: int  # units; one that begins is the newest of these
    done: int
    of: int
    title: str
    step: str = ""  # within a cutover
    side_by_side: bool = False  # with other units


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A deployment that is done."""

    deploy_id: str
    plan_id: str
    units: int
    gate_seconds: float
    seconds: float
    kept: tuple[QName, ...]


@dataclass
class _Teller:
    """Counts what is done and tells of it, whatever thread does it."""

    of: int
    on_progress: Callable[[Progress], None]
    begun: int = 0
    done: int = 0
    side_by_side: bool = False
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, title: str) -> None:
        with self._one_at_a_time:
            self.begun += 1
            self._tell(title, "")

    def tell(self, title: str, step: str = "") -> None:
        with self._one_at_a_time:
            self._tell(title, step)

    def end(self, units: int = 1) -> None:
        with self._one_at_a_time:
            self.done += units

    def skip(self, units: int) -> None:
        """What was done by who stopped."""
        self.begun += units
        self.end(units)

    def _tell(self, title: str, step: str) -> None:
        self.on_progress(
            Progress(
                begun=self.begun, done=self.done, of=self.of, title=title, step=step, side_by_side=self.side_by_side
            )
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What the lines of a deployment share."""

    deploy_id: str
    plan: Plan
    created: frozenset[QName]  # by the plan
    catalog: Catalog
    told: _Teller


@dataclass
class Applier:
    """Carries plans out on one server."""

    executor: Executor
    journal: Journal
    build_catalog: Callable[[Plan], Catalog]  # of what a plan declares
    fetch_live: Callable[[Plan], str]  # the fingerprint of what a plan is about, now
    on_progress: Callable[[Progress], None] = lambda _progress: None
    reveal: Callable[[Plan], Plan] = lambda plan: plan  # fills in the secrets, which no plan holds
    lease_seconds: float = 30.0
    max_lanes: int = 8
    sleep: Callable[[float], None] = time.sleep

    @property
    def store(self) -> DeployStore:
        return DeployStore(self.journal)

    def apply(self, plan: Plan, allowed: Collection[Risk] = ()) -> Applied:
        """A plan from its beginning; refused if the server moved since, or if something in it was not permitted."""
        with self._alone():
            self._clear_away()
            given_up = self.store.attempts_at(plan.rolls_back)
            ended_by_this = {plan.rolls_back, *(one.deploy_id for one in given_up)}
            if (unfinished := self.store.unfinished(plan.scope, but=ended_by_this)) is not None:
                raise DeployRefused(
                    f"deployment {unfinished.deploy_id}: found it unfinished after step {unfinished.step} but wanted no other one before this. "
                    "Go on with it (`chmv apply --resume`) or take it back (`chmv rollback`)."
                )
            require_permitted(plan, allowed)
            plan = self.reveal(plan)
            require_known_secrets(plan)
            self._require_unmoved(plan)
            catalog = self.build_catalog(plan)
            require_primary(self.journal, plan)
            check_views(self.executor, catalog, plan, self._lanes)
            record = self.store.begin(secrets.token_hex(4), plan)
            applied = self._carry_out(record, plan, catalog)
            if plan.rolls_back:
                self._close(plan.rolls_back)
            return applied

    def resume(self, deploy: str = "") -> Applied:
        """Go on with a deployment where it stopped."""
        with self._alone():
            self._clear_away()
            record = self.store.find(deploy) if deploy else self.store.unfinished()
            if record is None or record.status not in ("running", "failed"):
                raise DeployRefused(
                    "deployment: found none that is unfinished but wanted one to go on with. `chmv deploys` lists them."
                )
            plan = self.reveal(self.store.plan_of(record))
            applied = self._carry_out(record, plan, self.build_catalog(plan))
            if plan.rolls_back:
                self._close(plan.rolls_back)
            return applied

    def _close(self, deploy: str) -> None:
        """A deployment that was taken back is over, and so are the tries to take it back that failed."""
        for record, how in (
            (self.store.find(deploy), "taken back"),
            *((one, "given up") for one in self.store.attempts_at(deploy)),
        ):
            self.store.note(record, "rolled_back", record.step, how)

    def _alone(self) -> AbstractContextManager[Lease]:
        seconds = self.lease_seconds
        return keep_lease(
            self.journal, DEPLOY_LOCK, lease_seconds=seconds, wait_seconds=1.5 * seconds, log=self.executor.log
        )

    def _clear_away(self) -> None:
        """What died has left: gates, held merges, scratches, trials. Nobody else deploys while we hold the lock.

        Its leases on targets may end a moment after its lease on deploying.
        """
        deadline = self.executor.clock() + 1.5 * self.lease_seconds
        recover_rebuilds(self.executor, self.journal)
        if self._cutovers_left():
            self.executor.log(
                "a cutover of the deployment that died still holds its targets: waiting until its leases end"
            )
        while self._cutovers_left() and self.executor.clock() < deadline:
            self.sleep(0.2)
            recover_rebuilds(self.executor, self.journal)
        drop_trials(self.executor)

    def _cutovers_left(self) -> bool:
        return any(one.window == CUTOVER for one in self.journal.read_rebuilds(statuses=("running",)))

    def _require_unmoved(self, plan: Plan) -> None:
        now = self.fetch_live(plan)
        if now != plan.live:
            raise DeployRefused(
                f"plan {plan.plan_id}: the server is at {now} but wanted {plan.live}, as it was when the plan was made. Somebody has changed it since, so "
                "what was reviewed is not what would happen. Plan again."
            )

    def _carry_out(self, record: DeployRecord, plan: Plan, catalog: Catalog) -> Applied:
        with ExitStack() as stack:
            try:
                stack.enter_context(narrowed_readers(self.executor, self.journal, catalog, plan))
            except ChmvError as error:
                self.store.note(record, "failed", record.step, str(error))
                raise
            return self._take_waves(record, plan, catalog)

    def _take_waves(self, record: DeployRecord, plan: Plan, catalog: Catalog) -> Applied:
        started = self.executor.clock()
        waves = build_waves(plan, catalog)
        told = _Teller(sum(len(line) for wave in waves for line in wave), self.on_progress)
        task = _Task(record.deploy_id, plan, plan.created(), catalog, told)
        gate_seconds = 0.0
        for wave in waves:
            if told.done + sum(map(len, wave)) <= record.step:  # done by who stopped
                told.skip(sum(map(len, wave)))
                continue
            begun_at = told.done
            try:
                gate_seconds += self._run_wave(wave, task)
            except ChmvError as error:
                self.store.note(record, "failed", begun_at, str(error))
                raise
            record = self.store.note(record, "running", told.done)
        try:
            gate_seconds += self._see_them_fire(task)
        except ChmvError as error:
            self.store.note(record, "failed", told.of, str(error))
            raise
        record = self.store.note(record, "done", told.of)
        told.tell("done")
        kept = [name for name, deploy in self.store.kept() if deploy == record.deploy_id]
        return Applied(
            deploy_id=record.deploy_id, plan_id=plan.plan_id, units=told.of, gate_seconds=gate_seconds,
            seconds=self.executor.clock() - started, kept=tuple(kept),
        )  # fmt: skip

    def _run_wave(self, wave: Wave, task: _Task) -> float:
        """All lines of a wave, side by side where there are several; gives the seconds for which writers waited. The first failure is raised when all have ended, with what others could not take back."""
        task.told.side_by_side = len(wave) > 1 and self._lanes > 1
        if not task.told.side_by_side:
            return sum(self._do(unit, task) for line in wave for unit in line)

        half_done: list[CutoverHalfDone] = []

        def run_line(server: Server, line: Line) -> float:
            mine = self._on(server)
            try:
                return sum(mine._do(unit, task) for unit in line)
            except CutoverHalfDone as error:
                half_done.append(error)
                raise

        try:
            return sum(run_in_lanes(self.executor.server, self._lanes, wave, run_line))
        except ChmvError as error:
            if others := [str(one) for one in half_done if one is not error]:
                raise ChmvError(" ".join([*others, str(error)])) from error
            raise

    def _on(self, server: Server) -> Applier:
        """The same over another connection."""
        journal = Journal(server, cluster=self.journal.cluster, owner=self.journal.owner)
        return replace(self, executor=replace(self.executor, server=server, real_names={}), journal=journal)

    @cached_property
    def _lanes(self) -> int:
        """How many lines at once: half the merge pool at most, as for all that chmv does side by side."""
        rows = self.executor.server.rows(
            "SELECT value FROM system.metrics WHERE metric = 'BackgroundMergesAndMutationsPoolSize'"
        )
        return max(1, min(self.max_lanes, int(rows[0][0]) // 2)) if rows else 1

    def _do(self, unit: Unit, task: _Task) -> float:
        """One unit; gives the seconds for which writers waited."""
        task.told.begin(unit.title)
        waited = 0.0
        if unit.kind == "statement":
            self._run(unit)
        elif unit.kind == "keep" and unit.table is not None:
            self._keep(unit.table, task.deploy_id)
        elif unit.cutover is not None:
            bench = self._bench(task.catalog, task.plan)

            def on_step(_number: int, step: Step) -> None:
                task.told.tell(unit.title, str(step))

            if is_fresh(task.created, unit.cutover):
                if adopt_fresh(bench, unit.cutover, on_step):
                    task.told.end()
                    return 0.0
                _require_fit(task.catalog, unit.cutover)
            waited = self._cut_over(bench, unit.cutover, task, on_step)
        task.told.end()
        return waited

    def _cut_over(self, bench: Rebuilder, cutover: Cutover, task: _Task, on_step: OnStep) -> float:
        waited = cut_over(bench, self.journal, cutover, task.deploy_id, on_step)
        refresh_copies(self.executor, self.journal, task.catalog, cutover)
        return waited

    def _see_them_fire(self, task: _Task) -> float:
        """Views that were made without a gate, over tables that were new: if the server lists one and does not fire it, they are made again behind one."""
        fresh = [
            one for one in task.plan.cutovers
            if is_fresh(task.created, one) and not find_unfit(task.catalog, task.catalog, one)
        ]  # fmt: skip
        idle = find_unfired(self.executor, task.catalog, {root for one in fresh for root in one.roots})
        waited = 0.0
        for cutover in [one for one in fresh if not idle.isdisjoint(one.roots)]:
            self.executor.log(
                f"{cutover.title}: the server fires fewer views than it lists, so it is done behind a gate"
            )
            waited += self._cut_over(self._bench(task.catalog, task.plan), cutover, task, lambda _number, _step: None)
        return waited

    def _bench(self, catalog: Catalog, plan: Plan) -> Rebuilder:
        """A workbench over what is declared; the plan itself permits to replace all of a target."""
        return Rebuilder(
            self.executor, catalog, plan.timezone, lambda: datetime.now(timezone.utc), may_empty=lambda _target: True,
            lease_seconds=self.lease_seconds,
        )  # fmt: skip

    def _run(self, unit: Unit) -> None:
        try:
            self.executor.run_ddl(
                unit.title, unit.sql, unit.session if not unit.sql.startswith("CREATE DATABASE") else ""
            )
        except ServerError as error:
            if not self._was_done(unit, error):
                raise

    def _was_done(self, unit: Unit, error: ServerError) -> bool:
        """Whether a statement fails only because who stopped after it had done it."""
        if error.code in _THERE_ALREADY:
            return True
        if (
            error.code == _NOT_THERE
            and " REMOVE " in unit.sql
            and any(answer in str(error) for answer in _GONE_ALREADY)
        ):
            return True
        if not error.is_missing or unit.table is None or not unit.sql.startswith("RENAME TABLE "):
            return False
        return unit.table in fetch_existing(self.executor.server, [unit.table])

    def _keep(self, table: QName, deploy_id: str) -> None:
        """A table that goes is only put aside."""
        kept = kept_name(deploy_id, table)
        there = fetch_existing(self.executor.server, [table, kept])
        if table in there and kept not in there:
            self.executor.run_ddl(f"keep {table}", f"RENAME TABLE {table.sql} TO {kept.sql}")


def require_permitted(plan: Plan, allowed: Collection[Risk]) -> None:
    """Refuse what nobody permitted: rewriting and destructive changes need a word, manual ones a person."""
    for risk, flag in (("rewrites data", "--allow-rewrite"), ("destructive", "--allow-destructive")):
        found = [change for change in plan.changes if change.risk == risk]
        if found and risk not in allowed:
            raise DeployRefused(
                f"plan {plan.plan_id}: {_names(found)} {'is' if len(found) == 1 else 'are'} marked `{risk}` but wanted permission for that. "
                f"Nothing was changed. Read the plan, then apply it with `{flag}`."
            )
    manual = [change for change in plan.changes if change.risk == "manual"]
    if manual:
        raise DeployRefused(
            f"plan {plan.plan_id}: {_names(manual)} cannot be changed by chmv but wanted only changes that can. {manual[0].name}: {manual[0].why}. "
            "Nothing was changed. Do that part by hand, or take it out of the folder, and plan again."
        )


def _names(changes: Sequence[Change]) -> str:
    return ", ".join(str(change.name) for change in changes)


def _require_fit(catalog: Catalog, cutover: Cutover) -> None:
    """Refuse where a writer was faster than the views over a new table, and what has passed them cannot be computed."""
    if why := find_unfit(catalog, catalog, cutover):
        raise DeployRefused(
            f"{cutover.title}: rows arrived before its views were there but wanted none until then, since they cannot be computed afterwards: {why}. "
            "Stop the writers, empty the new tables and go on with `chmv apply --resume`."
        )
