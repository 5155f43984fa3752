"""The fence of a fenced rebuild: two moments, F and G, by which fresh rows are routed. Text, records and refusals; pure.

A row whose arrival lies in [F, G) waits in a shadow of the target, every other row goes on as ever. Both moments stand in one small table
per rebuild and are read by each insert once, as one pair, so the views are changed at leisure while the fence is open and one
insert of ours moves all of them at the same time. F is the least `chmv_from`, G the least `chmv_until`: rows are only added, a moment
that is set never moves later, and the row (never, 0) closes the fence for good, whatever a dead process may still send.
Invariant: an insert reads the pair after its arrival was taken, so with F and G visible before they pass, no row goes two ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chmv_assets.core.model import Column, Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.rebuild_plan import Step

LEAD_SECONDS = 3.0  # between setting a moment and its coming
NEVER_US = 7_258_118_400_000_000  # 2200-01-01
NARROWED = "chmv_narrowed"  # a source's name where rows of it are told apart (`core.retarget.narrow`)
_PAIR = "chmv_fence"
_ARRIVAL_TYPE = re.compile(r"DateTime64\(\s*\d\s*(,\s*'[^']*'\s*)?\)\Z")
_ARRIVAL_DEFAULT = re.compile(r"now64\(\s*(\d\s*(,\s*'[^']*'\s*)?)?\)\Z")


@dataclass(frozen=True, slots=True)
class Arrival:
    """The column of a source that says when a row came; `supplied`: a writer may say it himself."""

    source: QName
    column: str
    supplied: bool


@dataclass(frozen=True, slots=True)
class Diverted:
    """A view whose query carries the fence, and the query that it had before, as the server wrote it."""

    view: QName
    select: str


@dataclass(frozen=True, slots=True)
class Shadow:
    """The table in which fresh rows of a target wait."""

    name: QName
    target: QName


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceState:
    """All that whoever comes after a crash has to know; kept in the journal."""

    fence: QName
    scratch: QName
    views: tuple[Diverted, ...]
    twins: tuple[QName, ...]
    shadows: tuple[Shadow, ...]
    arrivals: tuple[Arrival, ...]
    lead_seconds: float = LEAD_SECONDS
    from_us: int = 0
    until_us: int = 0
    moving_since_us: int = 0
    published: bool = False
    doubt: str = ""  # why rows may have gone wrong; nothing if all is well


def find_arrival(source: Object) -> Arrival | None:
    """The column that the server stamps at the start of each insert; one that nobody can supply is preferred."""
    found = [column for column in source.columns if _is_stamp(column)]
    found.sort(key=lambda column: column.default_kind != "MATERIALIZED")
    if not found:
        return None
    return Arrival(source.name, found[0].name, found[0].default_kind != "MATERIALIZED")


def _is_stamp(column: Column) -> bool:
    kinds = ("DEFAULT", "MATERIALIZED")
    return (
        column.default_kind in kinds
        and _ARRIVAL_TYPE.match(column.type.strip()) is not None
        and _ARRIVAL_DEFAULT.match(column.default.strip()) is not None
    )


def fence_table(rebuild_id: str) -> QName:
    return QName(OWN_DATABASE, f"fence.{rebuild_id}")


def render_create_fence(fence: QName) -> str:
    """The table of a rebuild's two moments."""
    kind = "DateTime64(6, 'UTC')"
    return (
        f"CREATE TABLE IF NOT EXISTS {fence.sql} (chmv_from {kind}, chmv_until {kind}, at {kind} DEFAULT now64(6, 'UTC')) "
        "ENGINE = MergeTree ORDER BY tuple() COMMENT 'moments of a fenced rebuild; see docs/rebuild.md'"
    )


def render_moment(fence: QName, from_us: int, until_us: int) -> str:
    """Set a moment; the earlier one counts."""
    moments = ", ".join(f"fromUnixTimestamp64Micro({int(us)}, 'UTC')" for us in (from_us, until_us))
    return f"INSERT INTO {fence.sql} (chmv_from, chmv_until) SELECT {moments}"


def render_moment_ahead(fence: QName, lead_seconds: float, *, raised: bool) -> str:
    """Set F (or G) a lead ahead of the server's clock at the statement's start.

    On a whole second: an arrival column of any precision rounds down to it, never below.
    """
    ahead = int(lead_seconds * 1e6) + 999_999
    moment = f"fromUnixTimestamp64Micro(intDiv(toUnixTimestamp64Micro(now64(6)) + {ahead}, 1000000) * 1000000, 'UTC')"
    never = f"fromUnixTimestamp64Micro({NEVER_US}, 'UTC')"
    pair = f"{moment}, {never}" if raised else f"{never}, {moment}"
    return f"INSERT INTO {fence.sql} (chmv_from, chmv_until) SELECT {pair}"


def render_close(fence: QName) -> str:
    """Nothing is ever routed aside again; what was routed stays where it is."""
    return render_moment(fence, NEVER_US, 0)


def read_moments(fence: QName) -> str:
    """F and G in microseconds, with the server's clock."""
    return (
        "SELECT toUnixTimestamp64Micro(min(chmv_from)), toUnixTimestamp64Micro(min(chmv_until)), "
        f"toUnixTimestamp64Micro(now64(6)) FROM {fence.sql}"
    )


def render_pair(fence: QName) -> str:
    """The pair (F, G) for a WITH clause: one scalar, so both are of one moment."""
    return f"(SELECT (min(chmv_from), min(chmv_until)) FROM {fence.sql}) AS {_PAIR}"


def render_condition(arrival: str, *, inside: bool) -> str:
    """Rows that wait (inside), or all others."""
    column = f"{NARROWED}.{quote_identifier(arrival)}"
    within = f"{column} >= {_PAIR}.1 AND {column} < {_PAIR}.2"
    return within if inside else f"NOT ({within})"


def render_before(arrival: str, from_us: int, *, table: str = NARROWED) -> str:
    """Rows from before the fence."""
    column = f"{table}.{quote_identifier(arrival)}" if table else quote_identifier(arrival)
    return f"{column} < fromUnixTimestamp64Micro({int(from_us)}, 'UTC')"


def plan_fenced(state: FenceState, target: QName, views: Iterable[QName], roots: Sequence[QName]) -> tuple[Step, ...]:
    """The whole way; from `lower fence` on it is the way out as well, which every crash takes to its end."""
    return (
        *(Step("settle", root) for root in roots),
        Step("fence", state.fence),
        *(Step("shadow", shadow.name) for shadow in state.shadows),
        Step("scratch", state.scratch),
        *(Step("twin", twin) for twin in state.twins),
        *(Step("divert", one.view) for one in state.views),
        Step("drain", target),
        *(Step("hold commits", root) for root in roots),
        Step("raise fence", state.fence),
        *(Step("compute", view) for view in views),
        Step("publish", target),
        Step("compare arrivals", target),
        *plan_way_out(state, roots),
    )


def plan_way_out(state: FenceState, roots: Sequence[QName] = ()) -> tuple[Step, ...]:
    """What is left to do once rows may wait in a shadow: never back, always to the end. Every step may run twice."""
    return (
        Step("lower fence", state.fence),
        Step("close fence", state.fence),
        *(Step("release commits", root) for root in reversed(roots)),
        *(Step("move back", shadow.name) for shadow in state.shadows),
        *(Step("restore view", one.view) for one in state.views),
        *(Step("drop twin", twin) for twin in state.twins),
        *(Step("drop shadow", shadow.name) for shadow in state.shadows),
        Step("drop scratch", state.scratch),
        Step("drop fence", state.fence),
    )


def encode_state(state: FenceState) -> str:
    """A state as the journal keeps it."""
    return json.dumps(
        {
            "fence": _pair(state.fence),
            "scratch": _pair(state.scratch),
            "views": [[*_pair(one.view), one.select] for one in state.views],
            "twins": [_pair(twin) for twin in state.twins],
            "shadows": [[*_pair(one.name), *_pair(one.target)] for one in state.shadows],
            "arrivals": [[*_pair(one.source), one.column, one.supplied] for one in state.arrivals],
            "lead_seconds": state.lead_seconds,
            "from_us": state.from_us,
            "until_us": state.until_us,
            "moving_since_us": state.moving_since_us,
            "published": state.published,
            "doubt": state.doubt,
        }
    )


def decode_state(text: str) -> FenceState:
    """The state that `encode_state` wrote."""
    found = json.loads(text)
    return FenceState(
        fence=QName(*found["fence"]),
        scratch=QName(*found["scratch"]),
        views=tuple(Diverted(QName(database, table), select) for database, table, select in found["views"]),
        twins=tuple(QName(*pair) for pair in found["twins"]),
        shadows=tuple(Shadow(QName(*row[:2]), QName(*row[2:])) for row in found["shadows"]),
        arrivals=tuple(Arrival(QName(*row[:2]), row[2], row[3]) for row in found["arrivals"]),
        lead_seconds=found["lead_seconds"],
        from_us=found["from_us"],
        until_us=found["until_us"],
        moving_since_us=found["moving_since_us"],
        published=found["published"],
        doubt=found["doubt"],
    )


def _pair(name: QName) -> list[str]:
    return [name.database, name.table]
