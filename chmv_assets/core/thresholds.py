"""Thresholds as data: at which number sensors, guardrails and the doctor speak up, act, and calm down again, each with unit and reason.

`chmv.yaml` overrides them under `thresholds`; nothing else in the code holds such a number. What is done when one is passed
belongs to the verdicts in `sensors`, to `core.pressure` and to `core.doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Literal
from zoneinfo import ZoneInfo

Unit = Literal["parts", "share", "seconds", "windows", "runs", "times", "hour of day", "slots", "partitions", "rows"]


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
    report_every: float = _limit(
        900, "seconds",
        "Dagster is told of a partition once it rests; of one that writers never leave alone every 15 minutes, for an event costs up to 33 ms.", lowest=30,
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
    # What the doctor measures against, and the bounds of our own statements.
    pool_peak: float = _limit(
        0.7, "share",
        "Of the merge pool at peak: the rest is what a rebuild, a mutation or a burst can use before merges queue.", lowest=0.01, highest=1,
    )  # fmt: skip
    pool_per_table: float = _limit(
        0.5, "slots",
        "Merges per table that one insert writes: each gets a part per insert, and small parts merge faster than they come.", lowest=0.01,
    )  # fmt: skip
    clock_skew: float = _limit(
        2, "seconds",
        "Below the shortest lead of a fence (3 s): beyond it a moment that lies ahead for us is past for the server.", lowest=0.1,
    )  # fmt: skip
    disk_low: float = _limit(
        0.2, "share",
        "Free space: below a fifth the largest merges and a rebuild beside them no longer fit for sure.", lowest=0, highest=1,
    )  # fmt: skip
    disk_full: float = _limit(
        0.1, "share",
        "Free space: below a tenth merges are postponed, parts pile up, and inserts are refused soon.", lowest=0, highest=1,
    )  # fmt: skip
    parts_delay_least: float = _limit(
        100, "parts",
        "A lower parts_to_delay_insert slows every writer after a burst that merges clear within a minute.", lowest=1,
    )  # fmt: skip
    insert_partitions: float = _limit(
        0.8, "share",
        "Of max_partitions_per_insert_block: beyond it one batch with older rows leaves its rows in the source and not in the target.",
        lowest=0.01, highest=1,
    )  # fmt: skip
    partitions_per_month: float = _limit(
        1_000, "partitions",
        "An hourly key makes 744 a month; more means that it is finer, or has a second dimension with many values.", lowest=1,
    )  # fmt: skip
    partitions_total: float = _limit(
        10_000, "partitions",
        "Each is at least one part: beyond ten thousand a start takes minutes and every look at system.parts seconds.", lowest=1,
    )  # fmt: skip
    sample_rows: float = _limit(
        100_000, "rows",
        "A view's SELECT over so many rows takes well under a second, and an insert block is rarely larger.", lowest=1, highest=10_000_000,
    )  # fmt: skip
    recovery_seconds: float = _limit(
        300, "seconds",
        "max_execution_time of a statement that rebuilds: what takes longer is cut into smaller windows. Our client gives up 15 s later.",
        lowest=10, highest=300,
    )  # fmt: skip
    parts_stop: float = _limit(
        0.9, "share",
        "Of parts_to_throw_insert: an ingestion of ours waits, since its next insert may be the one that is refused.", lowest=0.01, highest=1,
    )  # fmt: skip
    parts_resume: float = _limit(
        0.5, "share",
        "Of parts_to_delay_insert: an ingestion goes back to its normal pace below it; between it and parts_act nothing changes.", lowest=0, highest=1,
    )  # fmt: skip
    tuner_window: float = _limit(
        300, "seconds",
        "The tuner judges averages of 5 minutes: shorter bursts are what merges are for.", lowest=1,
    )  # fmt: skip
    tuner_deviation: float = _limit(
        0.2, "share",
        "The average must be more than 20% off the wanted mark before the tuner changes anything: smaller swings are noise.", lowest=0.01,
    )  # fmt: skip
    tuner_parts: float = _limit(
        0.5, "share",
        "Wanted mark of parts, of parts_to_delay_insert: 20% above it is 60%, well before sensors merge (parts_act, 80%).", lowest=0.01, highest=1,
    )  # fmt: skip
    tuner_pool: float = _limit(
        0.7, "share",
        "Wanted mark of the merge pool at peak: 20% above it is 84%, where it counts as busy (pool_busy).", lowest=0.01, highest=1,
    )  # fmt: skip
    tuner_pool_low: float = _limit(
        0.3, "share",
        "Of the merge pool: under it after an action we slow writers for nothing, so the action is taken back.", lowest=0, highest=1,
    )  # fmt: skip
    tuner_watch: float = _limit(
        60, "seconds",
        "So long an action is watched, and taken back within, if the pool falls under tuner_pool_low.", lowest=0.1, highest=60,
    )  # fmt: skip
    tuner_cooldown: float = _limit(
        300, "seconds",
        "Between two actions on one table: a whole window of numbers after the first; doubled with every action of the last 6 hours.", lowest=0,
    )  # fmt: skip
    tuner_floor: float = _limit(
        0.25, "share",
        "parts_to_delay_insert is never tuned below a quarter of what it was: lower, and ordinary bursts would be slowed.", lowest=0.01, highest=1,
    )  # fmt: skip
    tuner_max_delay: float = _limit(
        4, "seconds",
        "max_delay_to_insert is never tuned above 4 s: an insert into a source waits for each of its targets, and clients give up at 30 s.",
        lowest=1, highest=30,
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
