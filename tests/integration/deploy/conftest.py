"""A stage per test, on the session's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_stage import Stage

from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo


@pytest.fixture
def stage(engine: EngineInfo, server: Server, tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "ddl"
    folder.mkdir()
    made = Stage(Endpoint(engine.url), server, folder)
    made.prepare()
    yield made
    made.drop()
