"""Views over tables that a deployment has just made: created, and that is all, if nothing arrived before they were there.

Invariant: true is said only if every row that ever comes into the roots goes through the views. Otherwise the cutover is done as any other, from the rows.
"""

from __future__ import annotations

from chmv_assets.core.deploy.changes import Cutover
from chmv_assets.core.deploy.cutover_plan import plan_fresh
from chmv_assets.core.deploy.texts import create_if_missing
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.system_tables import system_table
from resources.deploy.hooks import require_hook
from resources.rebuild.gated_run import OnStep
from resources.rebuild.workbench import Workbench

DRAIN_SECONDS = 10.0


def adopt_fresh(bench: Workbench, cutover: Cutover, on_step: OnStep) -> bool:
    """Create the views; false if a row may have passed them by."""
    for number, step in enumerate(plan_fresh(cutover)):
        if not _do(bench, cutover, step):
            return False
        on_step(number, step)
    return True


def _do(bench: Workbench, cutover: Cutover, step: Step) -> bool:
    if step.kind == "switch":
        switch = next(one for one in cutover.switches if one.view == step.name)
        bench.executor.run_ddl(f"create {step.name}", create_if_missing(switch.after), switch.session)
        require_hook(bench, step.name)
    elif step.kind == "drain":
        try:
            bench.drain(DRAIN_SECONDS)
        except RebuildRefused:
            return False
    else:
        return _is_untouched(bench, step.name)
    return True


def _is_untouched(bench: Workbench, table: QName) -> bool:
    """Whether no insert has ever left a part, on any replica; parts that were merged away stay in sight for minutes."""
    rows = bench.executor.server.rows(
        f"SELECT count() FROM {system_table('parts', bench.cluster)} WHERE database = {{d:String}} AND table = {{t:String}}",
        {"d": table.database, "t": table.table},
    )
    return not rows[0][0]
