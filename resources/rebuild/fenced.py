"""The fenced protocol: a hot window is rebuilt and writers never see an error. Fresh rows wait in a shadow of the target meanwhile.

Rows from before a moment F are computed anew and swapped in; rows that arrive in [F, G) wait in shadows and are moved in at the end; all others
go to the target as ever (`core.fence`). It takes two leads of a few seconds, in which fresh rows are not seen by readers.
For writers that do not send a finished insert again: tokens are known per table, and the rows that waited were in another one.
Never chosen by itself. From the fence on it always goes forward (`unfence`), also when it fails.
"""

from __future__ import annotations

from contextlib import ExitStack

from chmv_assets.core.errors import RebuildDisturbed
from chmv_assets.core.fence import LEAD_SECONDS
from chmv_assets.core.model import Object
from chmv_assets.core.rebuild_plan import Step, find_downstream
from chmv_assets.core.windows import Window
from chmv_assets.process_identity import new_rebuild_id
from resources.journal import Journal
from resources.journal.lease import Lease
from resources.rebuild.fenced_plan import prepare_fenced
from resources.rebuild.fenced_run import FencedRun
from resources.rebuild.gated import publish_gated
from resources.rebuild.gated_run import OnStep
from resources.rebuild.leases import hold_target
from resources.rebuild.recovery import clear_unverified, recover_targets
from resources.rebuild.result import Published
from resources.rebuild.shares import forget_shares
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

MAX_TRIES = 3  # of raising the fence; each with twice the lead


def explain_fenced(bench: Workbench, target: Object, window: Window | None, cluster: str = "") -> tuple[Step, ...]:
    """The steps that `publish_fenced` would take."""
    return prepare_fenced(bench, target, window, "plan", LEAD_SECONDS, cluster).steps


def publish_fenced(
    bench: Workbench,
    journal: Journal,
    target: Object,
    window: Window | None,
    why: str,
    on_step: OnStep = lambda _number, _step: None,
    lead_seconds: float = LEAD_SECONDS,
) -> Published:
    """Replace a window of a target by what its views give, without an error or a pause for any writer."""
    started = bench.clock()
    before = sum(state.rows for state in bench.target_states(target, window))
    behind = [bench.catalog.objects[name] for name in find_downstream(bench.catalog, target.name)]
    with ExitStack() as stack:
        names = sorted(one.name for one in (target, *behind))
        leases = [stack.enter_context(hold_target(bench, journal, name)) for name in names]
        unverified = recover_targets(bench.executor, journal, names)
        run, tries = _try_often(bench, journal, target, window, leases, on_step, lead_seconds)
        changed, repair = run.changed, run.repair
    if repair is not None:
        bench.executor.log(f"{target.name}: {run.out.state.doubt}. What it may have touched is rebuilt gated.")
        changed += publish_gated(
            bench, journal, target, repair.window, run.out.state.doubt, downstream=behind
        ).partitions
    clear_unverified(journal, [one for one in unverified if one.target == target.name], window_key(window))
    forget_shares(bench, journal, target, window)
    after = sum(state.rows for state in bench.target_states(target, window))
    return Published(
        protocol="fenced", why=why, partitions=tuple(dict.fromkeys(changed)), rows_before=before, rows_after=after,
        tries=tries, seconds=bench.clock() - started,
    )  # fmt: skip


def _try_often(
    bench: Workbench,
    journal: Journal,
    target: Object,
    window: Window | None,
    leases: list[Lease],
    on_step: OnStep,
    lead_seconds: float,
) -> tuple[FencedRun, int]:
    for attempt in range(1, MAX_TRIES + 1):
        lead = lead_seconds * 2 ** (attempt - 1)
        plan = prepare_fenced(bench, target, window, new_rebuild_id(), lead, journal.cluster)
        run = FencedRun(bench, journal, leases, plan, on_step)
        try:
            run.carry_out()
        except RebuildDisturbed as error:
            if attempt == MAX_TRIES:
                raise
            bench.executor.log(f"{target.name}: disturbed, once more with {2 * lead:.0f} s of lead. {error}")
            continue
        return run, attempt
    raise AssertionError("unreachable: the last try returns or raises")
