"""`view_health_sensor`: views and targets that are not what they should be → `recovery_job`. It reads and never writes.

Two queries, one more for live texts that were not compared before, and one for pending deployments where something is amiss; `view_health_verdict` decides, `recovery_sensor` asks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import dagster as dg

from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.live_views import find_changed
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.deployed import Deployed, fetch_deployed
from resources.health import Health, fetch_health
from sensors.asking import ask_digest, read_ask_attempts
from sensors.attempts import Attempts
from sensors.deficits import read_deficits
from sensors.recovery_sensor import Clock, build_recovery_sensor
from sensors.verdict import Verdict
from sensors.view_health_cursor import Cursor, load_cursor
from sensors.view_health_verdict import LOOK_BACK_MS, decide, isolation_of, may_isolate
from sensors.view_health_watch import Watch, watch

NAME = "view_health_sensor"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tick has read."""

    health: Health
    changed: Mapping[QName, Sequence[str]]  # views whose live text is not the declared one
    deployed: (
        Deployed  # what waits for `chmv apply`, and when the rest was deployed: asked only where something is amiss
    )


def escalate(asks: Sequence[Ask], attempts: Mapping[str, Attempts], limits: Limits) -> list[Ask]:
    """Put the isolation of a view in front of its repair, once that has failed as often as the limit says."""
    found: list[Ask] = []
    for ask in asks:
        tried = attempts.get(ask_digest(ask))
        if tried is not None and tried.latest == "failed" and tried.runs >= limits.strikes and may_isolate(ask):
            found.append(isolation_of(ask, tried.runs))
        else:
            found.append(ask)
    return found


def build_view_health_sensor(pipeline: Pipeline, *, running: bool, now: Clock = time.time) -> dg.SensorDefinition:
    """The sensor over all declared views and targets of a pipeline."""
    limits = pipeline.settings.limits

    @cache
    def graph() -> Watch:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        return watch(pipeline.catalog, pipeline.settings)

    def read(server: Server, _cursor: str | None, moment: float) -> Seen:
        watched = graph()
        health = fetch_health(server, watched.databases, int(moment * 1000) - LOOK_BACK_MS)
        looked_at = [health.views[view.name] for view in watched.views if view.name in health.views]
        changed = find_changed(server, pipeline.catalog, looked_at, one_query=True)
        there = len(looked_at) == len(watched.views) and watched.targets.keys() <= health.tables
        digests = {name: made.digest for name, made in pipeline.catalog.objects.items() if made.sql}
        return Seen(health, changed, Deployed() if there and not changed else fetch_deployed(server, digests))

    def judge(seen: Seen, context: dg.SensorEvaluationContext, moment: float) -> Verdict[Cursor]:
        watched, before = graph().without(seen.deployed.pending), load_cursor(context.cursor)
        deficits = read_deficits(context.instance, watched.targets, before.checked or moment, before.deficits)
        cursor = replace(before, checked=moment, deficits=deficits)
        verdict = decide(watched, seen.health, seen.changed, cursor, limits, seen.deployed.deployed_ms)
        return replace(
            verdict, asks=tuple(escalate(verdict.asks, read_ask_attempts(context.instance, verdict.asks), limits))
        )

    return build_recovery_sensor(
        pipeline,
        name=NAME,
        description="Sees views that are gone, detached, altered, not fired or throw, targets and partitions that are gone, and comparisons that failed; asks recovery_job to mend them and to rebuild what was missed.",
        running=running,
        now=now,
        read=read,
        judge=judge,
    )
