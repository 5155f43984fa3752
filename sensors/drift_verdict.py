"""The drift sensor's decision, purely: what was compared, what earlier ticks said → what to report, an alert or none, a sentence.

A state counts when two ticks in a row have seen it, both ways: somebody who is just applying a change is not reported, and what is right
again is said once it stays so. The cursor keeps only objects that are not as declared, or were reported so, and at most `KEPT` of them;
a tick reports at most `REPORTS_PER_TICK`, the others follow.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName
from chmv_assets.drift import Drift
from sensors.cursors import dump_cursor, read_cursor

CURSOR_VERSION = 1
TICKS = 2
KEPT = 500
REPORTS_PER_TICK = 25  # an event costs 11–33 ms on SQLite
_NAMED = 10
_RIGHT = ""  # the mark of an object that is as declared
DRIFTED = ("changed", "missing")


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: what was reported of it, and what is seen since."""

    reported: str = _RIGHT  # a mark
    seen: str = _RIGHT  # another mark, if it is not what was reported
    ticks: int = 0  # in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What earlier ticks saw."""

    declared: Mapping[str, Entry] = field(default_factory=dict)
    undeclared: Mapping[str, Entry] = field(default_factory=dict)
    note: str = ""

    def dump(self) -> str:
        return dump_cursor(
            CURSOR_VERSION, {"declared": _encode(self.declared), "undeclared": _encode(self.undeclared)}
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an object's page is told now."""

    name: QName
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftVerdict:
    """What a tick does and says."""

    reports: tuple[Report, ...]  # for objects with an asset, also those that are right again
    undeclared: tuple[QName, ...]  # new since the last report; they have no asset
    cursor: Cursor
    told: str

    @property
    def drifted(self) -> tuple[Report, ...]:
        """Those of the reports that are worth an alert."""
        return tuple(one for one in self.reports if one.comparison.state in DRIFTED)


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says so.

    >>> cursor = Cursor(declared={"shop.x": Entry("a1", "", 1)})
    >>> load_cursor(cursor.dump()) == cursor, load_cursor("[]").note
    (True, 'The cursor was not readable and is started afresh.')
    """
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note))


def decide(drift: Drift, cursor: Cursor) -> DriftVerdict:
    """Compare with earlier ticks; nothing outside is touched."""
    marks = {str(name): mark_of(one) for name, one in drift.comparisons.items()}
    held = {str(name) for name in drift.held}
    declared, due = _advance(marks, cursor.declared, held, REPORTS_PER_TICK)
    extra = {str(one.name): f"u{_digest(one.engine)}" for one in drift.undeclared}
    undeclared, new = _advance(extra, cursor.undeclared, (), KEPT)
    by_text = {str(name): name for name in drift.comparisons}
    reports = tuple(Report(name=by_text[one], comparison=drift.comparisons[by_text[one]]) for one in due)
    others = {str(one.name): one.name for one in drift.undeclared}
    fresh = tuple(others[one] for one in new if one in others)
    return DriftVerdict(
        reports=reports,
        undeclared=fresh,
        cursor=Cursor(declared=declared, undeclared=undeclared),
        told=_sentence(drift, cursor.note, declared, reports, fresh),
    )


def mark_of(comparison: Comparison) -> str:
    """The state of an object in a few letters; nothing if it is as declared.

    >>> mark_of(Comparison("equal")), mark_of(Comparison("missing"))[0]
    ('', 'm')
    """
    if comparison.state == "equal":
        return _RIGHT
    what = "\0".join(f"{one.what}\1{one.declared}\1{one.live}" for one in comparison.differences)
    return comparison.state[0] + _digest(f"{comparison.state}\0{what}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _advance(
    marks: Mapping[str, str], before: Mapping[str, Entry], held: Collection[str], limit: int
) -> tuple[dict[str, Entry], list[str]]:
    """The entries after this tick, and which are to be reported. What is gone from `marks` is right, or nobody's any more."""
    entries: dict[str, Entry] = {}
    due: list[str] = []
    for name in sorted({*(name for name, mark in marks.items() if mark != _RIGHT), *before}):
        entry, mark = before.get(name), marks.get(name, _RIGHT)
        if name in held:
            if entry is not None:
                entries[name] = entry
            continue
        if entry is None and len(entries) >= KEPT:
            continue
        entry = entry or Entry()
        if mark == entry.reported:
            entry = Entry(mark)
        else:
            entry = Entry(
                entry.reported, mark, min(entry.ticks, TICKS) + 1 if mark == entry.seen and entry.ticks else 1
            )
            if entry.ticks >= TICKS and len(due) < limit:
                due.append(name)
                entry = Entry(mark)
        if entry != Entry():
            entries[name] = entry
    return entries, [name for name in due if name in marks]


def _sentence(
    drift: Drift, note: str, entries: Mapping[str, Entry], reports: Sequence[Report], fresh: Sequence[QName]
) -> str:
    states = Counter(one.state for one in drift.comparisons.values())
    counted = ", ".join(f"{states[one]} {one}" for one in ("changed", "missing", "cannot tell") if states[one])
    lines = [f"{len(drift.comparisons)} objects compared, {counted or 'all as declared'}"]
    if drift.waiting:
        lines.append(f"{drift.waiting} more in the next ticks")
    waiting = sum(1 for entry in entries.values() if entry.ticks)
    if waiting:
        lines.append(f"{waiting} wait for one more tick")
    if held := sum(1 for name in drift.held if drift.comparisons.get(name, Comparison("equal")).state != "equal"):
        lines.append(f"{held} differ while a rebuild works on them")
    lines += [f"{one.name}: {describe(one.comparison)}" for one in reports[:_NAMED]]
    if len(reports) > _NAMED:
        lines.append(f"and {len(reports) - _NAMED} more")
    if drift.undeclared:
        lines.append(f"not declared: {name_some([one.name for one in drift.undeclared])}")
    if fresh:
        lines.append(f"{len(fresh)} of them new")
    return f"{note} {'; '.join(lines)}".strip()


def describe(comparison: Comparison) -> str:
    """What differs, in a few words.

    >>> describe(Comparison("equal"))
    'as declared'
    """
    if comparison.state == "equal":
        return "as declared"
    what = ", ".join(one.what for one in comparison.differences)
    return f"{comparison.state} ({what})" if what else comparison.state


def name_some(names: Sequence[QName]) -> str:
    """A few of many names."""
    shown = ", ".join(str(name) for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _encode(entries: Mapping[str, Entry]) -> dict[str, list[Any]]:
    return {name: [entry.reported, entry.seen, entry.ticks] for name, entry in entries.items()}


def _decode(document: Any) -> Cursor:
    return Cursor(declared=_entries(document["declared"]), undeclared=_entries(document["undeclared"]))


def _entries(document: Any) -> dict[str, Entry]:
    return {
        str(name): Entry(str(reported), str(seen), int(ticks)) for name, (reported, seen, ticks) in document.items()
    }
