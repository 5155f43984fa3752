"""The check `spark_agrees`: the second opinion on the partitions of a run, one step for every 250 targets. Never blocking.

Off unless CHMV_SPARK_CHECKS=on: Dagster runs the checks of whatever is materialized, and this one costs every such run a Spark session (6 to 20
seconds). The session starts when the first selected target turns out to be computable. How it is judged is in `second_opinion`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from chmv_assets.check_steps import Judgement, checks_definition, declared_targets, share_out
from chmv_assets.collector import collector_paused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.window_text import name_window
from chmv_assets.failures import told_to_dagster
from chmv_assets.pipeline import Pipeline
from chmv_assets.reconcile_check import build_judgement, choose_windows
from chmv_assets.translator import AssetTranslator
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.journal import cluster_from_environment
from resources.spark import SparkResource

AGREES = "spark_agrees"
DESCRIPTION = (
    "Spark, computing the partitions of the run from the source's rows by itself, finds what the target holds."
)
CHECKS_VARIABLE = "CHMV_SPARK_CHECKS"


def spark_checks_on(environ: Mapping[str, str]) -> bool:
    """Whether the location has these checks: CHMV_SPARK_CHECKS=on.

    >>> spark_checks_on({"CHMV_SPARK_CHECKS": "on"}), spark_checks_on({})
    (True, False)
    """
    return environ.get(CHECKS_VARIABLE, "").strip().lower() == "on"


def build_spark_checks(
    pipeline: Pipeline, *, on: bool, translator: AssetTranslator | None = None
) -> list[dg.AssetChecksDefinition]:
    """The checks of all targets, or none."""
    if not on:
        return []
    translator = translator or AssetTranslator()
    with collector_paused():
        return [
            _build_step(step, pipeline, some, translator)
            for step, some in share_out(AGREES, declared_targets(pipeline.catalog))
        ]


def _build_step(
    step: str, pipeline: Pipeline, names: Sequence[QName], translator: AssetTranslator
) -> dg.AssetChecksDefinition:
    keys = {name: translator.get_asset_key(name) for name in names}

    def run(
        context: dg.AssetCheckExecutionContext, clickhouse: ClickHouseResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        wanted = {key.asset_key for key in context.selected_asset_check_keys}
        for name in (name for name, key in keys.items() if key in wanted):
            target = pipeline.catalog.objects[name]
            with told_to_dagster(target), clickhouse.connect(run_id=context.run.run_id, check=AGREES) as server:
                found = _judge(pipeline, server, target, context, spark)
            yield found.result(keys[name], AGREES)

    specs = [dg.AssetCheckSpec(AGREES, asset=key, description=DESCRIPTION) for key in keys.values()]
    return checks_definition(step, specs, run)


def _judge(
    pipeline: Pipeline, server: Server, target: Object, context: dg.AssetCheckExecutionContext, spark: SparkResource
) -> Judgement:
    from chmv_assets.second_opinion import SecondOpinion  # brings nothing of Spark along before its first use

    windows, chosen = choose_windows(pipeline, server, target, context.run.tags)
    opinion = SecondOpinion(pipeline, server, lambda: spark.spark_session, cluster_from_environment())
    found = []
    for window in windows:
        found.append(opinion.run(target, window))
        context.log.info(
            f"{target.name} {name_window(window, pipeline.settings.timezone)}: Spark says: {found[-1].sentence()} ({len(found)} of {len(windows)})"
        )
    return build_judgement(found, 0, chosen, was_materialized=False)
