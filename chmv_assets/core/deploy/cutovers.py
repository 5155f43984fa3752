"""Which targets are computed anew, which of them together, and whose writers wait meanwhile. Pure.

A target is touched when a view into it changes, when it becomes another table, when something that its views look up changes its shape, or when
a target that it is computed from is touched. Targets that hang together change behind one gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Switch
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import find_downstream, find_roots
from chmv_assets.core.replication import taken_path, written_path


def build_cutovers(
    declared: Catalog, live: Catalog, changes: Sequence[Change], doubtful: Sequence[QName] = ()
) -> list[Cutover]:
    """The cutovers of a plan, in the order of computation; targets whose rows are `doubtful` are computed anew whatever their texts say."""
    switched = [one for one in changes if one.action == "switch"]
    storage = {one.name for one in changes if one.action == "storage"}
    touched = _touched(declared, live, changes, switched) | _computed(declared, [*storage, *doubtful])
    order = declared.flow_order
    place = {one.name: at for at, one in enumerate(switched)}
    found = []
    for party in _join(_links(declared, live, touched, switched)):
        targets = tuple(sorted(party & touched, key=order.__getitem__))
        mine = [switched[at] for at in sorted(place[name] for name in party if name in place)]
        found.append(
            Cutover(
                roots=_roots(declared, live, targets, mine), targets=targets, storage=tuple(name for name in targets if name in storage),
                switches=tuple(_switch(one) for one in mine),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: _first(one, order))


def _first(cutover: Cutover, order: Mapping[QName, int]) -> tuple[int, tuple[QName, ...]]:
    return order[cutover.targets[0]] if cutover.targets else len(order), tuple(one.view for one in cutover.switches)


def _switch(change: Change) -> Switch:
    return Switch(view=change.name, before=change.before, after=change.after, session=change.session)


def _computed(catalog: Catalog, names: Iterable[QName | None]) -> set[QName]:
    """Those of the tables that incremental views of the folder fill."""
    return {
        name for name in names
        if name is not None and name in catalog.objects and catalog.objects[name].kind == "table"
        and any(view.kind == "materialized_view" for view in catalog.views_into(name))
    }  # fmt: skip


def _touched(declared: Catalog, live: Catalog, changes: Sequence[Change], switched: Sequence[Change]) -> set[QName]:
    """The targets whose rows change."""
    views = {one.name for one in switched}
    views |= _readers(declared, [one.name for one in changes if one.action == "replace"])
    made = {one.name for one in changes if one.action == "create"}
    ends = {catalog.objects[view].target for catalog in (declared, live) for view in views if view in catalog.objects}
    touched = _computed(declared, ends | made)
    for name in tuple(touched):
        touched |= _computed(declared, find_downstream(declared, name))
    return touched


def _readers(catalog: Catalog, names: Sequence[QName]) -> set[QName]:
    """The incremental views that read one of these otherwise than by firing, also through plain views and dictionaries."""
    found: set[QName] = set()
    waiting = list(names)
    while waiting:
        for edge in catalog.edges_from(waiting.pop()):
            if edge.kind not in ("lookup", "feeds") or edge.dest in found:
                continue
            kind = catalog.objects[edge.dest].kind
            if kind == "materialized_view":
                found.add(edge.dest)
            elif kind in ("view", "dictionary"):
                waiting.append(edge.dest)
    return found


def _links(declared: Catalog, live: Catalog, touched: set[QName], switched: Sequence[Change]) -> list[set[QName]]:
    """What belongs together: a view and its targets of before and after, a target and those that are computed from it."""
    links: list[set[QName]] = []
    for change in switched:
        names = {change.name}
        for catalog in (declared, live):
            made = catalog.objects.get(change.name)
            names |= {made.target} & touched if made is not None and made.target is not None else set()
        links.append(names)
    for name in touched:
        links.append({name})
        for view in declared.views_into(name):
            trigger = declared.trigger_of(view.name)
            if trigger is not None and trigger in touched:
                links.append({name, trigger})
    return links


def _join(links: Sequence[set[QName]]) -> list[set[QName]]:
    """Sets that share a member become one; the smaller ones go into the largest, so that a long chain is not copied over and over."""
    party_of: dict[QName, set[QName]] = {}
    for link in links:
        met = {id(party): party for name in link if (party := party_of.get(name))}
        joined = max(met.values(), key=len, default=set())
        for other in (link, *met.values()):
            if other is not joined:
                joined |= other
                party_of.update(dict.fromkeys(other, joined))
    return list({id(party): party for party in party_of.values()}.values())


def _roots(declared: Catalog, live: Catalog, targets: Sequence[QName], switched: Sequence[Change]) -> tuple[QName, ...]:
    """The tables whose inserts reach one of the targets, or fire one of the views, before or after."""
    found: set[QName] = set()
    for catalog in (declared, live):
        for target in targets:
            found |= set(find_roots(catalog, target)) if target in catalog.objects else set()
        for change in switched:
            trigger = catalog.trigger_of(change.name)
            if trigger is not None:
                found |= set(find_roots(catalog, trigger)) or {trigger}
    return tuple(sorted(found))


def is_entry(catalog: Catalog, table: QName) -> bool:
    """Whether rows only pass through a table and come from outside: a Null table, Kafka and its kin."""
    made = catalog.objects.get(table)
    return made is not None and made.kind in ("null", "queue") and not catalog.views_into(table)


def with_entries(declared: Catalog, created: frozenset[QName], cutover: Cutover) -> Cutover:
    """Name the entries if a cutover only adds views that have missed nothing: those are fired from then on, and what is there stays.

    Views behind the first ones come before them: no row reaches a table whose views are not there yet.
    """
    entries = tuple(root for root in cutover.roots if is_entry(declared, root))
    if not entries or cutover.storage or any(one.before for one in cutover.switches):
        return cutover
    new = created | set(entries)
    triggers = {one.view: declared.trigger_of(one.view) for one in cutover.switches}
    if not new.issuperset(cutover.roots) or not all(trigger in new for trigger in triggers.values()):
        return cutover
    behind = sorted(cutover.switches, key=lambda one: triggers[one.view] in entries)
    return replace(cutover, entries=entries, switches=tuple(behind))


def find_unfit(declared: Catalog, live: Catalog, cutover: Cutover, *, is_fresh: bool = False) -> str:
    """Why a cutover cannot be exact, as a sentence without its end; nothing if it can. One that `is_fresh` has nothing to compute."""
    for root in cutover.roots:
        if is_fresh and root in cutover.entries:
            continue
        node = declared.objects.get(root) or live.objects.get(root)
        if node is None or not node.engine.endswith("MergeTree"):
            what = node.engine if node is not None and node.engine else "not declared"
            return f"rows arrive in {root}, which is {what} and takes no gate; stop its writers and change it by hand"
    for target in cutover.storage:
        new, old = declared.objects[target], live.objects.get(target)
        old_path = written_path(old.engine, old.engine_args) if old is not None else ""
        if why := taken_path(written_path(new.engine, new.engine_args), old_path):
            return f"{target} has to become another table, but {why}"
    for target in cutover.targets:
        for view in declared.views_into(target):
            if view.kind == "refreshable_view":
                return f"{target} is also written by {view.name}, which refreshes it as a whole"
            if _is_untold(declared, view):
                return f"{view.name} could not be read, so what fires it is not known"
        for view in live.views_into(target):
            if view.name not in declared.objects and view.name not in {one.view for one in cutover.switches}:
                return (
                    f"{target} is also written by {view.name}, which the folder does not declare, so its rows would be gone; "
                    "declare it (`chmv pull`) or drop it first"
                )
    for switch in () if is_fresh else cutover.switches:
        made = declared.objects.get(switch.view) or live.objects.get(switch.view)
        end = made.target if made is not None else None
        if end is not None and (declared.objects.get(end) or live.objects[end]).kind == "inner_table":
            return f"{switch.view} keeps its rows in a hidden inner table; give it a target with TO first"
    return ""


def _is_untold(catalog: Catalog, view: Object) -> bool:
    return view.reader == "none" or catalog.trigger_of(view.name) is None
