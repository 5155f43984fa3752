"""HTTP/1.1 messages as bytes: read one from a socket, and tell what a request to ClickHouse is about.

Invariant: a message is read to its end (Content-Length, chunks, or the end of the connection) and kept byte by byte, so that
what is forwarded is what was sent. Faults do not belong here.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

_TABLE = re.compile(
    r"\b(?:INTO|FROM|TABLE(?:\s+IF\s+(?:NOT\s+)?EXISTS)?|DATABASE(?:\s+IF\s+NOT\s+EXISTS)?)\s+"
    r"((?:`[^`]+`|[\w]+)(?:\.(?:`[^`]+`|[\w]+))?)",
    re.IGNORECASE,
)


class Broken(ConnectionError):
    """The other side hung up in the middle of a message."""


class Stream:
    """A socket with a buffer for what was read too far."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def _more(self) -> bool:
        data = self.socket.recv(1 << 16)
        self._buffer += data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        """Everything up to and with the mark; nothing if the connection ended before its first byte."""
        while mark not in self._buffer:
            if not self._more():
                if self._buffer:
                    raise Broken("ended inside a message")
                return b""
        head, _, self._buffer = self._buffer.partition(mark)
        return head + mark

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._more():
                raise Broken("ended inside a message")
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def rest(self) -> bytes:
        while self._more():
            pass
        data, self._buffer = self._buffer, b""
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A request or an answer."""

    head: bytes
    body: bytes
    last: bool  # the connection ends with it

    @property
    def raw(self) -> bytes:
        return self.head + self.body


def read_message(stream: Stream, *, answer: bool) -> Message | None:
    """The next message, or None if the connection ended between two."""
    head = stream.until(b"\r\n\r\n")
    if not head:
        return None
    fields = _fields(head)
    last = fields.get("connection", "").lower() == "close"
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return Message(head=head, body=_chunks(stream), last=last)
    if "content-length" in fields:
        return Message(head=head, body=stream.exactly(int(fields["content-length"])), last=last)
    return Message(head=head, body=stream.rest(), last=True) if answer else Message(head=head, body=b"", last=last)


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def _chunks(stream: Stream) -> bytes:
    body = b""
    while True:
        line = stream.until(b"\r\n")
        if not line:
            raise Broken("ended inside a message")
        size = int(line.split(b";")[0], 16)
        body += line + stream.exactly(size + 2)
        if not size:
            return body


def label_request(message: Message) -> str:
    """What a request does, in two words: `insert shop.events`, `create lock`, `select chmv.batches`, `drop stage`.

    >>> label_request(Message(head=b"POST /?query=INSERT+INTO+`chmv`.`stage.a.b.1`+FORMAT+Arrow HTTP/1.1", body=b"", last=False))
    'insert stage'
    """
    target = message.head.decode("latin-1").split(" ")[1]
    address = urlsplit(target)
    body = message.body[:4000].decode("latin-1")
    sql = "".join(parse_qs(address.query).get("query", ())) or body
    verb = re.search(r"[A-Za-z]+", sql.partition("*/")[2] if sql.lstrip().startswith("/*") else sql)
    if verb is None:
        return f"get {address.path}"
    name = _TABLE.search(sql)
    return f"{verb.group().lower()} {_short(name.group(1)) if name else ''}".strip()


def _short(name: str) -> str:
    plain = name.replace("`", "")
    for kind in ("stage", "lock"):
        if plain.startswith(f"chmv.{kind}."):
            return kind
    return plain
