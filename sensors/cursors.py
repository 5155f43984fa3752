"""Cursors as every sensor keeps them: a JSON document with a version. One that cannot be read is started afresh, never an error.

A daemon that is upgraded, or a cursor that somebody edited in the UI, must not stop a sensor: it forgets what it saw and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def dump_cursor(version: int, fields: Mapping[str, Any]) -> str:
    """A cursor as text; the same fields give the same text.

    >>> dump_cursor(1, {"b": 2, "a": 1})
    '{"a":1,"b":2,"version":1}'
    """
    return json.dumps({"version": version, **fields}, separators=(",", ":"), sort_keys=True)


def read_cursor(text: str | None, version: int, read: Callable[[Any], T], fresh: Callable[[str], T]) -> T:
    """Read a cursor; `fresh` makes an empty one, with a sentence if there was one that could not be used.

    >>> read_cursor('{"version":1,"at":7}', 1, lambda document: int(document["at"]), lambda note: -1)
    7
    >>> read_cursor("[]", 1, int, str), read_cursor(None, 1, int, str)
    ('The cursor was not readable and is started afresh.', '')
    >>> read_cursor('{"version":2}', 1, int, str)
    'The cursor has version 2, not 1, and is started afresh.'
    """
    if not text:
        return fresh("")
    try:
        document = json.loads(text)
        found = document["version"]
        if found != version:
            return fresh(f"The cursor has version {found}, not {version}, and is started afresh.")
        return read(document)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        return fresh("The cursor was not readable and is started afresh.")
