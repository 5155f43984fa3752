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
