"""Windows as people write them."""

from __future__ import annotations

import pytest

from chmv_assets.core.window_text import WindowTextError, parse_window


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-11", "2026-11-01T00:00", "2026-12-01T00:00"),
        ("2026-12..2027-01", "2026-12-01T00:00", "2027-02-01T00:00"),
        ("2026-11-14", "2026-11-14T00:00", "2026-11-15T00:00"),
        (" 2026-11-14 .. 2026-11-15 ", "2026-11-14T00:00", "2026-11-16T00:00"),
        ("2026-11-14T06..2026-11-14T09", "2026-11-14T06:00", "2026-11-14T10:00"),
        ("2026-11-14-06:00", "2026-11-14T06:00", "2026-11-14T07:00"),
        ("2026-11-14T06:30..2026-11-14T06:31", "2026-11-14T06:30", "2026-11-14T06:32"),
        ("2026-10..2026-11-03", "2026-10-01T00:00", "2026-11-04T00:00"),
    ],
)
def test_both_ends_are_included(text: str, start: str, end: str) -> None:
    window = parse_window(text)
    assert (f"{window.start:%Y-%m-%dT%H:%M}", f"{window.end:%Y-%m-%dT%H:%M}") == (start, end)


def test_days_are_days_of_the_zone() -> None:
    window = parse_window("2026-10-25", "Europe/Berlin")
    assert (window.end - window.start).total_seconds() == 25 * 3600


@pytest.mark.parametrize("text", ["", "..", "yesterday", "2026-11-15..2026-11-14", "2026-13", "2026-11-14..", "2026"])
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(WindowTextError, match=r"wanted `A\.\.B` or `A`"):
        parse_window(text)
