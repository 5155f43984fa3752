"""Options that several commands have, so that they are called and explained the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def window_option(what: str, otherwise: str = "") -> Callable[[C], C]:
    """`--window A..B`, as text for `parse_window`: what it does, and what happens without it."""
    explained = f"{what}: months, days or hours, both ends included. {otherwise}".rstrip()
    return click.option("--window", "window_text", metavar="A..B", help=explained)
