"""Which live partitions Dagster is told of in a tick. Pure: numbers in, partitions out.

A partition that Dagster knows nothing of is told at once, so that nothing which is there is shown as missing. One that changed is told when it
has come to rest, or, if writers never leave it alone, every `report_every` seconds. A run that materialized it told more than we could.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from chmv_assets.core.names import QName
from chmv_assets.live_partitions import LivePartition, Place, Told

TOLD_PER_TICK = 500  # an event costs Dagster 11 to 33 ms on SQLite, and a tick has 60 s
ASKED_PER_TICK = (
    250  # assets, two short questions to the event log each; only the first ticks of a process need so many
)


@dataclass
class Memory:
    """What one process has seen; lost with it, and worked out again from Dagster's own event log."""

    marks: dict[QName, int] = field(default_factory=dict)  # of tables, as of the last tick
    known: dict[Place, Told] = field(default_factory=dict)
    told_at: dict[Place, float] = field(default_factory=dict)
    changed: dict[Place, LivePartition] = field(default_factory=dict)  # what is not as Dagster was told
    moving: set[Place] = field(default_factory=set)  # of these, what has moved since the last tick
    by_runs: dict[Place, str] = field(default_factory=dict)  # what runs left in tables

    def see(self, partitions: Iterable[LivePartition]) -> None:
        """Take in the partitions of tables that moved since the last tick; what is not among them has come to rest."""
        self.moving = set()
        for partition in partitions:
            place = partition.place
            before, told = self.changed.get(place), self.known.get(place)
            if told is not None and told.version == partition.version:
                self.changed.pop(place, None)
            elif before is None or before.version != partition.version:
                self.changed[place] = partition
                self.moving.add(place)

    def due(self, now: float, every: float) -> list[LivePartition]:
        """What may be told: of which Dagster knows nothing first, then the newest windows."""
        due = [one for place, one in self.changed.items() if self._is_due(place, now, every)]
        due.sort(key=lambda one: one.key or "~", reverse=True)
        known = [one for one in due if one.place in self.known]
        return [one for one in due if one.place not in self.known] + known if known else due

    def _is_due(self, place: Place, now: float, every: float) -> bool:
        return place not in self.known or place not in self.moving or now - self.told_at[place] >= every

    def learn(self, told: Mapping[Place, Told], now: float) -> None:
        """Take in what Dagster has been told meanwhile, by us or by runs. What a run told is the partition as it stands now."""
        for place, one in told.items():
            before, changed = self.known.get(place), self.changed.get(place)
            if one.version is None and before is not None and before.event == one.event:
                one = before
            elif one.version is None and changed is not None:
                one = replace(one, version=changed.version)
                self.by_runs[changed.table, changed.key] = changed.version
            self.known[place] = one
            self.told_at.setdefault(place, now)
            if changed is not None and one.version == changed.version:
                del self.changed[place]
        if self.by_runs:
            self._leave_to_runs()

    def _leave_to_runs(self) -> None:
        """A view is as full as its target; told after a run that published the target, it would make the target look out of date."""
        for place, one in list(self.changed.items()):
            if place in self.known and self.by_runs.get((one.table, one.key)) == one.version:
                self.known[place] = replace(self.known[place], version=one.version)
                del self.changed[place]

    def choose(self, due: Iterable[LivePartition], now: float, every: float) -> list[LivePartition]:
        """What is told in this tick, of what is still due after Dagster was asked. It counts as told when its event log says so."""
        left = (one for one in due if one.place in self.changed and self._is_due(one.place, now, every))
        chosen = list(islice(left, TOLD_PER_TICK))
        self.told_at.update((one.place, now) for one in chosen)
        return chosen


def to_ask(due: Iterable[LivePartition]) -> list[LivePartition]:
    """Those of the first assets: as many as Dagster can be asked of in a tick."""
    assets: set[QName] = set()
    asked: list[LivePartition] = []
    for one in due:
        if one.name in assets or len(assets) < ASKED_PER_TICK:
            assets.add(one.name)
            asked.append(one)
    return asked
