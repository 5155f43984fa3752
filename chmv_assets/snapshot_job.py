"""`snapshot_job` and its schedule: keep the copies that readers fall back to, make serving views that are missing, tell statuses.

(No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from chmv_assets.failures import told_to_dagster
from chmv_assets.pipeline import Pipeline
from chmv_assets.status_events import find_changes
from chmv_assets.translator import AssetTranslator
from resources.clickhouse_resource import ClickHouseResource

if TYPE_CHECKING:
    from resources.serving import SnapshotResult

SNAPSHOT_JOB = "snapshot_job"
_MINUTES_PER_HOUR = 60
_HOURS_PER_DAY = 24


def build_snapshot_job(pipeline: Pipeline, translator: AssetTranslator | None = None) -> dg.JobDefinition:
    """The job over a pipeline."""
    keys = translator or AssetTranslator()

    @dg.op(name="refresh_snapshots", out=dg.Out(dg.Nothing))
    def refresh_snapshots(context: dg.OpExecutionContext, clickhouse: ClickHouseResource) -> None:
        from resources.journal import open_journal
        from resources.journal.dead_repairs import bury_repairs
        from resources.serving import Router
        from resources.status import read_status

        with told_to_dagster(), clickhouse.connect(run_id=context.run.run_id) as server:
            limit = pipeline.settings.limits.snapshot_max_age
            router = Router(server, open_journal(server), pipeline.catalog, limit, log=context.log.info)
            results = router.refresh_snapshots()
            now_ms = int(router.clock() * 1000)
            for dead in bury_repairs(router.journal, now_ms):
                context.log.warning(f"{dead.subject}: its repair ({dead.damage}) was killed; noted as failed")
            stands = read_status(router, pipeline.settings)
        changes = list(find_changes(context.instance, keys, stands))
        for change in changes:
            context.log_event(change)
        context.add_output_metadata({**snapshot_metadata(results, now_ms), "chmv/statuses_changed": len(changes)})

    @dg.job(
        name=SNAPSHOT_JOB,
        description="Keep the snapshots that readers of serving.<target> fall back to: link partitions that changed, make serving views that are missing.",
        executor_def=dg.in_process_executor,
    )
    def snapshot_job() -> None:
        refresh_snapshots()

    return snapshot_job


def snapshot_metadata(results: Sequence["SnapshotResult"], now_ms: int) -> dict[str, Any]:
    """The run's page: one line per target."""
    told: dict[str, Any] = {
        "chmv/partitions_copied": sum(len(one.copied) for one in results),
        "chmv/rows_copied": sum(one.rows for one in results),
        "chmv/partitions_lost": sum(len(one.lost) for one in results),
    }
    if results:
        told["chmv/snapshots"] = dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {
                        "target": str(one.target),
                        "partitions copied": len(one.copied),
                        "rows": one.rows,
                        "lost": len(one.lost),
                        "age in seconds": round((now_ms - one.snapshot_ms) / 1000, 1) if one.snapshot_ms else -1.0,
                        "note": one.skipped,
                    }
                )
                for one in results
            ]
        )
    return told


def cron_of(every_seconds: float) -> str:
    """A cron expression for about that often: minutes that divide the hour, hours that divide the day, at most once a day.

    >>> cron_of(300), cron_of(60), cron_of(7 * 60), cron_of(3600), cron_of(90_000)
    ('*/5 * * * *', '* * * * *', '*/6 * * * *', '0 * * * *', '0 0 * * *')
    """
    minutes = max(1, round(every_seconds / 60))
    if minutes < _MINUTES_PER_HOUR:
        step = max(one for one in range(1, minutes + 1) if _MINUTES_PER_HOUR % one == 0)
        return "* * * * *" if step == 1 else f"*/{step} * * * *"
    hours = minutes // _MINUTES_PER_HOUR
    if hours >= _HOURS_PER_DAY:
        return "0 0 * * *"
    step = max(one for one in range(1, hours + 1) if _HOURS_PER_DAY % one == 0)
    return "0 * * * *" if step == 1 else f"0 */{step} * * *"


def build_snapshot_schedule(pipeline: Pipeline, *, running: bool) -> dg.ScheduleDefinition:
    """Refresh as often as `snapshot_every` says."""
    return dg.ScheduleDefinition(
        name="snapshot_schedule",
        job_name=SNAPSHOT_JOB,
        cron_schedule=cron_of(pipeline.settings.limits.snapshot_every),
        execution_timezone=pipeline.settings.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description="Keep the snapshots that readers fall back to (`snapshot_every` under `thresholds` in chmv.yaml).",
    )
