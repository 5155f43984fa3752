"""In which order a plan is carried out, and what of it side by side. Pure.

A wave is a set of lines that do not touch each other; a line is a row of units, one after another. Waves follow one another: first what writers do not
notice, a layer of the graph at a time; then the cutovers; then what may go afterwards. Every unit may be done twice, so whoever goes on after a
crash begins with the wave that was under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Plan
from chmv_assets.core.deploy.planner import creation_layers
from chmv_assets.core.names import QName
from chmv_assets.core.secrets import mask_secrets

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing to do."""

    kind: Literal["statement", "cutover", "keep"]
    title: str
    sql: str = ""
    session: str = ""
    cutover: Cutover | None = None
    table: QName | None = None  # what a statement makes or changes, what is kept aside


Line = tuple[Unit, ...]
Wave = tuple[Line, ...]


def build_waves(plan: Plan, catalog: Catalog) -> tuple[Wave, ...]:
    """All units of a plan; `catalog` is what it declares."""
    layer = {name: at for at, names in enumerate(creation_layers(catalog)) for name in names}
    declared = [change for change in plan.changes if change.name in layer]
    gone = [change for change in plan.changes if change.name not in layer]
    early = _by_layer([(layer[one.name], _statements(one, one.early)) for one in declared])
    late = _by_layer([(-layer[one.name], _statements(one, one.late)) for one in declared])
    dropped = [(_statements(one, one.late),) for one in reversed(gone) if one.late]
    kept = tuple((_keep(one.name),) for one in reversed(gone) if one.action == "drop" and not one.late)
    waves = (*early, *_cutovers(plan.cutovers, catalog), *dropped, *late, kept)
    return tuple(wave for wave in waves if wave)


def _by_layer(lines: Iterable[tuple[int, Line]]) -> list[Wave]:
    waves: dict[int, list[Line]] = {}
    for at, line in lines:
        if line:
            waves.setdefault(at, []).append(line)
    return [tuple(waves[at]) for at in sorted(waves)]


def _statements(change: Change, statements: Sequence[str]) -> Line:
    return tuple(_statement(change, sql) for sql in statements)


def _statement(change: Change, sql: str) -> Unit:
    shown = " ".join(mask_secrets(sql).split())
    title = shown if len(shown) < _SHOWN else f"{shown[: _SHOWN - 3]}…"
    return Unit("statement", title, sql=sql, session=change.session, table=change.name)


def _keep(table: QName) -> Unit:
    return Unit("keep", f"keep {table} aside", table=table)


def _cutovers(cutovers: Sequence[Cutover], catalog: Catalog) -> list[Wave]:
    """One after another, but side by side where neither reads what the other changes and their writers are not the same."""
    groups: list[_Group] = []
    for one in cutovers:
        reach = _Group.of(one, catalog)
        if groups and groups[-1].is_apart(reach):
            groups[-1].take(reach)
        else:
            groups.append(reach)
    return [
        tuple((Unit("cutover", f"cut over {one.title}", cutover=one),) for one in group.members) for group in groups
    ]


@dataclass
class _Group:
    """Cutovers that go side by side, and what they touch together: a new one is held against all of them at once."""

    members: list[Cutover]
    roots: set[QName]
    changes: set[QName]
    reads: set[QName]  # everything that their targets are computed from, however far away

    @classmethod
    def of(cls, cutover: Cutover, catalog: Catalog) -> _Group:
        changes = {*cutover.targets, *(one.view for one in cutover.switches)}
        return cls([cutover], set(cutover.roots), changes, _upstream(changes, catalog))

    def is_apart(self, other: _Group) -> bool:
        return (
            self.roots.isdisjoint(other.roots)
            and self.reads.isdisjoint(other.changes)
            and other.reads.isdisjoint(self.changes)
        )

    def take(self, other: _Group) -> None:
        self.members += other.members
        self.roots |= other.roots
        self.changes |= other.changes
        self.reads |= other.reads


def _upstream(names: Iterable[QName], catalog: Catalog) -> set[QName]:
    """These objects and all that rows come to them from."""
    found: set[QName] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [edge.source for edge in catalog.edges_into(name)]
    return found
