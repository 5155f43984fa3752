"""A rebuild as typed steps: what `explain` prints is what is carried out, and what a crash leaves is what `undo_of` names.

Invariant: until `publish` the old data serves; from there to the end every row that was in before the gate shut is in the new data.
So at any step the way back (open the gate, release merges, drop scratches) is safe, and a rebuild that was cut off is simply not
done. Statements and their order of execution live in `resources.rebuild`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Object, ViewClass
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol

StepKind = Literal[
    "settle", "scratch", "compare", "hold merges", "prebuild", "shut gate", "drain", "complete", "build", "publish", "open gate",
    "release merges", "drop scratch", "hold commits", "replay", "compute", "drop replay", "release commits",
    "prebuild cold", "recheck", "fence", "shadow", "twin", "divert", "raise fence", "compare arrivals", "lower fence",
    "close fence", "move back", "restore view", "drop twin", "drop shadow", "drop fence", "verify", "switch", "require empty",
]  # fmt: skip
_MEANING: dict[StepKind, str] = {
    "settle": "wait until no insert into {name} is in doubt: one that failed half way and will be sent again",
    "scratch": "create {name}, empty, like the target",
    "compare": "check that no insert came into the sources of {name} meanwhile, else do it again, three times at most",
    "hold merges": "stop merges of {name}, so that its parts keep their names",
    "prebuild": "compute what the parts of now give through {name}, while writers go on",
    "shut gate": "refuse new inserts into {name} (code 469, writers send again)",
    "drain": "wait for inserts that run",
    "complete": "add what arrived meanwhile through {name}",
    "build": "compute all of {name}'s share behind the gate",
    "publish": "replace the window's partitions of {name}, one atomic swap each",
    "open gate": "let inserts into {name} through again",
    "release merges": "let {name} merge again",
    "drop scratch": "drop {name}",
    "hold commits": "hold back chmv's own commits into {name}; whoever else writes is not held back",
    "replay": "read the committed landing files of {name} through Spark into a table of their own",
    "compute": "compute all of {name}'s share beside the target, while readers read",
    "drop replay": "drop the table with the replayed rows of {name}",
    "release commits": "let chmv commit into {name} again",
    "prebuild cold": "compute through {name} what rests: source partitions without fresh inserts, one after another",
    "recheck": "check that no insert into {name} was left in doubt meanwhile, else go back and settle it first",
    "fence": "create {name}, which holds the two moments of the fence; for now both are never",
    "shadow": "create {name}, empty, for fresh rows of a target",
    "twin": "create {name}, which would fill a shadow with rows from behind the fence",
    "divert": "let {name} leave these rows out (MODIFY QUERY); nothing changes as long as the fence is open. From here to the end, and after "
    "a restart of the server, writers must not send a finished insert again: its token is not known in the other table",
    "raise fence": "from a moment in a few seconds on, rows that arrive wait in the shadows; wait for it, and for inserts that run",
    "compare arrivals": "check that no row from before the fence came late into the sources of {name}, else compute and swap again, 12 times at most",
    "lower fence": "from a moment in a few seconds on, rows go to the target again; wait for it, and for inserts that run",
    "close fence": "let no row wait any more, whatever its arrival",
    "move back": "move the parts of {name} into its target",
    "restore view": "give {name} back the query that it had",
    "drop twin": "drop {name}",
    "drop shadow": "drop {name}, which is empty by now",
    "drop fence": "drop {name}",
    "verify": "compare what was computed for {name} with its views' queries over the same rows",
    "switch": "exchange the view {name} for the declared one, and see that inserts fire it",
    "require empty": "check that nothing has arrived in {name} yet; else the targets are computed behind a gate after all",
}
_INVERSE: dict[StepKind, StepKind] = {
    "shut gate": "open gate",
    "hold merges": "release merges",
    "scratch": "drop scratch",
}
# Classes whose result over all rows is the sum of their results over parts: the trigger itself relies on that.
SPLITTABLE: frozenset[ViewClass] = frozenset({"append", "additive", "replacing"})


@dataclass(frozen=True, slots=True)
class Step:
    """One step on one object."""

    kind: StepKind
    name: QName

    def __str__(self) -> str:
        return f"{self.kind}: {_MEANING[self.kind].format(name=self.name)}"


def find_roots(catalog: Catalog, target: QName) -> tuple[QName, ...]:
    """The tables in which all rows of a target first arrive: up the chain of triggers."""
    roots: set[QName] = set()
    seen: set[QName] = set()
    waiting = [target]
    while waiting:
        table = waiting.pop()
        if table in seen:
            continue
        seen.add(table)
        triggers = [trigger for view in catalog.views_into(table) if (trigger := catalog.trigger_of(view.name))]
        if table != target and not triggers:
            roots.add(table)
        waiting += triggers
    return tuple(sorted(roots))


def can_prebuild(catalog: Catalog, view: Object) -> bool:
    """Whether a view's share may be computed part by part: then only what arrived meanwhile is left for behind the gate."""
    trigger = catalog.trigger_of(view.name)
    mentions = sum(reference.name == trigger for reference in view.references)
    return catalog.facts[view.name].view_class in SPLITTABLE and mentions == 1


def plan_closed(target: QName, views: Sequence[Object], roots: Iterable[QName], scratch: QName) -> tuple[Step, ...]:
    """The closed protocol for the views of a target, with one scratch for all of them."""
    return (
        Step("drain", target),
        *(Step("settle", root) for root in roots),
        Step("scratch", scratch),
        *(Step("compute", view.name) for view in views),
        Step("compare", target),
        Step("publish", target),
        Step("drain", target),
        Step("compare", target),
        Step("drop scratch", scratch),
    )


def plan_owned(closed: Sequence[Step], roots: Sequence[QName], replayed: Sequence[QName] = ()) -> tuple[Step, ...]:
    """The owned protocol: the closed one while nobody commits; rows of `replayed` sources come from their landing files."""
    return (
        *(Step("hold commits", root) for root in roots),
        *(Step("replay", source) for source in replayed),
        *closed,
        *(Step("drop replay", source) for source in replayed),
        *(Step("release commits", root) for root in reversed(roots)),
    )


Layer = tuple[QName, Sequence[Object], QName]  # a target, its views, and the scratch for all of them


def plan_gated(
    catalog: Catalog, layers: Sequence[Layer], roots: Iterable[QName], *, cold_first: bool = False
) -> tuple[Step, ...]:
    """The gated protocol for a target, and behind it, under the same gate, for targets that are computed from it.

    With `cold_first` it is the whole protocol: source partitions that rest are computed before merges are held.
    """
    gates = list(roots)
    target, views, _ = layers[0]
    online = [view for view in views if can_prebuild(catalog, view)]
    late = [view for view in views if not can_prebuild(catalog, view)]
    held = list(dict.fromkeys(source for view in online if (source := catalog.trigger_of(view.name)) is not None))
    scratches = [scratch for _, _, scratch in layers]
    behind = [
        step
        for name, others, _ in layers[1:]
        for step in (*(Step("build", view.name) for view in others), Step("publish", name))
    ]
    return (
        *(Step("settle", root) for root in gates),
        *(Step("scratch", scratch) for scratch in scratches),
        *(Step("prebuild cold", view.name) for view in online if cold_first),
        *(Step("hold merges", source) for source in held),
        *(Step("prebuild", view.name) for view in online),
        *(Step("shut gate", root) for root in gates),
        Step("drain", target),
        *(Step("recheck", root) for root in gates),
        *(Step("complete", view.name) for view in online),
        *(Step("build", view.name) for view in late),
        Step("publish", target),
        *behind,
        *(Step("open gate", root) for root in gates),
        *(Step("release merges", source) for source in held),
        *(Step("drop scratch", scratch) for scratch in scratches),
    )


def find_downstream(catalog: Catalog, target: QName) -> tuple[QName, ...]:
    """The targets that are computed from a target, directly or not, in the order in which they have to be rebuilt."""
    wanted: set[QName] = set()
    waiting = [target]
    while waiting:
        for view in catalog.fired_by(waiting.pop()):
            if view.target is not None and view.target not in wanted:
                wanted.add(view.target)
                waiting.append(view.target)
    return tuple(sorted(wanted, key=catalog.flow_order.__getitem__))


def notes_of(steps: Sequence[Step]) -> dict[int, int]:
    """Before which steps the journal is told, and up to which step that note speaks: those that leave something behind.

    >>> name = QName("a", "b")
    >>> notes_of([Step(kind, name) for kind in ("settle", "scratch", "hold merges", "drain", "shut gate", "publish")])
    {1: 2, 4: 4}
    """
    notes: dict[int, int] = {}
    for at, step in enumerate(steps):
        if step.kind in _INVERSE:
            follows = at > 0 and steps[at - 1].kind in _INVERSE
            notes[next(reversed(notes)) if follows else at] = at
    return notes


def undo_of(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The way back from steps that were begun; every step of it is a no-op where there is nothing to undo."""
    back = [Step(_INVERSE[step.kind], step.name) for step in reversed(steps) if step.kind in _INVERSE]
    return tuple(sorted(back, key=lambda step: step.kind != "open gate"))  # writers first


def encode_steps(steps: Sequence[Step]) -> str:
    return json.dumps([[step.kind, step.name.database, step.name.table] for step in steps])


def decode_steps(text: str) -> tuple[Step, ...]:
    """Steps as the journal keeps them.

    >>> decode_steps(encode_steps([Step("drain", QName("a", "b.c"))]))
    (Step(kind='drain', name=QName(database='a', table='b.c')),)
    """
    return tuple(Step(kind, QName(database, table)) for kind, database, table in json.loads(text or "[]"))


def choose_protocol(
    wanted: Protocol,
    *,
    gates: Sequence[Object],
    quiet_seconds: float | None,
    whole: bool = False,
    busy_within: float = 120.0,
) -> tuple[Protocol, str]:
    """The protocol of a window and the reason in a sentence; `quiet_seconds` since its last insert, None: none is known."""
    if wanted != "auto":
        return wanted, "asked for"
    if whole and all(gate.engine.endswith("MergeTree") for gate in gates):
        return "whole", "no window was named, so all of the target is computed before writers are stopped for a moment"
    if quiet_seconds is None or quiet_seconds > busy_within:
        quiet = "no insert is known" if quiet_seconds is None else f"no insert for {quiet_seconds:.0f} s"
        return "closed", f"{quiet}, so writers need not be stopped"
    unfit = [gate for gate in gates if not gate.engine.endswith("MergeTree")]
    if unfit:
        return "closed", f"{unfit[0].name} is {unfit[0].engine or unfit[0].kind} and takes no gate"
    return "gated", f"the last insert was {quiet_seconds:.0f} s ago, so the window is hot"
