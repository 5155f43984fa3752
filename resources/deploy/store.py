"""Deployments in the journal, and the tables that they keep aside until their soak time is over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from chmv_assets.core.deploy.changes import Plan
from chmv_assets.core.deploy.codec import decode_plan, encode_plan
from chmv_assets.core.deploy.deploy_journal import (
    KEPT_PREFIX,
    DeployRecord,
    DeployStatus,
    decode_deploy,
    read_deploys,
    write_deploy,
)
from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE
from resources.executor import Executor
from resources.journal import Journal


@dataclass
class DeployStore:
    """Reads and writes deployments."""

    journal: Journal

    def read(self, limit: int | None = None, deploy: str = "") -> list[DeployRecord]:
        """Deployments, the newest first; none if there is no journal yet. Creates nothing."""
        statement = read_deploys(self.journal.cluster, limit, deploy=deploy)
        rows = self.journal.server.rows_if_there(statement.sql, statement.parameters)
        return [decode_deploy(row) for row in rows]

    def find(self, deploy: str) -> DeployRecord:
        """The deployment of an id, or of the start of one."""
        found = self.read(deploy=deploy) if deploy else []
        if not found:
            raise DeployRefused(
                f"deployment {deploy or '(none)'}: found no such one in the journal but wanted one of its ids. `chmv deploys` lists them."
            )
        return found[0]

    def owned_before(self, declared: Collection[QName]) -> tuple[QName, ...]:
        """What the last deployment of this folder declares: what is gone from the folder since is to go from the server.

        Folders of several teams may share a server; a deployment is of this folder if they declare an object in common.
        """
        for record in self.read():
            owned = decode_plan(record.plan).owned if record.status == "done" else ()
            if not set(owned).isdisjoint(declared):
                return owned
        return ()

    def unfinished(self, owned: Collection[QName] | None = None) -> DeployRecord | None:
        """The deployment that somebody began and did not end; with `owned`, of a folder that declares one of these."""
        for record in self.read():
            if record.status not in ("running", "failed"):
                continue
            if owned is None or not set(decode_plan(record.plan).scope).isdisjoint(owned):
                return record
        return None

    def begin(self, deploy_id: str, plan: Plan) -> DeployRecord:
        self.journal.prepare()
        record = DeployRecord(
            deploy_id=deploy_id, plan_id=plan.plan_id, status="running", step=0, plan=encode_plan(plan), version=0,
            owner=self.journal.owner,
        )  # fmt: skip
        return self.note(record, "running", 0)

    def note(self, record: DeployRecord, status: DeployStatus, step: int, detail: str = "") -> DeployRecord:
        """Tell the journal how far a deployment is."""
        version = self.journal.versions.next(above=record.version)
        noted = replace(
            record, status=status, step=step, detail=detail, version=version, owner=self.journal.owner, updated_at=None
        )
        self.journal.run(write_deploy(noted, self.journal.cluster))
        return noted

    def kept(self) -> list[tuple[QName, str, int, int]]:
        """Tables that deployments keep aside: name, deployment, rows, seconds since they were last changed."""
        rows = self.journal.server.rows(
            "SELECT name, ifNull(total_rows, 0), dateDiff('second', metadata_modification_time, now()) FROM system.tables "
            "WHERE database = {d:String} AND startsWith(name, {p:String}) ORDER BY name",
            {"d": OWN_DATABASE, "p": KEPT_PREFIX},
        )
        return [
            (QName(OWN_DATABASE, str(name)), str(name).split(".", 2)[1], int(count), int(age))
            for name, count, age in rows
        ]

    def sweep(self, executor: Executor, soak_seconds: float) -> list[QName]:
        """Drop what was kept for longer than the soak time."""
        old = [name for name, _, _, age in self.kept() if age > soak_seconds]
        for name in old:
            executor.drop_table(name)
        return old
