"""The steps of a cutover: most is computed and verified while writers write; behind the gate only the rest, the swaps and the views. Pure.

Invariant: until the first `publish` everything is as it was. From there on either all targets and views of the cutover are the new ones when the
gate opens, or all are the old ones again.
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Cutover
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Layer, Step, can_prebuild


def online_views(catalog: Catalog, layers: Sequence[Layer]) -> list[Object]:
    """The views whose shares can be computed before the gate: part by part, from tables that do not change themselves."""
    changing = {target for target, _, _ in layers}
    return [
        view for _, views, _ in layers for view in views
        if catalog.trigger_of(view.name) not in changing and can_prebuild(catalog, view)
    ]  # fmt: skip


def is_fresh(created: frozenset[QName], cutover: Cutover) -> bool:
    """Whether a cutover only adds views over tables that the plan itself creates, or that hold no rows: there is nothing to compute, unless a writer is
    faster than we are."""
    has_rows = set(cutover.roots) - created - set(cutover.entries)
    return not cutover.storage and not has_rows and not any(one.before for one in cutover.switches)


def plan_fresh(cutover: Cutover) -> tuple[Step, ...]:
    """The steps of such a one. An insert that was not seen by a view has ended when they are done, and has left a part, but in entries: those it fires from
    then on."""
    emptied = [root for root in cutover.roots if root not in cutover.entries]
    return (
        *(Step("switch", one.view) for one in cutover.switches),
        *(Step("drain", root) for root in emptied[:1]),
        *(Step("require empty", root) for root in emptied),
    )


def plan_cutover(
    catalog: Catalog, layers: Sequence[Layer], roots: Sequence[QName], switches: Sequence[QName]
) -> tuple[Step, ...]:
    """All steps; `layers` are the targets in the order of their computation, each with its views and its scratch."""
    online = online_views(catalog, layers)
    names = {view.name for view in online}
    held = list(dict.fromkeys(source for view in online if (source := catalog.trigger_of(view.name)) is not None))
    verified = [target for target, views, _ in layers if views and all(view.name in names for view in views)]
    swaps = [
        step
        for target, views, _ in layers
        for step in (
            *(Step("build", view.name) for view in views if view.name not in names),
            *((Step("verify", target),) if views and target not in verified else ()),
            Step("publish", target),
        )
    ]
    scratches = [scratch for _, _, scratch in layers]
    first = layers[0][0] if layers else switches[0]
    return (
        *(Step("settle", root) for root in roots),
        *(Step("scratch", scratch) for scratch in scratches),
        *(Step("prebuild cold", view.name) for view in online),
        *(Step("hold merges", source) for source in held),
        *(Step("prebuild", view.name) for view in online),
        *(Step("verify", target) for target in verified),
        *(Step("shut gate", root) for root in roots),
        Step("drain", first),
        *(Step("recheck", root) for root in roots),
        *(Step("complete", view.name) for view in online),
        *swaps,
        *(Step("switch", view) for view in switches),
        *(Step("open gate", root) for root in roots),
        *(Step("release merges", source) for source in held),
        *(Step("drop scratch", scratch) for scratch in scratches),
    )
