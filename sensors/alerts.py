"""Telling somebody: runs that failed, views that were isolated and checks that failed → a webhook. Without an address there is no such sensor.

One alert is one JSON document with `event`, `location`, `subject`, `text` (as Slack wants it), `url` and what else is known. One that cannot be sent
is told in the tick and never fails it: the story is in Dagster anyway. (No `from __future__ import annotations`: Dagster inspects these
signatures.)
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

import dagster as dg

from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.webhook import alerts_on, send_alert, ui_link

RUN_SENSOR, ISOLATION_SENSOR, CHECK_SENSOR = (
    "run_failure_alert_sensor",
    "isolation_alert_sensor",
    "check_failure_alert_sensor",
)
INTERVAL_SECONDS = 30
CURSOR_VERSION = 1
EVENTS_PER_TICK = 500
RUNS_PER_TICK = 200
LOOK_BACK_SECONDS = (
    3_600.0  # a daemon that was away for longer has missed what was isolated then; `chmv status` shows it
)
ALERTS_PER_TICK = 4  # each may take eleven seconds, and a tick has 60; the last one tells of all that are left
_MAX_CHARACTERS = 500

Alert = dict[str, Any]
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
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    keys = translator or AssetTranslator()
    ours = frozenset(keys.get_asset_key(name) for name in pipeline.catalog.objects)
    return [_run_sensor(status, send), _isolation_sensor(status, send, now), _check_sensor(status, send, ours)]


def _run_sensor(status: dg.DefaultSensorStatus, send: Send) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name=RUN_SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status,
        description="A run of this location failed → the webhook of CHMV_ALERT_URL.",
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
        description="A repair gave up and isolated its view → the webhook of CHMV_ALERT_URL.",
    )
    def isolation_alert_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        moment = now()
        known = load_seen(context.cursor)
        ended = read_repairs(context.instance, moment - LOOK_BACK_SECONDS)
        fresh = [] if known is None else [run for run in ended if run.run_id not in known]
        isolated = [run for run in fresh if read_status(context.instance, run.run_id) == "isolated"]
        problems = [problem for run in isolated[:ALERTS_PER_TICK] if (problem := send(isolation_alert(run)))]
        told = f"{len(fresh)} repair(s) ended, {len(isolated)} isolated a view"
        if problems:
            told += f", {len(problems)} alert(s) not sent: {problems[0]}"
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
    try:
        document = json.loads(text or "")
        return {str(run) for run in document["runs"]} if document["version"] == CURSOR_VERSION else None
    except (ValueError, KeyError, TypeError):
        return None


def dump_seen(runs: Sequence[str]) -> str:
    return json.dumps({"version": CURSOR_VERSION, "runs": sorted(runs)}, separators=(",", ":"))


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
            return _short((error.cause or error).message)
    return _short(context.failure_event.message or "")


def read_status(instance: dg.DagsterInstance, run_id: str) -> str:
    """How a repair ended, from the metadata of its output."""
    outputs = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_OUTPUT).records
    for record in outputs:
        event = record.event_log_entry.dagster_event
        if event is not None and "chmv/status" in event.step_output_data.metadata:
            return str(event.step_output_data.metadata["chmv/status"].value)
    return ""


def run_alert(run: dg.DagsterRun, error: str) -> Alert:
    """A run that failed."""
    subject = subject_of(run)
    again = run.tags.get("dagster/will_retry") == "true"
    name = "the materialization" if run.job_name.startswith("__") else run.job_name
    text = f"{name} of {subject} failed" if subject != run.job_name else f"{run.job_name} failed"
    return {
        **_of_run("run_failure", run, subject),
        "text": _slack(f"{text}{', it is tried again' if again else ''}: {error}" if error else text),
        "error": error,
        "will_retry": again,
    }


def isolation_alert(run: dg.DagsterRun) -> Alert:
    """A view that was taken out, so that the rest goes on."""
    subject = subject_of(run)
    text = f"{subject} is isolated: it cannot be repaired by itself ({run.tags.get('chmv/damage', 'unknown damage')}). Readers are served from the snapshot."
    return {**_of_run("view_isolated", run, subject), "text": _slack(text)}


def _of_run(event: str, run: dg.DagsterRun, subject: str) -> Alert:
    evidence = {name.partition("/")[2]: value for name, value in run.tags.items() if name.startswith("chmv/")}
    origin = run.remote_job_origin
    return {
        "event": event,
        "location": origin.repository_origin.code_location_origin.location_name if origin else "",
        "subject": subject,
        "url": ui_link(f"/runs/{run.run_id}"),
        "run_id": run.run_id,
        "job": run.job_name,
        "tags": evidence,
    }


def subject_of(run: dg.DagsterRun) -> str:
    """What a run was about: what a sensor named, the assets, or the job."""
    for tag in ("chmv/subject", "chmv/source"):
        if tag in run.tags:
            return run.tags[tag]
    chosen = sorted(".".join(key.path) for key in run.asset_selection or ())
    if chosen:
        partition = run.tags.get("dagster/partition")
        named = ", ".join(chosen[:3]) + (f" and {len(chosen) - 3} more" if len(chosen) > 3 else "")
        return f"{named} {partition}" if partition else named
    return run.job_name


def _check_sensor(status: dg.DefaultSensorStatus, send: Send, ours: frozenset[dg.AssetKey]) -> dg.SensorDefinition:
    @dg.sensor(
        name=CHECK_SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status,
        description="An asset check of this location failed → the webhook of CHMV_ALERT_URL.",
    )
    def check_failure_alert_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        start = load_checks_cursor(context.cursor)
        evaluated = read_checks(context.instance, start)
        failed = [one for one in evaluated if not one.evaluation.passed and one.evaluation.asset_key in ours]
        origin = context.code_location_origin
        problems = [
            problem
            for alert in check_alerts(failed, origin.location_name if origin else "")
            if (problem := send(alert))
        ]
        told = f"{len(evaluated)} check(s) evaluated, {len(failed)} of ours failed"
        if problems:
            told += f", {len(problems)} alert(s) not sent: {problems[0]}"
        if start is None:
            told = "begins here; checks from now on are told"
        end = max(
            [one.storage_id for one in evaluated], default=start if start is not None else read_end(context.instance)
        )
        return dg.SensorResult(skip_reason=dg.SkipReason(told), cursor=dump_checks_cursor(end))

    return check_failure_alert_sensor


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One check that was evaluated."""

    storage_id: int
    run_id: str
    evaluation: dg.AssetCheckEvaluation


def read_checks(instance: dg.DagsterInstance, after: int | None) -> list[Evaluated]:
    """What was evaluated since; nothing before there is a point to count from."""
    if after is None:
        return []
    asked = dg.EventRecordsFilter(event_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION, after_cursor=after)
    records = instance.event_log_storage.get_event_records(asked, limit=EVENTS_PER_TICK, ascending=True)
    found: list[Evaluated] = []
    for record in records:
        event = record.event_log_entry.dagster_event
        if event is not None:
            found.append(Evaluated(record.storage_id, record.run_id, event.asset_check_evaluation_data))
    return found


def read_end(instance: dg.DagsterInstance) -> int:
    """The number of the latest evaluation."""
    asked = dg.EventRecordsFilter(event_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    latest = instance.event_log_storage.get_event_records(asked, limit=1)
    return latest[0].storage_id if latest else 0


def check_alerts(failed: Sequence[Evaluated], location: str) -> list[Alert]:
    """One alert per failed check; the last one tells of all that are too many."""
    single = failed if len(failed) <= ALERTS_PER_TICK else failed[: ALERTS_PER_TICK - 1]
    alerts = [_check_alert(one, location) for one in single]
    rest = failed[len(single) :]
    if rest:
        names = [_check_name(one) for one in rest]
        text = f"{len(rest)} more checks failed: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
        subject = f"{len(rest)} checks"
        alerts.append({"event": "check_failure", "location": location, "subject": subject, "text": _slack(text), "url": ui_link("/assets"), "checks": names[:100]})  # fmt: skip
    return alerts


def _check_name(one: Evaluated) -> str:
    return f"{'.'.join(one.evaluation.asset_key.path)}:{one.evaluation.check_name}"


def _check_alert(one: Evaluated, location: str) -> Alert:
    check = one.evaluation
    subject = ".".join(check.asset_key.path)
    why = _short(check.description or "")
    page = "/".join(quote(part, safe="") for part in check.asset_key.path)
    return {
        "event": "check_failure",
        "location": location,
        "subject": subject,
        "text": _slack(f"check {check.check_name} of {subject} failed" + (f": {why}" if why else "")),
        "url": ui_link(f"/assets/{page}?view=checks&checkDetail={quote(check.check_name, safe='')}"),
        "check": check.check_name,
        "severity": check.severity.value,
        "partition": check.partition,
        "description": why,
        "run_id": one.run_id,
    }


def load_checks_cursor(text: str | None) -> int | None:
    """From which evaluation on; None: not begun, or the cursor cannot be read.

    >>> load_checks_cursor(dump_checks_cursor(7)), load_checks_cursor("x"), load_checks_cursor(None)
    (7, None, None)
    """
    try:
        document = json.loads(text or "")
        return int(document["after"]) if document["version"] == CURSOR_VERSION else None
    except (ValueError, KeyError, TypeError):
        return None


def dump_checks_cursor(after: int) -> str:
    return json.dumps({"version": CURSOR_VERSION, "after": after})


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"


def _slack(text: str) -> str:
    """Slack reads `<…>` as a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
