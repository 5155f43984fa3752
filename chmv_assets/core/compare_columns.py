"""Columns of a declared object against those of the live one, attribute by attribute.

A nested column counts as the arrays that the server makes of it. Types are compared by their spelling; whether two spellings are
one type only the server knows (`Difference.is_type`).
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.model import Column
from chmv_assets.core.names import unquote_identifier
from chmv_assets.core.tokens import split_commas, tokenize
from chmv_assets.core.verdict_parts import Findings

_ATTRIBUTES = (
    ("default of", "default"), ("codec of", "codec"), ("ttl of", "ttl"), ("column settings of", "settings"),
    ("statistics of", "statistics"), ("attributes of", "attributes"),
)  # fmt: skip
_LISTS = ("settings", "statistics")  # whose order means nothing


def compare_columns(found: Findings, declared: Sequence[Column], live: Sequence[Column]) -> None:
    """Find what differs between two lists of columns."""
    theirs = {column.name: column for column in live}
    mine = {column.name: column for column in _flat(declared, theirs)}
    for name, column in mine.items():
        if name in theirs:
            _compare_column(found, column, theirs[name])
        else:
            found.differ(f"column {name}", column.type, "")
    for name, column in theirs.items():
        if name not in mine:
            found.differ(f"column {name}", "", column.type)
    one, two = [name for name in mine if name in theirs], [name for name in theirs if name in mine]
    if one != two:
        found.differ("order of columns", ", ".join(one), ", ".join(two))


def _compare_column(found: Findings, mine: Column, theirs: Column) -> None:
    name = mine.name
    if mine.type and theirs.type:
        found.judge(f"type of {name}", mine.type, theirs.type, is_type=True)
    for what, attribute in _ATTRIBUTES:
        one, two = getattr(mine, attribute), getattr(theirs, attribute)
        if attribute == "default":
            one, two = f"{mine.default_kind} {one}".strip(), f"{theirs.default_kind} {two}".strip()
        if attribute in _LISTS:
            forms = sorted(found.parts(one)), sorted(found.parts(two))
            found.judge_forms(f"{what} {name}", one, two, *(tuple(word for form in f for word in form) for f in forms))
        else:
            found.judge(f"{what} {name}", one, two)
    if mine.comment != theirs.comment:
        found.differ(f"comment of {name}", mine.comment, theirs.comment)


def _flat(columns: Sequence[Column], live: dict[str, Column]) -> list[Column]:
    """Nested columns as the arrays that the server keeps, unless it keeps them whole."""
    flat: list[Column] = []
    for column in columns:
        tokens, _ = tokenize(column.type)
        nested = len(tokens) > 3 and tokens[0].is_word("NESTED") and tokens[1].is_op("(") and column.name not in live
        if not nested:
            flat.append(column)
            continue
        for part in split_commas(tokens[2:-1]):
            inner = column.type[part[1].start : part[-1].end] if len(part) > 1 else ""
            name = f"{column.name}.{unquote_identifier(part[0].text)}"
            flat.append(Column(name=name, type=f"Array({inner})", codec=column.codec, comment=column.comment))
    return flat
