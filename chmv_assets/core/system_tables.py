"""Which rows of a system table count: this server's, or those of every replica of a cluster. Pure text.

The one place that decides it, so that no question that is asked of all replicas is by mistake asked of one.
"""

from __future__ import annotations

from chmv_assets.core.names import quote_string


def system_table(name: str, cluster: str = "") -> str:
    """A system table as it stands behind FROM.

    >>> system_table("processes"), system_table("processes", "main")
    ('system.processes', "clusterAllReplicas('main', system.processes)")
    """
    return f"clusterAllReplicas({quote_string(cluster)}, system.{name})" if cluster else f"system.{name}"


def all_replicas_settings(sql: str) -> dict[str, int]:
    """What every question to all replicas needs: one that does not answer fails it. A profile may say otherwise, and rows would be missing in silence.

    >>> all_replicas_settings("SELECT 1 FROM clusterAllReplicas('main', system.one)"), all_replicas_settings("SELECT 1")
    ({'skip_unavailable_shards': 0}, {})
    """
    return {"skip_unavailable_shards": 0} if "clusterAllReplicas(" in sql else {}


def read_clocks(cluster: str = "") -> str:
    """The server's clock (ms), twice; on a cluster that of the slowest replica and of the fastest, where a gate opens first.

    In a query to all replicas now64() is the asker's; only nowInBlock() is each one's own. It knows seconds, so the range is widened to whole ones.
    """
    if not cluster:
        return "SELECT toUnixTimestamp64Milli(now64(3)) AS ms, ms"
    clock = "toUnixTimestamp(nowInBlock())"
    return f"SELECT min({clock}) * 1000, (max({clock}) + 1) * 1000 FROM {system_table('one', cluster)}"
