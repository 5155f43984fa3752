"""`deploy_job`: plan and apply from the Dagster UI. The plan is the run's metadata before anything is done; what needs a permission needs it in the config.

Its op observes every asset that it has changed, so that the asset pages tell of the deployment.
(No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from chmv_assets.core.deploy.changes import Plan, allowed_risks
from chmv_assets.failures import told_to_dagster
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.clickhouse_resource import ClickHouseResource

if TYPE_CHECKING:
    from resources.deploy import Progress

NAME = "deploy_job"


class DeployConfig(dg.Config):
    """What a deployment may do, and whether it does anything at all."""

    dry_run: bool = Field(default=True, description="Plan only: the plan is in the run's metadata, nothing is applied.")
    allow_rewrite: bool = Field(default=False, description="Permit changes that rewrite data.")
    allow_destructive: bool = Field(
        default=False, description="Permit changes that remove data or objects, and those that rewrite data."
    )
    resume: bool = Field(
        default=False, description="Go on with the unfinished deployment, whatever the other fields say."
    )


def build_deploy_job(pipeline: Pipeline, translator: AssetTranslator | None = None) -> dg.JobDefinition:
    """The job over the folder of a pipeline."""
    keys = translator or AssetTranslator()

    @dg.op(
        name="deploy",
        out=dg.Out(dg.Nothing),
        description="Make the server what the folder declares: plan, then apply it if dry_run is off.",
    )
    def deploy(context: dg.OpExecutionContext, config: DeployConfig, clickhouse: ClickHouseResource) -> None:
        from chmv_assets.deploy import make_plan, open_applier

        with told_to_dagster(), clickhouse.connect(run_id=context.run.run_id) as server:
            applier = open_applier(
                server, context.log.info, lambda progress: context.log.info(_line(progress)), pipeline.ddl_dir
            )
            if config.resume:
                applied = applier.resume()
                context.add_output_metadata(
                    {"chmv/deployment": applied.deploy_id, "chmv/gate_seconds": applied.gate_seconds}
                )
                return
            plan = make_plan(server, pipeline)
            metadata = plan_metadata(plan)
            if config.dry_run or plan.is_empty:
                context.log.info(f"plan {plan.plan_id}: {len(plan.changes)} changes, nothing was applied")
                context.add_output_metadata({**metadata, "chmv/applied": False})
                return
            allowed = allowed_risks(rewrite=config.allow_rewrite, destructive=config.allow_destructive)
            applied = applier.apply(plan, allowed)
            for observation in _observations(plan, keys, applied.deploy_id):
                context.log_event(observation)
            context.add_output_metadata(
                {
                    **metadata,
                    "chmv/applied": True,
                    "chmv/deployment": applied.deploy_id,
                    "chmv/gate_seconds": applied.gate_seconds,
                    "chmv/seconds": applied.seconds,
                }
            )

    @dg.job(
        name=NAME,
        description="Changes of the DDL folder, planned and applied under live ingestion. Set dry_run to false to apply.",
        executor_def=dg.in_process_executor,
    )
    def deploy_job() -> None:
        deploy()

    return deploy_job


def _line(progress: "Progress") -> str:
    return f"{progress.done} of {progress.of}: {progress.title}{f', {progress.step}' if progress.step else ''}"


def plan_metadata(plan: Plan) -> dict[str, dg.MetadataValue]:
    """A plan as tables that people read on the run's page."""
    changes = "\n".join(
        f"| {one.name} | {one.action} | {one.risk} | {_cell(one.why)} | {_cell(', '.join(d.what for d in one.differences))} |"
        for one in plan.changes
    )
    impacts = "\n".join(
        f"| {one.name} | {_cell(one.how)} | {one.partitions} | {one.rows} | {one.size} |" for one in plan.touched
    )
    found: dict[str, dg.MetadataValue] = {
        "chmv/plan": dg.MetadataValue.text(plan.plan_id),
        "chmv/risk": dg.MetadataValue.text(plan.risk),
        "chmv/changes": dg.MetadataValue.md(
            f"| object | action | risk | why | differs in |\n|---|---|---|---|---|\n{changes}"
            if changes
            else "none: the server is what the folder declares"
        ),
    }
    if impacts:
        found["chmv/touches"] = dg.MetadataValue.md(
            f"| object | how | partitions | rows | bytes |\n|---|---|---|---|---|\n{impacts}"
        )
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _observations(plan: Plan, keys: AssetTranslator, deploy_id: str) -> Iterator[dg.AssetObservation]:
    for change in plan.changes:
        if change.after:
            yield dg.AssetObservation(
                keys.get_asset_key(change.name),
                metadata={
                    "chmv/deployment": deploy_id,
                    "chmv/action": change.action,
                    "chmv/risk": change.risk,
                    "chmv/why": change.why,
                },
            )
