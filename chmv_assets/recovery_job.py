"""`recovery_job`: carry out one repair that a sensor asked for, and tell its story on the run's page.

What was seen, which tier, the steps, numbers before and after, and how long it took from detection. The journal keeps the same
(`chmv.recoveries`), so that `chmv status` knows it without Dagster. (No `from __future__ import annotations`: Dagster
inspects these signatures.)
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from chmv_assets.core.deficits import CHECK, EQUAL, WHOLE, dump_window
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import (
    SAY_SECONDS,
    Ask,
    Outcome,
    RecoveryKind,
    RecoveryRecord,
    RecoveryStatus,
    load_ask,
    moment,
    write_recovery,
)
from chmv_assets.core.windows import Window
from chmv_assets.failures import told_to_dagster
from chmv_assets.jobs import DUPLICATE_TAG, RECOVERY_JOB, RECOVERY_OP
from chmv_assets.pipeline import Pipeline
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.status_events import find_changes
from chmv_assets.translator import AssetTranslator, NodeProps
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.heartbeat import heartbeat
from resources.journal import open_journal

Handler = Callable[[RecoverySite, Ask], Outcome]
_RUN_KEY = "dagster/run_key"
_ENDED_BADLY = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


class RecoverConfig(dg.Config):
    """What to repair."""

    ask: str = Field(
        description="What a sensor asks for, as JSON (chmv_assets.core.recovery.Ask). To repair by hand use `chmv recover`."
    )


def handler_of(kind: RecoveryKind) -> Handler:
    """The repair of a kind; imported here, so that loading the location stays cheap."""
    if kind == "view":
        from chmv_assets.recovery.views import recover
    elif kind == "late":
        from chmv_assets.recovery.late import recover
    elif kind == "backlog":
        from chmv_assets.recovery.backlog import recover
    else:
        from chmv_assets.recovery.routes import recover
    return recover


def build_recovery_job(
    pipeline: Pipeline, props: Sequence[NodeProps], translator: AssetTranslator | None = None
) -> dg.JobDefinition:
    """The job over a pipeline."""
    definitions = {one.node.name: one.partitions_def for one in props}
    keys = translator or AssetTranslator()

    @dg.op(name=RECOVERY_OP, out=dg.Out(dg.Nothing))
    def recover(context: dg.OpExecutionContext, config: RecoverConfig, clickhouse: ClickHouseResource) -> None:
        if first := find_first(context.instance, context.run):
            context.instance.add_run_tags(context.run.run_id, {DUPLICATE_TAG: first})
            context.log.info(f"run {first} has the same key and repairs it; nothing was done here")
            context.add_output_metadata(
                {"chmv/status": "duplicate", "chmv/repaired_by": dg.MetadataValue.dagster_run(first)}
            )
            return
        with told_to_dagster():
            ask = load_ask(config.ask, pipeline.settings.default_database)
            with clickhouse.connect(run_id=context.run.run_id, asset=str(ask.subject)) as server:
                site = RecoverySite(pipeline, server, open_journal(server), context.log.info, run_id=context.run.run_id)
                context.log.info(f"{ask.subject}: {ask.damage}. Seen: {seen_text(ask)}")
                outcome, record = carry_out(site, ask, told_before(handler_of(ask.kind), context, keys))
                for name, window in outcome.rebuilt:
                    if name in definitions and (
                        event := materialization(pipeline, keys, definitions[name], name, window, ask)
                    ):
                        context.log_event(event)
                tell_status(context, site, ask, keys)
        if ask.damage == "deficit" and outcome.reconciled:
            context.instance.report_runless_asset_event(passed_check(keys, ask, outcome))
        context.add_output_metadata(story(ask, outcome, record))

    @dg.job(
        name=RECOVERY_JOB,
        description="Repair what a sensor has found. What was wrong, what was done and whether it is right now is in the metadata of the run's step (docs/howto/read_a_recovery.md). By hand: `chmv recover`.",
        executor_def=dg.in_process_executor,
    )
    def recovery_job() -> None:
        recover()

    return recovery_job


def told_before(handler: Handler, context: dg.OpExecutionContext, translator: AssetTranslator) -> Handler:
    """The same repair, with the statuses told once it is noted as running."""

    def run(site: RecoverySite, ask: Ask) -> Outcome:
        tell_status(context, site, ask, translator)
        return handler(site, ask)

    return run


def tell_status(context: dg.OpExecutionContext, site: RecoverySite, ask: Ask, translator: AssetTranslator) -> None:
    """Show on the pages of the targets that an ask is about how they stand; a repair never fails for it."""
    from chmv_assets.recovery.routes import open_router
    from resources.status import read_status

    try:
        found = read_status(open_router(site), site.pipeline.settings)
        about = set(targets_of(site.pipeline, ask.subject))
        for change in find_changes(context.instance, translator, found, about):
            context.log_event(change)
    except ChmvError as error:
        context.log.warning(f"the statuses of targets could not be told: {error}")


def targets_of(pipeline: Pipeline, subject: QName) -> list[QName]:
    """The targets that a view, target or source reaches."""
    from chmv_assets.core.rebuild_plan import find_downstream

    made = pipeline.catalog.objects.get(subject)
    first = made.target if made is not None and made.target is not None else subject
    return [first, *find_downstream(pipeline.catalog, first)]


def passed_check(translator: AssetTranslator, ask: Ask, outcome: Outcome) -> dg.AssetCheckEvaluation:
    """The comparison that failed is green again: the repair ended with the same comparison, of the same windows."""
    windows = [dump_window(one) for one in ask.windows] or [WHOLE]
    return dg.AssetCheckEvaluation(
        asset_key=translator.get_asset_key(ask.subject),
        check_name=CHECK,
        passed=True,
        description=f"{outcome.reconciled} window(s) equal after their repair.",
        metadata={EQUAL: dg.MetadataValue.json(windows), "chmv/repair": ask.evidence},
    )


def find_first(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """The older run of the same key: Dagster looks for one before it makes a run, so two daemons at once may make two."""
    if _RUN_KEY not in run.tags or run.parent_run_id is not None:
        return None
    same = dg.RunsFilter(job_name=RECOVERY_JOB, tags={_RUN_KEY: run.tags[_RUN_KEY]})
    older = [one.dagster_run for one in sorted(instance.get_run_records(same), key=lambda one: one.storage_id)]
    for one in older:
        if one.run_id == run.run_id:
            return None
        if one.status not in _ENDED_BADLY and DUPLICATE_TAG not in one.tags:
            return one.run_id
    return None


def carry_out(site: RecoverySite, ask: Ask, handler: Handler) -> tuple[Outcome, RecoveryRecord]:
    """Run a repair between two rows of the journal; one that was done before is only told."""
    from chmv_assets.recovery.again import read_repaired, told_repaired

    site.journal.prepare()
    if (done := read_repaired(site, ask)) is not None:
        return told_repaired(site, done), done
    started = site.now_ms()
    note(site, ask, "running", started, 0, None)

    def say(server: Server) -> None:
        """Who is killed says nothing more, and is not waited for."""
        server.run(write_recovery(_record(site, ask, "running", started, 0, None), site.journal.cluster))

    try:
        with heartbeat(site.server.endpoint, SAY_SECONDS, say):
            outcome = handler(site, ask)
    except BaseException as error:
        failed = Outcome(tier=0, steps=(*site.steps, f"failed: {error}"[:500]))
        note(site, ask, "failed", started, site.now_ms(), failed)
        raise
    return outcome, note(site, ask, outcome.status, started, site.now_ms(), outcome)


def note(
    site: RecoverySite, ask: Ask, status: RecoveryStatus, started_ms: int, ended_ms: int, outcome: Outcome | None
) -> RecoveryRecord:
    """Write how a repair stands."""
    record = _record(site, ask, status, started_ms, ended_ms, outcome)
    site.journal.run(write_recovery(record, site.journal.cluster))
    return record


def _record(
    site: RecoverySite, ask: Ask, status: RecoveryStatus, started_ms: int, ended_ms: int, outcome: Outcome | None
) -> RecoveryRecord:
    told = (
        {}
        if outcome is None
        else {"steps": list(outcome.steps), "before": dict(outcome.before), "after": dict(outcome.after)}
    )
    return RecoveryRecord(
        recovery=ask.key, kind=ask.kind, subject=ask.subject, damage=ask.damage, tier=outcome.tier if outcome else 0, status=status,
        detected_ms=ask.detected_ms, started_ms=started_ms, ended_ms=ended_ms, detail=json.dumps({**told, "seen": dict(ask.seen)}),
        owner=site.journal.owner, version=site.journal.versions.next(),
    )  # fmt: skip


def seen_text(ask: Ask) -> str:
    return ", ".join(f"{name} {value}" for name, value in ask.seen.items()) or ask.evidence


def evidence_text(ask: Ask) -> str:
    """The evidence with its moment for people; it has milliseconds, since it is part of the key."""
    if ask.since_ms is None:
        return ask.evidence
    return ask.evidence.replace(str(ask.since_ms), moment(ask.since_ms).isoformat(timespec="seconds"))


def story(ask: Ask, outcome: Outcome, record: RecoveryRecord) -> dict[str, Any]:
    """The run's page."""
    numbers = sorted({*outcome.before, *outcome.after})
    compared = [
        dg.TableRecord({"number": name, "before": outcome.before.get(name, ""), "after": outcome.after.get(name, "")})
        for name in numbers
    ]
    told: dict[str, Any] = {
        "chmv/damage": f"{ask.subject}: {ask.damage}",
        "chmv/tier": outcome.tier,
        "chmv/status": record.status,
        "chmv/steps": dg.MetadataValue.md(
            "\n".join(f"{at}. {line}" for at, line in enumerate(outcome.steps, start=1)) or "nothing to do"
        ),
        "chmv/windows_rebuilt": len(outcome.rebuilt),
        "chmv/windows_equal": outcome.reconciled,
        "chmv/seconds_to_repair": round((record.ended_ms - record.started_ms) / 1000, 3),
    }
    told["chmv/evidence"] = evidence_text(ask)
    if ask.seen:
        told["chmv/evidence"] = dg.MetadataValue.table(
            [dg.TableRecord({"seen": name, "value": value}) for name, value in ask.seen.items()]
        )
    if compared:
        told["chmv/before_and_after"] = dg.MetadataValue.table(compared)
    if ask.detected_ms:
        told["chmv/detected_at"] = moment(ask.detected_ms).isoformat()
        told["chmv/seconds_from_detection"] = round(record.seconds_to_detect_and_repair, 3)
    if ask.since_ms is not None and ask.detected_ms:
        told["chmv/seconds_to_detect"] = round((ask.detected_ms - ask.since_ms) / 1000, 3)
    return told


def materialization(
    pipeline: Pipeline,
    translator: AssetTranslator,
    definition: dg.TimeWindowPartitionsDefinition | None,
    name: QName,
    window: Window | None,
    ask: Ask,
) -> dg.AssetMaterialization | None:
    """The event on the asset's page of a window that was rebuilt; none for a window that Dagster has no partition for."""
    metadata = {"chmv/repair": f"{ask.subject}: {ask.damage}", "chmv/evidence": ask.evidence}
    key = translator.get_asset_key(name)
    calendar = pipeline.calendar(name)
    if definition is None or calendar is None:
        return dg.AssetMaterialization(key, metadata=metadata)
    if window is None:
        return None
    partition = calendar.key(window.start)
    if not definition.has_partition_key(partition):
        return None
    return dg.AssetMaterialization(key, partition=partition, metadata=metadata)
