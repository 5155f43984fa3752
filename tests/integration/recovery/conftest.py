"""Sites that several files of this folder break and repair."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from backlog_site import BacklogSite, build_site
from view_scene import Scene, open_scene

from resources.clickhouse import Server
from resources.engine import EngineInfo


@pytest.fixture
def scene(
    engine: EngineInfo, server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    with open_scene(engine, server, database, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator[BacklogSite]:
    name = f"site_{secrets.token_hex(4)}"
    server.command(f"CREATE DATABASE {name}")
    yield build_site(server, name, tmp_path)
    server.command(f"DROP DATABASE {name} SYNC")
