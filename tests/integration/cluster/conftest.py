"""Two servers that know each other: `all` are two shards, `main` is the first of them alone, `other` the second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines import own_engine
from two_servers import Pair, config_of

from resources.clickhouse import Endpoint, Server
from resources.engine.ports import free_ports


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    ports = free_ports(2)
    config = {"config.d/clusters.xml": config_of(*ports)}
    with (
        own_engine(config, ports[0], name="pair") as one,
        own_engine(config, ports[1], name="pair") as other,
        Server(Endpoint(one.url)) as first,
        Server(Endpoint(other.url)) as second,
    ):
        yield Pair(first, second, ports)
