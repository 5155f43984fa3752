"""Sensors: detect, decide, ask for runs. They read and never write; deciding is pure, in modules named `*_verdict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import NodeProps
from sensors.alerts import build_alert_sensors
from sensors.drift import build_drift_sensor
from sensors.freshness import build_freshness_sensor
from sensors.landing import build_landing_sensor, landings_of
from sensors.late_data import build_late_data_sensor
from sensors.live_partitions import build_live_partitions_sensor
from sensors.merge_backlog import build_merge_backlog_sensor
from sensors.reaper import build_reaper_sensor
from sensors.tuner import build_tuner_sensor
from sensors.view_health import build_view_health_sensor

SENSORS_VARIABLE = "CHMV_SENSORS"


def sensors_on(environ: Mapping[str, str]) -> bool:
    """Whether sensors run by themselves: CHMV_SENSORS=on. Without it they are switched on in the UI, one by one.

    >>> sensors_on({"CHMV_SENSORS": "on"}), sensors_on({})
    (True, False)
    """
    return environ.get(SENSORS_VARIABLE, "").strip().lower() == "on"


def build_sensors(
    pipeline: Pipeline, props: Sequence[NodeProps], *, running: bool = False
) -> list[dg.SensorDefinition]:
    """All sensors of a pipeline; one that has nothing to look at is left out."""
    ingesting = [build_landing_sensor(pipeline, running=running)] if landings_of(pipeline) else []
    recovering = [
        build(pipeline, running=running)
        for build in (
            build_view_health_sensor,
            build_merge_backlog_sensor,
            build_late_data_sensor,
            build_freshness_sensor,
            build_reaper_sensor,
            build_drift_sensor,
            build_tuner_sensor,
        )
    ]
    telling = build_live_partitions_sensor(pipeline, props, running=running)
    return [*ingesting, *recovering, telling, *build_alert_sensors(pipeline, running=running)]
