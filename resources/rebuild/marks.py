"""A rebuild makes stale windows right: their watermarks say so, unless more rows came in while it ran."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import Watermark, rebuilt
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.store import Decide

_EVER = (datetime(1, 1, 1, tzinfo=timezone.utc), datetime(9999, 1, 1, tzinfo=timezone.utc))


def read_stale(journal: Journal, target: QName, window: Window | None) -> list[Watermark]:
    """The stale watermarks of a window as they are before its rebuild begins."""
    between = _EVER if window is None else (window.start, window.end - timedelta(microseconds=1))
    return [mark for mark in journal.read_watermarks(target=target, between=between) if mark.status == "stale"]


def note_rebuilt(journal: Journal, stale: Sequence[Watermark], batch: str) -> None:
    """Mark them as processed; one that has moved since stays stale, for the rows that moved it."""
    changes: dict[QName, dict[QName, dict[Window, Decide]]] = {}
    for mark in stale:
        by_target = changes.setdefault(mark.source_id, {}).setdefault(mark.target_table, {})
        by_target[Window(mark.window_start, mark.window_end)] = _decide(mark, batch)
    for source, targets in changes.items():
        journal.move_watermarks(source, targets)


def _decide(seen: Watermark, batch: str) -> Decide:
    def decide(mark: Watermark, version: int) -> Watermark:
        return rebuilt(mark, batch, version) if mark == seen else mark

    return decide
