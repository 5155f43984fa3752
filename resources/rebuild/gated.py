"""The gated protocol: exact on a hot window. Most is computed while writers go on; for the last step they wait a moment.

Parts that are there when it begins are computed online; then the gate shuts, running inserts end, what arrived meanwhile is added,
and the window is swapped. Every row is in the scratch or reaches the target after the swap, never both: nothing can arrive in
between. The whole protocol is the same with one step more: source partitions that rest are computed before merges are held.
The steps are `core.rebuild_plan`'s; `gated_run` carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE, Feed
from chmv_assets.core.rebuild_plan import Layer, Step, find_roots, plan_gated
from chmv_assets.core.windows import Window
from chmv_assets.process_identity import new_rebuild_id
from resources.journal import Journal
from resources.rebuild.gated_run import GatedRun, OnStep, Prepared
from resources.rebuild.leases import hold_target
from resources.rebuild.recovery import clear_unverified, recover_targets
from resources.rebuild.result import Published
from resources.rebuild.shares import forget_shares
from resources.rebuild.whole import ColdShares
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

MAX_TRIES = 3

GatedProtocol = Literal["gated", "whole"]


def explain_gated(
    bench: Workbench,
    target: Object,
    window: Window | None,
    downstream: Sequence[Object] = (),
    *,
    cold_first: bool = False,
) -> tuple[Step, ...]:
    """The steps that `publish_gated` would take."""
    return _prepare(bench, [target, *downstream], window, "plan", "whole" if cold_first else "gated").steps


def publish_gated(
    bench: Workbench,
    journal: Journal,
    target: Object,
    window: Window | None,
    why: str,
    on_step: OnStep = lambda _number, _step: None,
    downstream: Sequence[Object] = (),
    *,
    cold_first: bool = False,
) -> Published:
    """Replace a window of a target by what its views give, under live inserts; with `cold_first` by the whole protocol.

    Targets `downstream` of it, in the order of their computation, are rebuilt from it behind the same gate.
    """
    started = bench.clock()
    targets = [target, *downstream]
    protocol: GatedProtocol = "whole" if cold_first else "gated"
    states = bench.target_states(target, window)
    hot: set[tuple[QName, str]] = set()
    with ExitStack() as stack:
        leases = [
            stack.enter_context(hold_target(bench, journal, one.name)) for one in sorted(targets, key=lambda t: t.name)
        ]
        unverified = recover_targets(bench.executor, journal, {one.name for one in targets})
        for attempt in range(1, MAX_TRIES + 1):
            run = _prepare(bench, targets, window, new_rebuild_id(), protocol)
            run.states = states
            carrier = GatedRun(bench, journal, leases, run, on_step, ColdShares(bench, hot))
            carrier.cold.check = carrier.check_leases
            try:
                changed = carrier.carry_out()
            except RebuildDisturbed as error:
                if attempt == MAX_TRIES:
                    raise
                bench.executor.log(f"{target.name}: disturbed, once more. {error}")
                continue
            clear_unverified(journal, unverified, window_key(window))
            for one in targets:
                forget_shares(bench, journal, one, window)
            return Published(
                protocol=protocol, why=why, partitions=changed, rows_before=sum(state.rows for state in states), rows_after=carrier.rows, tries=attempt,
                seconds=bench.clock() - started, gate_seconds=run.gate_seconds,
                downstream=tuple(one.name for one in downstream),
            )  # fmt: skip
    raise AssertionError("unreachable: the last try returns or raises")


def _prepare(
    bench: Workbench, targets: Sequence[Object], window: Window | None, rebuild_id: str, protocol: GatedProtocol
) -> Prepared:
    roots = sorted({root for target in targets for root in find_roots(bench.catalog, target.name)})
    for root in roots:
        node = bench.catalog.objects.get(root)
        if node is None or not node.engine.endswith("MergeTree"):
            raise RebuildRefused(
                f"target {targets[0].name}: its rows arrive in {root}, {node.engine if node else 'not declared here'}, but wanted a "
                "MergeTree table. Inserts into it cannot be held back. Use `--protocol closed` when no inserts run."
            )
    feeds: dict[QName, tuple[Feed, QName]] = {}
    layers: list[Layer] = []
    for number, target in enumerate(targets):
        views = bench.rebuildable_views(target)
        scratch = QName(SCRATCH_DATABASE, f"scratch.{rebuild_id}.{number}")
        feeds |= {view.name: (bench.feed(view, window)[0], scratch) for view in views}
        layers.append((target.name, views, scratch))
    return Prepared(
        rebuild_id=rebuild_id,
        protocol=protocol,
        targets={target.name: target for target in targets},
        window=window,
        feeds=feeds,
        steps=plan_gated(bench.catalog, layers, roots, cold_first=protocol == "whole"),
    )
