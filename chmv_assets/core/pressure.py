"""Back-pressure: from the server's numbers to batch size and parallelism. Pure; the numbers come from `resources.pressure`.

Parts pile up when many small inserts run side by side: under pressure inserts get fewer and larger, and near the throw limit
they stop. Invariants: at most three polls lead from any pace to the slowest under lasting pressure and back under lasting
calm; between the calm and the busy mark nothing changes (no swinging); every pace is within its limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.batches import MAX_SLICE_ROWS
from chmv_assets.core.thresholds import Limits

Level = Literal["calm", "steady", "busy", "stop"]

_STEP = 4  # 16 → 4 → 1: two polls


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What the server says: the fullest partition among the tables that an insert reaches, and the merge pool."""

    parts: int  # active parts of the partition nearest to its own limit
    parts_to_delay: int
    parts_to_throw: int
    pool_tasks: int
    pool_size: int

    @property
    def delay_share(self) -> float:
        return self.parts / self.parts_to_delay if self.parts_to_delay else 0.0

    @property
    def throw_share(self) -> float:
        return self.parts / self.parts_to_throw if self.parts_to_throw else 0.0

    @property
    def pool_share(self) -> float:
        return self.pool_tasks / self.pool_size if self.pool_size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceLimits:
    """Between what the pace may move."""

    min_rows: int = 10_000
    normal_rows: int = 250_000
    max_rows: int = MAX_SLICE_ROWS
    max_parallelism: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast to go: rows per insert and inserts side by side; 0 means wait and poll again."""

    batch_rows: int
    parallelism: int
    level: Level = "steady"
    reason: str = "start"


def first_pace(limits: PaceLimits) -> Pace:
    """Where to begin before the first poll: normal batches, half the parallelism."""
    return Pace(batch_rows=limits.normal_rows, parallelism=max(1, limits.max_parallelism // 2))


def judge_pressure(pressure: Pressure, marks: Limits | None = None) -> tuple[Level, str]:
    """The level of the moment and the number that decided it.

    >>> judge_pressure(Pressure(parts=850, parts_to_delay=1000, parts_to_throw=3000, pool_tasks=1, pool_size=32))
    ('busy', '850 parts in one partition, inserts are delayed from 1000 on')
    """
    marks = marks or Limits()
    parts = f"{pressure.parts} parts in one partition"
    pool = f"merge pool {pressure.pool_share:.0%} in use"
    if pressure.throw_share >= marks.parts_stop:
        return "stop", f"{parts}, inserts are refused from {pressure.parts_to_throw} on"
    if pressure.delay_share >= marks.parts_act:
        return "busy", f"{parts}, inserts are delayed from {pressure.parts_to_delay} on"
    if pressure.pool_share > marks.pool_busy:
        return "busy", pool
    if pressure.delay_share <= marks.parts_resume and pressure.pool_share <= marks.pool_peak:
        return "calm", f"{parts}, {pool}"
    return "steady", f"{parts}, {pool}"


def adapt_pace(pace: Pace, pressure: Pressure, limits: PaceLimits, marks: Limits | None = None) -> Pace:
    """The pace after one poll."""
    level, reason = judge_pressure(pressure, marks)
    rows, parallelism = pace.batch_rows, pace.parallelism
    if level == "stop":
        rows, parallelism = limits.max_rows, 0
    elif level == "busy":
        rows, parallelism = rows * _STEP, max(1, parallelism // _STEP)
    elif level == "calm":
        rows = (
            max(limits.normal_rows, rows // _STEP)
            if rows >= limits.normal_rows
            else min(limits.normal_rows, rows * _STEP)
        )
        parallelism = max(1, parallelism * _STEP)
    elif pace.level == "stop":
        parallelism = 1  # out of the stop, carefully
    return Pace(
        batch_rows=min(limits.max_rows, max(limits.min_rows, rows)),
        parallelism=min(limits.max_parallelism, parallelism),
        level=level,
        reason=reason,
    )
