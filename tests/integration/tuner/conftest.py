"""The location that the tests of this folder tune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import open_site
from tuner_site import DDL, SETTINGS, TunerSite

from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal


@pytest.fixture(params=["on"])
def site(
    request: pytest.FixtureRequest,
    configured: EngineInfo,
    clickhouse: Client,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TunerSite]:
    settings = SETTINGS.replace("MODE", request.param)
    with open_site(TunerSite, clickhouse, tmp_path, monkeypatch, DDL, settings) as made:
        made.server = server
        Journal(server).prepare()
        yield made
        made.server.command(f"ALTER TABLE chmv.tunings DELETE WHERE startsWith(subject, '{made.database}.')", settings={"mutations_sync": 2})  # fmt: skip
