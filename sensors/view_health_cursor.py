"""What the view health sensor remembers from tick to tick. Pure.

It keeps one moment for everything that was right then, and a moment of its own only for what is wrong. Of each declaration it keeps a few letters: an
edit of one view does not make it forget that all others were right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chmv_assets.core.deficits import Deficit
from chmv_assets.core.names import QName, parse_qname
from sensors.cursors import dump_cursor, read_cursor

CURSOR_VERSION = 1
MARK_LETTERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What earlier ticks saw."""

    declared: str = ""
    marks: frozenset[str] = frozenset()  # of the declarations that were looked at
    at_ms: int = 0  # when all that is not listed below was right
    unseen: frozenset[str] = frozenset()  # never seen right under this declaration
    wrong: Mapping[str, int] = field(default_factory=dict)  # name → when it was right last
    failing: Mapping[str, int] = field(default_factory=dict)  # view → its first failure that is not repaired
    probes: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # isolated view → probes so far, when the next is due
    checked: float = 0.0  # when Dagster was last asked for comparisons, in seconds
    deficits: Mapping[QName, Deficit] = field(
        default_factory=dict
    )  # what the comparison found wrong, until it finds it right
    note: str = ""

    def dump(self) -> str:
        fields = {
            "declared": self.declared, "marks": "".join(sorted(self.marks)), "at": self.at_ms, "unseen": sorted(self.unseen),
            "wrong": dict(self.wrong), "failing": dict(self.failing), "probes": {name: list(one) for name, one in self.probes.items()},
            "checked": self.checked,
            "deficits": {str(name): [one.number, one.run_id, list(one.windows)] for name, one in self.deficits.items()},
        }  # fmt: skip
        return dump_cursor(CURSOR_VERSION, fields)


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says so."""
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note))


def _decode(document: Any) -> Cursor:
    return Cursor(
        declared=str(document["declared"]),
        marks=_split_marks(str(document.get("marks", ""))),
        at_ms=int(document["at"]),
        unseen=frozenset(str(name) for name in document["unseen"]),
        wrong={str(name): int(at) for name, at in document["wrong"].items()},
        failing={str(name): int(at) for name, at in document["failing"].items()},
        probes={str(name): (int(count), int(due)) for name, (count, due) in document["probes"].items()},
        checked=float(document.get("checked") or 0),
        deficits={
            parse_qname(name, "default"): Deficit(number=int(number), run_id=str(run), windows=tuple(map(str, windows)))
            for name, (number, run, windows) in document.get("deficits", {}).items()
        },
    )


def _split_marks(text: str) -> frozenset[str]:
    return frozenset(text[at : at + MARK_LETTERS] for at in range(0, len(text), MARK_LETTERS))
