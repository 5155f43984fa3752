"""One spelling of an expression or query: two texts are the same to the server if their forms are equal.

Works on tokens of texts that the server has formatted, which takes care of white space, comments and keywords. What is left is
what the server rewrites when it stores an object: names of functions, the session's database in front of tables, brackets around
everything. A form never forgets a literal, a column, a function or an order. What the server calls its things is a `Vocabulary`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from chmv_assets.core.brackets import closing, without_brackets, without_needless
from chmv_assets.core.names import unquote_identifier
from chmv_assets.core.secrets import HIDDEN
from chmv_assets.core.tokens import Token, string_value, tokenize

Form = tuple[str, ...]
Sameness = Literal["same", "hidden", "different"]
_PLAIN = re.compile(r"[^\W\d]\w*\Z")
_WHOLE = re.compile(r"'U?Int\d+\Z")
_VALUES = frozenset({"NULL", "TRUE", "FALSE", "INF", "NAN"})  # words that are no names unless they are quoted
_FUNCTIONS = [
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "any",
    "if",
    "ifNull",
    "nullIf",
    "coalesce",
    "concat",
    "lower",
    "upper",
    "round",
    "floor",
    "abs",
    "least",
    "greatest",
    "now",
    "CAST",
]
_END_OF_FROM = (
    "WHERE", "PREWHERE", "GROUP", "ORDER", "LIMIT", "HAVING", "SETTINGS", "QUALIFY", "WINDOW", "UNION", "EXCEPT",
    "INTERSECT", "SELECT", "ON", "USING", "ARRAY",
)  # fmt: skip
_NAMED_OBJECT = re.compile(r"(dict(Get|Has|IsIn)|joinGet)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a server calls its things, and what it takes for granted."""

    functions: Mapping[str, str] = field(default_factory=dict)  # in lower case → its name, if case does not count
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of functions, as they are written
    table_settings: Mapping[str, str] = field(default_factory=dict)  # of a MergeTree table that does not name them
    settings: Mapping[str, str] = field(default_factory=dict)  # of a session
    types: Mapping[str, str] = field(default_factory=dict)  # in lower case → its name, if case does not count


BUILTIN = Vocabulary(
    functions={name.lower(): name for name in _FUNCTIONS},
    table_settings={"index_granularity": "8192"},
    settings={
        "default_materialized_view_sql_security": "DEFINER",
        "default_normal_view_sql_security": "INVOKER",
        "except_default_mode": "ALL",
        "intersect_default_mode": "ALL",
    },
)  # true of every server, so it may be used where none can be asked


def spell(text: str, database: str, vocabulary: Vocabulary = BUILTIN) -> Form:
    """The form of an expression, a list of them, or a query.

    >>> spell("COUNT(*)", "d") == spell("(count())", "d"), spell("'a'", "d") == spell("a", "d")
    (True, False)
    """
    tokens, _ = tokenize(text)
    return without_brackets(_spell_tokens(tokens, database, vocabulary))


def spell_parts(text: str, database: str, vocabulary: Vocabulary = BUILTIN) -> tuple[Form, ...]:
    """The forms of a key's or list's parts: `(a, b)`, `a, b` and `tuple(a, b)` are one list.

    >>> spell_parts("tuple()", "d"), spell_parts("(a ASC, f(b, c))", "d")
    ((), (('a',), ('f', '(', 'b', ',', 'c', ')')))
    """
    return parts_of(spell(text, database, vocabulary))


def parts_of(form: Form) -> tuple[Form, ...]:
    """The parts of a form that is a list, in brackets or not."""
    form = without_brackets(form)
    if len(form) > 2 and form[0] == "tuple" and closing(form, 1) == len(form) - 1:
        form = form[2:-1]
    parts = [without_brackets(part) for part in _split(form)]
    return tuple(part[:-1] if len(part) > 1 and part[-1].upper() == "ASC" else part for part in parts)


def same(mine: Form, theirs: Form) -> Sameness:
    """Tell whether two forms are equal, or equal but for secrets that the server does not show.

    >>> same(("'x", "'[HIDDEN]"), ("'x", "'y")), same(("'z", "'[HIDDEN]"), ("'x", "'y"))
    ('hidden', 'different')
    """
    if mine == theirs:
        return "hidden" if any(word.startswith("'") and HIDDEN in word for word in mine) else "same"
    if len(mine) != len(theirs):
        return "different"
    differing = [pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]]
    return "hidden" if all(_fits(one, two) or _fits(two, one) for one, two in differing) else "different"


def _fits(shown: str, other: str) -> bool:
    if not (shown.startswith("'") and HIDDEN in shown and other.startswith("'")):
        return False
    return re.fullmatch(".*".join(map(re.escape, shown.split(HIDDEN))), other, re.DOTALL) is not None


def _split(form: Form) -> list[Form]:
    parts: list[Form] = []
    depth = first = 0
    for i, word in enumerate(form):
        depth += (word in ("(", "[")) - (word in (")", "]"))
        if depth == 0 and word == ",":
            parts.append(form[first:i])
            first = i + 1
    return [*parts, form[first:]] if first < len(form) else parts


def token_word(token: Token) -> str:
    """A token as it stands in a form: strings by value, names without the quotes that they do not need."""
    if token.kind == "string":
        return f"'{string_value(token.text)}"
    if token.kind != "quoted":
        return token.text
    name = unquote_identifier(token.text)
    return name if _PLAIN.match(name) and name.upper() not in _VALUES else f"`{name}"


def _spell_tokens(tokens: Sequence[Token], database: str, vocabulary: Vocabulary) -> Form:
    words = [token_word(token) for token in tokens]
    dropped = _qualifiers(tokens, words, database)
    for i in range(len(tokens) - 1):
        if tokens[i].kind == "word" and tokens[i + 1].is_op("("):
            words[i] = spell_function(words[i], vocabulary)
            if words[i] == "count" and words[i + 2 : i + 4] == ["*", ")"]:
                dropped.add(i + 2)
            if words[i] == "CAST":
                _spell_cast(words, i, vocabulary)
            if _NAMED_OBJECT.match(words[i]) and i + 2 < len(tokens) and tokens[i + 2].kind == "string":
                words[i + 2] = "'" + words[i + 2][1:].removeprefix(f"{database}.")
    spelled: list[str] = []
    for i, word in enumerate(words):
        spelled += [] if i in dropped else [word, *_set_mode(tokens, i, vocabulary)]
    return without_needless(tuple(spelled))


def _set_mode(tokens: Sequence[Token], at: int, vocabulary: Vocabulary) -> list[str]:
    """The server writes down whether an EXCEPT without a mode is ALL or DISTINCT."""
    if not tokens[at].is_word("UNION", "EXCEPT", "INTERSECT"):
        return []
    after = [token.text for token in tokens[at + 1 : at + 3]]
    mode = vocabulary.settings.get(f"{tokens[at].text.lower()}_default_mode", "")
    return [mode] if mode and (after[:1] == ["SELECT"] or after in (["(", "SELECT"], ["(", "("])) else []


def differ_by_grouping(one: Form, two: Form) -> bool:
    """True if nothing but brackets tells two queries apart, and they join others: the server regroups those when it stores them."""
    bare = [tuple(word for word in form if word not in ("(", ")")) for form in (one, two)]
    return bare[0] == bare[1] and any(word in ("UNION", "EXCEPT", "INTERSECT") for word in one)


def _spell_cast(words: list[str], at: int, vocabulary: Vocabulary) -> None:
    """`CAST(1, 'INT')`: the type in the server's words; a whole number as the string that `1::INT` makes of it."""
    end = closing(tuple(words), at + 1)
    if end < at + 4 or not words[end - 1].startswith("'"):
        return
    tokens, _ = tokenize(words[end - 1][1:])
    words[end - 1] = "'" + " ".join(vocabulary.types.get(token.text.lower(), token.text) for token in tokens)
    if end == at + 5 and words[at + 2].isdigit() and _WHOLE.match(words[end - 1]):
        words[at + 2] = f"'{words[at + 2]}"


def spell_function(name: str, vocabulary: Vocabulary) -> str:
    """The server's name of a function."""
    found = vocabulary.functions.get(name.lower(), name)
    return vocabulary.aliases.get(found, found)


def _qualifiers(tokens: Sequence[Token], words: Sequence[str], database: str) -> set[int]:
    """Places of `database .` in front of tables; a table with the name of a WITH query keeps it, or it would be another."""
    named = {words[i] for i in range(len(tokens) - 2) if tokens[i + 1].is_word("AS") and tokens[i + 2].is_op("(")}
    found: set[int] = set()
    stack: list[tuple[bool, bool]] = []
    in_from = expects = False
    for i, token in enumerate(tokens):
        if token.is_op("("):
            stack.append((in_from, False))
            in_from = expects
        elif token.is_op(")"):
            in_from, expects = stack.pop() if stack else (False, False)
        elif token.is_word("FROM", "JOIN"):
            in_from = expects = not (i and tokens[i - 1].is_word("ARRAY"))
        elif token.is_word("IN"):
            expects = True
        elif token.is_op(","):
            expects = in_from
        elif token.is_word(*_END_OF_FROM):
            in_from = expects = False
        elif expects:
            follows = words[i + 1 : i + 2] == ["."] and i + 2 < len(words) and words[i + 2] not in named
            if token.kind in ("word", "quoted") and words[i] == database and follows:
                found |= {i, i + 1}
            expects = False
    return found
