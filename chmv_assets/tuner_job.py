"""`tuner_job`: carry out what `tuner_sensor` has decided, and watch it for a minute. Every step is an observation on the table's page.

(No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import dagster as dg
from pydantic import Field

from chmv_assets.core.recovery import moment
from chmv_assets.core.tuner_order import load_order
from chmv_assets.core.tunings import Tuning, shown
from chmv_assets.failures import told_to_dagster
from chmv_assets.jobs import TUNER_JOB, TUNER_OP
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.clickhouse_resource import ClickHouseResource


class TuneConfig(dg.Config):
    """What to do."""

    order: str = Field(
        description="What `tuner_sensor` has decided, as JSON (chmv_assets.core.tuner_order). `chmv tune` does it by hand."
    )


def build_tuner_job(pipeline: Pipeline, translator: AssetTranslator | None = None) -> dg.JobDefinition:
    """The job over a pipeline; it refuses unless chmv.yaml says `tuner: on`."""
    keys = translator or AssetTranslator()

    @dg.op(name=TUNER_OP, out=dg.Out(dg.Nothing))
    def tune(context: dg.OpExecutionContext, config: TuneConfig, clickhouse: ClickHouseResource) -> None:
        from chmv_assets.tunables import own_tunings, tunables_of
        from chmv_assets.tuning import Tuner
        from resources.executor import Executor
        from resources.journal import open_journal
        from resources.tuner import TuningStore

        def told(tuning: Tuning, sentence: str) -> None:
            context.log_event(observation(keys, tuning, sentence))

        with told_to_dagster(), clickhouse.connect(run_id=context.run.run_id) as server:
            order = load_order(config.order)
            if pipeline.settings.tuner != "on":
                context.log.warning(f"chmv.yaml says `tuner: {pipeline.settings.tuner}`: nothing is changed")
                context.add_output_metadata({"chmv/status": "refused"})
                return
            journal = open_journal(server)
            store = TuningStore(Executor(server, log=context.log.info, cluster=journal.cluster), journal)
            tables = [one.table for one in tunables_of(pipeline)]
            tuner = Tuner(store, pipeline.settings.limits, tables, context.log.info, told)
            ended = tuner.end(order.backs_of(own_tunings(pipeline, store.read())))
            applied = tuner.act(order.actions)
            ended += tuner.watch(applied)
            context.add_output_metadata(
                {
                    "chmv/steps": len(applied),
                    "chmv/taken_back": sum(1 for one in ended if one.status == "rolled_back"),
                    "chmv/settled": sum(1 for one in ended if one.status == "settled"),
                    "chmv/changes": dg.MetadataValue.md("\n".join(f"- {one.change()}: {one.status}" for one in (*applied, *ended)) or "none"),
                }
            )  # fmt: skip

    @dg.job(
        name=TUNER_JOB,
        description="One step of the tuner in an insert storm: a table setting or the pace of ingests, watched for a minute and taken back if it over-corrects. tuner_sensor asks for it.",
        executor_def=dg.in_process_executor,
    )
    def tuner_job() -> None:
        tune()

    return tuner_job


def observation(translator: AssetTranslator, tuning: Tuning, sentence: str) -> dg.AssetObservation:
    """A step, or its end, on the page of its table."""
    before, after = shown(tuning.previous, tuning.base), str(tuning.value)
    if tuning.status == "rolled_back":
        before, after = after, before
    return dg.AssetObservation(
        translator.get_asset_key(tuning.subject),
        description=sentence,
        metadata={
            "chmv/tuning": tuning.status,
            "chmv/setting": tuning.setting,
            "chmv/before": before,
            "chmv/after": after,
            "chmv/why": tuning.reason,
            "chmv/since": moment(tuning.started_ms).isoformat(),
            "chmv/numbers": dg.MetadataValue.json(dict(tuning.numbers)),
        },
    )
