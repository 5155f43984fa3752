"""Getting a SELECT ready for sqlglot, token by token.

Two things stand in its way in real DDL: words such as `from` used as column names, and the placeholders of templating
tools. The first are put in backticks, the second replaced by plain names that `Prepared.restore` turns back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chmv_assets.core.names import quote_identifier
from chmv_assets.core.tokens import Token, tokenize

# Words that sqlglot's grammar reserves in a SELECT and that ClickHouse users have as column names all the same.
_RESERVED = frozenset(
    [
        "FROM",
        "SELECT",
        "WHERE",
        "GROUP",
        "ORDER",
        "LIMIT",
        "OFFSET",
        "JOIN",
        "ON",
        "UNION",
        "HAVING",
        "TABLE",
        "INTO",
        "FINAL",
        "SAMPLE",
        "FORMAT",
        "SETTINGS",
    ]
)
_BEFORE_EXPRESSION = frozenset(
    [
        "SELECT",
        "DISTINCT",
        "WHERE",
        "PREWHERE",
        "AND",
        "OR",
        "NOT",
        "BY",
        "ON",
        "HAVING",
        "WHEN",
        "THEN",
        "ELSE",
        "CASE",
        "IN",
        "LIKE",
        "ILIKE",
        "BETWEEN",
        "AS",
        "QUALIFY",
    ]
)
# Function calls whose names are keywords of sqlglot's grammar; they travel under another name.
RENAMED_CALLS = {"dictionary": "chmv_dictionary", "in": "chmv_in"}
_TEMPLATE = re.compile(r"\$\{[^}\n]*\}|\{\{.*?\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A SELECT text that sqlglot may read, and the names it stands in for."""

    text: str
    tokens: Sequence[Token]
    replaced: tuple[tuple[str, str], ...] = ()

    def restore(self, name: str) -> str:
        """The name as it was written, templates included."""
        for placeholder, original in self.replaced:
            name = name.replace(placeholder, original)
        return name


def is_column_word(tokens: Sequence[Token], at: int) -> bool:
    """Tell whether the reserved word at this position is used as a column's name."""
    before = tokens[at - 1] if at else None
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    if before is not None and before.is_op("."):
        return True
    if before is None:
        return False
    begins = before.is_op(",", "(", "[", "=", "<", ">", "+", "-", "/", "%", "!=", "<=", ">=", "==", "<>", "->", "||")
    begins = begins or (before.kind == "word" and before.text.upper() in _BEFORE_EXPRESSION)
    if not begins:
        return False
    if before.is_op("(") and tokens[at].is_word("SELECT", "FROM"):
        return after is None or after.is_op(",", ")")
    if tokens[at].is_word("SELECT", "FROM") and before.is_word("AS", "IN", "NOT"):
        return after is None or after.is_op(",", ")")
    if after is None or after.kind == "op":
        return after is None or not after.is_op("(", "*", "{")
    return after.is_word("AS", "FROM", "AND", "OR", "IN", "IS", "LIKE", "ASC", "DESC") or before.is_op(",")


def _is_call(tokens: Sequence[Token], at: int) -> bool:
    if at + 1 >= len(tokens) or not tokens[at + 1].is_op("("):
        return False
    before = tokens[at - 1] if at else None
    if tokens[at].is_word("DICTIONARY"):
        return before is not None and (before.is_word("FROM", "JOIN") or before.is_op(","))
    opens = (
        before is None
        or before.is_op("(", ",", "=")
        or before.is_word("WHERE", "AND", "OR", "NOT", "PREWHERE", "SELECT")
    )
    return opens and tokens[at + 1].start == tokens[at].end


def prepare_select(text: str) -> Prepared:
    """Quote column names that are keywords and replace templates.

    >>> prepare_select("SELECT a, from FROM t").text
    'SELECT a, `from` FROM t'
    """
    tokens, _ = tokenize(text)
    pieces: list[str] = []
    replaced: list[tuple[str, str]] = []
    at = 0
    for i, token in enumerate(tokens):
        new = token.text
        if token.kind == "word" and "{" in token.text:
            for template in _TEMPLATE.findall(token.text):
                placeholder = f"chmv_template_{len(replaced)}_"
                replaced.append((placeholder, template))
                new = new.replace(template, placeholder, 1)
        elif token.kind == "word" and token.text.upper() in _RESERVED and is_column_word(tokens, i):
            new = quote_identifier(token.text)
        elif token.kind == "word" and token.text.lower() in RENAMED_CALLS and _is_call(tokens, i):
            new = RENAMED_CALLS[token.text.lower()]
        elif token.kind == "param" and ":" not in token.text:  # an unquoted macro such as {database}
            placeholder = f"chmv_template_{len(replaced)}_"
            replaced.append((placeholder, token.text))
            new = placeholder
        if new != token.text:
            pieces += [text[at : token.start], new]
            at = token.end
    prepared = "".join(pieces) + text[at:]
    if replaced:
        tokens, _ = tokenize(prepared)
    return Prepared(prepared, tokens, tuple(replaced))
