"""What every page is asked for."""

from __future__ import annotations

import re
from typing import Any

from conftest import PATIENCE_MS, LiveDemo
from playwright.sync_api import Locator, Page, expect

BROKEN = re.compile(r"PythonError|Unexpected error|An error occurred|Loading error|Failed to load|Traceback")


def seen(where: Page | Locator, text: str | re.Pattern[str], *, exact: bool = True) -> Locator:
    """The first visible place of a text; Dagster keeps hidden copies to measure widths."""
    return where.get_by_text(text, exact=exact).locator("visible=true").first


def expect_texts(where: Page | Locator, *texts: str) -> None:
    for text in texts:
        expect(seen(where, text), f"wanted to see {text!r}").to_be_visible(timeout=PATIENCE_MS)


def expect_sound(page: Page) -> None:
    body = page.locator("body").inner_text()
    found = BROKEN.search(body)
    assert found is None, f"{page.url} shows {found.group() if found else ''}: {body[:2000]}"


def ask(demo: LiveDemo, query: str) -> Any:
    answer = demo.ui.graphql(query)
    assert "errors" not in answer, answer
    return answer["data"]
