"""Hostile names and values: a seeded generator, the same in every run. Text only; nothing here talks to a server."""

from __future__ import annotations

import random

# One of each kind that broke a quoting function somewhere; most of a generated text is made of these.
PIECES = (
    "`", "``", "\\`", "'", "''", "\\'", '"', '\\"', "\\", "\\\\", "\\n", "\\x00", "\\0", "\\N", "\\u0041", ".", "..", "/", "//", "../", "%", "%s",
    "%(a)s", "%25", "%%", "{", "}", "{x:String}", "{x:Identifier}", "{{x}}", "${x}", "$$", "$x$", "$tag$", ";", "; DROP TABLE t", "--", "-- x\n", "/*",
    "*/", "#", "#!", "\n", "\r", "\r\n", "\t", "\b", "\f", "\v", "\a", "\x1b[31m", "\0", "\x01", "\x7f", "\x80", "\x85", "\xa0", " ", "  ", "\xe9",
    "e\u0301", "\xdf", "\u0130", "\u0131", "\u540d", "\u8868", "\U0001f986", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u202e", "\u2066", "\u200f",
    "\u200b", "\u200d", "\ufeff", "\u2028", "\u2029", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ud7ff", "\ue000", "\ufdfa", "\uff21", "\u0301",
    "&amp;", "<x>", "&", "?", "=", "+", "@", "~", "^", "|", ":", "::", "?:", "(", ")", "[", "]", ",", "NULL", "null", "SELECT", "FORMAT", "FORMAT Native",
    "SETTINGS", "LIMIT 0", "INTO OUTFILE", "VALUES", "*", "0", "1e9", "-1", "inf", "a", "Z", "_", "heredoc $$ $$", "x'", "0x", "b''", "N'", "E'\\'",
    "\\e", "\\a", "\\v", "\\f", "\\b", "\\t", "\\r", "\\z", "\\%", "\\_",
)  # fmt: skip
# As they are: edges that a random draw would seldom meet.
EDGES = (
    *PIECES, "a" * 5_000, "`" * 500, "\\" * 501, "'" * 500, "\xe9" * 2_000, "\U0001f986" * 500, "{x:String}" * 200, "." * 300, "\n" * 300, "`\\",
    "'\\", "\\\\'", "a`b`c", "db.table", "`db`.`table`", "x` AS y, 1 AS `z", "x' OR '1'='1", "']", "')", "{'a': 'b'}", "a', 'b", "['a']", "\t\\N",
)  # fmt: skip
LONGEST_FILE_NAME = (
    120  # a table is a folder: the server escapes each odd byte to three letters, and a folder's name ends at 255
)


def hostile_texts(count: int, seed: int) -> list[str]:
    """So many different texts, none of them empty: first the edges, then drawn from pieces and from all of Unicode."""
    draw = random.Random(seed)
    found = dict.fromkeys(EDGES)
    while len(found) < count:
        found[_drawn(draw)] = None
    return list(found)[:count]


def hostile_tables(count: int, seed: int) -> list[str]:
    """Texts that a file system can hold once the server has escaped them."""
    fitting = (text for text in hostile_texts(count * 3, seed) if len(escaped(text)) <= LONGEST_FILE_NAME)
    return list(fitting)[:count]


def escaped(name: str) -> str:
    """A name as the server writes it on disk: odd bytes as %XX."""
    return "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or byte == 95 else f"%{byte:02X}" for byte in name.encode()
    )


def _drawn(draw: random.Random) -> str:
    pieces = [draw.choice(PIECES) if draw.random() < 0.8 else _letter(draw) for _ in range(draw.randint(1, 8))]
    return "".join(pieces)


def _letter(draw: random.Random) -> str:
    """Any letter that UTF-8 can carry; half a surrogate pair cannot be sent at all, which has a test of its own."""
    code = draw.choice((draw.randrange(0x80), draw.randrange(0x3000), draw.randrange(0x110000)))
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)
