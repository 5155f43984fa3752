"""Telling somebody: runs that failed, views that were isolated and checks that failed → a webhook. Without an address there is no such sensor.

What an alert says is made by `alert_texts`. One that cannot be sent is told in the tick and never fails it: the story is in Dagster anyway. (No `from __future__ import annotations`: Dagster inspects these
signatures.)
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import dagster as dg

from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.webhook import alerts_on, send_alert
from sensors.alert_texts import FOUND_BY, Alert, check_alerts, isolation_alerts, run_alert, shorten
from sensors.cursors import dump_cursor, read_cursor
from sensors.evaluations import OVERLAP_SECONDS, Evaluated, read_evaluations
from sensors.recovery_sensor import status_of

RUN_SENSOR, ISOLATION_SENSOR, CHECK_SENSOR = (
    "run_failure_alert_sensor",
    "isolation_alert_sensor",
    "check_failure_alert_sensor",
)
INTERVAL_SECONDS = 30
CURSOR_VERSION = 1
CHECKS_VERSION = 2
RUNS_PER_TICK = 200
LOOK_BACK_SECONDS = (
    3_600.0  # a daemon that was away for longer has missed what was isolated then; `chmv status` shows it
)

Send = Callable[[Alert], str]


def build_alert_sensors(
    pipeline: Pipeline,
    *,
    running: bool,
    environ: Mapping[str, str] | None = None,
    send: Send = send_alert,
    now: Callable[[], float] = time.time,
    translator: AssetTranslator | None = None,
) -> list[dg.SensorDefinition]:
    """The sensors that alert; none without CHMV_ALERT_URL."""
    if not alerts_on(os.environ if environ is None else environ):
        return []
    status = status_of(running)
    keys = translator or AssetTranslator()
    ours = frozenset(keys.get_asset_key(name) for name in pipeline.catalog.objects)
    return [_run_sensor(status, send), _isolation_sensor(status, send, now), _check_sensor(status, send, ours, now)]


def _run_sensor(status: dg.DefaultSensorStatus, send: Send) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name=RUN_SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status,
        description="Tells the webhook of CHMV_ALERT_URL that a run of this location failed.",
    )
    def run_failure_alert_sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        alert = run_alert(context.dagster_run, failure_text(context))
        return _tell(context, send, alert)

    return run_failure_alert_sensor


def _isolation_sensor(status: dg.DefaultSensorStatus, send: Send, now: Callable[[], float]) -> dg.SensorDefinition:
    # Not a run status sensor: that would leave a line in the log of every run that went well.
    @dg.sensor(
        name=ISOLATION_SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status,
        description="Tells the webhook of CHMV_ALERT_URL that a view went on throwing and was taken off (isolated).",
    )
    def isolation_alert_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        moment = now()
        known = load_seen(context.cursor)
        ended = read_repairs(context.instance, moment - LOOK_BACK_SECONDS)
        fresh = [] if known is None else [run for run in ended if run.run_id not in known]
        isolated = [run for run in fresh if read_status(context.instance, run.run_id) == "isolated"]
        told = f"{len(fresh)} repair(s) ended, {len(isolated)} isolated a view{_send_all(send, isolation_alerts(isolated))}"
        return dg.SensorResult(skip_reason=dg.SkipReason(told), cursor=dump_seen([run.run_id for run in ended]))

    return isolation_alert_sensor


def read_repairs(instance: dg.DagsterInstance, since: float) -> list[dg.DagsterRun]:
    """Repairs that ended well lately; not probes, of which the isolation is known."""
    asked = dg.RunsFilter(
        job_name=RECOVERY_JOB,
        statuses=[dg.DagsterRunStatus.SUCCESS],
        updated_after=datetime.fromtimestamp(since, timezone.utc),
    )
    return [run for run in instance.get_runs(asked, limit=RUNS_PER_TICK) if run.tags.get("chmv/damage") != "probe"]


def load_seen(text: str | None) -> set[str] | None:
    """Runs that were looked at before; None: not begun, or the cursor cannot be read.

    >>> load_seen(dump_seen(["a"])), load_seen("x")
    ({'a'}, None)
    """
    return read_cursor(
        text, CURSOR_VERSION, lambda document: {str(run) for run in document["runs"]}, lambda _note: None
    )


def dump_seen(runs: Sequence[str]) -> str:
    return dump_cursor(CURSOR_VERSION, {"runs": sorted(runs)})


def _send_all(send: Send, alerts: Sequence[Alert]) -> str:
    """Send alerts; gives what to say of those that could not be sent."""
    problems = [problem for alert in alerts if (problem := send(alert))]
    return f", {len(problems)} alert(s) not sent: {problems[0]}" if problems else ""


def _tell(context: dg.RunFailureSensorContext, send: Send, alert: Alert) -> dg.SkipReason | None:
    problem = send(alert)
    told = f"{alert['subject']}: " + (f"the alert was not sent: {problem}" if problem else "alert sent")
    context.log.info(told)
    return dg.SkipReason(told) if problem else None


def failure_text(context: dg.RunFailureSensorContext) -> str:
    """Why a run failed: the first step's error, else what the run itself says."""
    for event in context.get_step_failure_events():
        error = event.step_failure_data.error
        if error is not None:
            return shorten((error.cause or error).message)
    return shorten(context.failure_event.message or "")


def read_status(instance: dg.DagsterInstance, run_id: str) -> str:
    """How a repair ended, from the metadata of its output."""
    outputs = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_OUTPUT).records
    for record in outputs:
        event = record.event_log_entry.dagster_event
        if event is not None and "chmv/status" in event.step_output_data.metadata:
            return str(event.step_output_data.metadata["chmv/status"].value)
    return ""


def _check_sensor(
    status: dg.DefaultSensorStatus, send: Send, ours: frozenset[dg.AssetKey], now: Callable[[], float]
) -> dg.SensorDefinition:
    @dg.sensor(
        name=CHECK_SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status,
        description="Tells the webhook of CHMV_ALERT_URL that an asset check of this location failed.",
    )
    def check_failure_alert_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor = load_checks_cursor(context.cursor)
        known = context.repository_def.asset_graph.asset_check_keys if context.repository_def is not None else ()
        keys = [key for key in known if key.asset_key in ours]
        seen = read_evaluations(context.instance, keys, cursor.at if cursor is not None else 0.0)
        fresh = [one for one in seen if cursor is not None and one.number not in cursor.told]
        failed = [one for one in fresh if not one.evaluation.passed and FOUND_BY not in one.evaluation.metadata]
        origin = context.code_location_origin
        problems = _send_all(send, check_alerts(failed, origin.location_name if origin else ""))
        told = f"{len(fresh)} check(s) evaluated, {len(failed)} failed{problems}"
        if cursor is None:
            told = "begins here; checks from now on are told"
        return dg.SensorResult(skip_reason=dg.SkipReason(told), cursor=next_checks_cursor(cursor, seen, now()).dump())

    return check_failure_alert_sensor


@dataclass(frozen=True, slots=True)
class ChecksCursor:
    """Until when evaluations were read, and which of the last ones were: clocks differ, so the end is read twice."""

    at: float
    told: frozenset[int] = frozenset()

    def dump(self) -> str:
        return dump_cursor(CHECKS_VERSION, {"at": self.at, "told": sorted(self.told)})


def next_checks_cursor(cursor: ChecksCursor | None, seen: Sequence[Evaluated], now: float) -> ChecksCursor:
    """Where the next tick begins."""
    before = cursor.at if cursor is not None else now
    end = max([before, *(one.at for one in seen)])
    return ChecksCursor(end, frozenset(one.number for one in seen if one.at >= end - OVERLAP_SECONDS))


def load_checks_cursor(text: str | None) -> ChecksCursor | None:
    """Where to go on; None: not begun, or the cursor cannot be read.

    >>> load_checks_cursor(ChecksCursor(7.5, frozenset({1})).dump()), load_checks_cursor("x"), load_checks_cursor(None)
    (ChecksCursor(at=7.5, told=frozenset({1})), None, None)
    """
    return read_cursor(text, CHECKS_VERSION, _decode_checks, lambda _note: None)


def _decode_checks(document: Any) -> ChecksCursor:
    return ChecksCursor(float(document["at"]), frozenset(int(number) for number in document["told"]))
