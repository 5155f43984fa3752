"""References of a SELECT that sqlglot cannot read, from its tokens alone.

It follows brackets, CTE names and the words FROM, JOIN, IN and dictGet; it understands no expression. Good enough for
the graph (nothing is dropped), not for classification: a view read here is `opaque`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from chmv_assets.core.model import EdgeKind, Reference
from chmv_assets.core.names import QName, parse_qname, unquote_identifier
from chmv_assets.core.select_text import Prepared, is_column_word
from chmv_assets.core.tokens import Token, string_value

_SET_WORDS = ("UNION", "EXCEPT", "INTERSECT")
_END_OF_FROM = (
    "WHERE", "PREWHERE", "GROUP", "ORDER", "LIMIT", "HAVING", "SETTINGS", "QUALIFY", "WINDOW", "UNION", "FORMAT",
)  # fmt: skip
_OBJECT_FUNCTIONS = ("dictget", "dicthas", "dictisin", "joinget")


def read_references(prepared: Prepared, default_database: str, *, fires: bool) -> tuple[Reference, ...] | None:
    """Collect what the tokens name; None if they hold no FROM at all, so nothing can be told."""
    reader = _TokenReader(prepared, default_database, fires)
    reader.query(0, len(prepared.tokens), frozenset(), main=True)
    if not reader.saw_from:
        return None
    triggers = {reference.name for reference in reader.found if reference.kind == "trigger"}
    kept = [r for r in reader.found if r.kind == "trigger" or r.name not in triggers]
    return tuple({(r.name, r.kind): r for r in reversed(kept)}.values())[::-1]


def _tells(token: Token) -> bool:
    return token.is_word("SELECT", "FROM", "IN") or token.text.lower().startswith(_OBJECT_FUNCTIONS)


def _matching_brackets(tokens: Sequence[Token]) -> dict[int, int]:
    """Where each bracket that opens is closed."""
    opened: list[int] = []
    pairs: dict[int, int] = {}
    for at, token in enumerate(tokens):
        if token.is_op("("):
            opened.append(at)
        elif token.is_op(")") and opened:
            pairs[opened.pop()] = at
    return pairs


class _TokenReader:
    def __init__(self, prepared: Prepared, default_database: str, fires: bool) -> None:
        self.prepared = prepared
        self.tokens: Sequence[Token] = prepared.tokens
        self.default_database = default_database
        self.fires = fires
        self.found: list[Reference] = []
        self.saw_from = False
        self._matching = _matching_brackets(self.tokens)
        telling = (token.kind == "word" and _tells(token) for token in self.tokens)
        self._telling = list(accumulate(telling, initial=0))  # how many telling words stand before each token

    def query(self, first: int, last: int, ctes: frozenset[str], *, main: bool) -> None:
        """Read tokens [first, last) as one query."""
        ctes = ctes | self._cte_names(first, last)
        at = first
        in_from = False
        expect_table = False
        while at < last:
            token = self.tokens[at]
            if token.is_op("("):
                end = min(self._matching.get(at, last), last)
                inner_main = main and in_from and expect_table
                if self._telling[end] > self._telling[at]:
                    self.query(at + 1, end, ctes, main=inner_main)
                main = main and not inner_main
                expect_table = False
                at = end + 1
                continue
            if token.is_word("FROM") and not is_column_word(self.tokens, at):
                self.saw_from = True
                in_from = expect_table = True
            elif token.is_word(*_SET_WORDS) and self._joins_queries(at):
                main, in_from, expect_table = False, False, False
            elif token.is_word("JOIN") and in_from:
                before = self.tokens[at - 1]
                expect_table = not before.is_word("ARRAY")
                main = False
            elif token.is_op(",") and in_from:
                expect_table, main = True, False
            elif token.is_word(*_END_OF_FROM) and in_from and not is_column_word(self.tokens, at):
                in_from = expect_table = False
                main = False
            elif token.is_word("ARRAY") and in_from:
                expect_table = in_from = False
            elif expect_table and token.kind in ("word", "quoted"):
                at = self._table(at, last, ctes, main)
                main = expect_table = False
                continue
            elif token.is_word("IN") and at + 1 < last and self.tokens[at + 1].kind in ("word", "quoted"):
                at = self._table(at + 1, last, ctes, False)
                continue
            elif token.kind == "word" and token.text.lower().startswith(_OBJECT_FUNCTIONS):
                self._object_argument(at)
            at += 1

    def _joins_queries(self, at: int) -> bool:
        """`EXCEPT SELECT …` joins two queries, `* EXCEPT (a)` only leaves columns out."""
        rest = self.tokens[at + 1 : at + 4]
        return any(token.is_word("SELECT", "WITH", "FROM") for token in rest) and (
            bool(rest) and (rest[0].is_word("ALL", "DISTINCT", "SELECT", "WITH", "FROM") or rest[0].is_op("("))
        )

    def _cte_names(self, first: int, last: int) -> frozenset[str]:
        names = set()
        for i in range(first, last - 3):
            name, as_, bracket, head = self.tokens[i : i + 4]
            opens = as_.is_word("AS") and bracket.is_op("(") and head.is_word("SELECT", "WITH", "FROM")
            if opens and name.kind in ("word", "quoted"):
                names.add(unquote_identifier(name.text))
        return frozenset(names)

    def _table(self, at: int, last: int, ctes: frozenset[str], main: bool) -> int:
        parts = [unquote_identifier(self.tokens[at].text)]
        at += 1
        while at + 1 < last and self.tokens[at].is_op(".") and self.tokens[at + 1].kind in ("word", "quoted"):
            parts.append(unquote_identifier(self.tokens[at + 1].text))
            at += 2
        if at < last and self.tokens[at].is_op("("):
            return at  # a table function: its arguments are read as a group
        if len(parts) == 1 and parts[0] in ctes:
            return at
        names = [self.prepared.restore(part) for part in parts]
        database = names[-2] if len(names) > 1 else self.default_database
        kind: EdgeKind = "trigger" if main and self.fires else "lookup"
        self.found.append(Reference(name=QName(database, names[-1]), kind=kind, via="tokens"))
        return at

    def _object_argument(self, at: int) -> None:
        if at + 2 >= len(self.tokens) or not self.tokens[at + 1].is_op("("):
            return
        token = self.tokens[at + 2]
        if token.kind != "string":
            return
        try:
            name = parse_qname(self.prepared.restore(string_value(token.text)), self.default_database)
        except ValueError:
            return
        self.found.append(Reference(name=name, kind="lookup", via=self.tokens[at].text))
