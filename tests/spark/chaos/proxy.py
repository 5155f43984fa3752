"""A proxy in front of ClickHouse that does harm at a chosen request, once.

A step is named by what a request does and the how-manieth of its kind it is since `arm` (see `label_request`), so that the same step
is met again in the next run. Every request is read to its end before anything of it is forwarded; keep-alive is kept.
Invariant: without an armed fault it is invisible. What a killed process is, is not known here: that is the fault's `action`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from chaos.http_messages import Broken, Message, Stream, label_request, read_message

FaultKind = Literal[
    "reset before",  # the request never reaches the server
    "reset inside",  # half of its body does
    "answer lost",  # it is done, but nobody is told
    "answer cut",  # half of the answer arrives
    "refused",  # the server says no, for good
    "overloaded",  # the server says not now
    "sent twice",  # done two times, the second answer counts
    "act before",  # something dies before the request is forwarded
    "act inside",  # … while the server works on it
    "act after",  # … when it is done, and nobody is told
]
LOOPBACK = "127.0.0.1"
_TIMEOUT_SECONDS = 60.0
_REFUSALS = {"refused": (243, "NOT_ENOUGH_SPACE"), "overloaded": (745, "SERVER_OVERLOADED")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request of a run: what it does, and the how-manieth of its kind it is (from 1)."""

    label: str
    nth: int

    def __str__(self) -> str:
        return f"{self.label} #{self.nth}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong at which step, and with the requests of its kind that follow if it happens several times.

    `action` is for the `act …` kinds; `inside_seconds` is how long the server may work first.
    """

    kind: FaultKind
    step: Step
    name: str = ""
    action: Callable[[], None] | None = field(default=None, repr=False)
    inside_seconds: float = 0.0
    times: int = 1


class Proxy:
    """Listens on a port of its own and forwards to the server's, one thread per connection."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.steps: list[Step] = []
        self.defects: list[str] = []  # our own, which would hide what is to be shown
        self.fired: Fault | None = None
        self._fault: Fault | None = None
        self._left = 0
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        self.url = f"http://{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def arm(self, fault: Fault | None = None) -> None:
        """Forget what was counted and wait for the fault's step."""
        with self._lock:
            self._fault, self.fired = fault, None
            self._left = fault.times if fault else 0
            self._counts.clear()
            self.steps = []

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        link, hard = _Link(self.upstream), False
        with self._lock:
            self._open.add(client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = Stream(client)
            while (request := read_message(stream, answer=False)) is not None:
                answer = self._answer(request, link)
                if answer is None:
                    hard = True
                    break
                client.sendall(answer.raw)
                if answer.last or request.last:
                    break
        except OSError:
            hard = True  # either side hung up: so do we
        except Exception as error:
            self.defects.append(f"{type(error).__name__}: {error}")
        finally:
            link.close()
            with self._lock:
                self._open.discard(client)
            _hang_up(client, hard=hard)

    def _answer(self, request: Message, link: _Link) -> Message | None:
        fault = self._take(request)
        if fault is None:
            return link.ask(request)
        return self._harm(fault, request, link)

    def _take(self, request: Message) -> Fault | None:
        """Count the request; gives the fault if this is its step."""
        label = label_request(request)
        with self._lock:
            self._counts[label] += 1
            step = Step(label=label, nth=self._counts[label])
            self.steps.append(step)
            fault = self._fault
            if fault is None or not self._left or fault.step.label != label or step.nth < fault.step.nth:
                return None
            self.fired, self._left = fault, self._left - 1
            return fault

    def _harm(self, fault: Fault, request: Message, link: _Link) -> Message | None:
        """Do what the fault says; None hangs up on the client."""
        if fault.kind in _REFUSALS:
            return _refusal(*_REFUSALS[fault.kind])
        if fault.kind == "reset before":
            return None
        if fault.kind == "reset inside":
            link.send(request.head + request.body[: len(request.body) // 2])
            time.sleep(0.01)
            return None
        if fault.kind == "act inside":
            link.send(request.raw)
            time.sleep(fault.inside_seconds)
            self._act(fault)
            return None
        if fault.kind == "act before":
            self._act(fault)
            return link.ask(request)
        answer = link.ask(request)
        if fault.kind == "sent twice":
            return link.ask(request)
        if fault.kind == "act after":
            self._act(fault)
        if fault.kind == "answer cut":
            return Message(head=answer.head, body=answer.body[: len(answer.body) // 2], last=True)
        return None

    def _act(self, fault: Fault) -> None:
        assert fault.action is not None, f"{fault.name} has no action"
        try:
            fault.action()
        except Exception as error:
            self.defects.append(f"{fault.name}: {type(error).__name__}: {error}")


class _Link:
    """The connection to the server, opened when it is needed and again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: Stream | None = None

    def send(self, data: bytes) -> Stream:
        if self._stream is None:
            made = socket.create_connection((LOOPBACK, self._port), timeout=_TIMEOUT_SECONDS)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._stream = Stream(made)
        self._stream.socket.sendall(data)
        return self._stream

    def ask(self, request: Message) -> Message:
        answer = read_message(self.send(request.raw), answer=True)
        if answer is None:
            raise Broken("the server hung up")
        if answer.last:
            self.close()
        return answer

    def close(self) -> None:
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None


def _hang_up(connection: socket.socket, *, hard: bool) -> None:
    """Close a connection; hard is a reset, which also takes away what the other side has not read yet."""
    if hard:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _refusal(code: int, name: str) -> Message:
    body = f"Code: {code}. DB::Exception: injected by the test. ({name}) (version 0.0.0.0)\n".encode()
    head = (
        "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=UTF-8\r\n"
        f"X-ClickHouse-Exception-Code: {code}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Message(head=head.encode(), body=body, last=False)
