"""The vocabulary of a plan: changes, cutovers, impacts. Frozen, plain; `codec` turns it into JSON and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chmv_assets.core.compare import Difference
from chmv_assets.core.model import NodeKind
from chmv_assets.core.names import QName

Risk = Literal["safe", "rewrites data", "destructive", "manual"]
Action = Literal[
    "create",  # it is not there
    "alter",  # in place, online
    "replace",  # by a new one of the same name, in one statement; it holds no rows of its own
    "storage",  # a table of another shape takes its place, filled from its sources
    "switch",  # an incremental view: exchanged behind a gate, its target computed anew
    "drop",  # tables are kept aside until the soak time is over
    "none",  # nothing that chmv would do: see why
]
RISKS: tuple[Risk, ...] = ("safe", "rewrites data", "destructive", "manual")


def worst(risks: tuple[Risk, ...]) -> Risk:
    """The gravest of some risks.

    >>> worst(("safe", "destructive", "rewrites data"))
    'destructive'
    """
    return max(risks, key=RISKS.index, default="safe")


def allowed_risks(*, rewrite: bool, destructive: bool) -> tuple[Risk, ...]:
    """What a permission covers: whoever allows to destroy allows to rewrite as well.

    >>> allowed_risks(rewrite=False, destructive=True)
    ('rewrites data', 'destructive')
    """
    wanted: dict[Risk, bool] = {"rewrites data": rewrite or destructive, "destructive": destructive}
    return tuple(risk for risk, is_allowed in wanted.items() if is_allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One object that is not what is declared, and what is done about it."""

    name: QName
    kind: NodeKind
    action: Action
    risk: Risk
    why: str  # one sentence
    differences: tuple[Difference, ...] = ()
    before: str = ""  # the server's text; nothing if it is not there
    after: str = ""  # the declared text; nothing if it goes
    session: str = ""  # the database of unqualified names in `after`
    early: tuple[str, ...] = ()  # statements before all cutovers, while writers write
    late: tuple[str, ...] = ()  # after them


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """An incremental view behind the gate: the old one goes, the new one comes, or only one of that."""

    view: QName
    before: str = ""
    after: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutover:
    """Targets that change together behind one gate, and the views that do."""

    roots: tuple[QName, ...]  # tables whose writers wait for a moment
    targets: tuple[QName, ...]  # computed anew, in the order of their computation
    storage: tuple[QName, ...] = ()  # those of them that become another table
    switches: tuple[Switch, ...] = ()
    entries: tuple[QName, ...] = ()  # roots without rows of their own (Null, queues), if only views are added

    @property
    def title(self) -> str:
        names = self.targets or tuple(one.view for one in self.switches)
        return ", ".join(str(name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What a change means for another object."""

    cause: QName
    name: QName
    how: str  # `recomputed`, `reads column …`, `fires`, …
    partitions: int = 0
    rows: int = 0
    size: int = 0  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """An object that could not be compared, or that chmv does not touch."""

    name: QName
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that `apply` does, and the two states that it leads from and to."""

    plan_id: str
    made_at: str
    declared: str  # fingerprint of the declared objects
    live: str  # fingerprint of the server's objects that it is about
    changes: tuple[Change, ...] = ()
    cutovers: tuple[Cutover, ...] = ()
    impacts: tuple[Impact, ...] = ()
    untold: tuple[Untold, ...] = ()
    owned: tuple[QName, ...] = ()  # all that is declared
    digests: tuple[tuple[QName, str], ...] = ()  # of the declared statements, whatever their white space
    scope: tuple[QName, ...] = ()  # what `live` is the fingerprint of
    rolls_back: str = ""  # the plan that this one takes back
    timezone: str = "UTC"  # of windows, as the settings say
    database: str = "default"  # of names without one
    folder: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # the declared texts: path → text

    @property
    def risk(self) -> Risk:
        return worst(tuple(change.risk for change in self.changes))

    @property
    def touched(self) -> tuple[Impact, ...]:
        """The impacts as people read them: what happens to an object stands once, however many changes are the cause."""
        found: dict[tuple[QName, str], Impact] = {}
        for one in self.impacts:
            found.setdefault((one.name, one.how), one)
        return tuple(found.values())

    @property
    def is_empty(self) -> bool:
        return not self.changes

    def computed(self) -> tuple[QName, ...]:
        """The targets that are computed anew."""
        return tuple(target for cutover in self.cutovers for target in cutover.targets)

    def created(self) -> frozenset[QName]:
        """The tables that it makes."""
        return frozenset(change.name for change in self.changes if change.action == "create")
