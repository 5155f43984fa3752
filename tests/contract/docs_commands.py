"""Commands as the docs show them: found in fenced blocks, split as a shell would, with the placeholders of the docs filled in. Pure.

Only what the docs use is understood: quotes, `a | b`, `a && b`, `a || b`, `> file`, `VAR=value command`, a trailing comment. Running them is in
`test_docs_commands`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

SHELLS = ("sh", "bash", "console")
_FENCE = re.compile(r"^\s*```(\w*)\s*$")
_EXIT = re.compile(r"exit code (\d)( if|: | |$)")
_DAY = re.compile(r"\b2026-(\d\d)-(\d\d)")
DOCS_TODAY = date(2026, 11, 17)  # what the docs take for today


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line to run; what its comment says of its exit code counts."""

    line: int
    text: str
    comment: str = ""

    @property
    def exit_codes(self) -> frozenset[int]:
        """What the page says: `exit code 2` is that one, `exit code 2 if …` may also be 0.

        >>> sorted(Command(line=1, text="chmv plan", comment="exit code 2 if there are changes").exit_codes)
        [0, 2]
        """
        found = _EXIT.search(self.comment)
        if found is None:
            return frozenset({0})
        code = int(found.group(1))
        return frozenset({0, code}) if found.group(2) == " if" else frozenset({code})


def read_blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    language, start, lines = "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif start:
            yield Block(language=language, line=start, lines=tuple(lines))
            start = 0
        else:
            language, start, lines = fence.group(1), number, []


def read_commands(block: Block) -> Iterator[Command]:
    """The commands of a block: every line of a script, what follows `$` of a console."""
    if block.language not in SHELLS:
        return
    held = ""
    for at, line in enumerate(block.lines, start=1):
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1]
            continue
        text, comment = split_comment(held + line)
        held = ""
        if text:
            yield Command(line=block.line + at, text=text, comment=comment)


def split_comment(line: str) -> tuple[str, str]:
    """A line without its comment, and the comment.

    >>> split_comment("chmv x --y 'a # b' | jq '.z'   # why")
    ("chmv x --y 'a # b' | jq '.z'", 'why')
    """
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].strip(), line[at + 1 :].strip()
    return line.strip(), ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`a | b > file`; `after` is how it hangs on the one before."""

    stages: tuple[tuple[str, ...], ...]
    output: str = ""
    after: str = ""  # "", "&&" or "||"


def split_line(text: str) -> list[Pipeline]:
    """A line as pipelines.

    >>> [(one.after, one.stages, one.output) for one in split_line("chmv a --b 'c d' | jq . > x && chmv e")]
    [('', (('chmv', 'a', '--b', 'c d'), ('jq', '.')), 'x'), ('&&', (('chmv', 'e'),), '')]
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[Pipeline] = []
    stages, words, output, after = list[tuple[str, ...]](), list[str](), "", ""
    tokens = [*lexer, "&&"]
    while tokens:
        token = tokens.pop(0)
        if token in ("|", "&&", "||"):
            stages.append(tuple(words))
            words = []
            if token != "|":
                found.append(Pipeline(stages=tuple(stages), output=output, after=after))
                stages, output, after = [], "", token
        elif token == ">":
            output = tokens.pop(0)
        else:
            words.append(token)
    return found


def fill_in(text: str, replaced: Mapping[str, str], today: date) -> str:
    """The text with placeholders and days of the docs replaced by those of this run.

    >>> fill_in("--window 2026-11-14T06..2026-11-15 --url http://x", {"http://x": "http://y"}, date(2027, 3, 4))
    '--window 2027-03-01T06..2027-03-02 --url http://y'
    """
    for old, new in replaced.items():
        text = text.replace(old, new)
    moved = today - DOCS_TODAY
    return _DAY.sub(lambda day: str(date(2026, int(day.group(1)), int(day.group(2))) + moved), text)


def inline_commands(page: Path, program: str) -> Iterator[tuple[int, Sequence[str]]]:
    """`program …` in the running text, as words up to what is no word."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            for found in re.findall(rf"(?<!`)`{program} ([^`]+)`(?!`)", line):
                yield number, re.split(r"[\s|\[\]\\]+", found)
