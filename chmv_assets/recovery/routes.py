"""Sending readers to the snapshot and back. Back only after what they will read was compared with its query.

`ask.damage` is `to snapshot` or `to primary`; the windows of the ask are compared, or the newest closed one of the target.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Literal

from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import Object
from chmv_assets.core.recovery import TO_PRIMARY, TO_SNAPSHOT, Ask, Outcome
from chmv_assets.core.windows import Window
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.windows import align, verify_windows
from resources.serving import Router


def open_router(site: RecoverySite) -> Router:
    """The router of a repair's server."""
    age = site.pipeline.settings.limits.snapshot_max_age
    return Router(site.server, site.journal, site.pipeline.catalog, age, log=site.log, clock=site.clock)


def recover(site: RecoverySite, ask: Ask) -> Outcome:
    """Switch the route of the subject."""
    if ask.damage not in (TO_SNAPSHOT, TO_PRIMARY):
        raise RecoveryFailed(
            f"target {ask.subject}: found route {ask.damage!r} but wanted `{TO_SNAPSHOT}` or `{TO_PRIMARY}`. Nothing was switched. "
            "This is a sensor's mistake; please report it."
        )
    router = open_router(site)
    present = router.read_routes().get(ask.subject)
    before = present.route if present else "primary"
    wanted: Literal["primary", "snapshot"] = "snapshot" if ask.damage == TO_SNAPSHOT else "primary"
    if before == wanted:
        site.did(f"readers of {ask.subject} read the {wanted} already")
        return _outcome(site, before, wanted, 0)
    target = site.pipeline.catalog.get(str(ask.subject))
    equal = (
        verify_windows(site, [(target.name, one) for one in _windows(site, target, ask)]) if wanted == "primary" else 0
    )
    reason = ask.seen.get("reason") or f"{ask.damage}: {ask.evidence}"
    router.switch(target.name, wanted, reason, ask.evidence)
    site.did(f"readers of {target.name} read the {wanted} now")
    return _outcome(site, before, wanted, equal)


def _outcome(site: RecoverySite, before: str, after: str, equal: int) -> Outcome:
    return Outcome(tier=3, steps=tuple(site.steps), before={"route": before}, after={"route": after}, reconciled=equal)


def _windows(site: RecoverySite, target: Object, ask: Ask) -> list[Window | None]:
    """What has to be right before readers come back."""
    if ask.windows:
        return align(site.pipeline, target, ask.windows)
    return [newest_closed(site, target)]


def newest_closed(site: RecoverySite, target: Object) -> Window | None:
    """The newest window of a target that ended before the lateness tolerance; the whole for a target without periods."""
    calendar = site.pipeline.rebuild_calendar(target.name)
    if calendar is None:
        return None
    policy = site.pipeline.settings.policy(target.name)
    closed = datetime.fromtimestamp(site.clock(), timezone.utc) - timedelta(seconds=policy.lateness_tolerance_seconds)
    end = calendar.start(closed)
    return Window(calendar.start(end - timedelta(microseconds=1)), end)
