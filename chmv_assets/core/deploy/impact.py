"""What a plan touches of what is there: tables that are computed anew with their size, and who reads a column that changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Impact
from chmv_assets.core.deploy.cutover_plan import is_fresh
from chmv_assets.core.deploy.forgotten import Forgotten
from chmv_assets.core.names import QName

_VERBS = {
    "trigger": "fires",
    "lookup": "is looked up by",
    "writes": "writes",
    "feeds": "feeds",
    "after": "is awaited by",
}


@dataclass(frozen=True, slots=True)
class Held:
    """What a table holds."""

    partitions: int
    rows: int
    size: int


def build_impacts(
    declared: Catalog,
    live: Catalog,
    changes: Sequence[Change],
    cutovers: Sequence[Cutover],
    held: Mapping[QName, Held],
    forgotten: Mapping[QName, Forgotten] | None = None,
) -> tuple[Impact, ...]:
    """Who is touched by each change, how, and how much there is of it."""
    found: dict[tuple[QName, QName, str], Impact] = {}
    created = frozenset(one.name for one in changes if one.action == "create")
    shut = [one for one in cutovers if not is_fresh(created, one)]
    sized = (
        *_leaving(changes, held),
        *_recomputed(shut, held, forgotten or {}),
        *_edges(declared, live, changes, held),
    )
    for impact in (*sized, *_columns(declared, live, changes)):
        found.setdefault((impact.cause, impact.name, impact.how), impact)
    return tuple(found.values())


def _sized(cause: QName, name: QName, how: str, held: Mapping[QName, Held]) -> Impact:
    there = held.get(name, Held(0, 0, 0))
    return Impact(cause=cause, name=name, how=how, partitions=there.partitions, rows=there.rows, size=there.size)


def _leaving(changes: Sequence[Change], held: Mapping[QName, Held]) -> Iterator[Impact]:
    for change in changes:
        if change.action == "drop" and not change.late:
            yield _sized(change.name, change.name, "is put aside with its rows", held)


def _recomputed(
    cutovers: Sequence[Cutover], held: Mapping[QName, Held], forgotten: Mapping[QName, Forgotten]
) -> Iterator[Impact]:
    for cutover in cutovers:
        cause = cutover.switches[0].view if cutover.switches else (cutover.targets or cutover.roots)[0]
        for target in cutover.targets:
            how = "computed anew as another table" if target in cutover.storage else "computed anew"
            yield _sized(cause, target, how, held)
            if lost := forgotten.get(target):
                how = f"of that, stays as it is, since {lost.why}"
                yield Impact(cause=cause, name=target, how=how, partitions=len(lost.partitions), rows=lost.rows)
        for root in cutover.roots:
            yield Impact(cause=cause, name=root, how="its writers wait for a moment")


def _edges(declared: Catalog, live: Catalog, changes: Sequence[Change], held: Mapping[QName, Held]) -> Iterator[Impact]:
    """Direct neighbours downstream, by the kind of their edge; what is not there yet is not touched."""
    changed = {one.name for one in changes if one.action not in ("none",)}
    for edge in declared.edges:
        if edge.source in changed and edge.kind != "writes" and edge.dest in live.objects:
            yield _sized(edge.source, edge.dest, f"{edge.source} {_VERBS[edge.kind]} it", held)


def _columns(declared: Catalog, live: Catalog, changes: Sequence[Change]) -> Iterator[Impact]:
    """Who reads a column that comes, goes or changes its type."""
    for change in changes:
        for one in change.differences:
            column = _column(one.what)
            if not column:
                continue
            for catalog in (declared, live):
                for view, outputs in _readers(catalog, change.name, column):
                    how = f"column {column} of {change.name} is read by its {', '.join(outputs)}"
                    yield Impact(cause=change.name, name=view, how=how)


def _column(what: str) -> str:
    """The column that a difference is about.

    >>> _column("type of a.b"), _column("column x"), _column("ORDER BY")
    ('a.b', 'x', '')
    """
    if what.startswith("column "):
        return what.removeprefix("column ")
    return what.split(" of ", 1)[1] if what.startswith(("type of ", "default of ")) else ""


def _readers(catalog: Catalog, table: QName, column: str) -> Iterator[tuple[QName, list[str]]]:
    for view, facts in catalog.facts.items():
        outputs = [
            name for name, sources in facts.lineage if any((s.table, s.column) == (table, column) for s in sources)
        ]
        if outputs:
            yield view, outputs
