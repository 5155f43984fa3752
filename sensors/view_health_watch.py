"""What the view health sensor looks at: the declared views and targets. Pure; worked out once per declaration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from sensors.view_health_cursor import MARK_LETTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedView:
    """One declared view."""

    name: QName
    target: QName | None
    trigger: QName | None  # whose hook is looked at; None: it has none, or it is a hidden table
    refreshable: bool
    repairs: bool  # whether it is repaired by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the sensor looks at; made once per declaration."""

    views: tuple[WatchedView, ...]
    targets: Mapping[QName, bool]  # stored, declared targets, and whether each is repaired by itself
    expiring: frozenset[QName]  # targets with a TTL: their partitions go away by themselves
    databases: tuple[str, ...]
    declared: str  # changes with every edit of a declaration
    marks: Mapping[str, str]  # name → changes with an edit of its own declaration

    def without(self, pending: frozenset[QName]) -> Watch:
        """Leave out what waits to be deployed: views, and the targets of such views."""
        if not pending:
            return self
        idle = pending | {view.target for view in self.views if view.name in pending and view.target is not None}
        return replace(
            self,
            views=tuple(view for view in self.views if view.name not in idle and view.target not in idle),
            targets={name: repairs for name, repairs in self.targets.items() if name not in idle},
        )


def watch(catalog: Catalog, settings: Settings) -> Watch:
    """Everything that can be damaged."""
    views: list[WatchedView] = []
    targets: dict[QName, bool] = {}
    marks: dict[str, str] = {}
    for made in sorted(catalog.objects.values(), key=lambda made: made.name):
        if made.kind not in VIEW_KINDS:
            continue
        trigger = catalog.trigger_of(made.name) if made.kind == "materialized_view" else None
        hidden = trigger is not None and catalog.objects[trigger].kind == "inner_table"
        target = catalog.objects.get(made.target) if made.target else None
        repairs = settings.policy(made.name).recovery != "off"
        if target is not None:
            repairs = repairs and settings.policy(target.name).recovery != "off"
            if target.kind == "table":
                targets[target.name] = settings.policy(target.name).recovery != "off"
                marks[str(target.name)] = _mark(target)
        marks[str(made.name)] = _mark(made)
        views.append(
            WatchedView(
                name=made.name, target=made.target, trigger=None if hidden else trigger,
                refreshable=made.kind == "refreshable_view", repairs=repairs,
            )
        )  # fmt: skip
    names = [*targets, *(view.name for view in views), *(view.trigger for view in views if view.trigger)]
    return Watch(
        views=tuple(views),
        targets=targets,
        expiring=frozenset(name for name in targets if catalog.objects[name].ttl),
        databases=tuple(sorted({name.database for name in names})),
        declared=hashlib.sha256("".join(marks.values()).encode()).hexdigest()[:16],
        marks=marks,
    )


def _mark(made: Object) -> str:
    """A few letters for one declaration: the cursor has one of every object."""
    return hashlib.sha256(f"{made.name}\0{made.digest}".encode()).hexdigest()[:MARK_LETTERS]
