"""How one object is cut into periods: their length, their zone, the first day of a week. What `core.windows` computes, bound to one object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from chmv_assets.core.truncation import Unit, WeekMode
from chmv_assets.core.windows import Window, key_of, period_start, periods, window_of_key


@dataclass(frozen=True, slots=True)
class Calendar:
    """The periods of an object as Dagster's partitions have them."""

    unit: Unit
    zone: str
    week_mode: WeekMode | None = None

    def periods(self, window: Window) -> Iterator[Window]:
        """Every whole period that a window touches, oldest first."""
        return periods(window, self.unit, self.zone, self.week_mode)

    def start(self, instant: datetime) -> datetime:
        """Where the period that an instant lies in begins."""
        return period_start(instant, self.unit, self.zone, self.week_mode)

    def key(self, instant: datetime) -> str:
        """The partition key of the period that an instant lies in."""
        return key_of(instant, self.unit, self.zone, self.week_mode)

    def window(self, key: str) -> Window:
        """The period that a partition key names."""
        return window_of_key(key, self.unit, self.zone, self.week_mode)
