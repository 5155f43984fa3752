"""How every node of the graph stands, from what was seen on the server and in the journal. Pure: facts → statuses and rows per edge.

A target has the status that `core.serving.status_of` gives it. Any other node is DEGRADED if it is missing, unhooked, failing or has an open
outage, and STALE if that lasts longer than the SLA; tables that get their rows through such a view are at least DEGRADED too, and what shows
the data of others (plain views, dictionaries) is as good as they are. Who reads the facts is `resources.graph_status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.graph import neighbours, reachable
from chmv_assets.core.model import VIEW_KINDS, Edge, Object
from chmv_assets.core.names import QName
from chmv_assets.core.outages import Outage
from chmv_assets.core.rebuild_journal import RebuildRecord
from chmv_assets.core.recovery import RecoveryRecord
from chmv_assets.core.serving import Status
from chmv_assets.core.settings import Settings
from chmv_assets.core.watermarks import Watermark

NodeStatus = Literal["ACTIVE", "DEGRADED", "STALE", "unknown"]
_RANK: dict[NodeStatus, int] = {"unknown": 0, "ACTIVE": 1, "DEGRADED": 2, "STALE": 3}
_HOOKED = ("table", "null", "queue")  # whose hooks the server tells under the name that the folder knows


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSeen:
    """One line of `chmv status`, as far as the picture shows it."""

    status: Status
    why: tuple[str, ...] = ()
    route: str = "primary"
    route_reason: str = ""
    serving_view: QName | None = None
    snapshot_age_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Rows that went through a view."""

    read: int
    written: int
    basis: str  # over which time, for people: `in the last 24 hours`


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was read, at one moment."""

    taken: datetime
    tables: frozenset[QName]  # what exists, of the wanted databases
    rows: Mapping[QName, tuple[int, int]] = field(default_factory=dict)  # rows and bytes of tables that know theirs
    hooks: Mapping[QName, frozenset[QName]] = field(default_factory=dict)
    troubles: Mapping[QName, str] = field(default_factory=dict)  # failing views, refreshes and dictionaries
    targets: Mapping[QName, TargetSeen] = field(default_factory=dict)
    flows: Mapping[QName, Flow] | None = None  # by view; None: nothing is logged
    outages: tuple[Outage, ...] = ()  # open ones
    watermarks: tuple[Watermark, ...] = ()  # the last of every target and source
    repairs: tuple[RecoveryRecord, ...] = ()  # newest first
    rebuilds: tuple[RebuildRecord, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A status and why."""

    status: NodeStatus
    why: tuple[str, ...] = ()


def judge_nodes(catalog: Catalog, settings: Settings, seen: Seen | None) -> dict[QName, Judgement]:
    """The status of every node; without a server all are unknown."""
    if seen is None:
        return {name: Judgement("unknown") for name in catalog.objects}
    there = {name.database for name in seen.tables}
    found = {
        name: _judge(made, catalog, settings, seen)
        if name.database in there and made.kind != "function"
        else _far(made)
        for name, made in catalog.objects.items()
    }
    _, down = neighbours(catalog.edges, ("trigger", "writes"))
    own = {name: one for name, one in found.items() if catalog.objects[name].kind in VIEW_KINDS}
    for view in sorted(name for name, one in own.items() if _RANK[one.status] > _RANK["ACTIVE"]):
        for name in sorted(reachable(view, down) - {view}):
            if catalog.objects[name].kind not in VIEW_KINDS and found[name].status in ("ACTIVE", "unknown"):
                found[name] = Judgement("DEGRADED", (*found[name].why, f"it gets no rows through {view}"))
    return _pass_on(catalog, found)


def _pass_on(catalog: Catalog, found: dict[QName, Judgement]) -> dict[QName, Judgement]:
    """What only shows the data of others is as good as they are."""
    feeding = [edge for edge in catalog.edges if edge.kind == "feeds"]
    changed = True
    while changed:
        changed = False
        for edge in feeding:
            shown, shows = found[edge.source], found[edge.dest]
            if _RANK[shown.status] > _RANK["ACTIVE"] and _RANK[shown.status] > _RANK[shows.status]:
                why = (*shows.why, f"it shows {edge.source}, which is {shown.status}")
                found[edge.dest] = Judgement(shown.status, why)
                changed = True
    return found


def _judge(made: Object, catalog: Catalog, settings: Settings, seen: Seen) -> Judgement:
    name = made.name
    target = seen.targets.get(name)
    worst: NodeStatus = target.status if target else "ACTIVE"
    why = list(target.why) if target else []
    if name not in seen.tables and made.kind != "inner_table" and target is None:
        if made.kind == "external":
            return _far(made)
        worst = "DEGRADED"
        why.append("it is not on the server")
    for outage in (one for one in seen.outages if one.view == name):
        age = seen.taken.timestamp() - outage.opened_ms / 1000
        limit = settings.policy(made.target or name).sla_seconds
        worst = _worse(worst, "STALE" if age > limit else "DEGRADED")
        why.append(f"{outage.damage}, {outage.status} for {age:.0f} s" + (f", the SLA is {limit} s" * (age > limit)))
    if name in seen.troubles:
        worst = _worse(worst, "DEGRADED")
        why.append(seen.troubles[name])
    trigger = catalog.trigger_of(name) if made.kind == "materialized_view" else None
    if trigger is not None and name in seen.tables and trigger in seen.tables:
        hooked = name in seen.hooks.get(trigger, frozenset())
        if catalog.objects[trigger].kind in _HOOKED and not hooked:
            worst = _worse(worst, "DEGRADED")
            why.append(f"inserts into {trigger} do not fire it")
    return Judgement(worst, tuple(why))


def _far(made: Object) -> Judgement:
    """A node that the server does not have: what was declared should be there, the rest lives elsewhere."""
    if made.kind in ("function", "external"):
        return Judgement("unknown", ("it is not on this server",) if made.kind == "external" else ())
    return Judgement("DEGRADED", ("it is not on the server",))


def _worse(one: NodeStatus, other: NodeStatus) -> NodeStatus:
    return max(one, other, key=_RANK.__getitem__)


def edge_rows(catalog: Catalog, seen: Seen | None) -> dict[Edge, tuple[int, str]]:
    """Rows per edge and what they are, where it is known: what views read and wrote, else how many the table behind it holds."""
    if seen is None:
        return {}
    found: dict[Edge, tuple[int, str]] = {}
    for edge in catalog.edges:
        view = edge.source if edge.kind == "writes" else edge.dest
        flow = (seen.flows or {}).get(view) if edge.kind in ("trigger", "writes") else None
        if flow is not None:
            rows = flow.written if edge.kind == "writes" else flow.read
            found[edge] = (rows, f"{'written' if edge.kind == 'writes' else 'read'} by the view {flow.basis}")
        elif edge.kind in ("trigger", "writes") and seen.flows is not None:
            found[edge] = (0, "the server has logged no insert that fired the view")
        elif edge.kind != "after":
            table = edge.dest if edge.kind == "writes" else edge.source
            if table in seen.rows:
                found[edge] = (seen.rows[table][0], f"in {table}")
    return found


def last_repair(name: QName, catalog: Catalog, repairs: Sequence[RecoveryRecord]) -> RecoveryRecord | None:
    """The newest repair of a node, or of one of the views that write it."""
    about = {name, *(view.name for view in catalog.views_into(name))}
    return next((one for one in repairs if one.subject in about), None)
