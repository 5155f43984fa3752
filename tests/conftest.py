"""Fixtures for everything that needs the real server. A missing engine fails a test; it never skips one."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

# What takes minutes in one piece comes first: begun last, it would leave the other workers idle (`--no-loadscope-reorder`).
_LONG = ("tests/spark/chaos/", "tests/e2e/test_recovery", "tests/e2e/test_soak", "tests/stateful/", "tests/torture/", "tests/spark/", "tests/browser/", "tests/e2e/", "tests/integration/rebuild/")  # fmt: skip


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


def _fast_folder() -> Path:
    """Memory-backed where there is one: thousands of small files are created and dropped."""
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 2**31 else None
    return Path(tempfile.mkdtemp(prefix="chmv-test-", dir=base))


@pytest.fixture(scope="session")
def engine() -> Iterator[EngineInfo]:
    """One server for the whole run, on a folder of its own."""
    folder = _fast_folder()
    info = start_engine(EngineOptions(data_dir=folder))
    try:
        yield info
    finally:
        stop_engine(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def clickhouse(engine: EngineInfo) -> Iterator[Client]:
    """The bare driver, for tests that check us from outside."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=engine.http_port, autogenerate_session_id=False)
    yield client
    client.close()


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
