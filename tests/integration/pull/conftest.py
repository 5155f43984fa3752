"""A server of its own for `chmv pull`, and what is on it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client
from engines import bare_client, own_engine
from pull_folder import DEMO, drop, split

from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineInfo]:
    """A server of its own that knows a cluster, for Distributed tables; nobody else's objects are on it."""
    nobody = "<shard><replica><host>127.0.0.1</host><port>9</port></replica></shard>"
    clusters = f"<clickhouse><remote_servers><solo>{nobody}</solo></remote_servers></clickhouse>"
    with own_engine({"config.d/solo.xml": clusters}, name="pull") as info:
        yield info


@pytest.fixture(scope="module")
def clickhouse(engine: EngineInfo) -> Iterator[Client]:
    with bare_client(engine) as client:
        yield client


@pytest.fixture(scope="module")
def server(engine: EngineInfo) -> Iterator[Server]:
    with Server(Endpoint(engine.url)) as connection:
        yield connection


@pytest.fixture
def name(clickhouse: Client) -> Iterator[str]:
    made = f"pull_{secrets.token_hex(3)}"
    clickhouse.command(f"CREATE DATABASE {made}")
    yield made
    drop(clickhouse, [made])


@pytest.fixture
def shop(name: str, clickhouse: Client) -> str:
    """The demo under another name."""
    for file in sorted(DEMO.glob("*.sql")):
        for statement in split(re.sub(r"\bshop\b", name, file.read_text())):
            clickhouse.command(statement)
    return name
