"""Repairs: what a sensor asks for, and what the journal keeps of it. Pure records and SQL text.

    a sensor's tick ──Ask──▶ recovery_job ──▶ handler of the kind ──Outcome──▶ chmv.recoveries, the run's page, the asset's page

Invariant: the same evidence gives the same key, so that it is repaired once whoever saw it and however often. How a kind is repaired
belongs to `chmv_assets.recovery`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings
from chmv_assets.core.versions import split_version
from chmv_assets.core.windows import Window

RECOVERIES = OwnTable(
    name=QName(OWN_DATABASE, "recoveries"),
    key=("subject", "recovery"),
    columns={
        "recovery": "String", "kind": "LowCardinality(String)", "subject": "String", "damage": "LowCardinality(String)", "tier": "UInt8",
        "status": "LowCardinality(String)", "detected_ms": "Int64", "started_ms": "Int64", "ended_ms": "Int64", "detail": "String",
        "owner": "String",
    },
)  # fmt: skip
RecoveryKind = Literal["view", "late", "backlog", "route"]
KINDS: tuple[RecoveryKind, ...] = ("view", "late", "backlog", "route")
# In a full queue of runs: where readers look comes first, then views that miss rows; late rows are in the target's source and can wait.
PRIORITY: Mapping[RecoveryKind, int] = {"route": 3, "view": 2, "backlog": 1, "late": 0}
TO_SNAPSHOT, TO_PRIMARY = "to snapshot", "to primary"  # the damages of kind "route"
SAY_SECONDS = 30.0  # so often a repair says that it runs
ALIVE_SECONDS = 180  # one that has not said so for longer has died
RecoveryStatus = Literal["running", "repaired", "failed", "isolated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One repair that a sensor asks for."""

    kind: RecoveryKind
    subject: QName  # the view, target or source that is repaired
    damage: str  # what is wrong, in a word: `dropped`, `late rows`, …; each kind has its own
    evidence: str  # what was seen, such that the same thing seen again gives the same text
    windows: tuple[Window, ...] = ()  # those to repair, newest first; none: the run finds out itself
    since_ms: int | None = None  # when it was last known to be right
    detected_ms: int = 0
    seen: Mapping[str, str] = field(default_factory=dict)  # numbers for people

    @property
    def key(self) -> str:
        """What makes this repair the same as another."""
        return f"{self.kind}:{self.subject}:{self.damage}:{self.evidence}"

    def dump(self) -> str:
        """As JSON: the run configuration carries it."""
        document = {
            "kind": self.kind, "subject": str(self.subject), "damage": self.damage, "evidence": self.evidence,
            "windows": [[one.start.isoformat(), one.end.isoformat()] for one in self.windows],
            "since_ms": self.since_ms, "detected_ms": self.detected_ms, "seen": dict(self.seen),
        }  # fmt: skip
        return json.dumps(document, separators=(",", ":"), sort_keys=True)


def load_ask(text: str, default_database: str = "default") -> Ask:
    """Read what `dump` gave; refuse anything else."""
    try:
        document = json.loads(text)
        if document["kind"] not in KINDS:
            raise ValueError(document["kind"])
        return Ask(
            kind=document["kind"],
            subject=parse_qname(document["subject"], default_database),
            damage=str(document["damage"]),
            evidence=str(document["evidence"]),
            windows=tuple(_window(start, end) for start, end in document.get("windows", ())),
            since_ms=None if document.get("since_ms") is None else int(document["since_ms"]),
            detected_ms=int(document.get("detected_ms") or 0),
            seen={str(name): str(value) for name, value in document.get("seen", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChmvError(
            f"recovery request: found {text[:200]!r} but wanted what a sensor writes ({type(error).__name__}: {error}). Nothing was done. "
            "Launch `recovery_job` from a sensor, or use `chmv recover`."
        ) from error


def _window(start: str, end: str) -> Window:
    return Window(datetime.fromisoformat(start), datetime.fromisoformat(end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a repair did. Raised errors are failures; this is for what ended well, or as well as possible."""

    tier: int  # 1 fixed in place, 2 windows rebuilt, 3 readers on a fallback meanwhile
    steps: tuple[str, ...]  # sentences, in order
    rebuilt: tuple[tuple[QName, Window | None], ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    reconciled: int = 0  # windows that were compared after the repair and are equal
    status: RecoveryStatus = "repaired"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord:
    """One repair in the journal."""

    recovery: str  # the ask's key
    kind: RecoveryKind
    subject: QName
    damage: str
    tier: int
    status: RecoveryStatus
    detected_ms: int
    started_ms: int
    ended_ms: int = 0
    detail: str = ""  # JSON: steps, before, after
    owner: str = ""
    version: int = 0

    @property
    def said_ms(self) -> int:
        """When it was written last."""
        return max(self.started_ms, split_version(self.version).milliseconds)

    @property
    def seconds_to_detect_and_repair(self) -> float:
        return (self.ended_ms - self.detected_ms) / 1000 if self.ended_ms and self.detected_ms else 0.0


def write_recovery(record: RecoveryRecord, cluster: str = "") -> Statement:
    """Note how a repair stands; the row of the highest version counts."""
    values = (
        record.recovery, record.kind, str(record.subject), record.damage, record.tier, record.status, record.detected_ms,
        record.started_ms, record.ended_ms, record.detail, record.owner, record.version,
    )  # fmt: skip
    return RECOVERIES.render_insert(values, cluster)


def read_recoveries(
    cluster: str = "", *, subject: str = "", statuses: Sequence[RecoveryStatus] = (), limit: int | None = None
) -> Statement:
    """Repairs (of one subject, of some statuses), the newest first."""
    sql = (
        f"SELECT {RECOVERIES.selected} FROM {RECOVERIES.sql} FINAL WHERE (empty({{subject:String}}) OR subject = {{subject:String}}) "
        "AND (empty({statuses:Array(String)}) OR has({statuses:Array(String)}, status)) ORDER BY started_ms DESC, recovery"
        + (f" LIMIT {int(limit)}" if limit is not None else "")
    )
    values = {"subject": subject, "statuses": list(statuses)}
    return Statement(sql=sql, parameters=values, settings=read_settings(cluster))


def decode_recovery(row: Sequence[Any]) -> RecoveryRecord:
    """A row of `read_recoveries`."""
    recovery, kind, subject, damage, tier, status, detected, started, ended, detail, owner, version = row
    return RecoveryRecord(
        recovery=str(recovery), kind=kind, subject=parse_qname(str(subject), "default"), damage=str(damage), tier=int(tier), status=status,
        detected_ms=int(detected), started_ms=int(started), ended_ms=int(ended), detail=str(detail), owner=str(owner), version=int(version),
    )  # fmt: skip


def moment(milliseconds: int) -> datetime:
    """Milliseconds since 1970 as an aware moment."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
