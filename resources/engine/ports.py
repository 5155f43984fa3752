"""Free ports, and who holds a port that is not free.

Loopback only. Ports are chosen below those that the system gives to outgoing connections: a server that is killed and started again would find its port
taken by somebody's client otherwise. A port that was free a moment ago may still be taken when the server binds it; whoever chooses ports retries.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

from chmv_assets.core.errors import EngineError
from resources.engine.model import LOOPBACK

_BURIAL_LOOKS = 30
_LOOK_SECONDS = 0.1
_LISTEN = "0A"  # state column of /proc/net/tcp
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OUTGOING = 49_152  # where the system does not say it, macOS among them
_ROOM = 12_000  # ports below the first outgoing one
_DRAWS = 200


def choose_ports(http_port: int, tcp_port: int) -> tuple[int, int]:
    """Check the given ports and fill in free ones for zeros."""
    if http_port and http_port == tcp_port:
        raise EngineError(
            f"port {http_port}: found it asked for twice but wanted two ports. "
            f"HTTP and the native protocol cannot share one. "
            f"Give --http-port and --tcp-port different numbers, or leave one out."
        )
    for port, option in ((http_port, "--http-port"), (tcp_port, "--tcp-port")):
        if port and not _becomes_free(port):
            raise EngineError(
                f"port {port}: found it in use{_by_whom(port)} but wanted it free for the engine. "
                f"Two servers cannot listen on one port. "
                f"Give another one with {option}, or leave {option} out for any free port."
            )
    with contextlib.ExitStack() as held:
        chosen = [port or _bound(held) for port in (http_port, tcp_port)]
    return chosen[0], chosen[1]


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a TIME_WAIT leftover is no user
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _becomes_free(port: int) -> bool:
    """Whether a port is free, or becomes so soon: a server that was just killed holds its port until the system has buried it."""
    for _ in range(_BURIAL_LOOKS):
        if is_free(port):
            return True
        if find_listener(port) is not None:
            return False
        time.sleep(_LOOK_SECONDS)
    return is_free(port)


def find_listener(port: int) -> int | None:
    """The pid of the process that listens on the port, where the system lets us see it."""
    if Path("/proc/net/tcp").exists():
        return _listener_from_proc(port)
    lsof = shutil.which("lsof")
    if lsof is None:
        return None
    answer = subprocess.run(
        [lsof, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"], capture_output=True, text=True, check=False, timeout=10
    )
    first = answer.stdout.split()[:1]
    return int(first[0]) if first else None


def free_ports(count: int) -> list[int]:
    """Different free ports for servers."""
    with contextlib.ExitStack() as held:
        return [_bound(held) for _ in range(count)]


def _bound(held: contextlib.ExitStack) -> int:
    """A free port, kept bound until the caller has all that it needs."""
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    first = _first_outgoing()
    for _ in range(_DRAWS):
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, first - 1 - secrets.randbelow(min(_ROOM, first - 1024))))
            return int(probe.getsockname()[1])
    probe.bind((LOOPBACK, 0))  # all drawn ones are taken: any port is better than none
    return int(probe.getsockname()[1])


def _first_outgoing() -> int:
    """The first port that the system may give to a connection that goes out."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(_OUTGOING.read_text(encoding="ascii").split()[0])
        return first if first > 2048 else _FIRST_OUTGOING
    return _FIRST_OUTGOING


def _by_whom(port: int) -> str:
    pid = find_listener(port)
    return "" if pid is None else f" by process {pid}"


def _listener_from_proc(port: int) -> int | None:
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # processes of other users, or gone meanwhile
            if any(str(link.readlink()) in wanted for link in descriptors.iterdir()):
                return int(descriptors.parent.name)
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else []
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes
