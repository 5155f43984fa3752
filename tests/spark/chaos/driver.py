"""Drivers that die: `chmv ingest` as a process of its own, ended by SIGKILL at a chosen request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from chaos.processes import descendants, kill_all, wait_gone
from chaos.proxy import Proxy

_RUN_SECONDS = 90.0
_COMMAND = "from chmv_assets.cli.main import main; main()"
_CONF = "spark.ui.enabled=false;spark.sql.shuffle.partitions=2"


class Driver:
    """One `chmv ingest`, in a process group of its own and behind a proxy of its own."""

    def __init__(self, source: str, root: Path, ddl: Path, folder: Path, server_port: int) -> None:
        self.source, self.root = source, root
        self.proxy = Proxy(server_port)
        self._arguments = [sys.executable, "-c", _COMMAND, "ingest", source, str(root), "--ddl", str(ddl), "--json"]
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[int] = []
        self._alive = threading.Lock()

    def start(self) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CHMV_", "SPARK_", "PYSPARK_"))}
        variables = {
            "CHMV_CLICKHOUSE_URL": self.proxy.url,
            "CHMV_CACHE_DIR": str(self._folder / "cache"),
            "CHMV_SPARK_ARCHIVE": "off",
            "CHMV_SPARK_MASTER": "local[1]",
            "CHMV_SPARK_CONF": _CONF,
        }
        with (self._folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                self._arguments,
                cwd=self._folder,
                env={**clean, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Driver and JVM at once; the executor's Python processes are left to notice it, as on a cluster."""
        assert self._process is not None
        with self._alive:
            self._family = descendants(self._process.pid)
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code once the whole family has ended; negative if it was killed."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.source}: still running after {_RUN_SECONDS:.0f} s:\n{self.output}") from None
        finally:
            self.proxy.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            if not wait_gone(self._family, 15.0):
                kill_all(self._family)
        return code

    @property
    def output(self) -> str:
        return (self._folder / "output.txt").read_text(errors="replace")[-4000:]
