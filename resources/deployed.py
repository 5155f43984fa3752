"""What was deployed last, for those who only read: a folder that says something else waits for `chmv apply`, and is no damage."""

from __future__ import annotations

from collections.abc import Mapping

from chmv_assets.core.deploy.deploy_journal import DEPLOYS, PLANS, decode_digests
from chmv_assets.core.names import QName
from resources.clickhouse import Server

_LOOKED_AT = 20  # of the newest deployments: folders of several teams may share a server


def fetch_deployed(server: Server, declared: Mapping[QName, str]) -> dict[QName, str]:
    """Objects and digests of the last deployment of the folder that declares these; none if it was never deployed by chmv."""
    rows = server.rows_if_there(
        f"SELECT plans.digests FROM (SELECT deploy_id, version FROM {DEPLOYS.sql} FINAL WHERE status = 'done' ORDER BY version DESC LIMIT {_LOOKED_AT}) AS done "
        f"INNER JOIN (SELECT deploy_id, digests FROM {PLANS.sql} FINAL) AS plans USING deploy_id ORDER BY done.version DESC"
    )
    for (text,) in rows:
        found = decode_digests(str(text))
        if not found.keys().isdisjoint(declared):
            return found
    return {}


def fetch_pending(server: Server, declared: Mapping[QName, str]) -> frozenset[QName]:
    """Objects that the folder declares otherwise than they were deployed, or that were not deployed at all."""
    deployed = fetch_deployed(server, declared)
    if not deployed:
        return frozenset()
    return frozenset(name for name, digest in declared.items() if deployed.get(name) != digest)
