"""Processes of this host: whether the one that a run was started as still lives. Reads only.

A process id alone does not tell: ids are given again, and a zombie answers to signals. Where there is a /proc its start time and state
decide; elsewhere (macOS) a process of that id counts as alive.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

PROC = Path("/proc")
CLOCK_SECONDS = 5.0  # between the kernel's count of start times and the clock that events are stamped with
_DEAD = frozenset("ZXx")


def this_host() -> str:
    """The name under which this host is known."""
    return socket.gethostname()


def is_running(pid: int, started_before: float, proc: Path = PROC) -> bool:
    """Whether the process that had this id at a moment still runs; one that was started later is another one."""
    if proc.is_dir():
        return _runs_by_proc(pid, started_before, proc)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # there is one, of another user
        pass
    return True


def _runs_by_proc(pid: int, started_before: float, proc: Path) -> bool:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return False
    except OSError:  # hidden from us: do not call it dead
        return True
    fields = text.rpartition(")")[2].split()  # the name before may hold blanks and brackets
    if len(fields) < 20:
        return True
    started = _boot_time(proc) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] not in _DEAD and started <= started_before + CLOCK_SECONDS


@cache
def _boot_time(proc: Path) -> float:
    for line in (proc / "stat").read_text(encoding="utf-8").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
