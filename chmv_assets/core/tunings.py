"""Tunings: what the tuner has changed for a while, in the journal. Pure records and SQL text.

    proposed ──ALTER──▶ applied ──watched, all is well──▶ settled ──calm, or the pool runs empty──▶ rolled_back
        └── its tuner died, or it over-corrected ──────────────────────────────────────────────────▶ rolled_back
    any of them ──somebody else has changed the setting since──▶ left

A tuning is noted as proposed before the server is told, so whoever finds one knows what to put back whatever became of its tuner.
Invariant: tunings of one setting are a stack. The newest is taken back first, and each puts back exactly what it found, `None` being "not
set". Who decides is `core.tuner`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, OwnTable, Statement, read_settings
from chmv_assets.core.verdict_parts import Comparison, Difference

TUNINGS = OwnTable(
    name=QName(OWN_DATABASE, "tunings"),
    key=("subject", "tuning"),
    columns={
        "tuning": "String", "subject": "String", "setting": "LowCardinality(String)", "was_set": "UInt8", "previous": "Int64",
        "base": "Int64", "value": "Int64", "status": "LowCardinality(String)", "reason": "String", "numbers": "String",
        "started_ms": "Int64", "watch_until_ms": "Int64", "ended_ms": "Int64", "owner": "String",
    },
)  # fmt: skip
TUNER_LOCK = "tuner"
DELAY, MAX_DELAY = "parts_to_delay_insert", "max_delay_to_insert"  # of a table
PARALLELISM = "chmv.parallelism"  # ours: how many inserts an ingest of a source runs side by side; no ALTER, ingests read the journal
TABLE_SETTINGS = (DELAY, MAX_DELAY)
TuningStatus = Literal["proposed", "applied", "settled", "rolled_back", "left"]
ACTIVE: tuple[TuningStatus, ...] = ("proposed", "applied", "settled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """One change of one setting, and what was there before."""

    tuning: str
    subject: QName  # the table; for `PARALLELISM` the source
    setting: str
    previous: int | None  # None: the table did not set it
    base: int  # what was in force before we tuned at all: bounds and shares are taken of it
    value: int
    status: TuningStatus
    reason: str
    started_ms: int
    watch_until_ms: int
    ended_ms: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)  # that justified it
    owner: str = ""
    version: int = 0

    @property
    def is_active(self) -> bool:
        """Whether the setting may differ from what it was, because of us."""
        return self.status in ACTIVE

    def change(self) -> str:
        """The change in a few words.

        >>> made = Tuning(tuning="1", subject=QName("d", "t"), setting=DELAY, previous=None, base=1000, value=500, status="applied", reason="",
        ...     started_ms=0, watch_until_ms=0)
        >>> made.change()
        'd.t: parts_to_delay_insert 1000 (not set) → 500'
        """
        return f"{self.subject}: {self.setting} {shown(self.previous, self.base)} → {self.value}"


def shown(previous: int | None, base: int) -> str:
    """A value as it stood: what is in force, and whether somebody had set it."""
    return f"{base} (not set)" if previous is None else str(previous)


def write_tuning(tuning: Tuning, cluster: str = "") -> Statement:
    """Note how a tuning stands; the row of the highest version counts."""
    values = (
        tuning.tuning, str(tuning.subject), tuning.setting, int(tuning.previous is not None), tuning.previous or 0, tuning.base, tuning.value,
        tuning.status, tuning.reason, json.dumps(dict(tuning.numbers), sort_keys=True), tuning.started_ms, tuning.watch_until_ms,
        tuning.ended_ms, tuning.owner, tuning.version,
    )  # fmt: skip
    return TUNINGS.render_insert(values, cluster)


def read_tunings(cluster: str = "", *, since_ms: int = 0, subjects: Iterable[QName] = ()) -> Statement:
    """Tunings that are active or began after a moment (of some subjects), the oldest first."""
    sql = (
        f"SELECT {TUNINGS.selected} FROM {TUNINGS.sql} FINAL "
        "WHERE (has({active:Array(String)}, status) OR started_ms >= {since:Int64}) "
        "AND (empty({subjects:Array(String)}) OR has({subjects:Array(String)}, subject)) ORDER BY version"
    )
    values = {"active": list(ACTIVE), "since": since_ms, "subjects": [str(name) for name in subjects]}
    return Statement(sql=sql, parameters=values, settings=read_settings(cluster))


def read_ceiling(source: QName, cluster: str = "") -> Statement:
    """How many inserts an ingest of a source may run side by side; no row: as many as it likes."""
    sql = (
        f"SELECT min(value) FROM {TUNINGS.sql} FINAL WHERE subject = {{subject:String}} AND setting = {{setting:String}} "
        "AND status IN ('applied', 'settled') HAVING count() > 0"
    )
    return Statement(
        sql=sql, parameters={"subject": str(source), "setting": PARALLELISM}, settings=read_settings(cluster)
    )


def decode_tuning(row: Sequence[Any]) -> Tuning:
    """A row of `read_tunings`."""
    (tuning, subject, setting, was_set, previous, base, value, status, reason, numbers, started, until, ended, owner, version) = row  # fmt: skip
    return Tuning(
        tuning=str(tuning), subject=parse_qname(str(subject), ""), setting=str(setting), previous=int(previous) if was_set else None,
        base=int(base), value=int(value), status=status, reason=str(reason), numbers=json.loads(str(numbers) or "{}"),
        started_ms=int(started), watch_until_ms=int(until), ended_ms=int(ended), owner=str(owner), version=int(version),
    )  # fmt: skip


def order_back(tunings: Iterable[Tuning]) -> tuple[Tuning, ...]:
    """Active tunings in the order in which they are to be taken back: the newest first."""
    return tuple(
        sorted((one for one in tunings if one.is_active), key=lambda one: (one.started_ms, one.tuning), reverse=True)
    )


def split_tuned(comparison: Comparison, tunings: Iterable[Tuning]) -> Comparison:
    """A comparison in which settings that we have tuned count as equal; they are listed as tuned instead.

    Only while the server has the very value of the newest active tuning: what somebody else has set since is a difference.
    """
    newest = {one.setting: one.value for one in order_back(tunings)[::-1]}
    tuned = tuple(one for one in comparison.differences if _is_tuned(one, newest))
    if not tuned:
        return comparison
    rest = tuple(one for one in comparison.differences if one not in tuned)
    state = "equal" if comparison.state == "changed" and not rest else comparison.state
    return Comparison(state, rest, comparison.hidden, tuned)


def _is_tuned(difference: Difference, newest: Mapping[str, int]) -> bool:
    kind, _, setting = difference.what.partition(" ")
    return kind == "setting" and setting in newest and difference.live == str(newest[setting])
