"""Readers of `serving.*` during a deployment: their snapshots are of the old shape, so they read the targets themselves, and get new copies after.

Nobody changes a target whose readers are on the snapshot: what they read would change its meaning under them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Cutover, Plan
from chmv_assets.core.errors import ChmvError, DeployRefused
from chmv_assets.core.serving import serving_targets, snapshot_name
from resources.executor import Executor
from resources.introspect import fetch_existing
from resources.journal import Journal
from resources.serving import Router
from resources.serving_live import fetch_routes


def require_primary(journal: Journal, plan: Plan) -> None:
    """Refuse while readers of a target that changes are on its snapshot."""
    routes = fetch_routes(journal.server, journal.cluster)
    for target in [name for cutover in plan.cutovers for name in cutover.targets]:
        if target in routes and routes[target].route != "primary":
            raise DeployRefused(
                f"target {target}: its readers are on the snapshot ({routes[target].reason}) but wanted them on the target. A recovery is not over. "
                "Nothing was changed. Wait until `chmv status` shows it ACTIVE, then apply the plan again. If a view of it is isolated because its query "
                "throws, and the folder has the right one: `chmv recover VIEW` gives it that query, and readers come back after it."
            )


@contextmanager
def narrowed_readers(executor: Executor, journal: Journal, catalog: Catalog, plan: Plan) -> Iterator[None]:
    """For the length of a block, serving views do not ask for columns that a plan takes away: wherever it stands, readers of the others meet no error.

    At the end, whatever has become of it, they have the columns that their targets have.
    """
    changed = {change.name for change in plan.changes}
    targets = [one for one in serving_targets(catalog) if one.name in changed]
    router = Router(executor.server, journal, catalog, 0.0, log=executor.log, deploying=True)
    narrowed = router.narrow(targets) if targets else ()
    try:
        yield
    finally:
        try:
            if narrowed:
                router.ensure(narrowed)
        except ChmvError as error:
            executor.log(
                f"serving views of {', '.join(str(one.name) for one in narrowed)}: {error} The next snapshot_job makes them anew."
            )


def refresh_copies(executor: Executor, journal: Journal, catalog: Catalog, cutover: Cutover) -> None:
    """New serving views and snapshots of targets that have some; those of another shape are made from nothing."""
    targets = [one for one in serving_targets(catalog) if one.name in cutover.targets]
    there = fetch_existing(executor.server, [snapshot_name(one.name) for one in targets])
    served = [one for one in targets if snapshot_name(one.name) in there]
    if not served:
        return
    router = Router(executor.server, journal, catalog, 0.0, log=executor.log, only_declared=True, deploying=True)
    for one in served:
        if one.name in cutover.storage:
            router.renew(one.name)
    router.refresh_snapshots(served)
