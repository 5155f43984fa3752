"""Servers for tests that need one of their own: their folder, their configuration, their end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

_ROOM = 2**31  # bytes that have to be free in memory


def fast_folder(name: str = "test") -> Path:
    """Memory-backed where there is one: thousands of small files are created and dropped."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > _ROOM
    return Path(tempfile.mkdtemp(prefix=f"chmv-{name}-", dir=shared if has_room else None))


@contextmanager
def own_engine(config: Mapping[str, str] | None = None, tcp_port: int = 0, name: str = "test") -> Iterator[EngineInfo]:
    """A server for the length of a block; `config`: files below its config folder."""
    folder = fast_folder(name)
    for path, text in (config or {}).items():
        (folder / "config" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "config" / path).write_text(text)
    try:
        yield start_engine(EngineOptions(data_dir=folder, tcp_port=tcp_port))
    finally:
        stop_engine(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def bare_client(info: EngineInfo) -> Iterator[Client]:
    """The driver itself, for tests that check us from outside."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=info.http_port, autogenerate_session_id=False)
    try:
        yield client
    finally:
        client.close()
