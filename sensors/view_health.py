"""`view_health_sensor`: views and targets that are not what they should be → `recovery_job`. It reads and never writes.

Two queries, and a third one only for live texts that were not compared before. A server that does not answer is told, not raised. (No
`from __future__ import annotations`: Dagster inspects these signatures.)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.recovery import Ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.live_views import find_changed
from chmv_assets.pipeline import Pipeline
from resources.clickhouse_resource import ClickHouseResource
from resources.health import fetch_health
from sensors.asking import ask_digest, choose, read_ask_attempts, result_of
from sensors.attempts import Attempts
from sensors.deficits import read_deficits
from sensors.view_health_verdict import LOOK_BACK_MS, decide, isolation_of, load_cursor, may_isolate, watch

NAME = "view_health_sensor"


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


def build_view_health_sensor(
    pipeline: Pipeline, *, running: bool, now: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """The sensor over all declared views and targets of a pipeline."""
    watched = watch(pipeline.catalog, pipeline.settings)
    limits = pipeline.settings.limits

    @dg.sensor(
        name=NAME,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=int(pipeline.settings.limits.sensor_every),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Views that are dropped, detached, changed, unhooked or throw, lost targets and partitions, comparisons that failed → recovery_job.",
    )
    def view_health_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        cursor = load_cursor(context.cursor)
        try:
            with clickhouse.connect(sensor=NAME) as server:
                health = fetch_health(server, watched.databases, int(now() * 1000) - LOOK_BACK_MS)
                looked_at = [health.views[view.name] for view in watched.views if view.name in health.views]
                changed = find_changed(server, pipeline.catalog, looked_at)
        except ChmvError as error:  # the cursor stays: what was right is known as of the last tick that could look
            return dg.SkipReason(f"the server could not be asked: {error}")
        checked = cursor.checked or now()
        deficits = read_deficits(context.instance, watched.targets, checked, cursor.deficits)
        cursor = replace(cursor, checked=now(), deficits=deficits)
        verdict = decide(watched, health, changed, cursor, limits)
        asks = escalate(verdict.asks, read_ask_attempts(context.instance, verdict.asks), limits)
        chosen = choose(asks, read_ask_attempts(context.instance, asks), now(), limits)
        context.log.info(verdict.told)
        return result_of(chosen, NAME, verdict.told, verdict.cursor.dump())

    return view_health_sensor
