"""The view health sensor's decision, purely: what was read, what is declared, what earlier ticks saw → asks, cursor, a sentence.

The cursor keeps one moment for everything that was right then, and a moment of its own only for what is wrong. Only what was seen right under its
present declaration can be damaged: a view that is declared but was never there, or whose own declaration was edited, waits for whoever applies it and is told, not repaired. What was wrong and is right again without
a repair of ours has missed rows, so it is repaired too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from chmv_assets.core.deficits import Deficit
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.windows import Window
from resources.health import Failures, Health
from sensors.verdict import Verdict
from sensors.view_health_cursor import Cursor
from sensors.view_health_watch import Watch, WatchedView

QUIET_MS = 300_000  # inserts that failed and were not followed by others: nobody tries again, their rows are missing
PROBE_CAP_SECONDS = 3_600.0
LOOK_BACK_MS = 3_600_000  # for failures; a mark in the cursor keeps what is older
_TOLD = 10
# The most important first: while a target is missing nobody can insert, while a view is missing rows are lost.
ORDER = (
    "target dropped", "dropped", "detached", "unhooked", "changed", "isolate", "throws", "partition lost", "deficit", "refresh failed", "rows missed", "probe",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Damage:
    subject: QName
    damage: str
    repairs: bool
    detail: str = ""


def decide(
    watched: Watch,
    health: Health,
    changed: Mapping[QName, Sequence[str]],
    cursor: Cursor,
    limits: Limits,
    deployed_ms: int = 0,
) -> Verdict[Cursor]:
    """Name the damages and ask for their repair; `changed` are views whose live text differs from the declared one, `deployed_ms` is when all was deployed as
    declared now, 0 if it never was.
    """
    tick = _Tick(watched, health, changed, cursor, limits, deployed_ms)
    tick.look()
    asks = sorted(tick.asks, key=lambda ask: (ORDER.index(ask.damage), ask.subject))
    return Verdict(asks=tuple(asks), cursor=tick.next_cursor(), told=tick.sentence())


@dataclass
class _Tick:
    """One decision in the making; nothing outside is touched."""

    watched: Watch
    health: Health
    changed: Mapping[QName, Sequence[str]]
    cursor: Cursor
    limits: Limits
    deployed_ms: int
    asks: list[Ask] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)
    wrong: dict[str, int] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    probes: dict[str, tuple[int, int]] = field(default_factory=dict)

    def look(self) -> None:
        for target, repairs in self.watched.targets.items():
            self._judge(_Damage(target, "target dropped" if target not in self.health.tables else "", repairs))
        for view in self.watched.views:
            self._look_at(view)
        for target, lost in sorted(self.health.lost.items()):
            if target in self.watched.targets and target in self.health.tables:
                self._lost(target, [(one.partition_id, one.max_block) for one in lost])
        for target, deficit in sorted(self.cursor.deficits.items()):
            if target in self.watched.targets:
                self._deficit(target, deficit)

    def _look_at(self, view: WatchedView) -> None:
        outage = self.health.outages.get(view.name)
        if outage is not None and outage.status == "isolated":
            self._isolated(view, outage.opened_ms)
            return
        damage, detail = self._structure(view)
        if damage and view.target in self.health.rebuilding:
            self.lines.append(f"{view.name}: {damage}, but a rebuild of {view.target} works on it")
            return
        without_target = view.target in self.watched.targets and view.target not in self.health.tables
        self._judge(_Damage(view.name, damage, view.repairs, detail), hold=without_target)
        if not damage and not without_target:
            self._failures(view)
            self._refresh(view)

    def _structure(self, view: WatchedView) -> tuple[str, str]:
        if view.name not in self.health.views:
            is_detached = self.health.detached is not None and view.name in self.health.detached
            return ("detached", "") if is_detached else ("dropped", "")
        if view.trigger in self.health.tables and view.name not in self.health.hooks.get(view.trigger, ()):
            return "unhooked", f"inserts into {view.trigger} do not fire it"
        if view.name in self.changed:
            return "changed", ", ".join(self.changed[view.name])
        return "", ""

    def _judge(self, found: _Damage, *, hold: bool = False) -> None:
        """What follows from an object that is wrong, or that was."""
        key, outage = str(found.subject), self.health.outages.get(found.subject)
        before = self.cursor.wrong.get(key)
        closed = outage.closed_ms if outage is not None else 0
        if before is not None and closed > before:
            before = closed if found.damage else None  # repaired meanwhile; if it is wrong again, that is a new outage
        if not found.damage:
            since = before
            left_open = outage is not None and outage.status == "open" and key not in self.cursor.failing
            if since is None and outage is not None and left_open:
                since = outage.opened_ms
            if since is not None:
                self._right_again(found, since)
            return
        if before is None and not self._was_seen(key):
            if not self.deployed_ms:
                self.unseen.add(key)
                self.lines.append(
                    f"{found.subject}: {found.damage}, but it was never right as declared now; apply the DDL"
                )
                return
            before = self.deployed_ms  # nobody has looked at it since, but a deployment ends with everything right
        since = self.cursor.at_ms if before is None else before
        self.wrong[key] = since
        if not hold:
            self._ask(found, since, f"right until {since}")

    def _right_again(self, found: _Damage, since: int) -> None:
        self.wrong[str(found.subject)] = since
        if found.subject in self.health.repairing:
            self.lines.append(f"{found.subject}: under repair")
            return
        detail = "it is right again, but rows that arrived meanwhile are missing"
        self._ask(replace_damage(found, "rows missed", detail), since, f"right until {since}")

    def _was_seen(self, key: str) -> bool:
        same = self.cursor.declared == self.watched.declared or self.watched.marks.get(key) in self.cursor.marks
        return same and self.cursor.at_ms > 0 and key not in self.cursor.unseen

    def _failures(self, view: WatchedView) -> None:
        failures = (self.health.failures or {}).get(view.name)
        outage = self.health.outages.get(view.name)
        mark = outage.closed_ms if outage is not None else 0
        moments = [at for at in failures.moments_ms if at > mark] if failures is not None else []
        first = self.cursor.failing.get(str(view.name), 0)
        if first <= mark:
            first = moments[0] if moments else 0
        if not first:
            return
        self.failing[str(view.name)] = first
        self._count(view, failures, moments, first)

    def _count(self, view: WatchedView, failures: Failures | None, moments: Sequence[int], first: int) -> None:
        last = moments[-1] if moments else first
        quiet = self.health.now_ms - last >= QUIET_MS
        text = failures.exception.splitlines()[0][:200] if failures is not None and failures.exception else ""
        if len(moments) < self.limits.strikes and not quiet:
            self.lines.append(
                f"{view.name}: {len(moments)} failed insert(s), from {self.limits.strikes:g} on it is repaired: {text}"
            )
            return
        seen = {"failed inserts": str(len(moments)), "exception": text}
        self._ask(_Damage(view.name, "throws", view.repairs, text), first, f"first failure {first}", seen)

    def _refresh(self, view: WatchedView) -> None:
        state = self.health.refreshes.get(view.name)
        if state is None or not view.refreshable:
            return
        if state.status == "Disabled":
            self.lines.append(
                f"{view.name}: its refreshes were stopped; `SYSTEM START VIEW {view.name}` lets them go on"
            )
            return
        if state.status in ("Running", "RunningOnAnotherReplica"):
            self.lines.append(f"{view.name}: its last refresh failed, another one runs")
            return
        digest = hashlib.sha256(state.exception.partition(" (version")[0].encode()).hexdigest()[:8]
        text = state.exception.splitlines()[0][:200] if state.exception else state.status
        damage = _Damage(view.name, "refresh failed", view.repairs, text)
        self._ask(
            damage,
            state.succeeded_s * 1000 or None,
            f"since success {state.succeeded_s}: {digest}",
            {"exception": text},
        )

    def _lost(self, target: QName, lost: Sequence[tuple[str, int]]) -> None:
        ids = ", ".join(partition for partition, _ in lost[:_TOLD])
        if target in self.watched.expiring:
            self.lines.append(
                f"{target}: {len(lost)} partition(s) are gone ({ids}), but it has a TTL, so they may have to"
            )
            return
        if target in self.health.rebuilding:
            self.lines.append(f"{target}: {len(lost)} partition(s) are gone ({ids}), but a rebuild of it is under way")
            return
        digest = hashlib.sha256(repr(sorted(lost)).encode()).hexdigest()[:12]
        seen = {"partitions lost": str(len(lost)), "partitions": json.dumps([partition for partition, _ in lost])}
        damage = _Damage(target, "partition lost", self.watched.targets[target], ids)
        self._ask(damage, None, f"{len(lost)} partitions {digest}", seen)

    def _deficit(self, target: QName, deficit: Deficit) -> None:
        """What the comparison found; while a view of the target, or itself, is under repair that one comes first."""
        about = {target, *(view.name for view in self.watched.views if view.target == target)}
        if any(ask.subject in about for ask in self.asks) or about & self._under_way:
            return
        if target in self.health.rebuilding or target not in self.health.tables:
            return
        count = len(deficit.windows)
        seen = {"windows that differ": str(count), "found by": f"run {deficit.run_id}"}
        damage = _Damage(target, "deficit", self.watched.targets[target], f"{count} window(s) differ from the views")
        self._ask(damage, None, deficit.evidence, seen, deficit.spans)

    @property
    def _under_way(self) -> set[QName]:
        open_ = {name for name, one in self.health.outages.items() if one.status != "closed"}
        return open_ | set(self.health.repairing)

    def _isolated(self, view: WatchedView, opened_ms: int) -> None:
        key, now = str(view.name), self.health.now_ms
        count, due = self.cursor.probes.get(key, (0, now + int(self.limits.probe_after * 1000)))
        if view.name in self.health.views:
            detail = "isolated, but somebody has attached it"
            self._ask(_Damage(view.name, "probe", view.repairs, detail), opened_ms, f"outage {opened_ms}, attached")
        elif now >= due:
            count += 1
            due = now + int(min(PROBE_CAP_SECONDS, self.limits.probe_after * 2.0 ** min(count, 12)) * 1000)
            self._ask(
                _Damage(view.name, "probe", view.repairs, "isolated"), opened_ms, f"outage {opened_ms}, probe {count}"
            )
        else:
            self.lines.append(f"{view.name}: isolated, the next probe comes in {(due - now) / 1000:.0f} s")
        self.probes[key] = (count, due)

    def _ask(
        self,
        found: _Damage,
        since: int | None,
        evidence: str,
        seen: Mapping[str, str] | None = None,
        windows: Sequence[Window] = (),
    ) -> None:
        detail = f" ({found.detail})" if found.detail else ""
        if not found.repairs:
            self.lines.append(f"{found.subject}: {found.damage}{detail}, but its recovery is off")
            return
        self.lines.append(f"{found.subject}: {found.damage}{detail}")
        told = {**({"detail": found.detail} if found.detail else {}), **(seen or {})}
        self.asks.append(
            Ask(
                kind="view", subject=found.subject, damage=found.damage, evidence=evidence, since_ms=since,
                detected_ms=self.health.now_ms, seen=told, windows=tuple(windows),
            )
        )  # fmt: skip

    def next_cursor(self) -> Cursor:
        return Cursor(
            declared=self.watched.declared, marks=frozenset(self.watched.marks.values()), at_ms=self.health.now_ms, unseen=frozenset(self.unseen), wrong=self.wrong,
            failing=self.failing, probes=self.probes, checked=self.cursor.checked, deficits=self.cursor.deficits,
        )  # fmt: skip

    def sentence(self) -> str:
        numbers = f"{len(self.watched.views)} views and {len(self.watched.targets)} targets looked at"
        if self.health.failures is None:
            numbers += ", failed inserts are not known (no query log)"
        lines = sorted(self.lines)
        more = [f"and {len(lines) - _TOLD} more"] if len(lines) > _TOLD else []
        text = "; ".join([numbers, *lines[:_TOLD], *more]) if lines else f"{numbers}, all right"
        return f"{self.cursor.note} {text}".strip()


def replace_damage(found: _Damage, damage: str, detail: str) -> _Damage:
    return replace(found, damage=damage, detail=detail)


def isolation_of(ask: Ask, tries: int) -> Ask:
    """What is asked for instead, once the repair of a view has failed too often."""
    seen = {**ask.seen, "failed repairs": str(tries), "of": ask.damage}
    return replace(ask, damage="isolate", evidence=f"{ask.damage}: {ask.evidence}", seen=seen)


def may_isolate(ask: Ask) -> bool:
    """Whether taking the view off would help others."""
    return ask.damage in ("dropped", "detached", "unhooked", "changed", "throws", "rows missed")
