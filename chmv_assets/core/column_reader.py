"""Column lists of CREATE statements → columns.

Indexes, projections, constraints and keys in the list are stepped over. A column named like a keyword is still a column.
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.model import Column
from chmv_assets.core.names import unquote_identifier
from chmv_assets.core.tokens import Cursor, Token, split_commas, string_value

_DEFAULT_KINDS = ("DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL")
_ATTRIBUTES = (
    *_DEFAULT_KINDS, "CODEC", "TTL", "COMMENT", "STATISTICS", "STATISTIC", "SETTINGS", "PRIMARY", "COLLATE",
    "AUTO_INCREMENT", "HIERARCHICAL", "INJECTIVE", "IS_OBJECT_ID", "EXPRESSION", "BIDIRECTIONAL",
)  # fmt: skip


def read_columns(cursor: Cursor, first: int, last: int) -> tuple[Column, ...]:
    """Read the columns between two token positions of a cursor."""
    parts = split_commas(cursor.tokens[first:last])
    return tuple(column for part in parts if (column := read_column(cursor.text, part)) is not None)


def read_column(text: str, tokens: Sequence[Token]) -> Column | None:
    """Read one column declaration; None for an index, projection, constraint or key."""
    if not tokens or tokens[0].kind not in ("word", "quoted", "param") or _is_not_a_column(tokens):
        return None
    name, at = _read_column_name(tokens)
    type_end = _until_attribute(tokens, at)
    type_text = _slice(text, tokens, at, type_end)
    default_kind = default = comment = ""
    at = type_end
    while at < len(tokens):
        token = tokens[at]
        end = max(_until_attribute(tokens, at + 1, stop_at_null=False), at + 1)
        if token.is_word(*_DEFAULT_KINDS) and not default_kind:
            default_kind, default = token.text.upper(), _slice(text, tokens, at + 1, end)
        elif token.is_word("COMMENT") and at + 1 < len(tokens) and tokens[at + 1].kind == "string":
            comment = string_value(tokens[at + 1].text)
        elif token.is_word("NULL") and not (at and tokens[at - 1].is_word("NOT")) and type_text:
            type_text = f"Nullable({type_text})"
        at = end
    return Column(name=name, type=type_text, default_kind=default_kind, default=default, comment=comment)


def _is_not_a_column(tokens: Sequence[Token]) -> bool:
    head, words = tokens[0], [token for token in tokens[1:] if token.kind == "word"]
    if head.is_word("INDEX"):
        return any(token.is_word("TYPE") for token in words)
    if head.is_word("PROJECTION"):
        return len(tokens) > 2 and (tokens[2].is_op("(") or tokens[2].is_word("INDEX"))
    if head.is_word("CONSTRAINT"):
        return any(token.is_word("CHECK", "ASSUME") for token in words)
    return head.is_word("PRIMARY", "FOREIGN") and len(tokens) > 1 and tokens[1].is_word("KEY")


def _read_column_name(tokens: Sequence[Token]) -> tuple[str, int]:
    parts = [unquote_identifier(tokens[0].text)]
    at = 1
    while at + 1 < len(tokens) and tokens[at].is_op(".") and tokens[at + 1].kind in ("word", "quoted"):
        parts.append(unquote_identifier(tokens[at + 1].text))
        at += 2
    return ".".join(parts), at


def _until_attribute(tokens: Sequence[Token], at: int, stop_at_null: bool = True) -> int:
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        if token.is_op("(", "["):
            depth += 1
        elif token.is_op(")", "]"):
            depth -= 1
        elif (depth == 0 and token.is_word(*_ATTRIBUTES) and _starts_attribute(tokens, at)) or (
            depth == 0 and stop_at_null and token.is_word("NULL", "NOT")
        ):
            return at
        at += 1
    return at


def _starts_attribute(tokens: Sequence[Token], at: int) -> bool:
    token, after = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else None
    if token.is_word("COMMENT"):
        return after is not None and after.kind == "string"
    if token.is_word("CODEC", "STATISTICS", "STATISTIC", "SETTINGS"):
        return after is not None and after.is_op("(")
    if token.is_word("PRIMARY"):
        return after is not None and after.is_word("KEY")
    return True


def _slice(text: str, tokens: Sequence[Token], first: int, last: int) -> str:
    return text[tokens[first].start : tokens[last - 1].end] if first < last else ""
