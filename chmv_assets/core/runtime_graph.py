"""What the server's logs saw against the declared graph. Pure: declared edges and observed facts → rows.

An edge is *seen*, *never seen*, or *not logged*: the logs tell of inserts, of the views that they fired and of the tables that queries name, not of
dictionaries or of tables that forward. Never seen is suspicious only where the source was written in that time. What was seen but is not
declared is a view that the folder does not know, a view that writes elsewhere, or an INSERT … SELECT of somebody; all other queries are told as uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import VIEW_KINDS, Edge
from chmv_assets.core.names import QName

Sight = Literal["seen", "never seen", "not logged"]
What = Literal["read", "written", "changed"]
REFRESH = "Refresh"
_FORWARDERS = ("buffer", "distributed")
_WRITES = ("Insert", "AsyncInsertFlush")
_READS = ("Select",)
_INNER = (".inner.", ".inner_id.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A view that inserts fired, from `query_views_log`."""

    view: QName
    target: QName | None
    count: int
    wrote: int  # how often it gave rows
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Queries of one kind over the same tables by the same user and client, from `query_log`."""

    kind: str  # Select, Insert, Alter, …; REFRESH: the server refreshed a view
    user: str
    client: str
    ours: bool
    tables: frozenset[QName]
    views: frozenset[QName]  # that they fired
    written: QName | None = None  # of an INSERT; None: cannot tell
    named: frozenset[QName] = (
        frozenset()
    )  # of an INSERT … SELECT: those of the tables that its text names, not only its views
    count: int
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that was read."""

    since: datetime
    until: datetime
    fired: tuple[Fired, ...] | None = None  # None: there is no such log
    queries: tuple[Queries, ...] | None = None
    hooks: Mapping[QName, tuple[QName, ...]] = field(default_factory=dict)  # table → views that the server fires now
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return self.fired is not None or self.queries is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow:
    """A declared edge and what became of it."""

    edge: Edge
    sight: Sight
    count: int = 0
    last: datetime | None = None
    source_inserts: int | None = None  # where that matters and is known
    suspicious: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredEdge:
    """Data that flowed where the folder says nothing of it."""

    source: QName
    dest: QName
    kind: Literal["trigger", "writes", "insert"]
    count: int
    last: datetime
    by: tuple[tuple[str, str], ...] = ()  # user and client, of INSERT … SELECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A table that queries of others have read, written or changed."""

    table: QName
    declared: bool
    what: What
    kind: str
    user: str
    client: str
    count: int
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeGraph:
    """The declared graph as it ran."""

    edges: tuple[EdgeRow, ...]
    undeclared: tuple[UndeclaredEdge, ...]
    uses: tuple[Use, ...]


def build_runtime_graph(catalog: Catalog, observed: Observed) -> RuntimeGraph:
    """Hold what was seen against what is declared."""
    reading = _Reading(catalog, observed)
    return RuntimeGraph(
        edges=tuple(reading.judge(edge) for edge in sorted(catalog.edges)),
        undeclared=tuple(sorted(reading.undeclared(), key=lambda one: (one.source, one.dest, one.kind))),
        uses=tuple(sorted(reading.uses(), key=lambda one: (one.table, one.what, -one.count, one.user, one.client))),
    )


class _Reading:
    """Look-ups over one observation."""

    def __init__(self, catalog: Catalog, observed: Observed) -> None:
        self.catalog = catalog
        self.observed = observed
        self.fired: dict[QName, list[Fired]] = {}
        for one in observed.fired or ():
            self.fired.setdefault(one.view, []).append(one)
        self.queries = observed.queries or ()
        self.touching: dict[QName, list[Queries]] = {}
        for group in self.queries:
            for name in group.tables | group.views:
                self.touching.setdefault(name, []).append(group)
        self._inserts: dict[QName, int] = {}

    # Declared edges

    def judge(self, edge: Edge) -> EdgeRow:
        if not self._is_logged(edge):
            return EdgeRow(edge=edge, sight="not logged")
        sightings = list(self._sightings(edge))
        count = sum(number for number, _ in sightings)
        if count:
            return EdgeRow(edge=edge, sight="seen", count=count, last=max(last for _, last in sightings))
        if self._pushed(edge) is None:
            return EdgeRow(edge=edge, sight="never seen")
        source = edge.source if edge.kind == "trigger" else self.catalog.trigger_of(edge.source)
        inserts = self.inserts(source) if source is not None and self.observed.queries is not None else None
        return EdgeRow(edge=edge, sight="never seen", source_inserts=inserts, suspicious=bool(inserts))

    def _pushed(self, edge: Edge) -> QName | None:
        """The incremental view of an edge that every insert goes along."""
        view = {"trigger": edge.dest, "writes": edge.source}.get(edge.kind)
        made = self.catalog.objects.get(view) if view is not None else None
        return view if made is not None and made.kind == "materialized_view" else None

    def _is_logged(self, edge: Edge) -> bool:
        if self._pushed(edge) is not None:
            return self.observed.fired is not None
        source, dest = self.catalog.objects[edge.source], self.catalog.objects[edge.dest]
        if self.observed.queries is None or edge.kind == "after" or source.kind == "dictionary":
            return False
        return dest.kind in ("view", *VIEW_KINDS) or (edge.kind == "writes" and source.kind in VIEW_KINDS)

    def _sightings(self, edge: Edge) -> Iterable[tuple[int, datetime]]:
        view = self._pushed(edge)
        if view is not None:
            for one in self.fired.get(view, ()):
                if edge.kind == "trigger" or self._is_target(edge.dest, one.target):
                    yield one.count, one.last
            return
        refreshed = [group for group in self.touching.get(edge.source, ()) if group.kind == REFRESH]
        if edge.kind == "writes":
            yield from ((group.count, group.last) for group in refreshed)
            return
        for group in self.touching.get(edge.dest, ()):
            if edge.source in group.tables | group.views:
                yield group.count, group.last

    def _is_target(self, declared: QName, seen: QName | None) -> bool:
        made = self.catalog.objects.get(declared)
        if made is not None and made.kind == "inner_table":
            return seen is None or seen.table.startswith(_INNER)
        return seen is None or seen == declared

    def inserts(self, name: QName) -> int:
        """How often a table was written: by queries, by views, through tables that forward."""
        if name not in self._inserts:
            self._inserts[name] = 0  # whoever comes round a circle counts nothing
            direct = sum(
                group.count for group in self.touching.get(name, ()) if group.kind in _WRITES and group.written == name
            )
            edges = self.catalog.edges_into(name)
            pushed = sum(
                one.wrote for edge in edges if edge.kind == "writes" for one in self.fired.get(edge.source, ())
            )
            forwarded = sum(
                self.inserts(edge.source)
                for edge in edges
                if edge.kind == "feeds" and self.catalog.objects[edge.source].kind in _FORWARDERS
            )
            self._inserts[name] = direct + pushed + forwarded
        return self._inserts[name]

    # What nobody declared

    def undeclared(self) -> Iterable[UndeclaredEdge]:
        sources = {view: table for table, views in self.observed.hooks.items() for view in views}
        for one in self.observed.fired or ():
            made = self.catalog.objects.get(one.view)
            if made is None and one.view in sources:
                yield UndeclaredEdge(
                    source=sources[one.view], dest=one.view, kind="trigger", count=one.count, last=one.last
                )  # fmt: skip
            known = made is not None and made.target is not None and self._is_target(made.target, one.target)
            if not known and one.target is not None:
                yield UndeclaredEdge(source=one.view, dest=one.target, kind="writes", count=one.count, last=one.last)
        yield from self._insert_selects()

    def _insert_selects(self) -> Iterable[UndeclaredEdge]:
        declared = {(edge.source, edge.dest) for edge in self.catalog.edges}
        found: dict[tuple[QName, QName], list[Queries]] = {}
        for group in self.queries:
            if group.kind in _WRITES and group.written is not None and not group.ours:
                for source in group.named - {group.written}:
                    if (source, group.written) not in declared:
                        found.setdefault((source, group.written), []).append(group)
        for (source, dest), groups in found.items():
            yield UndeclaredEdge(
                source=source, dest=dest, kind="insert", count=sum(one.count for one in groups),
                last=max(one.last for one in groups), by=tuple(sorted({(one.user, one.client) for one in groups})),
            )  # fmt: skip

    def uses(self) -> Iterable[Use]:
        totals: dict[tuple[QName, What, str, str, str], tuple[int, datetime]] = {}
        for group in self.queries:
            if group.ours or group.kind == REFRESH:
                continue
            for name, what in self._touches(group):
                key = (name, what, group.kind, group.user, group.client)
                count, last = totals.get(key, (0, group.last))
                totals[key] = count + group.count, max(last, group.last)
        for (name, what, kind, user, client), (count, last) in totals.items():
            made = self.catalog.objects.get(name)
            declared = made is not None and made.kind not in ("external", "function")
            yield Use(
                table=name, declared=declared, what=what, kind=kind, user=user, client=client, count=count, last=last
            )  # fmt: skip

    def _touches(self, group: Queries) -> Iterable[tuple[QName, What]]:
        if group.kind in _WRITES:
            if group.written is None:
                return [(name, "written") for name in group.tables]
            return [(group.written, "written"), *((name, "read") for name in group.named - {group.written})]
        names = group.tables | group.views
        return [(name, "read" if group.kind in _READS else "changed") for name in names]


def runtime_document(observed: Observed, runtime: RuntimeGraph) -> dict[str, Any]:
    """The `runtime` key of the graph document: a contract, see docs/graph.md."""
    return {
        "known": observed.known,
        "since": observed.since.isoformat(),
        "until": observed.until.isoformat(),
        "notes": list(observed.notes),
        "edges": [
            {
                "from": str(row.edge.source), "to": str(row.edge.dest), "kind": row.edge.kind, "state": row.sight,
                "count": row.count, "last": _moment(row.last), "source_inserts": row.source_inserts,
                "suspicious": row.suspicious,
            }
            for row in runtime.edges
        ],
        "undeclared_edges": [
            {
                "from": str(one.source), "to": str(one.dest), "kind": one.kind, "count": one.count,
                "last": _moment(one.last), "by": [{"user": user, "client": client} for user, client in one.by],
            }
            for one in runtime.undeclared
        ],
        "uses": [
            {
                "table": str(one.table), "declared": one.declared, "what": one.what, "kind": one.kind, "user": one.user,
                "client": one.client, "count": one.count, "last": _moment(one.last),
            }
            for one in runtime.uses
        ],
    }  # fmt: skip


def _moment(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


def dashed_edges(runtime: RuntimeGraph) -> Sequence[tuple[QName, QName, str]]:
    """The undeclared edges, for pictures."""
    return [(one.source, one.dest, f"undeclared {one.kind}") for one in runtime.undeclared]
