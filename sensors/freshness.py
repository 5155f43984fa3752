"""`freshness_sensor`: targets that are behind for longer than their SLA → readers to the snapshot, and back when they have caught up.

Read (at most three queries), decide (`freshness_verdict`, pure), ask for `recovery_job` runs. A server that does not answer is told and
changes nothing. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import time
from collections.abc import Callable, Mapping

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.freshness import period_seconds
from chmv_assets.core.names import QName
from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline
from resources.clickhouse_resource import ClickHouseResource
from resources.freshness import FreshnessReader
from resources.journal import cluster_from_environment
from sensors.asking import choose, read_ask_attempts, result_of
from sensors.freshness_verdict import build_reach, decide, load_cursor

NAME = "freshness_sensor"


def refresh_periods(pipeline: Pipeline) -> Mapping[QName, float]:
    """How often each declared refreshable view should be refreshed; without those whose schedule cannot be read."""
    declared = {
        name: period_seconds(made.refresh.schedule)
        for name, made in pipeline.catalog.objects.items()
        if made.kind == "refreshable_view" and made.refresh is not None
    }
    return {name: seconds for name, seconds in declared.items() if seconds is not None}


def build_freshness_sensor(
    pipeline: Pipeline, *, running: bool, now: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """The sensor over all targets of a pipeline."""
    reach = build_reach(pipeline.catalog)
    reader = FreshnessReader(refresh_periods(pipeline))
    limits = pipeline.settings.limits

    @dg.sensor(
        name=NAME,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=int(pipeline.settings.limits.sensor_every),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Behind for longer than the SLA → readers go to the snapshot; caught up → back to the primary.",
    )
    def freshness_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        moment = now()
        try:
            with clickhouse.connect(sensor=NAME) as server:
                seen = reader.read(server, int(moment * 1000), cluster_from_environment())
        except ChmvError as error:
            reader.forget()
            return dg.SkipReason(f"the server could not be asked, nothing is decided: {error}")
        verdict = decide(
            seen,
            load_cursor(context.cursor),
            reach=reach,
            policies=pipeline.settings.policy,
            now_ms=int(moment * 1000),
        )
        context.log.info(verdict.told)
        chosen = choose(verdict.asks, read_ask_attempts(context.instance, verdict.asks), moment, limits)
        return result_of(chosen, NAME, verdict.told, verdict.cursor.dump())

    return freshness_sensor
