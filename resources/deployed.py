"""What was deployed last, for those who only read: a folder that says something else waits for `chmv apply`, and is no damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chmv_assets.core.deploy.deploy_journal import DEPLOYS, PLANS, decode_digests
from chmv_assets.core.names import QName
from resources.clickhouse import Server

_LOOKED_AT = 20  # of the newest deployments: folders of several teams may share a server


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A folder against its last deployment."""

    pending: frozenset[QName] = (
        frozenset()
    )  # what it declares otherwise than it was deployed, or what was not deployed at all
    deployed_ms: int = 0  # when everything else was on the server as declared; 0 if chmv never deployed it


def fetch_standing(server: Server, declared: Mapping[QName, str]) -> Standing:
    """How the last deployment of the folder that declares these objects, with their digests, left the server."""
    rows = server.rows_if_there(
        "SELECT plans.digests, done.ms FROM (SELECT deploy_id, version, toUnixTimestamp64Milli(toDateTime64(updated_at, 3)) AS ms "
        f"FROM {DEPLOYS.sql} FINAL WHERE status = 'done' ORDER BY version DESC LIMIT {_LOOKED_AT}) AS done "
        f"INNER JOIN (SELECT deploy_id, digests FROM {PLANS.sql} FINAL) AS plans USING deploy_id ORDER BY done.version DESC"
    )
    for text, ended_ms in rows:
        found = decode_digests(str(text))
        if not found.keys().isdisjoint(declared):
            pending = frozenset(name for name, digest in declared.items() if found.get(name) != digest)
            return Standing(pending=pending, deployed_ms=int(ended_ms))
    return Standing()
