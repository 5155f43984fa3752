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

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import (
    Ask,
    Outcome,
    RecoveryKind,
    RecoveryRecord,
    RecoveryStatus,
    load_ask,
    moment,
    write_recovery,
)
from chmv_assets.core.windows import Window, key_of
from chmv_assets.failures import failure_of
from chmv_assets.jobs import RECOVERY_JOB, RECOVERY_OP
from chmv_assets.pipeline import Pipeline
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.translator import AssetTranslator, NodeProps
from resources.clickhouse_resource import ClickHouseResource
from resources.journal import open_journal

Handler = Callable[[RecoverySite, Ask], Outcome]


class RecoverConfig(dg.Config):
    """What to repair."""

    ask: str = Field(
        description="What a sensor asks for, as JSON (chmv_assets.core.recovery.Ask). `chmv recover` writes it for you."
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
        try:
            ask = load_ask(config.ask, pipeline.settings.default_database)
            with clickhouse.connect(run_id=context.run.run_id, asset=str(ask.subject)) as server:
                site = RecoverySite(pipeline, server, open_journal(server), context.log.info, run_id=context.run.run_id)
                context.log.info(f"{ask.subject}: {ask.damage}. Seen: {seen_text(ask)}")
                outcome, record = carry_out(site, ask, handler_of(ask.kind))
        except ChmvError as error:
            raise failure_of(error) from error
        for name, window in outcome.rebuilt:
            if name in definitions and (event := materialization(pipeline, keys, definitions[name], name, window, ask)):
                context.log_event(event)
        context.add_output_metadata(story(ask, outcome, record))

    @dg.job(
        name=RECOVERY_JOB,
        description="Repair what a sensor has found: evidence, tier, steps and numbers are on the run's page.",
        executor_def=dg.in_process_executor,
    )
    def recovery_job() -> None:
        recover()

    return recovery_job


def carry_out(site: RecoverySite, ask: Ask, handler: Handler) -> tuple[Outcome, RecoveryRecord]:
    """Run a repair between two rows of the journal."""
    site.journal.prepare()
    started = site.now_ms()
    note(site, ask, "running", started, 0, None)
    try:
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
    told = (
        {}
        if outcome is None
        else {"steps": list(outcome.steps), "before": dict(outcome.before), "after": dict(outcome.after)}
    )
    record = RecoveryRecord(
        recovery=ask.key, kind=ask.kind, subject=ask.subject, damage=ask.damage, tier=outcome.tier if outcome else 0, status=status,
        detected_ms=ask.detected_ms, started_ms=started_ms, ended_ms=ended_ms, detail=json.dumps({**told, "seen": dict(ask.seen)}),
        owner=site.journal.owner, version=site.journal.versions.next(),
    )  # fmt: skip
    site.journal.run(write_recovery(record, site.journal.cluster))
    return record


def seen_text(ask: Ask) -> str:
    return ", ".join(f"{name} {value}" for name, value in ask.seen.items()) or ask.evidence


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
    if definition is None or window is None:
        return dg.AssetMaterialization(key, metadata=metadata) if definition is None else None
    scheme = pipeline.catalog.schemes[name]
    unit = pipeline.settings.policy(name).cadence or scheme.unit
    partition = key_of(window.start, unit, pipeline.settings.timezone, scheme.week_mode)
    if not definition.has_partition_key(partition):
        return None
    return dg.AssetMaterialization(key, partition=partition, metadata=metadata)
