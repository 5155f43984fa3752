"""How every target stands, from the journal and one look at the server: as many queries whatever the number of targets. Only reads, but for a flush of
the part log.

What the numbers mean is `core.serving.status_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import Statement, read_settings
from chmv_assets.core.rebuild_plan import find_downstream
from chmv_assets.core.recovery import ALIVE_SECONDS, RecoveryRecord, decode_recovery, read_recoveries
from chmv_assets.core.serving import Status, TargetFacts, status_of
from chmv_assets.core.settings import Settings
from chmv_assets.core.watermarks import WATERMARKS
from resources.serving import Router
from resources.serving_live import Live

_LAST_REPAIRS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """One line of `chmv status`."""

    facts: TargetFacts
    status: Status
    why: tuple[str, ...]
    view: QName
    lost: tuple[str, ...] = ()
    last_repair: RecoveryRecord | None = None


def read_status(router: Router, settings: Settings) -> list[TargetStatus]:
    """All targets that have a serving view, in order of their names."""
    targets = router.targets()
    live = router.look(targets)
    now_ms = int(router.clock() * 1000)
    repairs = [
        decode_recovery(row)
        for row in router.server.fetch_if_there(read_recoveries(router.journal.cluster, limit=_LAST_REPAIRS))
    ]
    stale = _read_stale(router)
    opened = _opened(router, live, now_ms)
    return [_one(router, settings, target, live, repairs, stale, opened, now_ms) for target in targets]


def _one(
    router: Router,
    settings: Settings,
    target: Object,
    live: Live,
    repairs: list[RecoveryRecord],
    stale: Mapping[QName, int],
    opened: Mapping[QName, list[tuple[str, float]]],
    now_ms: int,
) -> TargetStatus:
    name = target.name
    about = {name, *(view.name for view in router.catalog.views_into(name))}
    mine = [one for one in repairs if one.subject in about]
    route = live.routes.get(name)
    copied = live.snapshot_ms(name)
    outages = list(opened.get(name, ()))
    if name not in live.uuids:
        outages.append((f"{name} is not on the server", 0.0))
    facts = TargetFacts(
        target=name,
        sla_seconds=settings.policy(name).sla_seconds,
        route=route.route if route else "primary",
        route_reason=route.reason if route else "",
        snapshot_age_seconds=(now_ms - copied) / 1000 if copied else None,
        lost=len(live.lost(name)),
        outages=tuple(outages),
        repairs_running=tuple(
            one.damage for one in mine
            if one.status == "running" and one.kind != "route" and now_ms - one.said_ms < ALIVE_SECONDS * 1000
        ),
        stale_seconds=(now_ms - stale[name]) / 1000 if name in stale else None,
    )  # fmt: skip
    status, why = status_of(facts)
    return TargetStatus(
        facts=facts, status=status, why=why, view=router.view_of(name), lost=live.lost(name), last_repair=mine[0] if mine else None
    )  # fmt: skip


def _opened(router: Router, live: Live, now_ms: int) -> dict[QName, list[tuple[str, float]]]:
    """Open outages of views, by the targets that they reach."""
    found: dict[QName, list[tuple[str, float]]] = {}
    for view, outage in live.outages.items():
        made = router.catalog.objects.get(view)
        if made is None or made.target is None:
            continue
        said = (f"{view} {outage.damage}, {outage.status}", max(0.0, (now_ms - outage.opened_ms) / 1000))
        for name in (made.target, *find_downstream(router.catalog, made.target)):
            found.setdefault(name, []).append(said)
    return found


def _read_stale(router: Router) -> dict[QName, int]:
    """Targets with windows that wait for a rebuild: since when, in milliseconds."""
    sql = (
        "SELECT target_table, toUnixTimestamp64Milli(min(updated_at)) "
        f"FROM {WATERMARKS.sql} FINAL WHERE status = 'stale' GROUP BY target_table"
    )
    rows = router.server.fetch_if_there(
        Statement(sql=sql, parameters={}, settings=read_settings(router.journal.cluster))
    )
    return {parse_qname(str(name), router.catalog.default_database): int(str(at)) for name, at in rows}
