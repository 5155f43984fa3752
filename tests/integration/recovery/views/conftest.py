"""One pipeline per file, right before each damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from view_site import ViewSite, make_site

from resources.clickhouse import Server
from resources.engine import EngineInfo


@pytest.fixture(scope="module")
def site(
    engine: EngineInfo, server: Server, database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ViewSite]:
    made = make_site(server, database, Path(tmp_path_factory.mktemp("ddl")))
    yield made
    server.command("TRUNCATE TABLE chmv.outages")


@pytest.fixture(autouse=True)
def seen_right(site: ViewSite) -> None:
    """The sensor has seen everything right before each damage; inserts that broke off with a dropped target may be left to repair."""
    for ask in site.tick().asks:
        assert ask.damage == "throws"
        site.repair(ask)
    assert site.tick().asks == ()
