"""Applying a plan: exactly its units, one after another, each in the journal when it is done; and going on where somebody stopped.

Every unit may be done twice. Who finds a deployment that is not finished resumes it or rolls it back first; nobody begins another one meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Plan, Risk
from chmv_assets.core.deploy.codec import decode_plan
from chmv_assets.core.deploy.deploy_journal import DEPLOY_LOCK, DeployRecord, kept_name
from chmv_assets.core.errors import ChmvError, DeployRefused, ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from resources.deploy.compat import check_views, drop_trials
from resources.deploy.cutover import CUTOVER, cut_over
from resources.deploy.readers import refresh_copies, require_primary
from resources.deploy.store import DeployStore
from resources.executor import Executor
from resources.introspect import fetch_existing
from resources.journal import Journal
from resources.journal.lease import Lease, keep_lease
from resources.rebuild import Rebuilder
from resources.rebuild.recovery import recover_rebuilds

_THERE_ALREADY = (57, 82)  # table, database


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing to do; `at` counts from 0."""

    kind: Literal["statement", "cutover", "keep"]
    title: str
    sql: str = ""
    session: str = ""
    cutover: Cutover | None = None
    table: QName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is told while it goes on."""

    done: int
    of: int
    title: str
    step: str = ""  # within a cutover


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A deployment that is done."""

    deploy_id: str
    plan_id: str
    units: int
    gate_seconds: float
    seconds: float
    kept: tuple[QName, ...]


def units_of(plan: Plan) -> tuple[Unit, ...]:
    """What a plan does, in order: what writers do not notice, the cutovers, what may go afterwards."""
    early = [_statement(change, sql) for change in plan.changes for sql in change.early]
    cutovers = [Unit("cutover", f"cut over {one.title}", cutover=one) for one in plan.cutovers]
    late = [_statement(change, sql) for change in reversed(plan.changes) for sql in change.late]
    kept = [
        Unit("keep", f"keep {change.name} aside", table=change.name)
        for change in reversed(plan.changes)
        if change.action == "drop" and not change.late
    ]
    return (*early, *cutovers, *late, *kept)


def _statement(change: Change, sql: str) -> Unit:
    shown = " ".join(sql.split())
    return Unit("statement", shown if len(shown) < 120 else f"{shown[:117]}…", sql=sql, session=change.session)


@dataclass
class Applier:
    """Carries plans out on one server."""

    executor: Executor
    journal: Journal
    build_catalog: Callable[[Plan], Catalog]  # of what a plan declares
    fetch_live: Callable[[Plan], str]  # the fingerprint of what a plan is about, now
    on_progress: Callable[[Progress], None] = lambda _progress: None
    lease_seconds: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    _gate_seconds: float = field(default=0.0, init=False)

    @property
    def store(self) -> DeployStore:
        return DeployStore(self.journal)

    def apply(self, plan: Plan, allowed: Collection[Risk] = ()) -> Applied:
        """A plan from its beginning; refused if the server moved since, or if something in it was not permitted."""
        with self._alone():
            self._clear_away()
            unfinished = self.store.unfinished(plan.scope)
            if unfinished is not None and unfinished.deploy_id != plan.rolls_back:
                raise DeployRefused(
                    f"deployment {unfinished.deploy_id}: found it unfinished after step {unfinished.step} but wanted no other one before this. "
                    "Go on with it (`chmv apply --resume`) or take it back (`chmv rollback`)."
                )
            require_permitted(plan, allowed)
            self._require_unmoved(plan)
            catalog = self.build_catalog(plan)
            require_primary(self.journal, plan)
            check_views(self.executor, catalog, plan, self.executor.log)
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
            plan = decode_plan(record.plan)
            applied = self._carry_out(record, plan, self.build_catalog(plan))
            if plan.rolls_back:
                self._close(plan.rolls_back)
            return applied

    def _close(self, deploy: str) -> None:
        """A deployment that was taken back is over."""
        record = self.store.find(deploy)
        self.store.note(record, "rolled_back", record.step, "taken back")

    def _alone(self) -> AbstractContextManager[Lease]:
        return keep_lease(
            self.journal, DEPLOY_LOCK, lease_seconds=self.lease_seconds, wait_seconds=1.5 * self.lease_seconds
        )

    def _clear_away(self) -> None:
        """What died has left: gates, held merges, scratches, trials. Nobody else deploys while we hold the lock.

        Its leases on targets may end a moment after its lease on deploying.
        """
        deadline = self.executor.clock() + 1.5 * self.lease_seconds
        recover_rebuilds(self.executor, self.journal)
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
        started = self.executor.clock()
        units = units_of(plan)
        self._gate_seconds = 0.0
        for at, unit in enumerate(units):
            if at < record.step:
                continue
            self.on_progress(Progress(done=at, of=len(units), title=unit.title))
            try:
                self._do(unit, record.deploy_id, catalog, plan, at, len(units))
            except ChmvError as error:
                self.store.note(record, "failed", at, str(error))
                raise
            record = self.store.note(record, "running", at + 1)
        record = self.store.note(record, "done", len(units))
        self.on_progress(Progress(done=len(units), of=len(units), title="done"))
        kept = [name for name, deploy, _, _ in self.store.kept() if deploy == record.deploy_id]
        return Applied(
            deploy_id=record.deploy_id, plan_id=plan.plan_id, units=len(units), gate_seconds=self._gate_seconds,
            seconds=self.executor.clock() - started, kept=tuple(kept),
        )  # fmt: skip

    def _do(self, unit: Unit, deploy_id: str, catalog: Catalog, plan: Plan, at: int, of: int) -> None:
        if unit.kind == "statement":
            self._run(unit)
        elif unit.kind == "keep" and unit.table is not None:
            self._keep(unit.table, deploy_id)
        elif unit.cutover is not None:
            bench = self._bench(catalog, plan)

            def on_step(_number: int, step: Step) -> None:
                self.on_progress(Progress(done=at, of=of, title=unit.title, step=str(step)))

            self._gate_seconds += cut_over(bench, self.journal, unit.cutover, deploy_id, on_step)
            refresh_copies(self.executor, self.journal, catalog, unit.cutover)

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
            if error.code not in _THERE_ALREADY:  # done before, by who stopped after it
                raise

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
