"""A way to the server that breaks on demand: connections are reset in the middle of whatever they do, as a network does it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

_LINGER_NOT = struct.pack("ii", 1, 0)  # close() sends a reset
_BYTES = 65536


class ResettingProxy:
    """Forwards from a port of its own to the server's; `reset` breaks what is open."""

    def __init__(self, server_port: Callable[[], int]) -> None:
        self._server_port = server_port
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> int:
        """Break all open connections; gives how many there were."""
        with self._guard:
            broken, self._open = self._open, set()
        for one in broken:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
                one.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
            with suppress(OSError):
                one.close()
        return len(broken) // 2

    def close(self) -> None:
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port()), timeout=10)
                server.settimeout(None)
            except OSError:  # the server is down: so are we
                client.close()
                continue
            with self._guard:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            with self._guard:
                self._open.discard(one)
            with suppress(OSError):
                one.close()
