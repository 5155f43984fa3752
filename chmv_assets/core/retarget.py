"""A view's SELECT over another table: the mention of its trigger is exchanged, every other character stays.

Used for twins of views, which read from a twin of the source. What cannot be exchanged with certainty is refused: a trigger
that is named more than once, or columns that are written with the table's database.
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier, unquote_identifier
from chmv_assets.core.select_reader import read_select
from chmv_assets.core.select_text import is_column_word
from chmv_assets.core.tokens import Token, tokenize

# Words that may follow a table without an alias between.
_AFTER_TABLE = frozenset(
    [
        "WHERE",
        "PREWHERE",
        "GROUP",
        "ORDER",
        "HAVING",
        "LIMIT",
        "OFFSET",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "JOIN",
        "LEFT",
        "RIGHT",
        "INNER",
        "FULL",
        "CROSS",
        "ANY",
        "ALL",
        "ASOF",
        "SEMI",
        "ANTI",
        "GLOBAL",
        "ARRAY",
        "FINAL",
        "SAMPLE",
        "SETTINGS",
        "WINDOW",
        "QUALIFY",
        "FORMAT",
        "ON",
        "USING",
        "PASTE",
    ]
)


def retarget(view: Object, trigger: QName, other: QName) -> str:
    """The view's SELECT with its trigger exchanged for another table, under the name that it had."""
    tokens, broken = tokenize(view.select)
    database = view.session_database
    found = [] if broken else [at for at in _table_places(tokens) if _names(tokens, at, database)[0] == trigger]
    if len(found) != 1 or _is_written_out(tokens, trigger, found):
        raise RebuildRefused(
            f"view {view.name}: names {trigger} {len(found)} times as a table but wanted once, and columns without its database. A twin "
            "of it cannot be made with certainty. Rebuild it from the source, or write the view with an alias."
        )
    at = found[0]
    _, length = _names(tokens, at, database)
    start, end = tokens[at].start, tokens[at + length - 1].end
    alias = "" if _has_alias(tokens, at + length) else f" AS {quote_identifier(trigger.table)}"
    text = f"{view.select[:start]}{other.sql}{alias}{view.select[end:]}"
    read = read_select(text, database, fires=True)
    triggers = {reference.name for reference in read.references if reference.kind == "trigger"}
    if triggers != {other}:
        raise RebuildRefused(
            f"view {view.name}: its twin would be fired by {', '.join(map(str, triggers)) or 'nothing'} but wanted {other}. "
            "Its SELECT could not be exchanged with certainty. Rebuild it from the source."
        )
    return text


def _table_places(tokens: Sequence[Token]) -> list[int]:
    """Positions right behind FROM and JOIN that begin a name."""
    return [
        at + 1
        for at, token in enumerate(tokens[:-1])
        if token.is_word("FROM", "JOIN")
        and not is_column_word(tokens, at)
        and tokens[at + 1].kind in ("word", "quoted")
    ]


def _names(tokens: Sequence[Token], at: int, database: str) -> tuple[QName, int]:
    """The table named at a position, and how many tokens its name has."""
    if at + 2 < len(tokens) and tokens[at + 1].is_op(".") and tokens[at + 2].kind in ("word", "quoted"):
        return QName(unquote_identifier(tokens[at].text), unquote_identifier(tokens[at + 2].text)), 3
    return QName(database, unquote_identifier(tokens[at].text)), 1


def _has_alias(tokens: Sequence[Token], at: int) -> bool:
    if at >= len(tokens):
        return False
    token = tokens[at]
    if token.is_word("AS") or token.kind == "quoted":
        return True
    return token.kind == "word" and token.text.upper() not in _AFTER_TABLE


def _is_written_out(tokens: Sequence[Token], trigger: QName, places: Sequence[int]) -> bool:
    """Whether a column is written as database.table.column somewhere."""
    for at in range(len(tokens) - 4):
        if at in places or not (tokens[at + 1].is_op(".") and tokens[at + 3].is_op(".")):
            continue
        if tokens[at].kind in ("word", "quoted") and tokens[at + 2].kind in ("word", "quoted"):
            names = QName(unquote_identifier(tokens[at].text), unquote_identifier(tokens[at + 2].text))
            if names == trigger:
                return True
    return False
