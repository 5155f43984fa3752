"""What holds targets back: records, and the SQL that reads them from the journal. Pure.

Each kind of lag is a row of some journal table: an outage, a diversion, a batch that waits in staging, a window that has to be
rebuilt, a refresh that is due. Invariant: one statement for the whole journal, whatever it holds; a table that a journal does not have
yet says nothing. How late is too late belongs to `sensors.freshness_verdict`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE, Statement, read_settings
from chmv_assets.core.system_tables import system_table
from chmv_assets.core.versions import split_version

LagKind = Literal["outage", "diverted", "staged", "stale", "refresh", "repair"]
Route = Literal["primary", "snapshot"]
REPAIR_SECONDS = 3_600.0  # a repair that has run for longer has died; the journal calls it running for ever
BY_HAND = "by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """One thing that holds targets back."""

    kind: LagKind
    subject: QName  # the view, source or target that the journal names
    what: str  # for people
    since_ms: int | None = None  # None: not known, counted from when it was first seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Where the readers of a target are sent, as the journal has it."""

    target: QName
    route: Route
    reason: str
    version: int = 0

    @property
    def is_by_hand(self) -> bool:
        return self.reason.startswith(BY_HAND)

    @property
    def since_ms(self) -> int:
        return split_version(self.version).milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that one tick reads."""

    lags: tuple[Lag, ...] = ()
    routes: Mapping[QName, Routed] = field(default_factory=dict)


_UPDATED = "toInt64(toUnixTimestamp64Milli(min(updated_at)))"
# kind, subject, since in ms (0: read it from the version), words, version
_READS: Mapping[str, str] = {
    "outages": "SELECT 'outage', view, toInt64(opened_ms), concat(damage, ', ', status), toUInt64(version) "
    "FROM {table} FINAL WHERE status IN ('open', 'isolated')",
    "diversions": "SELECT 'diverted', source, toInt64(since_ms), status, toUInt64(version) "
    "FROM {table} FINAL WHERE status IN ('diverted', 'draining')",
    "batches": f"SELECT 'staged', source, {_UPDATED}, toString(count()), toUInt64(0) "
    "FROM {table} FINAL WHERE status = 'staged' GROUP BY source",
    "watermarks": f"SELECT 'stale', target_table, {_UPDATED}, toString(uniqExact(window_start)), toUInt64(0) "
    "FROM {table} FINAL WHERE status = 'stale' GROUP BY target_table",
    "recoveries": "SELECT 'repair', subject, toInt64(started_ms), toString(damage), toUInt64(version) "
    "FROM {table} FINAL WHERE status = 'running' AND kind != 'route' AND started_ms > {repairs_since:Int64}",
    "routes": "SELECT 'route', target, toInt64(0), concat(route, ' ', reason), toUInt64(version) FROM {table} FINAL",
}
JOURNAL_TABLES: tuple[str, ...] = tuple(_READS)


def read_present() -> Statement:
    """Which of the journal's tables there are."""
    sql = "SELECT name FROM system.tables WHERE database = {database:String} AND name IN {names:Array(String)}"
    return Statement(sql=sql, parameters={"database": OWN_DATABASE, "names": list(JOURNAL_TABLES)}, settings={})


def read_journal(present: Collection[str], now_ms: int, cluster: str = "") -> Statement | None:
    """All lags and routes in one statement; None if there is nothing to ask.

    >>> read_journal(["routes"], 0).sql.count("UNION ALL"), read_journal([], 0) is None
    (0, True)
    """
    parts = [text.replace("{table}", QName(OWN_DATABASE, name).sql) for name, text in _READS.items() if name in present]
    if not parts:
        return None
    values = {"repairs_since": now_ms - int(REPAIR_SECONDS * 1000)} if "recoveries" in present else {}
    return Statement(sql=" UNION ALL ".join(parts), parameters=values, settings=read_settings(cluster))


def read_refreshes(cluster: str = "") -> Statement:
    """When every refreshable view last went well: the latest of all replicas."""
    sql = (
        "SELECT database, view, max(toUnixTimestamp(ifNull(last_success_time, toDateTime(0)))), max(ifNull(last_success_duration_ms, 0)), "
        f"any(toString(status)) FROM {system_table('view_refreshes', cluster)} GROUP BY database, view"
    )
    return Statement(sql=sql, parameters={}, settings={})


def decode_journal(rows: Iterable[Sequence[Any]]) -> Seen:
    """The rows of `read_journal`; a name that is none is passed over."""
    lags: list[Lag] = []
    routes: dict[QName, Routed] = {}
    for kind, subject, since, words, version in rows:
        try:
            name = parse_qname(str(subject), "default")
        except ValueError:
            continue
        if kind == "route":
            route, _, reason = str(words).partition(" ")
            if route in ("primary", "snapshot"):
                routes[name] = Routed(target=name, route=route, reason=reason, version=int(version))  # type: ignore[arg-type]
        else:
            moment = int(since) or split_version(int(version)).milliseconds
            lags.append(Lag(kind=kind, subject=name, what=_sentence(kind, name, str(words)), since_ms=moment or None))
    return Seen(lags=tuple(lags), routes=routes)


def _sentence(kind: LagKind, name: QName, words: str) -> str:
    return {
        "outage": f"outage of {name} ({words})",
        "diverted": f"{name} is {words}",
        "staged": f"{words} batch(es) of {name} wait in staging",
        "stale": f"{words} window(s) of {name} wait for a rebuild",
        "repair": f"{name} is under repair ({words})",
        "refresh": f"{name} was not refreshed",
    }[kind]


def decode_refreshes(rows: Iterable[Sequence[Any]], periods: Mapping[QName, float]) -> tuple[Lag, ...]:
    """Refreshes that are due, each since when; `periods` has the declared views. A view that never went well has no moment."""
    lags: list[Lag] = []
    for database, view, success, milliseconds, status in rows:
        name = QName(str(database), str(view))
        if name not in periods:
            continue
        due = None
        if int(success):
            due = int(success) * 1000 + int(periods[name] * 1000) + int(milliseconds)
        last = datetime.fromtimestamp(int(success), timezone.utc).isoformat() if int(success) else "never"
        what = f"the refresh of {name} is due (last success {last}, status {status})"
        lags.append(Lag(kind="refresh", subject=name, what=what, since_ms=due))
    return tuple(lags)


_UNITS = {
    "SECOND": 1, "MINUTE": 60, "HOUR": 3_600, "DAY": 86_400, "WEEK": 7 * 86_400, "MONTH": 31 * 86_400, "QUARTER": 92 * 86_400,
    "YEAR": 366 * 86_400,
}  # fmt: skip
_INTERVAL = re.compile(rf"(\d+)\s+({'|'.join(_UNITS)})S?\b")


def period_seconds(schedule: str) -> float | None:
    """How far apart the refreshes of a schedule are at most; None if that cannot be read.

    >>> period_seconds("EVERY 1 DAY OFFSET 2 HOUR"), period_seconds("AFTER 90 SECONDS RANDOMIZE FOR 1 MINUTE"), period_seconds("?")
    (86400.0, 150.0, None)
    """
    regular, _, jitter = re.sub(r"\s+", " ", schedule.upper()).partition("RANDOMIZE")
    pairs = _INTERVAL.findall(regular.partition("OFFSET")[0])
    if not pairs:
        return None
    return float(sum(int(number) * _UNITS[unit] for number, unit in [*pairs, *_INTERVAL.findall(jitter)]))
