"""What the late data sensor remembers from tick to tick: how far arrivals are read, which windows wait, what is asked for. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.recovery import Ask
from chmv_assets.core.watermarks import from_micros
from chmv_assets.core.windows import Window
from sensors.cursors import dump_cursor, read_cursor

CURSOR_VERSION = 1
Damage = Literal["late rows", "reopen"]
Key = tuple[QName, Damage, Window]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A window to repair: the arrival of the last late row in it, and when it was noticed."""

    latest_us: int
    detected_ms: int
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What was asked for in one run that has not succeeded yet; newest window first."""

    subject: QName
    damage: Damage
    windows: tuple[tuple[Window, int], ...]  # with the arrival of its last late row
    detected_ms: int
    rows: int = 0

    def ask(self) -> Ask:
        latest = max(arrival for _, arrival in self.windows)
        text = " ".join(f"{window}@{arrival}" for window, arrival in self.windows)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        newest = self.windows[0][0]
        return Ask(
            kind="late",
            subject=self.subject,
            damage=self.damage,
            evidence=f"{len(self.windows)} window(s) to {newest.end.isoformat()}, last arrival {latest}, {digest}",
            windows=tuple(window for window, _ in self.windows),
            detected_ms=self.detected_ms,
            seen={
                "windows": str(len(self.windows)),
                "late rows": str(self.rows) if self.rows else "known from the watermarks",
                "latest arrival": from_micros(latest).isoformat(),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far arrivals are read, what waits, what is asked for."""

    fence_us: int | None = None
    behind: Mapping[QName, int] = field(
        default_factory=dict
    )  # sources that are not read up to it, with how far they are
    tail: Mapping[tuple[QName, int], tuple[int, int]] = field(default_factory=dict)  # source, hour → rows, last arrival
    pending: Mapping[Key, Waiting] = field(default_factory=dict)
    flights: tuple[Flight, ...] = ()
    rested: Mapping[Key, float] = field(default_factory=dict)  # when a window was asked for last, for a while
    settled: Mapping[Key, int] = field(default_factory=dict)  # stale windows whose repair is done for this arrival
    note: str = ""

    def dump(self) -> str:
        fields = {
            "fence": self.fence_us,
            "behind": {str(name): at for name, at in sorted(self.behind.items())},
            "tail": [[str(name), hour, *seen] for (name, hour), seen in sorted(self.tail.items())],
            "pending": [[*_packed(key), one.latest_us, one.detected_ms, one.rows] for key, one in sorted(self.pending.items())],
            "flights": [
                [str(one.subject), one.damage, [[*_span(window), at] for window, at in one.windows], one.detected_ms, one.rows]
                for one in self.flights
            ],
            "rested": [[*_packed(key), at] for key, at in sorted(self.rested.items())],
            "settled": [[*_packed(key), at] for key, at in sorted(self.settled.items())],
        }  # fmt: skip
        return dump_cursor(CURSOR_VERSION, fields)


def _span(window: Window) -> tuple[int, int]:
    return int(window.start.timestamp()), int(window.end.timestamp())


def _packed(key: Key) -> tuple[str, str, int, int]:
    subject, damage, window = key
    return (str(subject), damage, *_span(window))


def _window(start: int, end: int) -> Window:
    return Window(from_micros(int(start) * 1_000_000), from_micros(int(end) * 1_000_000))


def _key(subject: str, damage: Damage, start: int, end: int) -> Key:
    return parse_qname(str(subject), ""), damage, _window(start, end)


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says what follows from it."""
    lost = " Rows that came before are not looked at."
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note + lost if note else ""))


def _decode(document: Any) -> Cursor:
    return Cursor(
        fence_us=None if document["fence"] is None else int(document["fence"]),
        behind={parse_qname(str(name), ""): int(at) for name, at in document.get("behind", {}).items()},
        tail={(parse_qname(str(name), ""), int(hour)): (int(rows), int(at)) for name, hour, rows, at in document["tail"]},
        pending={
            _key(subject, damage, start, end): Waiting(int(latest), int(detected), int(rows))
            for subject, damage, start, end, latest, detected, rows in document["pending"]
        },
        flights=tuple(
            Flight(
                subject=parse_qname(str(subject), ""), damage=damage, detected_ms=int(detected), rows=int(rows),
                windows=tuple((_window(start, end), int(at)) for start, end, at in windows),
            )
            for subject, damage, windows, detected, rows in document["flights"]
        ),
        rested={_key(*head): float(at) for *head, at in document["rested"]},
        settled={_key(*head): int(at) for *head, at in document["settled"]},
    )  # fmt: skip
