"""Files → statements: decoding, migration markers, splitting at semicolons.

Invariant: every byte of a file is either part of a statement, a comment, or named in a finding. What a statement means is
not decided here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chmv_assets.core.model import Finding, Place
from chmv_assets.core.tokens import Lines, Token, tokenize


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One DDL file: its path relative to the folder, with forward slashes, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text without terminator and leading comments, its tokens (offsets into `text`), its place."""

    text: str
    tokens: Sequence[Token]
    place: Place
    offset: int = 0  # of its first character in the file's text


_STATEMENT_END = re.compile(r"^[ \t]*--[ \t]*\+(?:goose|migrate)[ \t]+StatementEnd", re.IGNORECASE | re.MULTILINE)
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_STATEMENTS = 50_000  # of one file
_DOWN = re.compile(
    r"^[ \t]*--[ \t]*(?:\+goose[ \t]+Down|\+migrate[ \t]+Down|migrate:down|rambler[ \t]+down)\b[^\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
_UP = re.compile(
    r"^[ \t]*--[ \t]*(?:\+goose[ \t]+Up|\+migrate[ \t]+Up|migrate:up|rambler[ \t]+up)\b", re.IGNORECASE | re.MULTILINE
)


def decode_source(path: str, raw: bytes) -> SourceFile | Finding:
    """Read a file's bytes as text, or say why that is impossible."""
    if len(raw) > MAX_FILE_BYTES:
        wanted = f"at most {MAX_FILE_BYTES // 2**20} MiB"
        return _not_text(path, f"{len(raw) // 2**20} MiB but wanted {wanted}. Split it.")
    if b"\0" in raw[:8192] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _not_text(path, "found binary data but wanted SQL text. Remove it from the DDL folder.")
    encoding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return SourceFile(path=path, text=raw.decode(encoding))
    except UnicodeDecodeError as error:
        return _not_text(path, f"byte {error.start} is not {encoding} but wanted UTF-8 text. Save the file as UTF-8.")


def _not_text(path: str, message: str) -> Finding:
    return Finding(code="not-text", severity="error", message=f"file {path}: {message}", place=Place(path, 1))


def split_statements(file: SourceFile) -> tuple[list[Statement], list[Finding]]:
    """Cut a file into its statements; what belongs to the way down of a migration does not count."""
    if file.path.endswith(".down.sql"):
        note = f"file {file.path}: the way down of a migration; its statements are not part of the declared state."
        return [], [Finding(code="migration-down", severity="note", message=note, place=Place(file.path, 1))]
    text = _end_statements(_blank_down_parts(file.text))
    tokens, broken = tokenize(text)
    lines = Lines(text)
    findings: list[Finding] = []
    if broken is not None:
        place = Place(file.path, lines.line(broken.offset))
        message = f"{broken.what} opens here but is never closed. The rest of the file cannot be read. Close it."
        findings.append(Finding(code="unterminated", severity="error", message=message, place=place))
        tokens = _complete_part(tokens)
    groups = list(itertools.islice(_groups(tokens), MAX_STATEMENTS + 1))
    if len(groups) > MAX_STATEMENTS:
        message = f"file {file.path}: found more than {MAX_STATEMENTS} statements but wanted at most so many. It is not read. Split it."
        return [], [Finding(code="too-many-statements", severity="error", message=message, place=Place(file.path, 1))]
    statements = [_statement(text, group, lines, file.path) for group in groups]
    return statements, findings


def _blank_down_parts(text: str) -> str:
    at = 0
    while down := _DOWN.search(text, at):
        up = _UP.search(text, down.end())
        end = up.start() if up else len(text)
        text = text[: down.end()] + re.sub(r"[^\n]", " ", text[down.end() : end]) + text[end:]
        at = end
    return text


def _end_statements(text: str) -> str:
    """Between goose's StatementBegin and StatementEnd a semicolon is optional, so the marker itself ends a statement."""
    return _STATEMENT_END.sub(lambda marker: ";" + " " * (len(marker.group()) - 1), text)


def _complete_part(tokens: list[Token]) -> list[Token]:
    last = max((i for i, token in enumerate(tokens) if token.is_op(";")), default=-1)
    return tokens[: last + 1]


def _groups(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    first = 0
    for i, token in enumerate(tokens):
        parallel = token.is_word("PARALLEL") and i + 1 < len(tokens) and tokens[i + 1].is_word("WITH")
        if token.is_op(";") or parallel:  # `CREATE … PARALLEL WITH CREATE …` is two statements
            if i > first:
                yield tokens[first:i]
            first = i + 1 + parallel
    if first < len(tokens):
        yield tokens[first:]


def _statement(text: str, group: Sequence[Token], lines: Lines, path: str) -> Statement:
    start, end = group[0].start, group[-1].end
    moved = tuple(Token(token.kind, token.text, token.start - start, token.end - start) for token in group)
    return Statement(text[start:end], moved, Place(path, lines.line(start)), start)
