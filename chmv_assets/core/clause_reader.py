"""Clauses of CREATE statements that have a grammar of their own: names, keys, settings, refreshes, security, dictionaries.

Each reader stands on the first token of its clause, or behind its keyword, and steps over exactly that clause. Nothing raises.
"""

from __future__ import annotations

from chmv_assets.core.model import Refresh
from chmv_assets.core.names import QName, unquote_identifier
from chmv_assets.core.tokens import Cursor

DICTIONARY_CLAUSES = ("SOURCE", "LAYOUT", "LIFETIME", "RANGE")
EXPRESSION_CLAUSES = {
    ("PARTITION", "BY"): "partition_by",
    ("ORDER", "BY"): "order_by",
    ("PRIMARY", "KEY"): "primary_key",
    ("SAMPLE", "BY"): "sample_by",
    ("TTL",): "ttl",
}


def read_name(cursor: Cursor, default_database: str) -> QName | None:
    """Read `db.table` or `table` at the cursor; None if there is no name."""
    parts: list[str] = []
    while True:
        token = cursor.peek()
        if token.kind not in ("word", "quoted", "param", "number") and not (token.kind == "string" and not parts):
            break
        parts.append(unquote_identifier(cursor.next().text))
        if not (cursor.peek().is_op(".") and cursor.peek(1).kind in ("word", "quoted", "param")):
            break
        cursor.next()
    if not parts:
        return None
    return QName(default_database, parts[0]) if len(parts) == 1 else QName(parts[-2], parts[-1])


def at_clause(cursor: Cursor) -> bool:
    """True where the next clause of a CREATE statement begins."""
    token, after = cursor.peek(), cursor.peek(1)
    if any(cursor.at_words(*words) for words in EXPRESSION_CLAUSES):
        return True
    if token.is_word("ENGINE", "POPULATE", "EMPTY", "DEFINER"):
        return True
    if token.is_word("SETTINGS") and after.kind == "word" and cursor.peek(2).is_op("="):  # a column may be called so
        return True
    if token.is_word("COMMENT") and after.kind == "string":
        return True
    if token.is_word("SOURCE", "LAYOUT", "LIFETIME", "RANGE") and after.is_op("("):
        return True
    if token.is_word("AS") and (after.is_word("SELECT", "WITH", "FROM") or after.is_op("(")):
        return True
    return cursor.at_words("SQL", "SECURITY") or (token.is_word("REFRESH") and after.is_word("EVERY", "AFTER"))


def read_expression(cursor: Cursor) -> str:
    """Read everything up to the next clause."""
    first = cursor.at
    while not cursor.done and not at_clause(cursor):
        if cursor.peek().is_op("(", "["):
            cursor.skip_group()
        else:
            cursor.next()
    return cursor.slice(first, cursor.at)


def read_settings(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    """Read `a = 1, b = 'x'`, in brackets or not."""
    bracket = cursor.take_op("(")
    pairs: list[tuple[str, str]] = []
    while cursor.peek().kind in ("word", "quoted") and cursor.peek(1).is_op("="):
        key = unquote_identifier(cursor.next().text)
        cursor.next()
        first = cursor.at
        skip_value(cursor)
        pairs.append((key, _without_quotes(cursor.slice(first, cursor.at))))
        if not cursor.take_op(","):
            break
    if bracket:
        cursor.take_op(")")
    return tuple(pairs)


def _without_quotes(text: str) -> str:
    """What stands between the quotes of a literal, as written: a quote that belongs to it stays."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text


def skip_value(cursor: Cursor) -> None:
    """Step over one setting's value: a literal, a word, a signed number, a list, or something like `disk(…)`."""
    if cursor.peek().is_op("-", "+"):
        cursor.next()
    if not cursor.peek().is_op("(", "["):
        cursor.next()
    if cursor.peek().is_op("(", "["):
        cursor.skip_group()


def read_refresh(cursor: Cursor, default_database: str) -> Refresh:
    """Read what follows REFRESH."""
    first = cursor.at
    depends: list[QName] = []
    schedule = ""
    append = False
    settings: tuple[tuple[str, str], ...] = ()
    while not cursor.done and not cursor.at_words("TO") and not cursor.peek().is_op("("):
        if at_clause(cursor) and not cursor.at_words("SETTINGS"):
            break
        if cursor.at_words("DEPENDS", "ON"):
            schedule = schedule or cursor.slice(first, cursor.at)
            cursor.at += 2
            while name := read_name(cursor, default_database):
                depends.append(name)
                if not cursor.take_op(","):
                    break
        elif cursor.at_words("APPEND"):
            schedule = schedule or cursor.slice(first, cursor.at)
            cursor.next()
            append = True
        elif cursor.at_words("SETTINGS"):
            schedule = schedule or cursor.slice(first, cursor.at)
            cursor.next()
            settings = read_settings(cursor)
        else:
            cursor.next()
    schedule = schedule or cursor.slice(first, cursor.at)
    return Refresh(schedule=schedule, depends_on=tuple(depends), append=append, settings=settings)


def read_security(cursor: Cursor) -> str:
    """Read `DEFINER = user` or `SQL SECURITY DEFINER` at the cursor; nothing if neither is there."""
    first = cursor.at
    if cursor.at_words("DEFINER") and cursor.peek(1).is_op("="):
        cursor.at += 3
        if cursor.take_op("@"):
            cursor.next()
    elif cursor.take_words("SQL", "SECURITY"):
        cursor.next()
    return cursor.slice(first, cursor.at)
