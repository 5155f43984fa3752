"""`reaper_sensor`: runs that are called started while their process is dead → failed, so that Dagster's run retries take over.

Dagster itself notices a run worker that dies, as long as its code server lives. If the whole host goes down, such a run stays started for
ever and keeps its slot. Read (Dagster's runs, this host's processes), decide (`reaper_verdict`, pure), report. It asks ClickHouse for
nothing. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import json
import re
from collections.abc import Callable

import dagster as dg

from chmv_assets.pipeline import Pipeline
from resources.processes import is_running, this_host
from sensors.reaper_verdict import StartedRun, decide, load_cursor
from sensors.recovery_sensor import status_of

NAME = "reaper_sensor"
INTERVAL_SECONDS = 30
HOST_TAG = "chmv/host"  # for launchers of one's own; only the run's process knows it, who asks for a run does not
MAX_RUNS = 200
_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")
_GRPC_TAG = ".dagster/grpc_info"  # where the launcher found the code server that starts the run's process
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

IsRunning = Callable[[int, float], bool]


def build_reaper_sensor(
    pipeline: Pipeline, *, running: bool, host: str | None = None, alive: IsRunning = is_running
) -> dg.SensorDefinition:
    """The sensor over the runs of this location (of whatever pipeline: a run's process is looked at, not what it does)."""
    here = host or this_host()

    @dg.sensor(
        name=NAME,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status_of(running),
        description=f"Sees runs (of {pipeline.ddl_dir.name}, on this host) whose process is gone; marks them as failed, so that Dagster retries them.",
    )
    def reaper_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        origin = context.code_location_origin
        runs = read_started(context.instance, origin.location_name if origin else None, here, alive)
        verdict = decide(runs, load_cursor(context.cursor, here))
        told = [verdict.told]
        for orphan in verdict.orphans:
            if report_orphan(context.instance, orphan, here):
                told.append(f"run {orphan.run_id} failed: process {orphan.pid} is gone")
        context.log.info("; ".join(told))
        return dg.SensorResult(skip_reason=dg.SkipReason("; ".join(told)), cursor=verdict.cursor.dump())

    return reaper_sensor


def read_started(
    instance: dg.DagsterInstance, location: str | None, host: str, alive: IsRunning = is_running
) -> list[StartedRun]:
    """The started runs of a location, the oldest first, each with what is known of its process."""
    asked = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    runs = [run for run in instance.get_runs(asked, limit=MAX_RUNS, ascending=True) if _is_of(run, location)]
    launched_by_daemon = isinstance(instance.run_coordinator, dg.QueuedRunCoordinator)
    return [_read(instance, run, launched_by_daemon, host, alive) for run in runs]


def _is_of(run: dg.DagsterRun, location: str | None) -> bool:
    origin = run.remote_job_origin
    return location is None or origin is None or origin.repository_origin.code_location_origin.location_name == location


def _read(
    instance: dg.DagsterInstance, run: dg.DagsterRun, launched_by_daemon: bool, host: str, alive: IsRunning
) -> StartedRun:
    found = read_process(instance, run.run_id)
    return StartedRun(
        run_id=run.run_id,
        pid=found[0] if found else None,
        alive=alive(*found) if found else True,
        tagged=run.tags.get(HOST_TAG, ""),
        addressed_here=launched_by_daemon and grpc_host(run) in {*_LOOPBACK, host},
    )


def read_process(instance: dg.DagsterInstance, run_id: str) -> tuple[int, float] | None:
    """The process of a run and when it said so; the latest if it was resumed."""
    events = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT, ascending=False).records
    for record in events:
        event = record.event_log_entry.dagster_event
        match = _STARTED.search((event.message if event else None) or "")
        if match:
            return int(match.group(1)), record.timestamp
    return None


def grpc_host(run: dg.DagsterRun) -> str:
    """Where the code server was that started the run; nothing if the launcher did not say."""
    try:
        return str(json.loads(run.tags.get(_GRPC_TAG, ""))["host"])
    except (ValueError, KeyError, TypeError):
        return ""


def report_orphan(instance: dg.DagsterInstance, orphan: StartedRun, host: str) -> bool:
    """Fail a run, unless it has ended by itself meanwhile."""
    run = instance.get_run_by_id(orphan.run_id)
    if run is None or run.status != dg.DagsterRunStatus.STARTED:
        return False
    instance.report_run_failed(
        run, f"orphaned: process {orphan.pid} of this run is gone from {host}, seen by {NAME} in two ticks"
    )
    return True
