"""When Dagster is told of a partition: at once if it knows nothing of it, at rest if it changed, now and then if it never rests."""

from __future__ import annotations

import pytest

from chmv_assets.core.names import QName
from chmv_assets.live_partitions import LivePartition, Told
from sensors import live_partitions_verdict as verdict
from sensors.live_partitions_verdict import Memory, to_ask

T = QName("d", "t")
EVERY = 900.0


def part(version: str, key: str | None = "2026-07-05", table: str = "t", name: str = "") -> LivePartition:
    return LivePartition(name=QName("d", name or table), table=QName("d", table), key=key, rows=1, version=f"live-{version}")  # fmt: skip


class Log:
    """Dagster's event log, as far as it matters here."""

    def __init__(self) -> None:
        self.told: dict[tuple[QName, str | None], Told] = {}
        self.events = 0

    def add(self, place: tuple[QName, str | None], version: str | None) -> None:
        self.events += 1
        self.told[place] = Told(event=self.events, version=version)


def tick(memory: Memory, log: Log, now: float, *moved: LivePartition, stored: bool = True) -> list[LivePartition]:
    memory.see(moved)
    due = to_ask(memory.due(now, EVERY))
    memory.learn({one.place: log.told[one.place] for one in due if one.place in log.told}, now)
    chosen = memory.choose(due, now, EVERY)
    for one in chosen if stored else ():
        log.add(one.place, one.version)
    return chosen


def test_what_dagster_knows_nothing_of_is_told_at_once_and_only_once() -> None:
    memory, log = Memory(), Log()
    assert tick(memory, log, 0, part("a")) == [part("a")]
    assert tick(memory, log, 30) == []
    assert tick(memory, log, 60) == [] and not memory.changed


def test_what_could_not_be_stored_is_told_again() -> None:
    memory, log = Memory(), Log()
    assert tick(memory, log, 0, part("a"), stored=False) == [part("a")]
    assert tick(memory, log, 30) == [part("a")]
    assert tick(memory, log, 60) == []


def test_what_changes_is_told_when_it_rests() -> None:
    memory, log = Memory(), Log()
    tick(memory, log, 0, part("a"))
    tick(memory, log, 30)
    assert tick(memory, log, 60, part("b")) == []
    assert tick(memory, log, 90, part("c")) == []
    assert tick(memory, log, 120) == [part("c")], "as it is in the end"
    assert tick(memory, log, 150) == []


def test_what_never_rests_is_told_every_now_and_then() -> None:
    memory, log = Memory(), Log()
    told = [at for at in range(0, 3601, 30) if tick(memory, log, at, part(str(at)))]
    assert told == [0, 900, 1800, 2700, 3600]


def test_parts_that_merge_are_no_change() -> None:
    memory, log = Memory(), Log()
    tick(memory, log, 0, part("a"))
    assert [tick(memory, log, at, part("a")) for at in (30, 60, 90)] == [[], [], []]


def test_a_new_process_asks_what_was_told_and_tells_what_changed_meanwhile() -> None:
    log = Log()
    tick(Memory(), log, 0, part("a"), part("a", "2026-07-06"))
    memory = Memory()
    assert tick(memory, log, 100, part("a"), part("b", "2026-07-06")) == []
    assert tick(memory, log, 130) == [part("b", "2026-07-06")]
    assert tick(memory, log, 160) == []


def test_a_runs_event_stands_until_the_partition_changes_again() -> None:
    memory, log = Memory(), Log()
    tick(memory, log, 0, part("a"))
    tick(memory, log, 30)
    log.add(part("").place, None)  # rebuilt: other parts, and an event of the run
    assert tick(memory, log, 60, part("b")) == []
    assert [tick(memory, log, at) for at in (90, 120)] == [[], []]
    assert tick(memory, log, 150, part("c")) == []
    assert tick(memory, log, 180) == [part("c")]


def test_a_view_is_not_told_after_a_run_that_published_its_target() -> None:
    memory, log = Memory(), Log()
    tick(memory, log, 0, part("a"), part("a", name="mv"))
    tick(memory, log, 30)
    log.add(part("").place, None)
    assert tick(memory, log, 60, part("b"), part("b", name="mv")) == []
    assert [tick(memory, log, at) for at in (90, 120)] == [[], []]
    assert tick(memory, log, 150, part("c"), part("c", name="mv")) == []
    assert tick(memory, log, 180) == [part("c"), part("c", name="mv")]


def test_a_new_process_leaves_a_runs_event_alone() -> None:
    memory, log = Memory(), Log()
    log.add(part("").place, None)
    assert [tick(memory, log, at) for at in (30, 60)] == [[], []]
    assert tick(memory, log, 0, part("a")) == []
    assert tick(memory, log, 90, part("b")) == []
    assert tick(memory, log, 120) == [part("b")]


def test_few_are_told_in_a_tick_the_newest_first_and_all_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "TOLD_PER_TICK", 3)
    monkeypatch.setattr(verdict, "ASKED_PER_TICK", 2)
    memory, log = Memory(), Log()
    found = [part("a", f"2026-07-{day:02}", table) for table in ("t", "u", "v") for day in (1, 2, 3)]
    first = tick(memory, log, 0, *found)
    assert sorted((one.key, one.name.table) for one in first) == [
        ("2026-07-02", "t"),
        ("2026-07-03", "t"),
        ("2026-07-03", "u"),
    ]
    told = list(first)
    for at in range(30, 300, 30):
        told += tick(memory, log, at)
    assert sorted(one.place for one in told) == sorted(one.place for one in found)
    assert not memory.changed
