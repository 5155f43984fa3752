"""Sensors: detect, decide, ask for runs. They read and never write; deciding is pure, in modules named `*_verdict`."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from chmv_assets.pipeline import Pipeline
from sensors.landing import build_landing_sensor, landings_of

SENSORS_VARIABLE = "CHMV_SENSORS"


def sensors_on(environ: Mapping[str, str]) -> bool:
    """Whether sensors run by themselves: CHMV_SENSORS=on. Without it they are switched on in the UI, one by one.

    >>> sensors_on({"CHMV_SENSORS": "on"}), sensors_on({})
    (True, False)
    """
    return environ.get(SENSORS_VARIABLE, "").strip().lower() == "on"


def build_sensors(pipeline: Pipeline, *, running: bool = False) -> list[dg.SensorDefinition]:
    """All sensors of a pipeline; one that has nothing to look at is left out."""
    return [build_landing_sensor(pipeline, running=running)] if landings_of(pipeline) else []
