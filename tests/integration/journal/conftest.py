"""Fixtures of the journal's tests: a source with deduplication on, and a lock of a name of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from journal_driver import WINDOW, create_pipeline

from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.journal import Journal


@pytest.fixture(scope="module")
def source(server: Server, database: str) -> QName:
    create_pipeline(server, database, WINDOW)
    Journal(server).prepare()
    return QName(database, "source")


@pytest.fixture
def lock(server: Server) -> Iterator[str]:
    Journal(server).prepare()
    yield f"test {secrets.token_hex(4)}"
