"""Deployments in the journal: which plan, how far it has come, who carries it out. Pure records and SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings

DEPLOYS = OwnTable(
    name=QName(OWN_DATABASE, "deploys"),
    key=("deploy_id",),
    columns={
        "deploy_id": "String", "plan_id": "String", "status": "LowCardinality(String)", "step": "Int32", "detail": "String",
        "plan": "String", "owner": "String",
    },
)  # fmt: skip
DEPLOY_LOCK = "deploy"
KEPT_PREFIX = "kept."
DeployStatus = Literal["running", "done", "failed", "rolled_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRecord:
    """One deployment; `step` units of its plan are done."""

    deploy_id: str
    plan_id: str
    status: DeployStatus
    step: int
    plan: str  # as `codec` writes it
    version: int
    detail: str = ""
    owner: str = ""
    updated_at: datetime | None = field(default=None, compare=False)


def kept_name(deploy_id: str, table: QName) -> QName:
    """Where a table is kept that a deployment has replaced."""
    return QName(OWN_DATABASE, f"{KEPT_PREFIX}{deploy_id}.{table.database}.{table.table}")


def write_deploy(record: DeployRecord, cluster: str = "") -> Statement:
    values = (
        record.deploy_id, record.plan_id, record.status, record.step, record.detail, record.plan, record.owner, record.version,
    )  # fmt: skip
    return DEPLOYS.render_insert(values, cluster)


def read_deploys(cluster: str = "", limit: int | None = None, *, deploy: str = "") -> Statement:
    """Deployments, the newest first; of one, if its id or the start of it is given."""
    sql = (
        f"SELECT {DEPLOYS.selected}, updated_at FROM {DEPLOYS.sql} FINAL "
        "WHERE startsWith(deploy_id, {deploy:String}) OR startsWith(plan_id, {deploy:String}) ORDER BY version DESC"
        + (f" LIMIT {int(limit)}" if limit is not None else "")
    )
    return Statement(sql=sql, parameters={"deploy": deploy}, settings=read_settings(cluster))


def decode_deploy(row: Sequence[Any]) -> DeployRecord:
    deploy_id, plan_id, status, step, detail, plan, owner, version, updated_at = row
    return DeployRecord(
        deploy_id=str(deploy_id), plan_id=str(plan_id), status=status, step=int(step), detail=str(detail), plan=str(plan),
        owner=str(owner), version=int(version), updated_at=updated_at,
    )  # fmt: skip
