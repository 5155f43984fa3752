"""The merge backlog sensor's decision, purely: parts, pool and diversions → asks, cursor, a sentence.

A source is judged by the fullest partition of its whole fan-out: an insert waits for the slowest table that it reaches. Tiers:

    0 calm · 1 slow: our own ingest slows by itself (`core.pressure`), nothing is asked for · 2 optimize: merge that one partition ·
    3 divert: batches wait in staging, readers read the snapshot; drained when it is calm again

A tier is left only when the parts are well below the number that began it (`limits.parts_calm`), so that nothing flaps. The cursor keeps
per table in trouble its parts (the trend needs two ticks) and how many repairs were asked for: the number names a repair, so that two
daemons with one cursor ask for the same one. Whether a source is diverted is in the journal, not here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chmv_assets.core.backlog import Fullest, parts_per_second, seconds_to_delay
from chmv_assets.core.diversions import Diversion
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.recovery import Ask
from chmv_assets.core.thresholds import Limits, in_peak
from resources.backlog import Backlog
from sensors.cursors import dump_cursor, read_cursor
from sensors.verdict import Verdict

CURSOR_VERSION = 1
CALM, SLOW, OPTIMIZE, DIVERT = range(4)
TIERS = ("calm", "slow", "optimize", "divert")
_OFF = "its settings say `recovery: off`, so it is not asked for"
_TOLD = 10  # sources in the sentence of a tick: Dagster keeps it, twice a minute
_ROUNDS_PER_DAY = 1_000  # a cursor that was lost counts on above every repair of an earlier day


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A source, the tables that its inserts reach (itself included), and those of them that sensors must not repair."""

    source: QName
    tables: tuple[QName, ...]
    off: frozenset[QName] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """A table that was not calm at the last tick."""

    partition_id: str
    parts: int
    at: float
    tier: int
    round: int  # number of the repair that was asked for last, or that will be


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What the last tick saw of tables that are, or were, in trouble."""

    tables: Mapping[QName, Known] = field(default_factory=dict)
    note: str = ""

    def dump(self) -> str:
        rows = {
            str(name): [one.partition_id, one.parts, one.at, one.tier, one.round] for name, one in self.tables.items()
        }
        return dump_cursor(CURSOR_VERSION, {"tables": rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One table: its fullest partition, how fast it fills, and the tier that follows."""

    found: Fullest
    tier: int
    per_second: float  # parts, over the time since the last tick
    seconds_to_delay: float | None  # None: not by this trend

    def sentence(self) -> str:
        limits = f"delayed from {self.found.parts_to_delay} on, refused from {self.found.parts_to_throw} on"
        trend = f", {self.per_second:+.2f} per s" if self.per_second else ""
        ahead = "" if self.seconds_to_delay is None else f", the delay limit in {self.seconds_to_delay:.0f} s"
        return f"{self.found.parts} parts in {self.found.table} partition {self.found.partition_id} ({limits}{trend}{ahead})"


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says so."""
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note))


def _decode(document: Any) -> Cursor:
    return Cursor(tables={parse_qname(str(name), ""): _known(row) for name, row in document["tables"].items()})


def _known(row: Sequence[object]) -> Known:
    partition, parts, at, tier, number = row
    return Known(str(partition), int(str(parts)), float(str(at)), int(str(tier)), int(str(number)))


def asked_of(cursor: Cursor) -> tuple[Ask, ...]:
    """The merges that earlier ticks asked for: whoever reads how they went asks by these."""
    return tuple(
        _optimize(name, one.partition_id, one.round, 0, {})
        for name, one in cursor.tables.items()
        if one.tier >= OPTIMIZE
    )


def decide(
    seen: Backlog,
    watched: Sequence[Watched],
    cursor: Cursor,
    *,
    now: float,
    limits: Limits,
    zone: str,
    done: Collection[str] = (),
) -> Verdict[Cursor]:
    """What to do about every source; `done` has the keys of asks (`asked_of`) whose repair succeeded."""
    judged = {name: judge(one, cursor.tables.get(name), now, limits) for name, one in seen.fullest.items()}
    known = {name: _note(one, cursor.tables.get(name), now, done) for name, one in judged.items()}
    busy = seen.pool_share >= limits.pool_busy
    peak = in_peak(now, zone, limits)
    merges: dict[QName, Ask] = {}
    moves: list[Ask] = []
    lines: list[tuple[int, str]] = []
    for one in watched:
        reached = [judged[name] for name in one.tables if name in judged]
        worst = _worst(reached)
        tier = _tier(worst, busy)
        said = [TIERS[tier], worst.sentence() if worst else "no parts"]
        for full in (table for table in reached if table.tier >= OPTIMIZE):
            may, why = _may_merge(full, peak, busy, limits)
            said.append(f"{full.found.table}: {why}")
            if may and full.found.table in one.off:
                said.append(_OFF)
            elif may:
                merges[full.found.table] = _merge_of(full, known[full.found.table], now, seen)
        if (move := _move(one.source, seen.diversions.get(one.source), reached, now, limits)) is not None:
            said.append(move.damage)
            if one.source in one.off:
                said.append(_OFF)
            else:
                moves.append(move)
        lines.append((-max(tier, SLOW if len(said) > 2 else CALM), f"{one.source}: {', '.join(said)}"))
    urgent = sorted(merges.values(), key=lambda ask: -int(ask.seen["parts"]))
    kept = {name: one for name, one in known.items() if one is not None}
    gone = {name: replace(one, tier=CALM) for name, one in cursor.tables.items() if name not in judged}
    told = "; ".join([_server_line(seen), *_told(lines)]) if lines else "no declared source has parts to look at"
    return Verdict(
        asks=(*urgent, *moves),
        cursor=Cursor(tables={**gone, **kept}),
        told=f"{cursor.note} {told}".strip(),
    )


def judge(found: Fullest, before: Known | None, now: float, limits: Limits) -> Judged:
    """The tier of one table, by its parts, their trend, and the tier that it comes from."""
    rate = 0.0
    if before is not None:
        rate = parts_per_second(found, before.partition_id, before.parts, now - before.at)
    ahead = seconds_to_delay(found, rate)
    act, divert = limits.parts_act * found.first_limit, limits.parts_divert * found.parts_to_throw
    was = before.tier if before is not None else CALM
    soon = ahead is not None and ahead <= limits.forecast and found.parts > limits.parts_warn
    if found.parts >= divert or (was == DIVERT and found.parts > limits.parts_calm * divert):
        tier = DIVERT
    elif found.parts >= act or soon or (was >= OPTIMIZE and found.parts > limits.parts_calm * act):
        tier = OPTIMIZE
    elif found.parts > limits.parts_warn or (was >= SLOW and found.parts > limits.parts_calm * limits.parts_warn):
        tier = SLOW
    else:
        tier = CALM
    return Judged(found=found, tier=tier, per_second=rate, seconds_to_delay=ahead)


def _worst(judged: Sequence[Judged]) -> Judged | None:
    """The table that is nearest to its limits."""
    return max(judged, key=lambda one: (one.tier, _share(one.found), one.found.table), default=None)


def _share(found: Fullest) -> float:
    return found.parts / max(found.first_limit, 1)


def _tier(worst: Judged | None, busy: bool) -> int:
    tier = worst.tier if worst is not None else CALM
    return max(tier, SLOW) if busy else tier


def _may_merge(judged: Judged, peak: bool, busy: bool, limits: Limits) -> tuple[bool, str]:
    """Whether its partition may be merged now, and why. In peak hours only what will soon hold up writers, and if merges have room."""
    if not peak:
        return True, "merge now, off peak"
    if judged.seconds_to_delay is None or judged.seconds_to_delay > limits.forecast:
        return False, "peak hours and the delay limit is not near, so merging waits"
    if busy:
        return False, "peak hours and the merge pool is busy, so a merge of ours would only queue"
    return True, "merge now although it is peak: the delay limit is near and the pool has room"


def _note(judged: Judged, before: Known | None, now: float, done: Collection[str]) -> Known | None:
    """What the cursor keeps of a table; nothing of one that was always calm."""
    if before is None and judged.tier == CALM:
        return None
    found = judged.found
    number = before.round if before is not None else int(now // 86_400) * _ROUNDS_PER_DAY
    if before is not None:
        finished = _optimize(found.table, before.partition_id, before.round, 0, {}).key in done
        number += int(finished)
    return Known(found.partition_id, found.parts, now, judged.tier, number)


def _merge_of(judged: Judged, known: Known | None, now: float, seen: Backlog) -> Ask:
    assert known is not None, "a table in trouble is noted"
    numbers = {
        "partition": judged.found.partition_id,
        "parts": str(judged.found.parts),
        "parts_to_delay_insert": str(judged.found.parts_to_delay),
        "parts_to_throw_insert": str(judged.found.parts_to_throw),
        "parts per second": f"{judged.per_second:.3f}",
        "merge pool": f"{seen.pool_tasks} of {seen.pool_size}",
    }
    return _optimize(judged.found.table, judged.found.partition_id, known.round, now, numbers)


def _optimize(table: QName, partition_id: str, number: int, now: float, seen: Mapping[str, str]) -> Ask:
    return Ask(
        kind="backlog", subject=table, damage="optimize", evidence=f"{partition_id} #{number}", detected_ms=int(now * 1000), seen=seen,
    )  # fmt: skip


def _move(
    source: QName, diversion: Diversion | None, reached: Sequence[Judged], now: float, limits: Limits
) -> Ask | None:
    """Divert a source, or drain it; named by the diversion that it begins or ends."""
    worst = _worst(reached)
    if diversion is not None and diversion.holds:
        if not all(_is_calm(one.found, limits) for one in reached):
            return None
        damage, evidence = "drain", f"since {diversion.since_ms}"
    elif worst is not None and worst.tier == DIVERT:
        damage, evidence = "divert", f"after {diversion.since_ms if diversion else 0}"
    else:
        return None
    numbers = {"parts": str(worst.found.parts), "fullest": worst.sentence()} if worst else {"parts": "0"}
    return Ask(
        kind="backlog", subject=source, damage=damage, evidence=evidence, detected_ms=int(now * 1000), seen=numbers
    )


def _is_calm(found: Fullest, limits: Limits) -> bool:
    """Whether commits may go on: well below the number at which they were diverted, whatever the cursor remembers."""
    return found.parts <= limits.parts_calm * limits.parts_divert * found.parts_to_throw


def _told(lines: Sequence[tuple[int, str]]) -> list[str]:
    """What is said of sources: those in trouble first, and not of a thousand that are calm."""
    said = [line for _, line in sorted(lines)]
    return [*said[:_TOLD], f"and {len(said) - _TOLD} more sources"] if len(said) > _TOLD else said


def _server_line(seen: Backlog) -> str:
    return (
        f"merge pool {seen.pool_tasks} of {seen.pool_size} ({seen.pool_share:.0%}), oldest merge {seen.oldest_merge_seconds:.0f} s, "
        f"{seen.mutations} mutations open, replication queue {seen.replication_queue}"
    )
