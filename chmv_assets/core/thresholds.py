"""Thresholds as data: at which number a sensor speaks up, acts, and calms down again. Each has its unit and the reason for its default.

`chmv.yaml` overrides them under `thresholds`; nothing else in the code holds such a number. What is done when one is passed
belongs to the verdicts in `sensors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Literal
from zoneinfo import ZoneInfo

Unit = Literal["parts", "share", "seconds", "windows", "runs", "times", "hour of day"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One number of the settings file."""

    name: str
    unit: Unit
    default: float
    reason: str
    lowest: float = 0.0
    highest: float = float("inf")


def _limit(default: float, unit: Unit, reason: str, lowest: float = 0.0, highest: float = float("inf")) -> Any:
    return field(default=default, metadata={"unit": unit, "reason": reason, "lowest": lowest, "highest": highest})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The effective values."""

    parts_warn: float = _limit(
        10, "parts",
        "A partition at rest merges down to a handful of parts; more than 10 means that merges lag behind inserts.", lowest=2,
    )  # fmt: skip
    parts_act: float = _limit(
        0.8, "share",
        "Of parts_to_delay_insert: from the limit on the server slows every writer, so we act before it does.", lowest=0.01, highest=1,
    )  # fmt: skip
    parts_divert: float = _limit(
        0.5, "share",
        "Of parts_to_throw_insert: half way to refused inserts, merging alone did not help; new batches wait in staging.", lowest=0.01, highest=1,
    )  # fmt: skip
    parts_calm: float = _limit(
        0.5, "share",
        "Of the threshold that was passed: lower by half before it counts as over, so that it does not flap.", lowest=0.0, highest=1,
    )  # fmt: skip
    pool_busy: float = _limit(
        0.85, "share",
        "Of the merge pool: above it new merges queue and parts pile up everywhere.", lowest=0.01, highest=1,
    )  # fmt: skip
    forecast: float = _limit(
        600, "seconds",
        "Act when the trend reaches the delay limit within 10 minutes: an OPTIMIZE of a large partition takes as long.", lowest=0,
    )  # fmt: skip
    peak_starts: float = _limit(
        8, "hour of day",
        "In the location's zone. During peak hours an OPTIMIZE would take the pool from readers and writers.", lowest=0, highest=24,
    )  # fmt: skip
    peak_ends: float = _limit(
        20, "hour of day",
        "In the location's zone; equal to peak_starts means that there is no peak.", lowest=0, highest=24,
    )  # fmt: skip
    sensor_every: float = _limit(
        30, "seconds",
        "A tick costs a few short queries; half a minute is a tenth of the default SLA.", lowest=5,
    )  # fmt: skip
    late_windows_per_tick: float = _limit(
        20, "windows",
        "Rebuilding 20 windows takes about a minute; the rest waits for the next tick, newest first.", lowest=1,
    )  # fmt: skip
    late_again: float = _limit(
        300, "seconds",
        "Late rows trickle in: a window that was just repaired for them waits 5 minutes for more before it is repaired again.", lowest=0,
    )  # fmt: skip
    late_overlap: float = _limit(
        120, "seconds",
        "A row carries the moment at which its insert began and is seen when it ended: so far back is read once more.", lowest=0, highest=3_600,
    )  # fmt: skip
    runs_per_tick: float = _limit(
        5, "runs",
        "Submitting a run takes 0.4 s on SQLite and a tick has 60 s; more repairs at once only compete.", lowest=1,
    )  # fmt: skip
    strikes: float = _limit(
        3, "times",
        "Three failed repairs or three failed inserts: trying again will not help, the view is isolated and somebody is told.", lowest=1,
    )  # fmt: skip
    probe_after: float = _limit(
        60, "seconds",
        "An isolated view is tried on the side before it is attached again; a minute apart, less and less often.", lowest=1,
    )  # fmt: skip
    snapshot_every: float = _limit(
        300, "seconds",
        "As often as the default SLA: a fallback is then at most 5 minutes behind. Parts are linked, not copied.", lowest=60,
    )  # fmt: skip
    snapshot_max_age: float = _limit(
        86_400, "seconds",
        "Yesterday's numbers are better than none; older ones mislead, so readers stay with the primary.", lowest=60,
    )  # fmt: skip
    retry_after: float = _limit(
        60, "seconds",
        "After a repair that failed; doubled with every further failure, up to 6 hours.", lowest=1,
    )  # fmt: skip


THRESHOLDS: tuple[Threshold, ...] = tuple(
    Threshold(name=item.name, default=float(item.default), **item.metadata)  # type: ignore[arg-type]
    for item in fields(Limits)
)
BY_NAME: Mapping[str, Threshold] = {one.name: one for one in THRESHOLDS}


def limits_of(said: Mapping[str, float]) -> Limits:
    """The limits with what the settings say over the defaults.

    >>> limits_of({"parts_warn": 20}).parts_warn
    20
    """
    return Limits(**{name: value for name, value in said.items() if name in BY_NAME})


def in_peak(now: float, zone: str, limits: Limits) -> bool:
    """Whether it is peak time in the location's zone; equal hours: there is no peak. A peak may go over midnight.

    >>> in_peak(9 * 3600, "UTC", Limits()), in_peak(21 * 3600, "UTC", Limits())
    (True, False)
    """
    local = datetime.fromtimestamp(now, timezone.utc).astimezone(ZoneInfo(zone))
    hour = local.hour + local.minute / 60 + local.second / 3600
    start, end = limits.peak_starts, limits.peak_ends
    if start == end:
        return False
    return start <= hour < end if start < end else hour >= start or hour < end
