"""Deficits: windows of which the check `target_matches_source` said that the target does not hold what its views give. Pure.

A deficit is open until the same windows are found equal, by the check or by a repair. Who reads Dagster's evaluations is
`sensors.deficits`, who repairs is `chmv_assets.recovery.targets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window

CHECK = "target_matches_source"
DIFFERENT = "chmv/different_windows"  # metadata of an evaluation: a list of `dump_window`
EQUAL = "chmv/equal_windows"
WHOLE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One evaluation of the check: windows as texts, `WHOLE` for all of the target."""

    target: QName
    number: int  # of the evaluation in Dagster's log
    run_id: str
    different: tuple[str, ...]
    equal: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deficit:
    """What is open of one target, and which evaluation said so last."""

    number: int
    run_id: str
    windows: tuple[str, ...]

    @property
    def spans(self) -> tuple[Window, ...]:
        """The windows, newest first; none for a whole target."""
        return tuple(sorted((load_window(one) for one in self.windows if one != WHOLE), reverse=True))

    @property
    def evidence(self) -> str:
        return f"evaluation {self.number} of run {self.run_id[:8]}"


def dump_window(window: Window | None) -> str:
    """A window as text, for metadata and cursors.

    >>> from datetime import timezone
    >>> day = Window(datetime(2026, 11, 1, tzinfo=timezone.utc), datetime(2026, 11, 2, tzinfo=timezone.utc))
    >>> dump_window(day), load_window(dump_window(day)) == day, dump_window(None)
    ('2026-11-01T00:00:00+00:00/2026-11-02T00:00:00+00:00', True, '')
    """
    return WHOLE if window is None else f"{window.start.isoformat()}/{window.end.isoformat()}"


def load_window(text: str) -> Window:
    start, _, end = text.partition("/")
    return Window(datetime.fromisoformat(start), datetime.fromisoformat(end))


def follow(known: Mapping[QName, Deficit], evaluations: Iterable[Compared]) -> dict[QName, Deficit]:
    """What is open after some more evaluations, the oldest of them first."""
    found = dict(known)
    for one in evaluations:
        before = found.get(one.target)
        left = [window for window in (before.windows if before else ()) if window not in (*one.equal, *one.different)]
        windows = (*left, *one.different)
        if one.different:
            found[one.target] = Deficit(number=one.number, run_id=one.run_id, windows=windows)
        elif before is not None and windows:
            found[one.target] = Deficit(number=before.number, run_id=before.run_id, windows=windows)
        else:
            found.pop(one.target, None)
    return found
