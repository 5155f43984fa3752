"""Telling a person how an installation goes on.

A bar on a terminal, one line at the start and one at the end elsewhere, always on standard error. What is reported is
plain values, so that the installer knows nothing of screens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallStep:
    """Where an installation stands; `total_bytes` None means that nobody can tell how much is left."""

    text: str
    done_bytes: int = 0
    total_bytes: int | None = None


Report = Callable[[InstallStep], None]


def ignore(_step: InstallStep) -> None:
    """Report to nobody."""


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[Report]:
    """A reporter for people."""
    shown = console or Console(stderr=True)
    if not shown.is_terminal:
        yield _lines(shown)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True) as progress:
        task = progress.add_task("engine", total=None)

        def report(step: InstallStep) -> None:
            progress.update(task, description=step.text, completed=step.done_bytes, total=step.total_bytes)

        yield report


def _lines(console: Console) -> Report:
    """The first step and the last; what is between would only fill a log."""
    said: set[str] = set()

    def report(step: InstallStep) -> None:
        kind = "first" if not said else "last" if step.text.startswith("installed") else ""
        if kind and kind not in said:
            said.add(kind)
            console.print(f"chmv engine: {step.text}", markup=False, highlight=False, soft_wrap=True)

    return report
