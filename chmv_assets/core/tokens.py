"""A forgiving lexer for ClickHouse SQL, and the cursor that our own readers walk with.

Invariant: the tokens are slices of the text in order, so any clause can be given back exactly as written. It knows
strings, quoted identifiers, heredocs, comments, `{parameters}` and the templating of migration tools (`${X}`, `{{ x }}`);
it knows no grammar.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.names import unescape

TokenKind = Literal["word", "quoted", "string", "number", "param", "op", "end"]

_TEMPLATE = r"\$\{[^}\n]{0,500}\}|\{\{.{0,500}?\}\}"  # bounded: without a limit each one that never ends would read all of the text
_SCANNER = re.compile(
    rf"""
    (?P<space>[\s\ufeff\u00a0]+)
  | (?P<comment>--[^\n]*|\#[!\s][^\n]*)
  | (?P<jinja>\{{[%\#])
  | (?P<block>/\*)
  | (?P<heredoc>\$[A-Za-z0-9_]*\$)
  | (?P<string>'(?:[^'\\]|\\.|'')*')
  | (?P<quoted>`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*")
  | (?P<word>(?:(?:{_TEMPLATE})|[^\W\d])(?:[\w$]|{_TEMPLATE})*)
  | (?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<param>\{{[^{{}}]*\}})
  | (?P<op>::|->|<=>|<=|>=|<>|!=|==|\|\||.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """True for an unquoted word that equals one of these keywords, whatever its case."""
        return self.kind == "word" and self.text.upper() in words

    def is_op(self, *ops: str) -> bool:
        return self.kind == "op" and self.text in ops


@dataclass(frozen=True, slots=True)
class Unterminated:
    """A quote or a comment that never ends; nothing after it can be trusted."""

    what: str
    offset: int


_OPENERS = {"'": "a string", "`": "a quoted name", '"': "a quoted name"}


def tokenize(text: str) -> tuple[list[Token], Unterminated | None]:
    """Cut the text into tokens; comments and white space are left out.

    >>> tokens, broken = tokenize("SELECT `a b`, 'x;y' -- z")
    >>> [token.text for token in tokens], broken
    (['SELECT', '`a b`', ',', "'x;y'"], None)
    """
    tokens: list[Token] = []
    missing: set[str] = set()
    at = 0
    while match := _SCANNER.match(text, at):
        kind = match.lastgroup or "op"
        piece = match.group()
        if kind in ("jinja", "heredoc"):
            end = _end_of_block(text, at, piece, missing)
            if end is None:  # nothing ends it: its first letter stands for itself
                tokens.append(Token("op", piece[0], at, at + 1))
                at += 1
            else:
                if kind == "heredoc":
                    tokens.append(Token("string", text[at:end], at, end))
                at = end
            continue
        if kind == "op" and piece in _OPENERS:
            return tokens, Unterminated(_OPENERS[piece], at)
        if kind == "block":
            end = _end_of_comment(text, at)
            if end is None:
                return tokens, Unterminated("a comment", at)
            at = end
            continue
        if kind not in ("space", "comment"):
            tokens.append(Token(kind, piece, at, match.end()))  # type: ignore[arg-type]
        at = match.end()
    return tokens, None


def _end_of_block(text: str, at: int, opener: str, missing: set[str]) -> int | None:
    """Where a heredoc or a comment of a template ends; what was looked for in vain once is not there further on either."""
    closer = f"{opener[1]}}}" if opener.startswith("{") else opener
    if closer in missing:
        return None
    end = text.find(closer, at + len(opener))
    if end < 0:
        missing.add(closer)
        return None
    return end + len(closer)


def _end_of_comment(text: str, at: int) -> int | None:
    """Where a block comment ends; they nest, as on the server."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    return None


class Lines:
    """Offset → 1-based line number of one text."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer(r"\n", text))]

    def line(self, offset: int) -> int:
        return bisect_right(self._starts, offset)


def string_value(token_text: str) -> str:
    """The value of a string literal or heredoc as written.

    >>> string_value("'it''s'")
    "it's"
    """
    if token_text.startswith("$"):
        tag = token_text[: token_text.index("$", 1) + 1]
        return token_text[len(tag) : -len(tag)]
    return unescape(token_text[1:-1].replace("''", "'"))


class Cursor:
    """A position in a token list. Never raises at the end: it shows an `end` token for ever."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0
        last = tokens[-1].end if tokens else 0
        self._end = Token("end", "", last, last)

    def peek(self, ahead: int = 0) -> Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else self._end

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    @property
    def done(self) -> bool:
        return self.at >= len(self.tokens)

    def at_words(self, *words: str) -> bool:
        """True if the next tokens are exactly these keywords."""
        return all(self.peek(i).is_word(word) for i, word in enumerate(words))

    def take_words(self, *words: str) -> bool:
        """Step over these keywords if they are next."""
        if not self.at_words(*words):
            return False
        self.at += len(words)
        return True

    def take_op(self, op: str) -> bool:
        if not self.peek().is_op(op):
            return False
        self.at += 1
        return True

    def skip_group(self) -> tuple[int, int]:
        """Step over a bracketed group that starts here; give the token positions of what is inside."""
        depth = 0
        first = self.at + 1
        while not self.done:
            token = self.next()
            if token.is_op("(", "["):
                depth += 1
            elif token.is_op(")", "]"):
                depth -= 1
                if depth == 0:
                    break
        return first, self.at - 1 if depth == 0 else self.at

    def slice(self, first: int, last: int) -> str:
        """The text of tokens [first, last) as written."""
        last = min(last, len(self.tokens))
        return self.text[self.tokens[first].start : self.tokens[last - 1].end] if first < last else ""


def split_commas(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Cut tokens at the commas that stand outside any bracket."""
    parts: list[Sequence[Token]] = []
    depth = 0
    first = 0
    for i, token in enumerate(tokens):
        if token.is_op("(", "["):
            depth += 1
        elif token.is_op(")", "]"):
            depth -= 1
        elif depth == 0 and token.is_op(","):
            parts.append(tokens[first:i])
            first = i + 1
    if first < len(tokens) or parts:
        parts.append(tokens[first:])
    return parts
