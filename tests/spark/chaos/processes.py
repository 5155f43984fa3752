"""Other processes, by /proc: who descends from whom, who is a Python worker of Spark's, and how to end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:  # grows while we walk
        found += children.get(one, [])
    return found[1:]


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent = stat.rpartition(")")[2].split()[:2]
    return None if state in "ZX" else int(parent)


def python_workers(java: int) -> dict[int, list[int]]:
    """The Python workers of a Spark process by the daemon that has forked them (one daemon per kind of work)."""
    daemons = [pid for pid in descendants(java) if "pyspark.daemon" in command_line(pid) and _parent(pid) == java]
    return {daemon: found for daemon in daemons if (found := descendants(daemon))}


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def kill_all(pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Collection[int], seconds: float) -> bool:
    """Whether all of them have ended within the time; what has ended and is not reaped counts as gone."""
    give_up = time.monotonic() + seconds
    while any(_parent(pid) is not None for pid in pids):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True
