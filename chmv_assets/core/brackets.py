"""Brackets of a form that mean nothing.

The server brackets every operator inside another by itself when it formats, so what is left are those that people write around a
whole expression, a name or a call. Brackets of calls, tuples, lists behind IN and subqueries are never touched. Those
around one side of UNION, EXCEPT or INTERSECT mean nothing if it is a plain SELECT.
"""

from __future__ import annotations

from collections.abc import Collection

Form = tuple[str, ...]
_BEFORE = frozenset(
    [
        "", ",", "(", "[", "SELECT", "DISTINCT", "WHERE", "PREWHERE", "HAVING", "BY", "ON", "THEN", "ELSE", "WHEN", "DEFAULT",
        "MATERIALIZED", "ALIAS", "EPHEMERAL", "CHECK", "ASSUME", "EXPRESSION", "QUALIFY", "TTL", "LIMIT", "OFFSET", "WITH",
    ]
)  # fmt: skip
_OPERATORS = frozenset(
    [
        "=", "!=", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "||", "AND", "OR", "NOT", "LIKE", "ILIKE", "BETWEEN", "->", "IS",
    ]
)  # fmt: skip
_AFTER = frozenset(
    [
        "", ",", ")", "]", "AS", "FROM", "WHERE", "PREWHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "SETTINGS", "ASC", "DESC", "UNION",
        "TYPE", "THEN", "ELSE", "WHEN", "END", "WITH", "OFFSET", "QUALIFY", "WINDOW", "LEFT", "RIGHT", "INNER", "FULL", "JOIN",
    ]
)  # fmt: skip
_QUERY = ("SELECT", "WITH", "FROM")
_SETS = frozenset(["UNION", "EXCEPT", "INTERSECT", "ALL", "DISTINCT"])
_OF_THE_WHOLE = frozenset(["ORDER", "LIMIT", "SETTINGS", "OFFSET", "WITH", "FORMAT"]) | _SETS


def without_brackets(form: Form) -> Form:
    """A form without brackets around all of it."""
    while len(form) >= 2 and form[0] == "(" and closing(form, 0) == len(form) - 1:
        form = form[1:-1]
    return form


def closing(form: Form, at: int) -> int:
    """Where the bracket at this place is closed; -1 if it is not."""
    depth = 0
    for i in range(at, len(form)):
        depth += (form[i] in ("(", "[")) - (form[i] in (")", "]"))
        if depth == 0:
            return i
    return -1


def without_needless(form: Form) -> Form:
    """A form without brackets around whole expressions, names and calls.

    >>> without_needless(("f", "(", "(", "a", "+", "1", ")", ",", "(", "b", ")", ")"))
    ('f', '(', 'a', '+', '1', ',', 'b', ')')
    >>> without_needless(("x", "IN", "(", "a", ")")), without_needless(("a", "-", "(", "b", "-", "1", ")"))
    (('x', 'IN', '(', 'a', ')'), ('a', '-', '(', 'b', '-', '1', ')'))
    """
    while needless := _needless(form):
        form = tuple(word for i, word in enumerate(form) if i not in needless)
    return form


def _needless(form: Form) -> set[int]:
    opened: list[int] = []
    found: set[int] = set()
    for i, word in enumerate(form):
        if word in ("(", "["):
            opened.append(i)
        elif word in (")", "]") and opened:
            first = opened.pop()
            if word == ")" and form[first] == "(" and _is_needless(form, first, i):
                found |= {first, i}
    return found


def _is_needless(form: Form, first: int, last: int) -> bool:
    before = form[first - 1] if first else ""
    after = form[last + 1] if last + 1 < len(form) else ""
    content = form[first + 1 : last]
    if content[:1] == ("SELECT",) and (before in _SETS or after in _SETS):
        return before in {*_SETS, "", "("} and after in {*_SETS, "", ")"} and not _has(content, _OF_THE_WHOLE)
    if before not in _BEFORE and before not in _OPERATORS:
        return False
    if not content or content[0] in _QUERY or after in (".", "[", "(", "::") or _has(content, {","}):
        return False
    return _is_primary(content) or (before in _BEFORE and after in _AFTER)


def _has(content: Form, words: Collection[str]) -> bool:
    """True if one of these words stands in no inner bracket."""
    depth = 0
    for word in content:
        depth += (word in ("(", "[")) - (word in (")", "]"))
        if depth == 0 and word in words:
            return True
    return False


def _is_primary(content: Form) -> bool:
    """One name, literal, call, list or group."""
    if len(content) == 1:
        return content[0] != "*"
    names = all((word == ".") == bool(i % 2) for i, word in enumerate(content))
    if names and len(content) % 2:
        return True
    start = 0 if content[0] in ("(", "[") else 1
    return start < len(content) and content[start] in ("(", "[") and closing(content, start) == len(content) - 1
