"""The freshness sensor's decision, purely: what holds targets back, where readers are → routes to ask for, cursor, a sentence.

    primary ──something holds the target back for longer than its SLA──▶ snapshot
    snapshot ──nothing does, for two ticks in a row──▶ primary

Between the two lies a span in which nothing is asked for: behind, but not yet for too long, or just caught up. Invariants: one incident gives
one ask, however its causes change meanwhile; a snapshot that a person chose stays; a primary that a person chose stays for the
incidents that he knew of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from chmv_assets.core.freshness import Lag, LagKind, Routed, Seen
from chmv_assets.core.freshness_reach import Reach
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import TO_PRIMARY, TO_SNAPSHOT, Ask
from chmv_assets.core.settings import ObjectPolicy
from sensors.cursors import dump_cursor, read_cursor
from sensors.verdict import Verdict

CURSOR_VERSION = 1
CALM_TICKS = 2  # one tick without a cause may be the moment between two of them
_TOLD = 8  # targets that are named; the rest is counted
_IN_PASSING: tuple[LagKind, ...] = ("staged", "refresh")  # part of normal work while it is young
_NEVER_BEHIND: tuple[LagKind, ...] = ("repair",)  # no reason to leave the primary, but one not to go back to it

Policies = Callable[[QName], ObjectPolicy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Since when a target is behind, and as what it was first seen: what makes two asks the same."""

    since_ms: int
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What earlier ticks saw."""

    incidents: Mapping[str, Incident] = field(default_factory=dict)  # by target, while something holds it back
    calm: Mapping[str, int] = field(default_factory=dict)  # ticks without a cause, of targets on their snapshot
    note: str = ""

    def dump(self) -> str:
        incidents = {name: [one.since_ms, one.evidence] for name, one in self.incidents.items()}
        return dump_cursor(CURSOR_VERSION, {"incidents": incidents, "calm": dict(self.calm)})


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says so."""
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note))


def _decode(document: Any) -> Cursor:
    incidents = {
        str(name): Incident(since_ms=int(since), evidence=str(evidence))
        for name, (since, evidence) in document["incidents"].items()
    }
    return Cursor(incidents=incidents, calm={str(name): int(ticks) for name, ticks in document["calm"].items()})


def decide(seen: Seen, cursor: Cursor, *, reach: Reach, policies: Policies, now_ms: int) -> Verdict[Cursor]:
    """Ask for the routes that have to change."""
    held: dict[QName, list[Lag]] = {}
    for lag in seen.lags:
        if lag.since_ms is None or lag.since_ms <= now_ms:
            for target in reach(lag.subject):
                held.setdefault(target, []).append(lag)
    on_snapshot = {name for name, routed in seen.routes.items() if routed.route == "snapshot" and name in reach(name)}
    judged = [
        _judge(name, held.get(name, []), seen.routes.get(name), cursor, policies(name), now_ms)
        for name in sorted({*held, *on_snapshot})
    ]
    asks = sorted((one.ask for one in judged if one.ask), key=lambda ask: (ask.damage == TO_PRIMARY, ask.since_ms or 0))
    new = Cursor(
        incidents={str(one.target): one.incident for one in judged if one.incident},
        calm={str(one.target): one.calm for one in judged if one.calm},
    )
    return Verdict(asks=tuple(asks), cursor=new, told=_told(judged, len(on_snapshot), cursor.note))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    target: QName
    line: str
    ask: Ask | None = None
    incident: Incident | None = None
    calm: int = 0


def _judge(
    name: QName, lags: Sequence[Lag], routed: Routed | None, cursor: Cursor, policy: ObjectPolicy, now_ms: int
) -> _Judged:
    on_snapshot = routed is not None and routed.route == "snapshot"
    sla_ms = policy.sla_seconds * 1000
    before = cursor.incidents.get(str(name))
    behind = [lag for lag in lags if lag.kind not in _NEVER_BEHIND]
    incident = _incident(behind, before, routed, now_ms) if behind else None
    # What is there for a moment while all goes well does not keep readers away from the primary, and is no incident.
    lasting = [lag for lag in lags if lag.kind not in _IN_PASSING or now_ms - _since(lag, before, now_ms) > sla_ms]
    kept = incident if lasting or any(lag.since_ms is None for lag in behind) else None
    if on_snapshot and not lasting:
        return _calm(name, routed, cursor, policy, now_ms, kept)
    if incident is None:
        return _Judged(target=name, line="; ".join(lag.what for lag in lags))
    age = (now_ms - incident.since_ms) / 1000
    worst = min(behind, key=lambda lag: _since(lag, before, now_ms))
    line = f"{worst.what} for {age:.0f} s, SLA {policy.sla_seconds} s"
    if on_snapshot:
        return _Judged(target=name, line=f"{line}, readers are on the snapshot", incident=kept)
    if age * 1000 <= sla_ms:
        return _Judged(target=name, line=line, incident=kept)
    if policy.recovery == "off":
        return _Judged(target=name, line=f"{line}, left alone: recovery is off", incident=incident)
    if routed is not None and routed.is_by_hand and incident.since_ms <= routed.since_ms:
        return _Judged(target=name, line=f"{line}, left alone: {routed.reason}", incident=incident)
    ask = Ask(
        kind="route", subject=name, damage=TO_SNAPSHOT, evidence=incident.evidence, since_ms=incident.since_ms, detected_ms=now_ms,
        seen={
            "cause": "; ".join(lag.what for lag in behind[:5]), "behind since": _moment(incident.since_ms),
            "behind for": f"{age:.0f} s", "SLA": f"{policy.sla_seconds} s",
        },
    )  # fmt: skip
    return _Judged(target=name, line=line, ask=ask, incident=incident)


def _calm(
    name: QName, routed: Routed | None, cursor: Cursor, policy: ObjectPolicy, now_ms: int, incident: Incident | None
) -> _Judged:
    """A target on its snapshot that nothing holds back any more."""
    assert routed is not None
    if routed.is_by_hand:
        return _Judged(target=name, line=f"readers are on the snapshot, left alone: {routed.reason}")
    if policy.recovery == "off":
        return _Judged(target=name, line="caught up, left on the snapshot: recovery is off")
    ticks = min(cursor.calm.get(str(name), 0) + 1, CALM_TICKS)
    if ticks < CALM_TICKS:
        return _Judged(target=name, line="caught up, one more tick to be sure", calm=ticks, incident=incident)
    ask = Ask(
        kind="route", subject=name, damage=TO_PRIMARY, evidence=f"caught up after route {routed.version}", since_ms=routed.since_ms,
        detected_ms=now_ms,
        seen={"caught up for": f"{ticks} ticks", "on the snapshot since": _moment(routed.since_ms), "because of": routed.reason},
    )  # fmt: skip
    return _Judged(target=name, line="caught up", ask=ask, calm=ticks, incident=incident)


def _since(lag: Lag, before: Incident | None, now_ms: int) -> int:
    """When it began; what has no moment of its own began when the target was first seen behind."""
    if lag.since_ms is not None:
        return lag.since_ms
    return before.since_ms if before else now_ms


def _incident(behind: Sequence[Lag], before: Incident | None, routed: Routed | None, now_ms: int) -> Incident:
    """The incident that goes on, or a new one.

    It goes on while causes that are not part of normal work follow each other. Batches that wait in staging for a second each, one after
    the other, are not one long incident.
    """
    oldest = min(behind, key=lambda lag: _since(lag, before, now_ms))
    since = _since(oldest, before, now_ms)
    lasting = any(lag.kind not in _IN_PASSING or lag.since_ms is None for lag in behind)
    version = routed.version if routed else 0
    suffix = f", route {version}"
    if before is not None and before.evidence.endswith(suffix) and (lasting or before.since_ms == since):
        return Incident(since_ms=min(since, before.since_ms), evidence=before.evidence)
    return Incident(since_ms=since, evidence=f"{oldest.kind} {oldest.subject} since {_moment(since)}{suffix}")


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="milliseconds")


def _told(judged: Sequence[_Judged], on_snapshot: int, note: str) -> str:
    named = [f"{one.target}: {one.line}" for one in judged[:_TOLD]]
    rest = [f"{len(judged) - _TOLD} more"] if len(judged) > _TOLD else []
    counted = (
        f"{len(judged)} target(s) held back or on their snapshot ({on_snapshot})"
        if judged
        else "0 targets held back, all targets are up to date"
    )
    return "; ".join([f"{note} {counted}".strip(), *named, *rest])
