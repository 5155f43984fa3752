"""A view's SELECT over another table, or over some rows of its own: the mention of its trigger is exchanged, every other character stays.

Used for twins of views, which read from a twin of the source, and for fences, which route rows by a condition. What cannot be
exchanged with certainty is refused: a trigger that is named more than once, or columns that are written with the table's database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.fence import NARROWED
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


@dataclass(frozen=True, slots=True)
class _Mention:
    """Where a SELECT names its trigger."""

    tokens: Sequence[Token]
    after: int  # position of the token behind the name
    start: int
    end: int
    alias: str  # to be added, with a leading blank; nothing where the text gives one


def retarget(view: Object, trigger: QName, other: QName) -> str:
    """The view's SELECT with its trigger exchanged for another table, under the name that it had."""
    mention = _find_mention(view, trigger)
    text = f"{view.select[: mention.start]}{other.sql}{mention.alias}{view.select[mention.end :]}"
    return _checked(view, text, other)


def narrow(view: Object, trigger: QName, columns: Sequence[tuple[str, str]], condition: str, given: str = "") -> str:
    """The view's SELECT over those rows of its trigger that meet a condition, which names the trigger `NARROWED`.

    `columns` are the trigger's names and kinds (DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL or nothing); `given` goes into a WITH
    clause beside the condition.
    """
    mention = _find_mention(view, trigger)
    _refuse_modifiers(view, trigger, mention)
    hidden = ("EPHEMERAL", "MATERIALIZED", "ALIAS") if _has_asterisk(mention.tokens) else ("EPHEMERAL",)
    names = [quote_identifier(name) for name, kind in columns if kind not in hidden]
    listed = ", ".join(f"{NARROWED}.{name} AS {name}" for name in names)
    rows = f"({f'WITH {given} ' if given else ''}SELECT {listed} FROM {trigger.sql} AS {NARROWED} WHERE {condition})"
    return _checked(view, f"{view.select[: mention.start]}{rows}{mention.alias}{view.select[mention.end :]}", trigger)


def _find_mention(view: Object, trigger: QName) -> _Mention:
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
    alias = "" if _has_alias(tokens, at + length) else f" AS {quote_identifier(trigger.table)}"
    return _Mention(tokens, at + length, tokens[at].start, tokens[at + length - 1].end, alias)


def _refuse_modifiers(view: Object, trigger: QName, mention: _Mention) -> None:
    """FINAL, SAMPLE and PREWHERE go with a table, not with a subquery."""
    behind = [token for token in mention.tokens[mention.after : mention.after + 3] if token.kind == "word"]
    found = [token.text.upper() for token in behind if token.is_word("FINAL", "SAMPLE")]
    found += [token.text.upper() for at, token in enumerate(mention.tokens) if token.is_word("PREWHERE") and at]
    if found:
        raise RebuildRefused(
            f"view {view.name}: reads {trigger} with {found[0]} but wanted the bare table. Rows of it cannot be told apart without changing "
            "the view. Use `--protocol gated`."
        )


def _has_asterisk(tokens: Sequence[Token]) -> bool:
    """Whether all columns are selected by a star or by COLUMNS(…): hidden columns are not among them."""
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else None
        if token.is_op("*") and before is not None:
            if before.is_word("SELECT", "DISTINCT") or before.is_op(",", "(", "."):
                return True
        elif token.is_word("COLUMNS") and at + 1 < len(tokens) and tokens[at + 1].is_op("("):
            return True
    return False


def _checked(view: Object, text: str, other: QName) -> str:
    """The text, if its trigger is what it should be."""
    read = read_select(text, view.session_database, fires=True)
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
