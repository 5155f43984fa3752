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
CHECKS_VERSION = 2
EVENTS_PER_CHECK = 50
OVERLAP_SECONDS = 60.0
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
    return [_run_sensor(status, send), _isolation_sensor(status, send, now), _check_sensor(status, send, ours, now)]


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


def _check_sensor(
    status: dg.DefaultSensorStatus, send: Send, ours: frozenset[dg.AssetKey], now: Callable[[], float]
) -> dg.SensorDefinition:
    @dg.sensor(
        name=CHECK_SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status,
        description="An asset check of this location failed → the webhook of CHMV_ALERT_URL.",
    )
    def check_failure_alert_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor = load_checks_cursor(context.cursor)
        known = context.repository_def.asset_graph.asset_check_keys if context.repository_def is not None else ()
        seen = read_checks(context.instance, [key for key in known if key.asset_key in ours], cursor)
        fresh = [one for one in seen if cursor is not None and one.number not in cursor.told]
        failed = [one for one in fresh if not one.evaluation.passed]
        origin = context.code_location_origin
        problems = [
            problem
            for alert in check_alerts(failed, origin.location_name if origin else "")
            if (problem := send(alert))
        ]
        told = f"{len(fresh)} check(s) evaluated, {len(failed)} failed"
        if problems:
            told += f", {len(problems)} alert(s) not sent: {problems[0]}"
        if cursor is None:
            told = "begins here; checks from now on are told"
        return dg.SensorResult(skip_reason=dg.SkipReason(told), cursor=next_checks_cursor(cursor, seen, now()).dump())

    return check_failure_alert_sensor


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One check that was evaluated."""

    number: int
    at: float
    run_id: str
    evaluation: dg.AssetCheckEvaluation


@dataclass(frozen=True, slots=True)
class ChecksCursor:
    """Until when evaluations were read, and which of the last ones were: clocks differ, so the end is read twice."""

    at: float
    told: frozenset[int] = frozenset()

    def dump(self) -> str:
        return json.dumps({"version": CHECKS_VERSION, "at": self.at, "told": sorted(self.told)}, separators=(",", ":"))


def read_checks(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], cursor: ChecksCursor | None
) -> list[Evaluated]:
    """What was evaluated lately, oldest first: one read, and one more for every check that was. (Events by number are not for SQLite.)"""
    since = cursor.at - OVERLAP_SECONDS if cursor is not None else 0.0
    found: list[Evaluated] = []
    for key, latest in instance.event_log_storage.get_latest_asset_check_execution_by_key(keys).items():
        if latest.event is None or latest.event.timestamp < since:
            continue
        for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=EVENTS_PER_CHECK):
            event = record.event.dagster_event if record.event is not None else None
            if record.event is None or event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                continue  # planned, and not there yet
            if record.event.timestamp >= since:
                found.append(
                    Evaluated(record.id, record.event.timestamp, record.run_id, event.asset_check_evaluation_data)
                )
    return sorted(found, key=lambda one: (one.at, one.number))


def next_checks_cursor(cursor: ChecksCursor | None, seen: Sequence[Evaluated], now: float) -> ChecksCursor:
    """Where the next tick begins."""
    before = cursor.at if cursor is not None else now
    end = max([before, *(one.at for one in seen)])
    return ChecksCursor(end, frozenset(one.number for one in seen if one.at >= end - OVERLAP_SECONDS))


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


def load_checks_cursor(text: str | None) -> ChecksCursor | None:
    """Where to go on; None: not begun, or the cursor cannot be read.

    >>> load_checks_cursor(ChecksCursor(7.5, frozenset({1})).dump()), load_checks_cursor("x"), load_checks_cursor(None)
    (ChecksCursor(at=7.5, told=frozenset({1})), None, None)
    """
    try:
        document = json.loads(text or "")
        if document["version"] != CHECKS_VERSION:
            return None
        return ChecksCursor(float(document["at"]), frozenset(int(number) for number in document["told"]))
    except (ValueError, KeyError, TypeError):
        return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"


def _slack(text: str) -> str:
    """Slack reads `<…>` as a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
