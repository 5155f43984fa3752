"""What the tuner's sensor remembers between ticks: the samples of its window. Pure.

Only tables that are filling up are kept, the fullest of them: a table that is missing from a sample counts as empty there, which only makes
an average lower, and so the tuner slower to act.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import Reading, Sample, trim
from sensors.cursors import dump_cursor, read_cursor

CURSOR_VERSION = 1
KEPT_TABLES = 20  # of a sample: twenty samples of them are some 16 KB
KEPT_SHARE = 0.5  # of the mark: below it a table is not filling up


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The samples of the window."""

    samples: tuple[Sample, ...] = ()
    note: str = ""

    def dump(self) -> str:
        return dump_cursor(CURSOR_VERSION, {"samples": [_row(one) for one in self.samples]})


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says so."""
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note))


def remember(samples: Iterable[Sample], now: float, limits: Limits, tuned: Iterable[QName] = ()) -> Cursor:
    """A cursor of the samples that the next tick needs."""
    kept = frozenset(tuned)
    return Cursor(samples=tuple(_thin(one, limits, kept) for one in trim(samples, now, limits)))


def _thin(sample: Sample, limits: Limits, tuned: frozenset[QName]) -> Sample:
    def share(name: QName) -> float:
        one = sample.readings[name]
        return one.parts / one.parts_to_delay if one.parts_to_delay else 0.0

    least = KEPT_SHARE * limits.tuner_parts
    full = sorted((name for name in sample.readings if share(name) >= least), key=lambda name: (-share(name), name))
    names = [*full[:KEPT_TABLES], *(name for name in sorted(tuned & set(sample.readings)) if name not in full[:KEPT_TABLES])]  # fmt: skip
    return Sample(
        at=sample.at, pool_tasks=sample.pool_tasks, pool_size=sample.pool_size, inserts=sample.inserts, delayed=sample.delayed,
        rejected=sample.rejected, readings={name: sample.readings[name] for name in names},
    )  # fmt: skip


def _row(one: Sample) -> list[object]:
    tables = {str(name): [r.parts, r.parts_to_delay, r.parts_to_throw, r.max_delay] for name, r in one.readings.items()}
    return [round(one.at, 3), one.pool_tasks, one.pool_size, one.inserts, one.delayed, one.rejected, tables]


def _decode(document: Any) -> Cursor:
    return Cursor(samples=tuple(_sample(row) for row in document["samples"]))


def _sample(row: Sequence[Any]) -> Sample:
    at, tasks, size, inserts, delayed, rejected, tables = row
    readings = {
        parse_qname(str(name), ""): Reading(parts=int(p), parts_to_delay=int(d), parts_to_throw=int(t), max_delay=int(m))
        for name, (p, d, t, m) in tables.items()
    }  # fmt: skip
    return Sample(
        at=float(at), pool_tasks=int(tasks), pool_size=int(size), inserts=int(inserts), delayed=int(delayed), rejected=int(rejected),
        readings=readings,
    )  # fmt: skip
