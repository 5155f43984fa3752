"""Declared and live → a plan: one change per object, cutovers for what cannot change in place. Pure.

Invariant: after the plan a second one is empty, or says what it left to people. A view never changes while inserts run through it: its change
waits for a cutover, behind a gate, and the targets of a cutover are computed from their sources with the new queries.
"""

from __future__ import annotations

import graphlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.compare import Comparison, Difference
from chmv_assets.core.deploy.alters import is_replaced, render_alters
from chmv_assets.core.deploy.changes import Change, Cutover, Plan, Risk, Untold
from chmv_assets.core.deploy.cutover_plan import is_fresh
from chmv_assets.core.deploy.cutovers import build_cutovers, find_unfit, is_entry, with_entries
from chmv_assets.core.deploy.forgotten import Forgotten, find_irrecoverable
from chmv_assets.core.deploy.impact import Held, build_impacts
from chmv_assets.core.deploy.texts import create_if_missing, create_or_replace
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.rebuild_plan import find_roots
from chmv_assets.core.render_create import statement_of

_OF_A_VIEW = {"COMMENT"}  # of an incremental view, and changed in place


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two sides of a plan."""

    declared: Catalog
    live: Catalog
    comparisons: Mapping[QName, Comparison]
    texts: Mapping[QName, str]  # what the server says each object is
    held: Mapping[QName, Held] = field(default_factory=dict)  # what tables hold
    forgotten: Mapping[QName, Forgotten] = field(default_factory=dict)  # what targets hold and their sources do not
    databases: frozenset[str] = frozenset()  # that are there
    owned_before: Sequence[QName] = ()  # what earlier plans declared


def fingerprint(texts: Mapping[QName, str]) -> str:
    """A state in a few letters."""
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\0{texts[name]}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def scope_of(declared: Catalog, owned_before: Iterable[QName]) -> set[QName]:
    """The objects that a plan is about."""
    return {*declared.declared(), *owned_before}


def build_plan(
    sides: Sides,
    made_at: str,
    folder: Sequence[tuple[str, str]] = (),
    *,
    timezone: str = "UTC",
    rolls_back: str = "",
    doubtful: Sequence[QName] = (),
) -> Plan:
    """Put a plan together. Its id is made of both states, so the same question has the same answer."""
    mine = sides.declared.declared()
    scope = scope_of(sides.declared, sides.owned_before)
    live = fingerprint({name: sides.texts.get(name, "") for name in scope})
    wanted = fingerprint({name: made.digest for name, made in mine.items()})
    changes, untold = _changes(sides, mine)
    cutovers = build_cutovers(sides.declared, sides.live, changes, doubtful)
    changes, cutovers = _refuse_unfit(sides, changes, cutovers)
    plan_id = hashlib.sha256(f"{live} {wanted}".encode()).hexdigest()[:12]
    return Plan(
        plan_id=plan_id, made_at=made_at, declared=wanted, live=live, changes=tuple(changes), cutovers=tuple(cutovers),
        impacts=build_impacts(sides.declared, sides.live, changes, cutovers, sides.held, sides.forgotten), untold=tuple(untold), owned=tuple(sorted(mine)), digests=tuple((name, mine[name].digest) for name in sorted(mine)), scope=tuple(sorted(scope)),
        rolls_back=rolls_back, folder=tuple(folder), timezone=timezone, database=sides.declared.default_database,
    )  # fmt: skip


def creation_layers(catalog: Catalog) -> list[list[QName]]:
    """Everything after what it reads, and a view after the table that it writes: what the members of a layer need is in the layers before."""
    needs: dict[QName, set[QName]] = {name: set() for name in catalog.objects}
    for edge in catalog.edges:
        first, then = (edge.dest, edge.source) if edge.kind == "writes" else (edge.source, edge.dest)
        needs.setdefault(then, set()).add(first)
    sorter = graphlib.TopologicalSorter(needs)
    try:
        sorter.prepare()
    except graphlib.CycleError:  # a view that reads what it writes, otherwise than by firing
        return [[name] for layer in catalog.layers() for name in layer]
    layers: list[list[QName]] = []
    while sorter.is_active():
        layers.append(sorted(sorter.get_ready()))
        sorter.done(*layers[-1])
    return layers


def creation_order(catalog: Catalog) -> list[QName]:
    """The order in which a server takes it."""
    return [name for layer in creation_layers(catalog) for name in layer]


def _changes(sides: Sides, mine: Mapping[QName, Object]) -> tuple[list[Change], list[Untold]]:
    found: list[Change] = []
    untold: list[Untold] = []
    for name in [one for one in creation_order(sides.declared) if one in mine]:
        made, verdict = mine[name], sides.comparisons[name]
        if verdict.state in ("missing", "changed"):  # what a history of statements comes to
            made = replace(made, sql=statement_of(made, sides.declared.default_database))
        if verdict.state == "cannot tell":
            untold.append(Untold(name=name, why="declared and live text could not both be read"))
        elif verdict.state == "missing":
            found.append(_create(sides, made))
        elif verdict.state == "changed":
            found.append(_change(sides, made, verdict.differences))
    for name in sorted(set(sides.owned_before) - set(mine)):
        if name in sides.texts:
            found.append(_drop(sides, name))
    return found, untold


def _base(sides: Sides, made: Object, differences: Sequence[Difference] = ()) -> Change:
    return Change(
        name=made.name, kind=made.kind, action="none", risk="safe", why="", differences=tuple(differences),
        before=sides.texts.get(made.name, ""), after=made.sql, session=made.session_database or made.name.database,
    )  # fmt: skip


def _create(sides: Sides, made: Object) -> Change:
    base = _base(sides, made)
    if made.kind == "materialized_view":
        target = sides.held.get(made.target) if made.target is not None else None
        risk: Risk = "rewrites data" if target is not None and target.rows else "safe"
        why = "it is not there; its target is computed from all rows of its source before it fires for the first time"
        return replace(base, action="switch", risk=risk, why=why)
    databases = () if made.name.database in sides.databases else (_create_database(made.name.database),)
    return replace(base, action="create", why="it is not there", early=(*databases, create_if_missing(made.sql)))


def _create_database(database: str) -> str:
    return f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}"


def _drop(sides: Sides, name: QName) -> Change:
    made = sides.live.objects.get(name)
    base = Change(
        name=name, kind=made.kind if made is not None else "table", action="drop", risk="destructive",
        why="the folder no longer declares it", before=sides.texts[name],
    )  # fmt: skip
    if base.kind == "materialized_view":
        inner = sides.live.objects.get(made.target) if made is not None and made.target is not None else None
        if inner is not None and inner.kind == "inner_table":
            base = replace(base, why=f"{base.why}; its hidden table goes with it, with its rows")
        elif not _is_only_entry(sides, name):
            return replace(base, action="switch")
        return replace(base, late=(f"DROP TABLE IF EXISTS {name.sql} SYNC",))
    if base.kind in ("view", "dictionary", "refreshable_view"):
        word = "DICTIONARY" if base.kind == "dictionary" else "TABLE"
        return replace(base, late=(f"DROP {word} IF EXISTS {name.sql} SYNC",))
    return replace(base, why=f"{base.why}; it is put aside with its rows until the soak time is over")


def _is_only_entry(sides: Sides, view: QName) -> bool:
    """Whether a view can simply go: no view writes on into its target, and its rows come from where no gate could be."""
    trigger, target = sides.live.trigger_of(view), sides.live.objects[view].target
    if trigger is None or (
        target in sides.declared.objects and target is not None and sides.declared.views_into(target)
    ):
        return False
    return all(is_entry(sides.live, root) for root in find_roots(sides.live, trigger) or (trigger,))


def _tell_entry(sides: Sides, change: Change) -> Change:
    """Of a new view over a table without rows: what it will hold."""
    trigger = sides.declared.trigger_of(change.name) if change.action == "switch" else None
    if trigger is None or not is_entry(sides.declared, trigger):
        return change
    why = f"it is not there; {trigger} holds no rows, so it is fired by what arrives from then on"
    return replace(change, risk="safe", why=why)


def _change(sides: Sides, made: Object, differences: Sequence[Difference]) -> Change:
    base = _base(sides, made, differences)
    whats = {one.what for one in differences}
    live = sides.live.objects.get(made.name)
    if live is None or live.kind != made.kind:
        return replace(
            base,
            risk="manual",
            why=f"is {live.kind if live else 'unknown'} on the server and {made.kind} in the folder",
        )
    if made.kind == "materialized_view":
        if whats <= _OF_A_VIEW:
            return replace(base, action="alter", why="its comment differs", early=(_comment(made),))
        return replace(base, action="switch", risk="rewrites data", why=_list("differs in", whats))
    if made.kind == "refreshable_view":
        return _refreshable(base, made, whats)
    if made.kind in ("view", "dictionary") or is_replaced(made):
        why = "a new one takes its place in one statement"
        return replace(base, action="replace", why=why, early=(create_or_replace(made.sql),))
    if made.kind != "table":
        return replace(
            base, risk="manual", why=f"{made.kind} tables are not changed by chmv: {_list('differs in', whats)}"
        )
    return _table(sides, base, made, live, differences)


def _table(sides: Sides, base: Change, made: Object, live: Object, differences: Sequence[Difference]) -> Change:
    incremental = [view for view in sides.declared.views_into(made.name) if view.kind == "materialized_view"]
    alters = render_alters(made, live, differences, is_target=bool(incremental))
    if alters.manual:
        return replace(base, risk="manual", why="; ".join(alters.manual))
    if alters.storage:
        why = f"{', '.join(alters.storage)}: a new table is filled from its sources and takes its place"
        return replace(base, action="storage", risk=alters.risk, why=why)
    why = "; ".join(alters.whys) or "changed in place"
    return replace(base, action="alter", risk=alters.risk, why=why, early=tuple(alters.early), late=tuple(alters.late))


def _refreshable(base: Change, made: Object, whats: set[str]) -> Change:
    if whats <= _OF_A_VIEW:
        return replace(base, action="alter", why="its comment differs", early=(_comment(made),))
    if whats == {"refresh"} and made.refresh is not None:
        sql = f"ALTER TABLE {made.name.sql} MODIFY REFRESH {made.refresh.schedule}"
        return replace(base, action="alter", why="its schedule differs", early=(sql,))
    early = (
        f"DROP TABLE IF EXISTS {made.name.sql} SYNC",
        made.sql,
        f"SYSTEM REFRESH VIEW {made.name.sql}",
        f"SYSTEM WAIT VIEW {made.name.sql}",
    )
    why = f"{_list('differs in', whats)}; created anew and refreshed, the target serves meanwhile"
    return replace(base, action="replace", risk="rewrites data", why=why, early=early)


def _comment(made: Object) -> str:
    return f"ALTER TABLE {made.name.sql} MODIFY COMMENT {quote_string(made.comment)}"


def _list(before: str, whats: Iterable[str]) -> str:
    return f"{before} {', '.join(sorted(whats))}"


def _refuse_unfit(sides: Sides, changes: list[Change], cutovers: list[Cutover]) -> tuple[list[Change], list[Cutover]]:
    """Changes whose cutover cannot be done exactly are left to people, with the reason; where there is nothing to compute from, there is no cutover."""
    kept: list[Cutover] = []
    created = frozenset(one.name for one in changes if one.action == "create")
    for made in cutovers:
        if not made.switches and not made.storage and all(is_entry(sides.declared, root) for root in made.roots):
            continue
        cutover = with_entries(sides.declared, created, made)
        why = find_unfit(sides.declared, sides.live, cutover, is_fresh=is_fresh(created, cutover))
        why = why or find_irrecoverable(sides.forgotten, cutover)
        if not why:
            if cutover.entries:
                changes = [_tell_entry(sides, one) for one in changes]
            kept.append(cutover)
            continue
        names = {*(one.view for one in cutover.switches), *cutover.storage}
        changes = [
            replace(one, action="none", risk="manual", why=why, early=(), late=()) if one.name in names else one
            for one in changes
        ]
    return changes, kept
