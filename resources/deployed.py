"""What was deployed last, for those who only read: a folder that says something else waits for `chmv apply`, and is no damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chmv_assets.core.deploy.deploy_journal import DEPLOYS, PLANS, decode_digests
from chmv_assets.core.names import QName
from resources.clickhouse import Server

_LOOKED_AT = 20  # of the newest deployments: folders of several teams may share a server


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A folder against its last deployment."""

    pending: frozenset[QName] = (
        frozenset()
    )  # what it declares otherwise than it was or is being deployed, or what was not deployed at all
    deployed_ms: int = 0  # when everything else was on the server as declared; 0 if chmv never deployed it


def fetch_deployed(server: Server, declared: Mapping[QName, str]) -> Deployed:
    """How the last deployment of the folder that declares these objects, with their digests, left the server.

    One that goes on, or has failed half way, counts too: whoever still has the folder of before would put back what it has already changed.
    """
    rows = server.rows_if_there(
        "SELECT plans.digests, one.ms, one.status = 'done' FROM (SELECT deploy_id, version, status, toUnixTimestamp64Milli(toDateTime64(updated_at, 3)) AS ms "
        f"FROM {DEPLOYS.sql} FINAL WHERE status IN ('done', 'running', 'failed') ORDER BY version DESC LIMIT {_LOOKED_AT}) AS one "
        f"INNER JOIN (SELECT deploy_id, digests FROM {PLANS.sql} FINAL) AS plans USING deploy_id ORDER BY one.version DESC"
    )
    pending: set[QName] = set()
    for text, ended_ms, is_done in rows:
        found = decode_digests(str(text))
        if not found.keys().isdisjoint(declared):
            pending |= {name for name, digest in declared.items() if found.get(name) != digest}
            if is_done:
                return Deployed(pending=frozenset(pending), deployed_ms=int(ended_ms))
    return Deployed(pending=frozenset(pending))
