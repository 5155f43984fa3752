"""Dagster's own processes for a local instance: web server and daemon, started, waited for and stopped together.

Children get the environment as it is plus DAGSTER_HOME, run in their own process group, and are ended by their ids. Only
loopback is bound.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chmv_assets.core.errors import EngineError

LOOPBACK = "127.0.0.1"
_STOP_SECONDS = 25.0
INSTANCE_YAML = """\
# A local instance. For production use Postgres storage and your own run launcher.
telemetry:
  enabled: false
concurrency:
  pools: {granularity: op, default_limit: 1}
  runs: {max_concurrent_runs: 4}
run_monitoring: {enabled: true, start_timeout_seconds: 180, poll_interval_seconds: 10, free_slots_after_run_end_seconds: 5}
run_retries: {enabled: true, max_retries: 2, retry_on_asset_or_op_failure: false}
sensors: {use_threads: true, num_workers: 4}
retention: {sensor: {purge_after_days: {skipped: 1, success: 30, failure: 30}}}
code_servers: {local_startup_timeout: 180}
"""


def prepare_home(home: Path) -> Path:
    """Make a DAGSTER_HOME with our instance settings, unless the user has put their own there."""
    welcomed = home / ".nux" / "nux.yaml"  # Dagster's sign-up dialog would cover the first page
    welcomed.parent.mkdir(parents=True, exist_ok=True)
    welcomed.write_text("seen: 1\n", encoding="utf-8")
    file = home / "dagster.yaml"
    if not file.exists():
        file.write_text(INSTANCE_YAML, encoding="utf-8")
    _create_storage(home)
    return home


def _create_storage(home: Path) -> None:
    """Create the databases here: two processes that do it at once leave "more than one head" behind (Dagster 1.13)."""
    from dagster import DagsterInstance  # a second that most commands need not pay

    with DagsterInstance.from_config(str(home)):
        return


@dataclass
class DagsterUi:
    """The web server and the daemon of one instance."""

    home: Path
    workspace: Path
    port: int
    environ: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log_file(self) -> Path:
        return self.home / "ui.log"

    def start(self) -> None:
        """Start both; they answer a little later (`wait`)."""
        web = ["-m", "dagster_webserver", "-h", LOOPBACK, "-p", str(self.port), "-w", str(self.workspace)]
        daemon = ["-m", "dagster._daemon", "run", "-w", str(self.workspace)]
        for arguments in (web, daemon):
            self._children.append(self._spawn(arguments))

    def _spawn(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        env = {**self.environ, "DAGSTER_HOME": str(self.home.resolve()), "PYTHONWARNINGS": "ignore"}
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.workspace.parent,
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait(self, timeout_seconds: float = 180.0) -> None:
        """Wait until the location is loaded, or say what stands in the log."""
        deadline = self.clock() + timeout_seconds
        while self.clock() < deadline:
            for child in self._children:
                if child.poll() is not None:
                    raise EngineError(
                        f"Dagster: a process ended with code {child.returncode} while starting.\n{self._tail()}"
                    )
            if self._loaded():
                return
            self.sleep(0.5)
        raise EngineError(f"Dagster: not up after {timeout_seconds:.0f} s. The end of {self.log_file}:\n{self._tail()}")

    def _loaded(self) -> bool:
        try:
            found = self.graphql(
                "{workspaceOrError{... on Workspace{locationEntries{name loadStatus locationOrLoadError{__typename "
                "... on PythonError{message}}}}}}"
            )
        except (urllib.error.URLError, OSError, ValueError):
            return False
        entries = found["data"]["workspaceOrError"].get("locationEntries", [])
        for entry in entries:
            if entry["locationOrLoadError"] and entry["locationOrLoadError"]["__typename"] == "PythonError":
                raise EngineError(f"Dagster: the location does not load. {entry['locationOrLoadError']['message']}")
        return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)

    def graphql(self, query: str, variables: Mapping[str, Any] | None = None, timeout_seconds: float = 30.0) -> Any:
        """Ask the web server's GraphQL."""
        body = json.dumps({"query": query, "variables": dict(variables or {})}).encode()
        request = urllib.request.Request(  # noqa: S310 - always our own loopback URL
            f"{self.url}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310
            return json.loads(answer.read())

    def _tail(self, lines: int = 25) -> str:
        text = self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def alive(self) -> bool:
        return all(child.poll() is None for child in self._children)

    def stop(self) -> None:
        """End both and what they started; what does not end in time is killed."""
        for child in self._children:
            _signal_group(child.pid, signal.SIGINT)
        deadline = self.clock() + _STOP_SECONDS
        for child in self._children:
            while child.poll() is None and self.clock() < deadline:
                self.sleep(0.1)
        for child in self._children:
            _signal_group(child.pid, signal.SIGKILL)
            child.wait(10)
        self._children.clear()


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return
