"""A cluster as the server that we speak to knows it; one that chmv cannot work on is refused before anything is written there."""

from __future__ import annotations

from chmv_assets.core.cluster import Topology, decode_topology, find_unfit, read_topology
from chmv_assets.core.errors import ClusterRefused
from resources.clickhouse import Server


def fetch_topology(server: Server, cluster: str) -> Topology:
    """What a cluster is made of, with one query."""
    asked = read_topology(cluster)
    found = decode_topology(cluster, server.rows(asked.sql, asked.parameters)[0])
    if why := find_unfit(found):
        raise ClusterRefused(why)
    return found
