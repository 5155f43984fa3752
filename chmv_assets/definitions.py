"""The code location: the only place where Definitions is put together. Lists, no logic.

The environment is read here, once: CHMV_DDL_DIR (default: the demo), CHMV_START, CHMV_SENSORS and CHMV_METRICS_PORT. Loading parses nothing that
has been parsed before and asks no server, except once for the first partition when the settings declare no start.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg

from chmv_assets.asset_checks import build_asset_checks
from chmv_assets.assets import build_assets
from chmv_assets.collector import collector_paused, freeze_built
from chmv_assets.deploy_job import build_deploy_job
from chmv_assets.ingest_job import build_ingest_job
from chmv_assets.jobs import checks_job
from chmv_assets.pipeline import DEMO_DDL, Pipeline, load_pipeline
from chmv_assets.recovery_job import build_recovery_job
from chmv_assets.second_opinion_check import build_spark_checks, spark_checks_on
from chmv_assets.snapshot_job import build_snapshot_job, build_snapshot_schedule
from chmv_assets.start import probe_server, resolve_start, start_from_environment, with_start
from chmv_assets.translator import AssetTranslator
from chmv_assets.tuner_job import build_tuner_job
from resources.clickhouse_resource import ClickHouseResource
from resources.metrics_endpoint import carry_metrics
from resources.spark import SparkResource
from sensors import build_sensors, sensors_on


def build_definitions(pipeline: Pipeline, translator: AssetTranslator | None = None) -> dg.Definitions:
    """Everything that Dagster shows of one pipeline; with a translator of your own, assets look as it says."""
    pipeline.require_sound()
    start = resolve_start(pipeline, probe_server, datetime.now(timezone.utc).date())
    built = build_assets(pipeline, start, translator)
    return dg.Definitions(
        assets=built.assets,
        asset_checks=[*build_asset_checks(pipeline), *build_spark_checks(pipeline, on=spark_checks_on(os.environ))],
        jobs=[
            checks_job,
            build_ingest_job(pipeline, built.props),
            build_recovery_job(pipeline, built.props),
            build_snapshot_job(pipeline),
            build_deploy_job(pipeline),
            build_tuner_job(pipeline),
        ],
        schedules=[build_snapshot_schedule(pipeline, running=sensors_on(os.environ))],
        sensors=build_sensors(pipeline, built.props, running=sensors_on(os.environ)),
        resources={"clickhouse": ClickHouseResource(), "spark": SparkResource()},
        executor=dg.in_process_executor,
    )


def load_declared() -> Pipeline:
    """The pipeline that the environment names: CHMV_DDL_DIR, with CHMV_START if it is set."""
    pipeline = load_pipeline(Path(os.environ.get("CHMV_DDL_DIR") or DEMO_DDL))
    start = start_from_environment(os.environ)
    return pipeline if start is None else with_start(pipeline, start)


with collector_paused():
    declared = load_declared()
    defs = build_definitions(declared)
freeze_built()
carry_metrics(declared.catalog, declared.settings, os.environ)
