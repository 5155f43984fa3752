"""`drift_sensor`: what is on the server is not what the folder declares → the check `live_ddl_equals_declared` of each such object, and one alert.

It reads and reports; it repairs nothing (`view_health_sensor` makes broken views whole). At most three queries while no text changes;
`drift_verdict` decides. Objects that are not declared have no asset: the tick and the alert tell of them. (No `from __future__ import annotations`:
Dagster inspects these signatures.)
"""

import os
from collections.abc import Mapping

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.ddl_judgement import EQUAL, ddl_judgement
from chmv_assets.drift import Known, read_drift
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.clickhouse_resource import ClickHouseResource
from resources.journal import cluster_from_environment
from resources.webhook import alerts_on, send_alert
from sensors.alert_texts import FOUND_BY, drift_alert
from sensors.alerts import Send
from sensors.drift_verdict import DriftVerdict, Report, decide, load_cursor
from sensors.recovery_sensor import status_of, unasked

NAME = "drift_sensor"
COMPARED_PER_TICK = 250  # reading two texts of an object takes some ms, and a tick has 60 s; only the first ticks of a process need so many


def build_drift_sensor(
    pipeline: Pipeline,
    *,
    running: bool,
    environ: Mapping[str, str] | None = None,
    send: Send = send_alert,
    translator: AssetTranslator | None = None,
) -> dg.SensorDefinition:
    """The sensor over everything that a pipeline declares."""
    keys = translator or AssetTranslator()
    known: Known = {}

    @dg.sensor(
        name=NAME,
        minimum_interval_seconds=int(pipeline.settings.limits.sensor_every),
        default_status=status_of(running),
        description="Sees objects on the server that are not as the DDL folder declares them, or not declared at all; fails their check and sends an alert. Repairs nothing.",
    )
    def drift_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            with clickhouse.connect(sensor=NAME) as server:
                cluster = cluster_from_environment(environ)
                seen = read_drift(server, pipeline.catalog, known, COMPARED_PER_TICK, cluster)
        except ChmvError as error:
            return unasked(error)
        verdict = decide(seen, load_cursor(context.cursor))
        origin = context.code_location_origin
        problem = _alert(verdict, origin.location_name if origin else "", environ, send)
        told = f"{verdict.told}; {problem}" if problem else verdict.told
        context.log.info(told)
        return dg.SensorResult(
            asset_events=[_evaluation(one, keys) for one in verdict.reports],
            skip_reason=dg.SkipReason(told),
            cursor=verdict.cursor.dump(),
        )

    return drift_sensor


def _evaluation(report: Report, keys: AssetTranslator) -> dg.AssetCheckEvaluation:
    """What the check would say of the object, said by the sensor."""
    found = ddl_judgement(report.comparison)
    return dg.AssetCheckEvaluation(
        asset_key=keys.get_asset_key(report.name),
        check_name=EQUAL,
        passed=found.passed,
        severity=found.severity,
        description=found.description,
        metadata={**found.metadata, FOUND_BY: NAME},
    )


def _alert(verdict: DriftVerdict, location: str, environ: Mapping[str, str] | None, send: Send) -> str:
    """One alert for all that a tick has found; gives what to say if it was not sent."""
    if not (verdict.drifted or verdict.undeclared) or not alerts_on(os.environ if environ is None else environ):
        return ""
    problem = send(
        drift_alert([(one.name, one.comparison) for one in verdict.drifted], verdict.undeclared, location)
    )  # fmt: skip
    return f"the alert was not sent: {problem}" if problem else "alert sent"
