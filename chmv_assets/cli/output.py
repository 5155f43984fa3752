"""How commands speak: one console, errors of ours without a traceback, JSON on standard output alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table

from chmv_assets.core.errors import ChmvError

P = ParamSpec("P")
R = TypeVar("R")


def told(command: Callable[P, R]) -> Callable[P, R]:
    """Show an error of ours as one message without a traceback, exit code 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ChmvError as error:
            raise click.ClickException(str(error)) from error

    return run


def say(line: str) -> None:
    """One line to somebody who waits: what is waited for, tried once more or could not be done. Standard output stays the result's."""
    click.echo(line, err=True)


def hush(_line: str) -> None:
    """For what only a log is for."""


def console(*, stderr: bool = False) -> Console:
    """A console that colours only on a terminal; piped output keeps its width."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 160, soft_wrap=not stream.isatty())


def json_text(document: Any) -> str:
    """A document as commands print it, with its line end."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def print_json(document: Any) -> None:
    click.echo(json_text(document), nl=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; numbers go to the right."""
    made = Table(title=title, title_justify="left", header_style="bold")
    body = [["" if cell is None else cell for cell in row] for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[at], int | float) or row[at] == "" for row in body)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        made.add_row(*(str(cell) for cell in row))
    return made
