"""Two servers that know each other: `all` are two shards, `main` is the first of them alone, `other` the second."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_servers import Pair, config_of, free_ports

from resources.clickhouse import Endpoint, Server
from resources.engine import EngineOptions, start_engine, stop_engine


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    shared = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="chmv-pair-", dir=shared if shared.is_dir() else None))
    ports = free_ports(2)
    folders = [base / f"server{number}" for number in (1, 2)]
    try:
        infos = []
        for folder, port in zip(folders, ports, strict=True):
            extra = folder / "config" / "config.d" / "clusters.xml"
            extra.parent.mkdir(parents=True)
            extra.write_text(config_of(*ports))
            infos.append(start_engine(EngineOptions(data_dir=folder, tcp_port=port)))
        with Server(Endpoint(infos[0].url)) as first, Server(Endpoint(infos[1].url)) as second:
            yield Pair(first, second, ports)
    finally:
        stops = [threading.Thread(target=stop_engine, args=(folder,)) for folder in folders]
        for one in stops:
            one.start()
        for one in stops:
            one.join()
        shutil.rmtree(base, ignore_errors=True)
