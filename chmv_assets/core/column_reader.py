"""Column lists of CREATE statements → columns, indexes, projections, constraints and the key.

A column named like a keyword is still a column. Foreign keys mean nothing to the server and are stepped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chmv_assets.core.model import Column
from chmv_assets.core.names import unquote_identifier
from chmv_assets.core.tokens import Cursor, Token, split_commas, string_value

_DEFAULT_KINDS = ("DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL")
_ATTRIBUTES = (
    *_DEFAULT_KINDS, "CODEC", "TTL", "COMMENT", "STATISTICS", "STATISTIC", "SETTINGS", "PRIMARY", "COLLATE",
    "AUTO_INCREMENT", "HIERARCHICAL", "INJECTIVE", "IS_OBJECT_ID", "EXPRESSION", "BIDIRECTIONAL",
)  # fmt: skip


_LISTED = {"INDEX": "indexes", "PROJECTION": "projections", "CONSTRAINT": "constraints"}
_DICTIONARY_ATTRIBUTES = ("HIERARCHICAL", "INJECTIVE", "IS_OBJECT_ID", "EXPRESSION", "BIDIRECTIONAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnList:
    """What stands in the brackets behind a table's name."""

    columns: tuple[Column, ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    projections: tuple[tuple[str, str], ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()
    primary_key: str = ""


def read_columns(cursor: Cursor, first: int, last: int) -> ColumnList:
    """Read what is between two token positions of a cursor."""
    columns: list[Column] = []
    listed: dict[str, list[tuple[str, str]]] = {kind: [] for kind in _LISTED.values()}
    keys: list[str] = []
    primary = ""
    for part in split_commas(cursor.tokens[first:last]):
        if (column := read_column(cursor.text, part)) is not None:
            columns.append(column)
            keys += [cursor.text[part[0].start : part[0].end]] if _is_key(part) else []
        elif (found := read_listed(cursor.text, part)) is not None:
            listed[found[0]].append(found[1:])
        elif len(part) > 2 and part[0].is_word("PRIMARY"):
            primary = _slice(cursor.text, part, 2, len(part))
    if keys and not primary:
        primary = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
    return ColumnList(columns=tuple(columns), primary_key=primary, **{k: tuple(v) for k, v in listed.items()})


def read_listed(text: str, tokens: Sequence[Token]) -> tuple[str, str, str] | None:
    """Read an index, projection or constraint: the field it belongs to, its name, its definition."""
    if len(tokens) < 3 or not tokens[0].is_word(*_LISTED):
        return None
    name, at = _read_column_name(tokens[1:])
    return _LISTED[tokens[0].text.upper()], name, _slice(text, tokens, at + 1, len(tokens))


def _is_key(tokens: Sequence[Token]) -> bool:
    """`a UInt8 PRIMARY KEY`."""
    at = _until_attribute(tokens, 1)
    while at < len(tokens):
        if tokens[at].is_word("PRIMARY"):
            return at + 1 < len(tokens) and tokens[at + 1].is_word("KEY")
        at = max(_until_attribute(tokens, at + 1, stop_at_null=False), at + 1)
    return False


def read_column(text: str, tokens: Sequence[Token]) -> Column | None:
    """Read one column declaration; None for an index, projection, constraint or key."""
    if not tokens or tokens[0].kind not in ("word", "quoted", "param") or _is_not_a_column(tokens):
        return None
    name, at = _read_column_name(tokens)
    type_end = _until_attribute(tokens, at)
    type_text = _slice(text, tokens, at, type_end)
    found: dict[str, str] = {}
    at = type_end
    while at < len(tokens):
        token = tokens[at]
        end = max(_until_attribute(tokens, at + 1, stop_at_null=False), at + 1)
        if token.is_word("NULL") and not (at and tokens[at - 1].is_word("NOT")) and type_text:
            type_text = f"Nullable({type_text})"
        else:
            _read_attribute(text, tokens, at, end, found)
        at = end
    return Column(name=name, type=type_text, **found)


def _read_attribute(text: str, tokens: Sequence[Token], at: int, end: int, found: dict[str, str]) -> None:
    """Read the attribute at a position into what was found so far."""
    token = tokens[at]
    if token.is_word(*_DEFAULT_KINDS) and "default_kind" not in found:
        found |= {"default_kind": token.text.upper(), "default": _slice(text, tokens, at + 1, end)}
    elif token.is_word("COMMENT") and at + 1 < len(tokens) and tokens[at + 1].kind == "string":
        found["comment"] = string_value(tokens[at + 1].text)
    elif token.is_word("CODEC", "SETTINGS", "STATISTICS", "STATISTIC") and end > at + 3:
        field = "statistics" if token.is_word("STATISTIC") else token.text.lower()
        found[field] = _slice(text, tokens, at + 2, end - 1)
    elif token.is_word("TTL"):
        found["ttl"] = _slice(text, tokens, at + 1, end)
    elif token.is_word(*_DICTIONARY_ATTRIBUTES):
        found["attributes"] = f"{found.get('attributes', '')} {_slice(text, tokens, at, end)}".strip()


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
