"""The ClickHouse server that chmv talks to: found, installed, started, stopped.

    ensure_engine()    what every process calls: the configured external server, else the local one, started if need be
    start_engine()     start a local server on a data folder, or return the one that runs there
    find_engine()      the server that runs on a data folder, or None; cheap (one small file, one ping)
    stop_engine()      end it, cleanly if it can
    install_engine()   fetch the embedded server's library into the cache

Invariant: at most one server per data folder, and `engine.json` in that folder describes it. Passwords come from the
environment and never reach a URL, a log, the lock file, a process list or a repr. Talking SQL to the server does not
belong here (see `resources.clickhouse`).
"""

from __future__ import annotations

from resources.engine.install import find_library, install_engine
from resources.engine.lifecycle import (
    StopOutcome,
    connection_env,
    describe_engine,
    ensure_engine,
    find_engine,
    start_engine,
    stop_engine,
)
from resources.engine.model import EngineInfo, EngineOptions, default_data_dir

__all__ = [
    "EngineInfo",
    "EngineOptions",
    "StopOutcome",
    "connection_env",
    "default_data_dir",
    "describe_engine",
    "ensure_engine",
    "find_engine",
    "find_library",
    "install_engine",
    "start_engine",
    "stop_engine",
]
