"""Fixtures for everything that needs the real server. A missing engine fails a test; it never skips one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client
from engines import bare_client, own_engine

from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo

# What takes minutes in one piece comes first: begun last, it would leave the other workers idle (`--no-loadscope-reorder`).
# The demo and the pages come when the soak is over: beside it Dagster and Spark start too slowly for anybody to wait.
_LONG = (
    "tests/spark/chaos/", "tests/e2e/test_recovery", "tests/e2e/test_soak", "tests/stateful/", "tests/torture/", "tests/spark/", "tests/integration/recovery/",
    "tests/integration/rebuild/", "tests/browser/", "tests/e2e/",
)  # fmt: skip


# On demand (CONTRIBUTING.md): clusters of Spark processes.
collect_ignore = [] if os.environ.get("CHMV_THOROUGH") else ["spark/test_standalone_cluster.py", "spark/test_ingest_on_cluster.py"]  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Longest files first, otherwise in order; what is marked `thorough` only on demand."""
    if not os.environ.get("CHMV_THOROUGH"):
        long = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)

    def rank(item: pytest.Item) -> int:
        return next((at for at, prefix in enumerate(_LONG) if item.nodeid.startswith(prefix)), len(_LONG))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def engine() -> Iterator[EngineInfo]:
    """One server for the whole run, on a folder of its own."""
    with own_engine() as info:
        yield info


@pytest.fixture(scope="session")
def clickhouse(engine: EngineInfo) -> Iterator[Client]:
    """The bare driver, for tests that check us from outside."""
    with bare_client(engine) as client:
        yield client


@pytest.fixture(scope="session")
def server(engine: EngineInfo) -> Iterator[Server]:
    """Our own connection."""
    with Server(Endpoint(engine.url)) as connection:
        yield connection


@pytest.fixture(scope="module")
def database(clickhouse: Client) -> Iterator[str]:
    """A database of a random name, dropped at the end of the module."""
    name = f"test_{secrets.token_hex(4)}"
    clickhouse.command(f"CREATE DATABASE {name}")
    yield name
    clickhouse.command(f"DROP DATABASE {name} SYNC")


@pytest.fixture
def configured(engine: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> EngineInfo:
    """The environment points at the test's server, as in a run process."""
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", engine.url)
    monkeypatch.delenv("CHMV_CLICKHOUSE_PASSWORD", raising=False)
    return engine
