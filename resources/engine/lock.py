"""The record of a running server (`engine.json`) and the guard against two starts at once.

Invariant: a record counts only while its process lives, and a process is known by pid *and* start time, so a reused pid
is never mistaken for our server. A record that cannot be read is worth nothing and is replaced, never an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from chmv_assets.core.errors import EngineError
from resources.engine.model import LocalKind

_PROC = Path("/proc/self/stat")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What `engine.json` holds. No secrets: everybody who may read the folder may read it."""

    pid: int
    process_started: str  # opaque; equal for the same process only
    http_port: int
    tcp_port: int
    data_dir: str
    kind: LocalKind
    version: str


def read_record(path: Path) -> EngineRecord | None:
    """The record in the file; None if there is none or it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        record = EngineRecord(**found)
    except (OSError, ValueError, TypeError):
        return None
    numbers = (record.pid, record.http_port, record.tcp_port)
    sound = all(type(number) is int and number > 0 for number in numbers) and record.kind in ("embedded", "binary")
    return record if sound else None


def write_record(path: Path, record: EngineRecord) -> None:
    """Replace the record in one step."""
    write_atomically(path, json.dumps(asdict(record), indent=1) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that readers see the old or the new text, nothing between; for the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        temporary.chmod(0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def process_start(pid: int) -> str | None:
    """When the process started, as an opaque text; None when it does not run (a zombie does not)."""
    if _PROC.exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return started.strip() if state and not state.startswith("Z") else None


def command_line(pid: int) -> list[str]:
    """The arguments of a process; empty when they cannot be read."""
    if _PROC.exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")[:-1]
        except OSError:
            return []
    answer = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.split()


def is_alive(record: EngineRecord) -> bool:
    """Whether the very process of the record still runs."""
    return process_start(record.pid) == record.process_started


@contextlib.contextmanager
def hold_guard(
    path: Path, timeout_seconds: float, *, purpose: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the exclusive lock on a file; others wait for their turn, up to the time limit."""
    import fcntl  # not on Windows, where no engine can be started

    path.parent.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + timeout_seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise EngineError(
                        f"lock {path}: found it held for {timeout_seconds:.0f} s but wanted it free for {purpose}. "
                        f"Another chmv process is busy there. Wait for it, or end it, and try again."
                    ) from None
                sleep(0.1)
        yield
