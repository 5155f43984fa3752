"""A ClickHouse of the test's own, which may die at any moment and comes back on the same folder and port."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time

from engines import fast_folder

from chaos.processes import wait_gone
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine
from resources.engine.ports import is_free

_DOWN_SECONDS = 20.0


class MortalServer:
    """Started on creation. `crash` ends it by SIGKILL and starts it again; safe to call from any thread."""

    def __init__(self) -> None:
        self.folder = fast_folder("chaos")
        self.crashes = 0
        self.down_seconds = 0.0  # in sum
        self._lock = threading.Lock()
        http_port, tcp_port = _quiet_ports()
        self._options = EngineOptions(data_dir=self.folder, http_port=http_port, tcp_port=tcp_port)
        self._info: EngineInfo = start_engine(self._options)

    @property
    def http_port(self) -> int:
        return self._info.http_port

    @property
    def url(self) -> str:
        return self._info.url

    def crash(self) -> None:
        with self._lock:
            begun = time.monotonic()
            assert self._info.pid is not None
            os.kill(self._info.pid, signal.SIGKILL)
            assert wait_gone([self._info.pid], 10.0), "the server outlives SIGKILL"
            while not (
                is_free(self._options.http_port) and is_free(self._options.tcp_port)
            ):  # its last threads may hold on to the port for a moment
                assert time.monotonic() - begun < _DOWN_SECONDS, "the port of the dead server stays taken"
                time.sleep(0.01)
            self._info = start_engine(self._options)
            assert self._info.started
            self.crashes += 1
            self.down_seconds += time.monotonic() - begun

    def close(self) -> None:
        """End it for good."""
        stop_engine(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def _quiet_ports() -> tuple[int, int]:
    """Two free ports that the system gives to nobody by itself: while the server is down, no connection may take them."""
    free = (port for port in random.SystemRandom().sample(range(20_000, 32_000), 200) if is_free(port))
    return next(free), next(free)
