"""The fullest partition of a table and how soon it reaches the server's limit. Pure; the numbers come from `resources.backlog`.

One computation for whoever forecasts: the merge backlog sensor and the metrics endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from chmv_assets.core.names import QName


@dataclass(frozen=True, slots=True, kw_only=True)
class Fullest:
    """The partition of a table that has most parts, and what the server does at how many."""

    table: QName
    partition_id: str
    parts: int
    parts_to_delay: int
    parts_to_throw: int
    max_delay: int = 1  # seconds that an insert is slowed by at most

    @property
    def first_limit(self) -> int:
        """What inserts meet first. A delay limit of 0 is none (a throw limit of 0 refuses every insert)."""
        return self.parts_to_delay or self.parts_to_throw


def parts_per_second(found: Fullest, partition_id: str, parts: int, seconds: float) -> float:
    """The trend since an earlier look; none (0.0) if another partition was the fullest then, or no time has passed."""
    if partition_id != found.partition_id or seconds <= 0:
        return 0.0
    return (found.parts - parts) / seconds


def seconds_to_delay(found: Fullest, per_second: float) -> float | None:
    """When inserts are delayed, or refused where there is no delay, if it goes on like this; None: not by this trend.

    >>> full = Fullest(table=QName("d", "t"), partition_id="1", parts=900, parts_to_delay=1000, parts_to_throw=3000)
    >>> seconds_to_delay(full, 2.0), seconds_to_delay(full, -1.0)
    (50.0, None)
    """
    if found.parts >= found.first_limit:
        return 0.0
    return (found.first_limit - found.parts) / per_second if per_second > 0 else None
