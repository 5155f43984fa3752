"""Qualified names and the one place where identifiers are quoted.

Every SQL text that chmv sends is put together from `quote_identifier` and `QName.sql`; nothing else in the tree may
put a name between backticks. Names are case-sensitive and kept exactly as the server spells them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPES = {"\\": "\\\\", "`": "\\`", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\b": "\\b", "\f": "\\f"}
_UNESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "e": "\x1b"}
_UNESCAPES |= {char: char for char in "\\`\"'/="}
_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)


def quote_string(text: str) -> str:
    """A string literal, for places where the server takes no parameter (names of types, partition ids, settings).

    >>> print(quote_string("it's"))
    'it\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_map(values: Mapping[str, str]) -> str:
    """A map literal of strings, as settings take it.

    >>> print(quote_map({"d.t": "x = 'a'"}))
    {'d.t': 'x = \\'a\\''}
    """
    return "{" + ", ".join(f"{quote_string(key)}: {quote_string(value)}" for key, value in values.items()) + "}"


def quote_identifier(name: str) -> str:
    """Quote one identifier for ClickHouse, whatever it contains.

    >>> quote_identifier("events")
    '`events`'
    >>> quote_identifier("odd`name")
    '`odd\\\\`name`'
    """
    return "`" + "".join(_ESCAPES.get(char, char) for char in name) + "`"


def unescape(body: str) -> str:
    """Resolve backslashes as the server does: what is no known escape keeps its backslash.

    >>> unescape(r"a\\nb \\x41 100\\%")
    'a\\nb A 100\\\\%'
    """

    def value(match: re.Match[str]) -> str:
        found = match.group(1)
        return chr(int(found[1:], 16)) if len(found) > 1 else _UNESCAPES.get(found, match.group())

    return _ESCAPED.sub(value, body)


def unquote_identifier(text: str) -> str:
    """Read one identifier as written in SQL: bare, in backticks or in double quotes.

    >>> unquote_identifier("`a.b`")
    'a.b'
    """
    if len(text) >= 2 and text[0] in "`\"'" and text[-1] == text[0]:
        quote = text[0]
        return unescape(text[1:-1].replace(quote * 2, quote))
    return text


def display_identifier(name: str) -> str:
    """Show an identifier the way people write it: quoted only where it has to be."""
    return name if _PLAIN.match(name) else quote_identifier(name)


@dataclass(frozen=True, slots=True, order=True)
class QName:
    """A database and a table, the identity of every object in the catalog.

    >>> str(QName("shop", "orders")), str(QName("shop", ".inner.mv"))
    ('shop.orders', 'shop.`.inner.mv`')
    """

    database: str
    table: str

    def __str__(self) -> str:
        return f"{display_identifier(self.database)}.{display_identifier(self.table)}"

    @property
    def sql(self) -> str:
        """The name as it goes into a statement, always quoted."""
        return f"{quote_identifier(self.database)}.{quote_identifier(self.table)}"


_NAME_PART = re.compile(r'\s*(`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*"|[^.`"\s]+)\s*')


def parse_qname(text: str, default_database: str) -> QName:
    """Read `db.table`, `table` or their quoted forms; a bare table belongs to the default database.

    >>> parse_qname("shop.`odd.name`", "default")
    QName(database='shop', table='odd.name')
    """
    parts: list[str] = []
    at = 0
    open_end = False  # after a dot a name has to follow
    while match := _NAME_PART.match(text, at):
        parts.append(unquote_identifier(match.group(1)))
        at = match.end()
        open_end = at < len(text) and text[at] == "."
        if not open_end:
            break
        at += 1
    if open_end or at != len(text) or len(parts) not in (1, 2):
        raise ValueError(f"not a table name: {text!r} (wanted `table` or `database.table`)")
    return QName(default_database, parts[0]) if len(parts) == 1 else QName(parts[0], parts[1])
