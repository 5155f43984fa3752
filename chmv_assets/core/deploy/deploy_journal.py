"""Deployments in the journal: which plan, how far it has come, who carries it out. Pure records and SQL text.

Plans stand in a table of their own, once each: they hold the whole folder, and how far one has come is noted many times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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
PLANS = OwnTable(
    name=QName(OWN_DATABASE, "plans"),
    key=("deploy_id",),
    columns=dict.fromkeys(
        ("deploy_id", "owned", "scope", "digests", "plan"), "String"
    ),  # parts of the plan apart, for those who need no more
)
DEPLOY_LOCK = "deploy"
DETAIL_LENGTH = 4000
KEPT_PREFIX = "kept."
DeployStatus = Literal["running", "done", "failed", "rolled_back"]
ENDED: tuple[DeployStatus, ...] = ("done", "rolled_back")
_TOLD = ("deploy_id", "plan_id", "status", "step", "detail", "owner", "version", "updated_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRecord:
    """One deployment; `step` units of its plan are done."""

    deploy_id: str
    plan_id: str
    status: DeployStatus
    step: int
    version: int
    detail: str = ""
    owner: str = ""
    updated_at: datetime | None = field(default=None, compare=False)


def kept_name(deploy_id: str, table: QName) -> QName:
    """Where a table is kept that a deployment has replaced."""
    return QName(OWN_DATABASE, f"{KEPT_PREFIX}{deploy_id}.{table.database}.{table.table}")


def write_deploy(record: DeployRecord, cluster: str = "") -> Statement:
    values = (
        record.deploy_id, record.plan_id, record.status, record.step, record.detail[:DETAIL_LENGTH], "", record.owner, record.version,
    )  # fmt: skip
    return DEPLOYS.render_insert(values, cluster)


def read_deploys(
    cluster: str = "", limit: int | None = None, *, deploy: str = "", statuses: Sequence[DeployStatus] = ()
) -> Statement:
    """Deployments, the newest first; of one, if its id or the start of it is given."""
    sql = (
        f"SELECT {', '.join(_TOLD)} FROM {DEPLOYS.sql} FINAL "
        "WHERE (startsWith(deploy_id, {deploy:String}) OR startsWith(plan_id, {deploy:String})) "
        "AND (empty({statuses:Array(String)}) OR status IN {statuses:Array(String)}) ORDER BY version DESC"
        + (f" LIMIT {int(limit)}" if limit is not None else "")
    )
    return Statement(
        sql=sql, parameters={"deploy": deploy, "statuses": list(statuses)}, settings=read_settings(cluster)
    )


def read_soaked(seconds: float, cluster: str = "") -> Statement:
    """The deployments that ended longer ago than that, by the server's clock."""
    sql = (
        f"SELECT deploy_id FROM {DEPLOYS.sql} FINAL WHERE status IN {{ended:Array(String)}} "
        "AND dateDiff('second', updated_at, now64(6, 'UTC')) > {seconds:Float64}"
    )
    return Statement(sql=sql, parameters={"ended": list(ENDED), "seconds": seconds}, settings=read_settings(cluster))


def read_plans(what: str, deploys: Sequence[str], cluster: str = "") -> Statement:
    """One column of the plans of some deployments, with their ids."""
    sql = f"SELECT deploy_id, {what} FROM {PLANS.sql} FINAL WHERE deploy_id IN {{deploys:Array(String)}}"
    return Statement(sql=sql, parameters={"deploys": list(deploys)}, settings=read_settings(cluster))


def decode_deploy(row: Sequence[Any]) -> DeployRecord:
    deploy_id, plan_id, status, step, detail, owner, version, updated_at = row
    return DeployRecord(
        deploy_id=str(deploy_id), plan_id=str(plan_id), status=status, step=int(step), detail=str(detail),
        owner=str(owner), version=int(version), updated_at=updated_at,
    )  # fmt: skip


def encode_names(names: Iterable[QName]) -> str:
    """Names as they stand in the journal of plans."""
    return json.dumps([[name.database, name.table] for name in names], ensure_ascii=False)


def decode_names(text: str) -> tuple[QName, ...]:
    """The names of `encode_names`.

    >>> decode_names(encode_names([QName("a", "b.c")]))
    (QName(database='a', table='b.c'),)
    """
    return tuple(QName(str(database), str(table)) for database, table in json.loads(text or "[]"))


def encode_digests(digests: Iterable[tuple[QName, str]]) -> str:
    return json.dumps([[name.database, name.table, digest] for name, digest in digests], ensure_ascii=False)


def decode_digests(text: str) -> dict[QName, str]:
    """
    >>> decode_digests(encode_digests([(QName("a", "b"), "1f")]))
    {QName(database='a', table='b'): '1f'}
    """
    return {QName(str(database), str(table)): str(digest) for database, table, digest in json.loads(text or "[]")}


def render_create_plans(cluster: str = "") -> tuple[str, ...]:
    """The table of plans, and into it those that journals of before had beside their deployments."""
    apart = ", ".join(f"JSONExtractRaw(plan, '{part}')" for part in ("owned", "scope", "digests"))
    moved = (
        f"INSERT INTO {PLANS.sql} ({PLANS.selected}) SELECT deploy_id, {apart}, plan, version FROM {DEPLOYS.sql} FINAL "
        f"WHERE plan != '' AND deploy_id NOT IN (SELECT deploy_id FROM {PLANS.sql})"
    )
    return (PLANS.render_create(cluster), moved)
