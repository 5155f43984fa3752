"""Laws of the tuner: it stays within its bounds, does not swing under a constant load, and what it takes back is exactly what was there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import Action, Back, Reading, Sample, Tunable, decide, judge_watch, trim
from chmv_assets.core.tunings import DELAY, MAX_DELAY, PARALLELISM, Tuning, order_back

T, S = QName("d", "t"), QName("d", "s")
LIMITS = Limits()
TABLES = (Tunable(table=T, sources=(S,)),)
TICK = 30.0


@dataclass
class Plant:
    """A server and a journal: settings are changed as the tuner's runs do, and its watch judges the samples after an action."""

    delay: int | None
    default: int = 1000
    longest: int | None = None
    now: float = 0.0
    samples: tuple[Sample, ...] = ()
    tunings: list[Tuning] = field(default_factory=list)
    acted: list[tuple[float, Action]] = field(default_factory=list)
    backs: list[Back] = field(default_factory=list)

    def set_to(self, setting: str) -> int | None:
        return {DELAY: self.delay, MAX_DELAY: self.longest}.get(setting)

    def change(self, setting: str, value: int | None) -> None:
        if setting == DELAY:
            self.delay = value
        elif setting == MAX_DELAY:
            self.longest = value

    @property
    def in_force(self) -> tuple[int, int]:
        return (self.default if self.delay is None else self.delay, 1 if self.longest is None else self.longest)

    def tick(self, parts: int, pool: float) -> None:
        self.now += TICK
        reading = Reading(parts=parts, parts_to_delay=self.in_force[0], parts_to_throw=3000, max_delay=self.in_force[1])
        sample = Sample(at=self.now, pool_tasks=round(pool * 1000), pool_size=1000, readings={T: reading})
        self.samples = trim((*self.samples, sample), self.now, LIMITS)
        for one in order_back(self.tunings):
            if one.status == "applied" and self.now * 1000 <= one.watch_until_ms:
                self.end(judge_watch([sample] * 3, one, LIMITS))
            elif one.status == "applied":
                self.end(Back(tuning=one, kind="watched", reason="", settle=True))
        decision = decide(self.samples, self.tunings, TABLES, now=self.now, limits=LIMITS)
        for back in decision.backs:
            self.end(back)
        for action in decision.actions:
            self.apply(action)

    def end(self, back: Back | None) -> None:
        if back is None:
            return
        at = self.tunings.index(back.tuning)
        if back.settle:
            self.tunings[at] = replace(back.tuning, status="settled")
            return
        self.tunings[at] = replace(back.tuning, status="rolled_back", ended_ms=int(self.now * 1000))
        self.change(back.tuning.setting, back.tuning.previous)
        self.backs.append(back)

    def apply(self, action: Action) -> None:
        own = [one for one in self.tunings if one.is_active and one.setting == action.setting]
        previous = (own[-1].value if own else None) if action.setting == PARALLELISM else self.set_to(action.setting)
        self.change(action.setting, action.value)
        self.acted.append((self.now, action))
        self.tunings.append(
            Tuning(
                tuning=f"{len(self.tunings):05d}",
                subject=action.subject,
                setting=action.setting,
                previous=previous,
                base=action.base,
                value=action.value,
                status="applied",
                reason="",
                started_ms=int(self.now * 1000),
                watch_until_ms=int((self.now + 60) * 1000),
            )
        )


loads = st.lists(
    st.tuples(st.floats(0, 3.2), st.floats(0, 1), st.integers(1, 40)), min_size=1, max_size=12
)  # share of the limit, pool, for how many ticks
limits_set = st.one_of(st.none(), st.integers(1, 5_000))


@given(delay=limits_set, load=loads)
@settings(max_examples=60, deadline=None)
def test_every_value_is_within_its_bounds_and_every_rollback_is_exact(
    delay: int | None, load: list[tuple[float, float, int]]
) -> None:
    plant = Plant(delay=delay)
    base = plant.in_force[0]
    for share, pool, ticks in load:
        for _ in range(ticks):
            plant.tick(int(share * base), pool)
            now_delay, now_longest = plant.in_force
            assert now_delay == base or max(10, int(base * LIMITS.tuner_floor)) <= now_delay < base
            assert 1 <= now_longest <= LIMITS.tuner_max_delay
    for setting, values in ((PARALLELISM, {4, 2, 1}), (MAX_DELAY, {2, 4})):
        assert {one.value for _, one in plant.acted if one.setting == setting} <= values
    for subject in (S, T):
        moments = [at for at, one in plant.acted if one.subject == subject]
        assert all(later - at >= LIMITS.tuner_cooldown for at, later in pairwise(moments))
    for one in order_back(plant.tunings):
        plant.end(Back(tuning=one, kind="by hand", reason=""))
    assert (plant.delay, plant.longest) == (delay, None)


@given(delay=limits_set, share=st.floats(0, 3.2), pool=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_a_constant_load_is_answered_by_steps_one_way_only(delay: int | None, share: float, pool: float) -> None:
    plant = Plant(delay=delay)
    for _ in range(400):  # more than three hours
        plant.tick(int(share * plant.default if delay is None else share * delay), pool)
    assert plant.backs == []
    assert len(plant.acted) <= 3 + 2 + 2  # parallelism 8 → 1, the limit to a quarter, the delay to 4 s


@given(share=st.floats(0.7, 3.2))
@settings(max_examples=5, deadline=None)
def test_a_load_that_over_corrects_every_time_is_tried_less_and_less_often(share: float) -> None:
    """The pool runs empty after each step and fills again without it: the worst case. Cool-downs double, so six hours have few tries."""
    plant = Plant(delay=1000)
    for _ in range(int(6 * 3600 / TICK)):
        plant.tick(int(share * 1000), 0.1 if any(one.is_active for one in plant.tunings) else 0.9)
    assert all(back.kind == "over-correction" for back in plant.backs)
    for subject in (S, T):
        assert len([1 for _, one in plant.acted if one.subject == subject]) <= 7


@given(load=st.lists(st.tuples(st.integers(0, 599), st.floats(0, 0.84)), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_what_is_within_20_percent_of_the_marks_changes_nothing(load: list[tuple[int, float]]) -> None:
    plant = Plant(delay=None)
    for parts, pool in load:
        plant.tick(parts, pool)
    assert plant.acted == [] and plant.tunings == []
