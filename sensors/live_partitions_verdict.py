"""Which live partitions Dagster is told of in a tick. Pure: numbers in, partitions out.

A partition that Dagster knows nothing of is told at once, so that nothing which is there is shown as missing. One that changed is told when it
has come to rest, or, if writers never leave it alone, every `report_every` seconds. A run that materialized it told more than we could.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from chmv_assets.core.names import QName
from chmv_assets.live_partitions import LivePartition, Place, Told

TOLD_PER_TICK = 500  # an event costs Dagster 11 to 33 ms on SQLite, and a tick has 60 s
ASKED_PER_TICK = (
    250  # assets, two short questions to the event log each; only the first ticks of a process need so many
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A partition that is not as Dagster was told."""

    partition: LivePartition
    moved: bool  # also since the last tick


@dataclass
class Memory:
    """What one process has seen; lost with it, and worked out again from Dagster's own event log."""

    digests: dict[QName, int] = field(default_factory=dict)  # of tables, as of the last tick
    known: dict[Place, Told] = field(default_factory=dict)
    told_at: dict[Place, float] = field(default_factory=dict)
    changed: dict[Place, Changed] = field(default_factory=dict)
    by_runs: dict[Place, str] = field(default_factory=dict)  # what runs left in tables

    def see(self, partitions: Iterable[LivePartition]) -> None:
        """Take in the partitions of tables that moved since the last tick; what is not among them has come to rest."""
        self.changed = {place: replace(one, moved=False) for place, one in self.changed.items()}
        for partition in partitions:
            before, told = self.changed.get(partition.place), self.known.get(partition.place)
            if told is not None and told.version == partition.version:
                self.changed.pop(partition.place, None)
            elif before is None or before.partition.version != partition.version:
                self.changed[partition.place] = Changed(partition=partition, moved=True)

    def due(self, now: float, every: float) -> list[LivePartition]:
        """What may be told: of which Dagster knows nothing first, then the newest windows."""
        due = [one.partition for place, one in self.changed.items() if self._is_due(place, one, now, every)]
        return sorted(
            sorted(due, key=lambda one: one.key or "~", reverse=True), key=lambda one: one.place in self.known
        )

    def _is_due(self, place: Place, one: Changed, now: float, every: float) -> bool:
        return place not in self.known or not one.moved or now - self.told_at[place] >= every

    def learn(self, told: Mapping[Place, Told], now: float) -> None:
        """Take in what Dagster has been told meanwhile, by us or by runs. What a run told is the partition as it stands now."""
        for place, one in told.items():
            before, changed = self.known.get(place), self.changed.get(place)
            if one.version is None and before is not None and before.event == one.event:
                one = before
            elif one.version is None and changed is not None:
                one = replace(one, version=changed.partition.version)
                self.by_runs[changed.partition.table, changed.partition.key] = changed.partition.version
            self.known[place] = one
            self.told_at.setdefault(place, now)
            if changed is not None and one.version == changed.partition.version:
                del self.changed[place]
        self._leave_to_runs()

    def _leave_to_runs(self) -> None:
        """A view is as full as its target; told after a run that published the target, it would make the target look out of date."""
        for place, one in list(self.changed.items()):
            partition = one.partition
            if place in self.known and self.by_runs.get((partition.table, partition.key)) == partition.version:
                self.known[place] = replace(self.known[place], version=partition.version)
                del self.changed[place]

    def choose(self, due: Iterable[LivePartition], now: float, every: float) -> list[LivePartition]:
        """What is told in this tick, of what is still due after Dagster was asked. It counts as told when its event log says so."""
        left = ((one, self.changed[one.place]) for one in due if one.place in self.changed)
        chosen = [one for one, changed in left if self._is_due(one.place, changed, now, every)][:TOLD_PER_TICK]
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
