"""Starting and ending the server's process.

Invariant: what `spawn` starts has its own session and no parent among us, so it outlives the command that started it
and never becomes our zombie. Records and guards do not belong here (see `lock` and `lifecycle`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from chmv_assets.core.errors import EngineError
from resources.engine.config import embedded_arguments
from resources.engine.lock import process_start
from resources.engine.model import PASSWORD_HASH_VARIABLE, PASSWORD_VARIABLE, URL_VARIABLE, DataLayout, LocalKind

_CHILD = Path(__file__).with_name("child.py")
_POLL_SECONDS = 0.05
_TAIL_LINES = 15


def server_command(kind: LocalKind, program: Path, layout: DataLayout, http_port: int, tcp_port: int) -> list[str]:
    """The arguments of the child script; they hold no secret."""
    if kind == "embedded":
        return ["embedded", str(program), *embedded_arguments(layout, http_port, tcp_port)]
    return ["exec", str(program), "server", f"--config-file={layout.config}"]


def spawn(command: list[str], layout: DataLayout, environ: Mapping[str, str]) -> int:
    """Start the server's process and return its pid at once."""
    environment = server_environment(environ)
    answer = subprocess.run(
        [sys.executable, "-I", str(_CHILD), str(layout.process_log), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=layout.root,
        env=environment,
        check=False,
        timeout=30,
    )
    try:
        return int(answer.stdout)
    except ValueError:
        raise EngineError(
            f"engine: found no process but wanted one ({answer.stderr.decode(errors='replace').strip()}). "
            f"The child program could not start. Check memory and process limits (`ulimit -a`)."
        ) from None


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the server's process sees: of the password only its hash, for the users file."""
    kept = {name: value for name, value in environ.items() if name not in (URL_VARIABLE, PASSWORD_VARIABLE)}
    password = environ.get(PASSWORD_VARIABLE)
    return {**kept, PASSWORD_HASH_VARIABLE: hashlib.sha256(password.encode()).hexdigest()} if password else kept


def clear_log_tables(layout: DataLayout) -> None:
    """Remove what an earlier embedded server kept of its `system` log tables.

    Its `system` database forgets its tables at the end but not their folders; a new server would then fail with
    "directory already exists" at every flush, forever (26.7). Tables of users live under `store/` and stay.
    """
    shutil.rmtree(layout.store / "data" / "system", ignore_errors=True)


def terminate(
    pid: int, timeout_seconds: float, *, sleep: Callable[[float], None] = time.sleep
) -> Literal["stopped", "killed"]:
    """Ask the process to end; after the time limit make it."""
    started = process_start(pid)
    if started is None:
        return "stopped"
    os.kill(pid, signal.SIGTERM)
    if _wait_gone(pid, started, timeout_seconds, sleep):
        return "stopped"
    os.kill(pid, signal.SIGKILL)
    if not _wait_gone(pid, started, 10.0, sleep):
        raise EngineError(
            f"engine: found process {pid} still there after SIGKILL but wanted it gone. "
            f"The system does not let it end (often a stuck disk). Look at it with `ps -o pid,stat,wchan -p {pid}`."
        )
    return "killed"


def read_tail(layout: DataLayout) -> str:
    """The last lines that the server wrote before it ended, for an error message."""
    lines: deque[str] = deque(maxlen=_TAIL_LINES)
    for path in (layout.logs / "error.log", layout.process_log):
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                lines.extend(f"  {line.rstrip()}" for line in file if line.strip())
    return "\n".join(lines) or "  (the logs are empty)"


def _wait_gone(pid: int, started: str, timeout_seconds: float, sleep: Callable[[float], None]) -> bool:
    """Look until it is gone. Counts looks, not the clock: a machine that was paused has not given the process any time."""
    for _ in range(max(1, round(timeout_seconds / _POLL_SECONDS))):
        if process_start(pid) != started:
            return True
        sleep(_POLL_SECONDS)
    return process_start(pid) != started
