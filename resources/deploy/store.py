"""Deployments in the journal, and the tables that they keep aside until their soak time is over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.deploy.changes import Plan
from chmv_assets.core.deploy.codec import decode_plan, encode_plan
from chmv_assets.core.deploy.deploy_journal import (
    ENDED,
    KEPT_PREFIX,
    PLANS,
    DeployRecord,
    DeployStatus,
    decode_deploy,
    decode_names,
    encode_digests,
    encode_names,
    read_deploys,
    read_plans,
    read_soaked,
    write_deploy,
)
from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE, write_settings
from resources.executor import Executor
from resources.journal import Journal

_AT_ONCE = 20


@dataclass
class DeployStore:
    """Reads and writes deployments."""

    journal: Journal

    def read(
        self, limit: int | None = None, deploy: str = "", statuses: Sequence[DeployStatus] = ()
    ) -> list[DeployRecord]:
        """Deployments, the newest first; none if there is no journal yet. Creates nothing."""
        statement = read_deploys(self.journal.cluster, limit, deploy=deploy, statuses=statuses)
        rows = self.journal.server.fetch_if_there(statement)
        return [decode_deploy(row) for row in rows]

    def find(self, deploy: str) -> DeployRecord:
        """The deployment of an id, or of the start of one."""
        found = self.read(1, deploy=deploy) if deploy else []
        if not found:
            raise DeployRefused(
                f"deployment {deploy or '(none)'}: found no such one in the journal but wanted one of its ids. `chmv deploys` lists them."
            )
        return found[0]

    def plans(self, deploys: Collection[str]) -> dict[str, Plan]:
        """The plans of some deployments."""
        return {deploy: decode_plan(text) for deploy, text in self._read_plans("plan", deploys).items()}

    def plan_of(self, record: DeployRecord) -> Plan:
        found = self.plans([record.deploy_id])
        if record.deploy_id not in found:
            raise DeployRefused(
                f"deployment {record.deploy_id}: found no plan of it in {PLANS.name} but wanted what it does. Without it nobody knows how to go on or back. "
                "Run `chmv plan` to see what the server lacks."
            )
        return found[record.deploy_id]

    def _read_plans(self, what: str, deploys: Collection[str]) -> dict[str, str]:
        self.journal.prepare()  # plans may still stand beside their deployments
        statement = read_plans(what, sorted(deploys), self.journal.cluster)
        rows = self.journal.server.fetch(statement) if deploys else []
        return {str(deploy): str(text) for deploy, text in rows}

    def owned_before(self, declared: Collection[QName]) -> tuple[QName, ...]:
        """What the last deployment of this folder declares: what is gone from the folder since is to go from the server.

        Folders of several teams may share a server; a deployment is of this folder if they declare an object in common.
        """
        done = self.read(statuses=("done",))
        return self._first_of("owned", done, declared)[1] if done else ()

    def plan_before(self, record: DeployRecord, owned: Collection[QName]) -> Plan | None:
        """What was deployed of the same folder before a deployment (`owned_before` says which that is); nothing for its first."""
        records = self.read()
        at = next((at for at, one in enumerate(records) if one.deploy_id == record.deploy_id), len(records))
        before, _ = self._first_of("owned", [one for one in records[at + 1 :] if one.status == "done"], owned)
        return self.plan_of(before) if before is not None else None

    def unfinished(self, owned: Collection[QName] | None = None, but: Collection[str] = ()) -> DeployRecord | None:
        """The deployment that somebody began and did not end; with `owned`, of a folder that declares one of these."""
        open_ones = [one for one in self.read(statuses=("running", "failed")) if one.deploy_id not in but]
        if owned is None or not open_ones:
            return open_ones[0] if open_ones else None
        return self._first_of("scope", open_ones, owned)[0]

    def attempts_at(self, deploy: str) -> list[DeployRecord]:
        """The deployments that were begun to take one back and did not end."""
        open_ones = self.read(statuses=("running", "failed")) if deploy else []
        plans = self.plans([one.deploy_id for one in open_ones])
        return [one for one in open_ones if one.deploy_id in plans and plans[one.deploy_id].rolls_back == deploy]

    def taken_back_by(self, record: DeployRecord) -> DeployRecord:
        """What it means to take a deployment back: if it is itself a way back that failed, from a deployment that failed, that one."""
        while record.status not in ENDED and (earlier := self.plan_of(record).rolls_back):
            found = self.find(earlier)
            if found.status in ENDED:  # it stood as it was wanted, and does so again
                break
            record = found
        return record

    def _first_of(
        self, what: str, records: Sequence[DeployRecord], names: Collection[QName]
    ) -> tuple[DeployRecord | None, tuple[QName, ...]]:
        """The first of these deployments whose names have one in common with the given; looked through in lots, the newest first."""
        for first in range(0, len(records), _AT_ONCE):
            lot = records[first : first + _AT_ONCE]
            texts = self._read_plans(what, [one.deploy_id for one in lot])
            for record in lot:
                found = decode_names(texts.get(record.deploy_id, ""))
                if not set(found).isdisjoint(names):
                    return record, found
        return None, ()

    def begin(self, deploy_id: str, plan: Plan) -> DeployRecord:
        self.journal.prepare()
        record = DeployRecord(
            deploy_id=deploy_id, plan_id=plan.plan_id, status="running", step=0, version=0, owner=self.journal.owner
        )
        values = (
            deploy_id, encode_names(plan.owned), encode_names(plan.scope), encode_digests(plan.digests), encode_plan(plan),
            self.journal.versions.next(),
        )  # fmt: skip
        self.journal.server.insert(
            PLANS.name, [*PLANS.columns, "version"], [values], write_settings(self.journal.cluster)
        )
        return self.note(record, "running", 0)

    def note(self, record: DeployRecord, status: DeployStatus, step: int, detail: str = "") -> DeployRecord:
        """Tell the journal how far a deployment is."""
        version = self.journal.versions.next(above=record.version)
        noted = replace(
            record, status=status, step=step, detail=detail, version=version, owner=self.journal.owner, updated_at=None
        )
        self.journal.run(write_deploy(noted, self.journal.cluster))
        return noted

    def kept(self) -> list[tuple[QName, str]]:
        """Tables that deployments keep aside, with the deployment of each."""
        rows = self.journal.server.rows(
            "SELECT name FROM system.tables WHERE database = {d:String} AND startsWith(name, {p:String}) ORDER BY name",
            {"d": OWN_DATABASE, "p": KEPT_PREFIX},
        )
        return [(QName(OWN_DATABASE, str(name)), str(name).split(".", 2)[1]) for (name,) in rows]

    def sweep(self, executor: Executor, soak_seconds: float, just_applied: str = "") -> list[QName]:
        """Drop what was kept for longer than the soak time, which begins when its deployment ends.

        The table itself does not tell: its files are as old as it is, whenever it was put aside. What belongs to a deployment that is unknown, not
        ended or `just_applied` stays.
        """
        rows = self.journal.server.fetch_if_there(read_soaked(soak_seconds, self.journal.cluster))
        soaked = {str(deploy) for (deploy,) in rows} - {just_applied}
        old = [name for name, deploy in self.kept() if deploy in soaked]
        for name in old:
            executor.drop_table(name)
        return old
