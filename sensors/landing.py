"""`landing_sensor`: files have landed → one `ingest_job` run per source. It looks at folders, never at ClickHouse.

Read (the folders, and with two queries Dagster's own runs), decide (`landing_verdict`, pure), return. A listing that fails is
told and does not stop the others. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import dagster as dg

from chmv_assets.core.settings import Landing
from chmv_assets.jobs import INGEST_JOB, SOURCE_TAG, ingest_run_config
from chmv_assets.pipeline import Pipeline
from resources.landing_root import resolve_root
from sensors.asking import read_attempts
from sensors.attempts import Attempts
from sensors.landing_verdict import IngestRequest, Present, decide, load_cursor, settle
from sensors.recovery_sensor import status_of

INTERVAL_SECONDS = 30
DIGEST_TAG = "chmv/landing_digest"


def landings_of(pipeline: Pipeline) -> dict[str, Landing]:
    """The declared landings, by source."""
    return {str(name): said.landing for name, said in pipeline.settings.sources if said.landing is not None}


def read_landing(source: str, landing: Landing, ddl_dir: Path, environ: Mapping[str, str], now: float) -> Present:
    """List one landing; what goes wrong is told, not raised."""
    from resources.landing import is_missing, list_entries  # pyarrow: not for each process that loads us

    root = resolve_root(landing.path, ddl_dir, environ)
    if is_missing(root):
        return Present(source=source, root=root, problem="there is no such folder")
    try:
        return settle(source, root, list_entries(root, landing.format), now)
    except Exception as error:  # every object store has errors of its own, and one source must not stop the others
        return Present(source=source, root=root, problem=f"cannot be listed, {type(error).__name__}: {error}")


def build_landing_sensor(
    pipeline: Pipeline, *, running: bool, now: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """The sensor over all declared landings of a pipeline."""
    landings = landings_of(pipeline)

    @dg.sensor(
        name="landing_sensor",
        job_name=INGEST_JOB,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=status_of(running),
        description="Sees new landing files; asks for ingest_job of their source.",
    )
    def landing_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        moment = now()
        present = [read_landing(name, one, pipeline.ddl_dir, os.environ, moment) for name, one in landings.items()]
        verdict = decide(
            present,
            load_cursor(context.cursor),
            now=moment,
            queued=read_queued(context.instance),
            attempts=attempts_of(context.instance, present),
        )
        context.log.info(verdict.told)
        return dg.SensorResult(
            run_requests=[run_request(request) for request in verdict.requests],
            skip_reason=None if verdict.requests else dg.SkipReason(verdict.told),
            cursor=verdict.cursor.dump(),
        )

    return landing_sensor


def read_queued(instance: dg.DagsterInstance) -> set[str]:
    """Sources with an ingest that has not begun; it will list the folder itself when it does."""
    waiting = instance.get_runs(dg.RunsFilter(job_name=INGEST_JOB, statuses=[dg.DagsterRunStatus.QUEUED]))
    return {run.tags[SOURCE_TAG] for run in waiting if SOURCE_TAG in run.tags}


def attempts_of(instance: dg.DagsterInstance, landings: Sequence[Present]) -> dict[str, Attempts]:
    """How the runs went that were asked for with the present digests, by source."""
    digests = {present.digest: present.source for present in landings if present.files}
    found = read_attempts(instance, INGEST_JOB, DIGEST_TAG, digests)
    return {digests[digest]: attempts for digest, attempts in found.items()}


def run_request(request: IngestRequest) -> dg.RunRequest:
    """The run that ingests one source; its tags say what the sensor saw."""
    return dg.RunRequest(
        run_key=request.run_key,
        run_config=ingest_run_config(request.source),
        tags={
            SOURCE_TAG: request.source,
            "chmv/landing_files": str(request.files),
            "chmv/landing_bytes": str(request.bytes),
            DIGEST_TAG: request.digest,
        },
    )
