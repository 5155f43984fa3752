"""What a driver's error says about the server, read from its text: code, symbolic name, message. Pure.

The one reader of such texts, for every process that speaks to ClickHouse. Invariant: an error without a code is one of the
connection (`core.retry` tries those again), so a code that the text holds is never lost. What a driver raises is known to
whoever uses the driver, not here.
"""

from __future__ import annotations

import re

from chmv_assets.core.errors import ServerError

_CODE = re.compile(r"[Cc]ode: (\d+)")
_CODE_NAME = re.compile(r"\(([A-Z][A-Z0-9_]+)\)")
_BEFORE = re.compile(r"^.*?DB::Exception: ")
_AFTER = re.compile(r"\s*(?:\(version \d.*|\(for url [^()]*\))$")  # what server and driver add, of no use to a reader
_MAX_CHARACTERS = 2000


def parse_server_error(text: str, code: int | None = None, name: str | None = None, query_id: str = "") -> ServerError:
    """Read a driver's message; a code or name that the driver knows by itself comes before what the text says.

    >>> text = "server response: Code: 60. DB::Exception: No table\\nd.t. (UNKNOWN_TABLE) (version 26.7.1) (for url http://h:1)"
    >>> error = parse_server_error(text)
    >>> error.code, error.code_name, str(error)
    (60, 'UNKNOWN_TABLE', 'No table d.t. (UNKNOWN_TABLE) (code 60 UNKNOWN_TABLE)')
    >>> parse_server_error("Connection reset by peer").code is None
    True
    """
    line = " ".join(text.split())
    found = _CODE.search(line)
    names = _CODE_NAME.findall(line)
    message = _AFTER.sub("", _BEFORE.sub("", line))[:_MAX_CHARACTERS]
    return ServerError(
        message,
        code=int(found.group(1)) if code is None and found else code,
        code_name=name or (names[-1] if names else ""),
        query_id=query_id,
    )
