"""The tuner's decision, purely: samples of the last five minutes and the journal → actions, and tunings to take back or to keep.

**What is compared with what.** The average over the window is compared with a wanted mark, not the latest reading with the average. A reading
that differs from its average says that the load has changed; it says nothing of whether it is too much: two parts that become three are +50%,
and a storm that has lasted for an hour is +0%. The mark is `tuner_parts` of the delay limit for the parts of a table's fullest partition
and `tuner_pool` for the merge pool. An action needs an average of more than `tuner_deviation` (20%) above it, and a latest reading that
is still above it: nothing is done about a storm that has just ended.

**What is done.** Writers are slowed before the server has to refuse them, one step per table and cool-down, own ingests before other
people's inserts:

    1 `chmv.parallelism` of the sources whose ingests reach the table: halved, down to 1
    2 `parts_to_delay_insert` of the table: halved, down to `tuner_floor` of what it was
    3 `max_delay_to_insert` of the table: doubled, up to `tuner_max_delay`

**When it is taken back.** Over-correction: the pool's last three readings since the action are under `tuner_pool_low` (30%) on average, so
merges have nothing to do while writers wait; the newest step goes. Calm: parts were more than 20% below the mark for a whole window, all steps go. A pool that is
as idle already is no reason to slow anybody, so then nothing is done at all.

**Why it does not swing.** Steps go one way while there is pressure, stop at their bounds, and every action on a table within the last
6 hours doubles its cool-down. Shares are taken of the limit that stood before the first step, so an action does not move its own measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from chmv_assets.core.names import QName
from chmv_assets.core.pressure import PaceLimits
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tunings import DELAY, MAX_DELAY, PARALLELISM, Tuning, order_back, shown

MEMORY_SECONDS = 6 * 3_600.0
MOST_PARALLELISM = PaceLimits().max_parallelism
COVERED = 0.8  # of the window: a location that has just started knows too little
WATCHED_SAMPLES = 3  # the pool is a gauge of the moment; one reading of an idle moment is no over-correction
LEAST_DELAY = 10  # parts: no bound makes it less
_EPSILON = 1e-9  # averages of equal numbers are not always equal to them
GRACE_SECONDS = 30.0  # after the end of a watch, before its tuner counts as dead
Kind = Literal["over-correction", "calm", "dead", "by hand", "watched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The fullest partition of a table, and the limits in force."""

    parts: int
    parts_to_delay: int
    parts_to_throw: int
    max_delay: int = 1  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the server said at one moment. Counters are of the whole server since its start."""

    at: float
    pool_tasks: int
    pool_size: int
    readings: Mapping[QName, Reading] = field(default_factory=dict)
    inserts: int = 0
    delayed: int = 0
    rejected: int = 0

    @property
    def pool_share(self) -> float:
        return self.pool_tasks / self.pool_size if self.pool_size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """A table that may be tuned, and the sources that we ingest into and whose inserts reach it."""

    table: QName
    sources: tuple[QName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step: a setting of a subject to a value. `expected` is what is in force now."""

    subject: QName
    setting: str
    expected: int
    base: int
    value: int
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def sentence(self) -> str:
        return f"{self.subject}: {self.setting} {self.expected} → {self.value}, since {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """A tuning to take back, or to keep (`settle`) since its watch has ended well."""

    tuning: Tuning
    kind: Kind
    reason: str
    settle: bool = False

    def sentence(self) -> str:
        one = self.tuning
        if self.settle:
            return f"{one.subject}: keep {one.setting} = {one.value}, since {self.reason}"
        return f"{one.subject}: {one.setting} {one.value} → {shown(one.previous, one.base)}, since {self.reason} ({self.kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a look at the numbers leads to."""

    actions: tuple[Action, ...] = ()
    backs: tuple[Back, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.actions and not self.backs

    @property
    def orders(self) -> tuple[str, ...]:
        """What is to be done, in sentences: what goes back first."""
        return (*(one.sentence() for one in self.backs), *(one.sentence() for one in self.actions))


def trim(samples: Iterable[Sample], now: float, limits: Limits) -> tuple[Sample, ...]:
    """The samples of the window, the oldest first; one from the future (a clock that was set back) is dropped."""
    return tuple(sorted((one for one in samples if 0 <= now - one.at <= limits.tuner_window), key=lambda one: one.at))


def decide(
    samples: Sequence[Sample],
    tunings: Sequence[Tuning],
    tunables: Sequence[Tunable],
    *,
    now: float,
    limits: Limits,
) -> Decision:
    """What to do; `tunings` are the active ones and those of the last `MEMORY_SECONDS`."""
    window = trim(samples, now, limits)
    if not window:
        return Decision(told=("no sample within the window",))
    backs = _backs(window, tunings, tunables, now, limits)
    told = [pool_line(window)]
    covered = now - window[0].at
    if covered < COVERED * limits.tuner_window or len(window) < WATCHED_SAMPLES:
        told.append(
            f"{len(window)} samples over {covered:.0f} s of {limits.tuner_window:.0f} s: too little to act upon"
        )
        return Decision(backs=backs, told=tuple(told))
    going = {back.tuning.subject for back in backs}
    actions: dict[QName, Action] = {}
    for one in tunables:
        judged = _judge(window, one, tunings, limits)
        if judged is None:
            continue
        told.append(judged[1])
        if not judged[0]:
            continue
        if (idle := _idle_pool(window, limits)) is not None:
            told.append(f"{one.table}: {idle}")
            continue
        if any(source in actions for source in one.sources):
            continue  # one step for all that this source's inserts reach
        action, why = _step(window, one, tunings, now, limits, judged[1])
        if action is None or action.subject in actions or action.subject in going:
            told.append(f"{one.table}: {why or 'it is being taken back first'}")
        else:
            actions[action.subject] = action
    if not actions and (pool := _over(average_pool(window), window[-1].pool_share, limits.tuner_pool, limits)):
        for source in sorted({source for one in tunables for source in one.sources} - going):
            if (action := _slow_source(window, source, tunings, now, limits, f"the merge pool's {pool}")) is not None:
                actions[source] = action
    return Decision(actions=tuple(actions.values()), backs=backs, told=tuple(told))


def base_delay(table: QName, reading: Reading, tunings: Iterable[Tuning]) -> int:
    """The delay limit before we tuned it."""
    own = [one for one in tunings if one.is_active and (one.subject, one.setting) == (table, DELAY)]
    return own[0].base if own else reading.parts_to_delay


def average_parts(window: Sequence[Sample], table: QName) -> float:
    """Parts of the fullest partition, on average; a sample without the table had none."""
    return sum(one.readings[table].parts for one in window if table in one.readings) / len(window)


def average_pool(window: Sequence[Sample]) -> float:
    return sum(one.pool_share for one in window) / len(window)


def per_second(window: Sequence[Sample], counter: Literal["inserts", "delayed", "rejected"]) -> float:
    """How fast a counter grows; 0 after a restart of the server."""
    first, last = window[0], window[-1]
    grown = getattr(last, counter) - getattr(first, counter)
    return max(0.0, grown / (last.at - first.at)) if last.at > first.at else 0.0


def judge_watch(samples: Sequence[Sample], tuning: Tuning, limits: Limits) -> Back | None:
    """Whether an action has over-corrected: the last three readings since it was applied, on average. Older ones would only hide a fall."""
    since = [one for one in samples if one.at * 1000 >= tuning.started_ms]
    if (
        len(since) < WATCHED_SAMPLES
        or (share := average_pool(since[-WATCHED_SAMPLES:])) >= limits.tuner_pool_low - _EPSILON
    ):
        return None
    return Back(
        tuning=tuning, kind="over-correction", reason=f"the merge pool is {share:.0%} in use, under {limits.tuner_pool_low:.0%}"
    )  # fmt: skip


def _over(average: float, latest: float, mark: float, limits: Limits) -> str:
    """How far an average is above its mark, if that is far enough and still so; else nothing."""
    deviation = average / mark - 1
    if deviation <= limits.tuner_deviation + _EPSILON or latest <= mark:
        return ""
    return f"average {average:.0%} is {deviation:.0%} above the wanted {mark:.0%}"


def _judge(
    window: Sequence[Sample], tunable: Tunable, tunings: Sequence[Tuning], limits: Limits
) -> tuple[bool, str] | None:
    reading = window[-1].readings.get(tunable.table)
    if reading is None or reading.parts_to_delay <= 0:
        return None
    base = base_delay(tunable.table, reading, tunings)
    average = average_parts(window, tunable.table)
    over = _over(average / base, reading.parts / base, limits.tuner_parts, limits)
    words = f"{tunable.table}: {reading.parts} parts, on average {average:.1f}, delayed from {base} on"
    return bool(over), f"{words}; {over}" if over else f"{words}; within {limits.tuner_deviation:.0%} of the mark"


def _idle_pool(window: Sequence[Sample], limits: Limits) -> str | None:
    share, least = average_pool(window), limits.tuner_pool_low * (1 + limits.tuner_deviation)
    if share >= least:
        return None
    return (
        f"the merge pool is {share:.0%} in use on average, under {least:.0%}: slowing writers would not make merges faster, so nothing is "
        "done. Are merges of it stopped, or its parts too large to merge?"
    )


def _step(
    window: Sequence[Sample], one: Tunable, tunings: Sequence[Tuning], now: float, limits: Limits, reason: str
) -> tuple[Action | None, str]:
    """The next step for a table, or why there is none."""
    for source in one.sources:
        if (action := _slow_source(window, source, tunings, now, limits, reason)) is not None:
            return action, ""
    if (wait := _cooling(one.table, tunings, now, limits)) > 0:
        return None, f"the next step may come in {wait:.0f} s"
    reading = window[-1].readings[one.table]
    base = base_delay(one.table, reading, tunings)
    least = max(LEAST_DELAY, int(base * limits.tuner_floor))
    delay = max(least, reading.parts_to_delay // 2)
    if delay < reading.parts_to_delay:
        return _action(window, one.table, DELAY, reading.parts_to_delay, base, delay, reason), ""
    longest = int(limits.tuner_max_delay)
    longer = min(longest, max(reading.max_delay, 1) * 2)
    if longer > reading.max_delay:
        own = [old for old in tunings if old.is_active and (old.subject, old.setting) == (one.table, MAX_DELAY)]
        first = own[0].base if own else reading.max_delay
        return _action(window, one.table, MAX_DELAY, reading.max_delay, first, longer, reason), ""
    return None, "all of its settings are at their bounds: more writers, or larger inserts, are for people to decide"


def _slow_source(
    window: Sequence[Sample], source: QName, tunings: Sequence[Tuning], now: float, limits: Limits, reason: str
) -> Action | None:
    own = [one.value for one in tunings if one.is_active and (one.subject, one.setting) == (source, PARALLELISM)]
    ceiling = min(own, default=MOST_PARALLELISM)
    if ceiling <= 1 or _cooling(source, tunings, now, limits) > 0:
        return None
    return _action(window, source, PARALLELISM, ceiling, MOST_PARALLELISM, ceiling // 2, reason)


def _cooling(subject: QName, tunings: Sequence[Tuning], now: float, limits: Limits) -> float:
    """Seconds until a subject may be changed again."""
    own = [one for one in tunings if one.subject == subject and now - one.started_ms / 1000 < MEMORY_SECONDS]
    if not own:
        return 0.0
    last = max(max(one.started_ms, one.ended_ms) for one in own) / 1000
    wait = min(MEMORY_SECONDS, limits.tuner_cooldown * 2.0 ** min(len(own) - 1, 20))
    return max(0.0, last + wait - now)


def _action(
    window: Sequence[Sample], subject: QName, setting: str, expected: int, base: int, value: int, reason: str
) -> Action:
    numbers = {
        "samples": len(window),
        "seconds": round(window[-1].at - window[0].at, 3),
        "parts_average": round(average_parts(window, subject), 2),
        "parts": window[-1].readings[subject].parts if subject in window[-1].readings else 0,
        "pool_average": round(average_pool(window), 4),
        "pool": round(window[-1].pool_share, 4),
        "inserts_per_second": round(per_second(window, "inserts"), 2),
        "delayed_per_second": round(per_second(window, "delayed"), 2),
        "rejected_per_second": round(per_second(window, "rejected"), 2),
    }
    return Action(
        subject=subject, setting=setting, expected=expected, base=base, value=value, reason=reason, numbers=numbers
    )


def _backs(
    window: Sequence[Sample], tunings: Sequence[Tuning], tunables: Sequence[Tunable], now: float, limits: Limits
) -> tuple[Back, ...]:
    """What to take back or to settle. Of a stack only the newest goes at once, unless it is calm: then all of them."""
    backs: list[Back] = []
    first: set[tuple[QName, str]] = set()
    for one in order_back(tunings):
        key = one.subject, one.setting
        watched = one.status in ("proposed", "applied")
        if watched and now * 1000 < one.watch_until_ms + GRACE_SECONDS * 1000:
            first.add(key)
            continue  # its own tuner watches it
        calm = not watched and _is_calm(window, one, tunings, tunables, now, limits)
        if key in first and not calm:
            continue
        first.add(key)
        over = judge_watch(window, one, limits)
        if watched and over is None and one.status == "applied" and _seen_since(window, one) >= WATCHED_SAMPLES:
            backs.append(
                Back(tuning=one, kind="dead", reason="its tuner died, but the merge pool is in use", settle=True)
            )
        elif over is not None:
            backs.append(over)
        elif watched:
            backs.append(Back(tuning=one, kind="dead", reason="its tuner died and nobody has watched it"))
        elif calm:
            backs.append(Back(tuning=one, kind="calm", reason=_calm_words(window, one, limits)))
    return tuple(backs)


def _seen_since(window: Sequence[Sample], one: Tuning) -> int:
    return sum(1 for sample in window if sample.at * 1000 >= one.started_ms)


def _is_calm(
    window: Sequence[Sample], one: Tuning, tunings: Sequence[Tuning], tunables: Sequence[Tunable], now: float, limits: Limits
) -> bool:  # fmt: skip
    """Whether the pressure is gone for a whole window after the step: on the table, or on all that a source reaches and in the pool."""
    whole = COVERED * limits.tuner_window
    if now - one.started_ms / 1000 < whole or now - window[0].at < whole:
        return False
    if one.setting != PARALLELISM:
        return _has_calmed(window, one.subject, tunings, limits)
    reached = [tunable.table for tunable in tunables if one.subject in tunable.sources]
    pool = average_pool(window) < limits.tuner_pool * (1 - limits.tuner_deviation)
    return pool and all(_has_calmed(window, table, tunings, limits) for table in reached)


def _has_calmed(window: Sequence[Sample], table: QName, tunings: Sequence[Tuning], limits: Limits) -> bool:
    """Measured by the limit in force, not by that of before: as long as writers feel it, the calm is our own work."""
    reading = window[-1].readings.get(table)
    if reading is None:
        return True  # not one part is left
    limit = min(base_delay(table, reading, tunings), reading.parts_to_delay)
    return average_parts(window, table) / max(limit, 1) < limits.tuner_parts * (1 - limits.tuner_deviation)


def _calm_words(window: Sequence[Sample], one: Tuning, limits: Limits) -> str:
    return (
        f"{average_parts(window, one.subject):.1f} parts on average, pool {average_pool(window):.0%}: more than "
        f"{limits.tuner_deviation:.0%} below the mark for a whole window"
    )


def pool_line(window: Sequence[Sample]) -> str:
    """The server in one line."""
    last = window[-1]
    return (
        f"merge pool {last.pool_tasks} of {last.pool_size} (average {average_pool(window):.0%}), {per_second(window, 'inserts'):.1f} inserts "
        f"per s, {per_second(window, 'delayed'):.1f} delayed, {per_second(window, 'rejected'):.1f} refused; {len(window)} samples"
    )
