"""The check `spark_agrees`: the second opinion on the partitions of a run, one step for every 250 targets. Never blocking.

Off unless CHMV_SPARK_CHECKS=on: Dagster runs the checks of whatever is materialized, and this one costs every such run a Spark session (6 to 20
seconds). The session starts when the first selected target turns out to be computable. How it is judged is in `second_opinion`. (No postponed
annotations here: Dagster reads those of the ops.)
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from chmv_assets.collector import collector_paused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.failures import told_to_dagster
from chmv_assets.pipeline import Pipeline
from chmv_assets.reconcile_check import Verdict, build_verdict, choose_windows
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
_TARGETS_PER_STEP = 250  # as for the other cheap steps: Dagster loads a step in time quadratic in its checks


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
    objects = pipeline.catalog.objects
    names = list(
        dict.fromkeys(one.target for one in objects.values() if one.target is not None and one.target in objects)
    )
    steps = [names[first : first + _TARGETS_PER_STEP] for first in range(0, len(names), _TARGETS_PER_STEP)]
    with collector_paused():
        return [
            _build_step(AGREES if not at else f"{AGREES}_{at + 1}", pipeline, some, translator)
            for at, some in enumerate(steps)
        ]


def _build_step(
    step: str, pipeline: Pipeline, names: Sequence[QName], translator: AssetTranslator
) -> dg.AssetChecksDefinition:
    keys = {name: translator.get_asset_key(name) for name in names}
    specs = [dg.AssetCheckSpec(AGREES, asset=key, description=DESCRIPTION) for key in keys.values()]

    @dg.op(
        name=re.sub(r"\W", "_", step),
        ins={f"asset_{at}": dg.In(dg.Nothing) for at in range(len(specs))},
        out={f"check_{at}": dg.Out(is_required=False) for at in range(len(specs))},
    )
    def run(
        context: dg.AssetCheckExecutionContext, clickhouse: ClickHouseResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        wanted = {key.asset_key for key in context.selected_asset_check_keys}
        for name in (name for name, key in keys.items() if key in wanted):
            target = pipeline.catalog.objects[name]
            with told_to_dagster(target), clickhouse.connect(run_id=context.run.run_id, check=AGREES) as server:
                verdict = _judge(pipeline, server, target, context, spark)
            yield dg.AssetCheckResult(
                passed=verdict.passed, asset_key=keys[name], check_name=AGREES, severity=verdict.severity,
                description=verdict.description, metadata=verdict.metadata,
            )  # fmt: skip

    made: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        node_def=run,
        keys_by_input_name={f"asset_{at}": spec.asset_key for at, spec in enumerate(specs)},
        check_specs_by_output_name={f"check_{at}": spec for at, spec in enumerate(specs)},
        can_subset=True,
    )
    return made


def _judge(
    pipeline: Pipeline, server: Server, target: Object, context: dg.AssetCheckExecutionContext, spark: SparkResource
) -> Verdict:
    from chmv_assets.second_opinion import SecondOpinion  # brings nothing of Spark along before its first use

    windows, chosen = choose_windows(pipeline, server, target, context.run.tags)
    opinion = SecondOpinion(pipeline, server, lambda: spark.spark_session, cluster_from_environment())
    found = []
    for window in windows:
        found.append(opinion.run(target, window))
        context.log.info(
            f"{target.name} {window or 'whole'}: Spark says: {found[-1].sentence()} ({len(found)} of {len(windows)})"
        )
    return build_verdict(found, 0, chosen, was_materialized=False)
