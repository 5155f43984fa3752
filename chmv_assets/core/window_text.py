"""Windows as people write them on a command line: `2026-11-14`, `2026-10..2026-11`, `2026-11-14T06..2026-11-14T09`.

Each side names a period (month, day, hour or minute); the window reaches from the start of the first to the end of the last,
so that `2026-11-14..2026-11-15` are two whole days.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.truncation import Unit
from chmv_assets.core.windows import UTC, Window, next_period_start

_FORMS: tuple[tuple[str, Unit | None], ...] = (
    ("%Y-%m", "month"),
    ("%Y-%m-%d", "day"),
    ("%Y-%m-%dT%H", "hour"),
    ("%Y-%m-%d-%H:%M", "hour"),  # as Dagster writes hours
    ("%Y-%m-%dT%H:%M", None),
)


class WindowTextError(ChmvError):
    """A window that cannot be read."""

    def __init__(self, text: str, found: str) -> None:
        super().__init__(
            f"window {text}: found {found} but wanted `A..B` or `A`, each a month (2026-11), day (2026-11-14), hour "
            "(2026-11-14T06) or minute (2026-11-14T06:30), A not after B. Both ends are included. Correct it."
        )


def parse_window(text: str, zone: str = "UTC") -> Window:
    """Read a window in a zone.

    >>> str(parse_window("2026-11-14..2026-11-15"))
    '[2026-11-14 00:00:00, 2026-11-16 00:00:00) UTC'
    """
    first, dots, last = text.partition("..")
    start, _ = _period(text, first, zone)
    _, end = _period(text, last if dots else first, zone)
    if start >= end:
        raise WindowTextError(text, f"an end before its start ({first.strip()} is after {last.strip()})")
    return Window(start, end)


def name_window(window: Window | None, zone: str = "UTC") -> str:
    """What a window is called where people read it; without one it is all of a target."""
    return "whole" if window is None else render_window(window, zone)


def render_window(window: Window, zone: str = "UTC") -> str:
    """Write a window in a zone as `parse_window` reads it, as short as it can be; one that cannot be written so, with its ends.

    >>> render_window(parse_window("2026-11-14T06..2026-11-14T23")), render_window(parse_window("2026-11-01..2026-11-30"))
    ('2026-11-14T06..2026-11-14T23', '2026-11')
    """
    sides = [moment.astimezone(ZoneInfo(zone)) for moment in (window.start, window.end - timedelta(microseconds=1))]
    for form in ("%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M"):
        first, last = (f"{side:{form}}" for side in sides)
        text = first if first == last else f"{first}..{last}"
        if parse_window(text, zone) == window:
            return text
    return str(window)


def _period(whole: str, text: str, zone: str) -> tuple[datetime, datetime]:
    for form, unit in _FORMS:
        try:
            start = datetime.strptime(text.strip(), form).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        except ValueError:
            continue
        return start, start + timedelta(minutes=1) if unit is None else next_period_start(start, unit, zone)
    raise WindowTextError(whole, repr(text.strip()))
