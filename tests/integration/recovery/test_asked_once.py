"""The same evidence is repaired once: a tick evaluated twice, two daemons at once on one instance, and a run that is run again by hand."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.sensor import execute_sensor_iteration
from view_scene import Scene
from view_site import insert

from chmv_assets.jobs import ASK_TAG, DUPLICATE_TAG, RECOVERY_JOB, recovery_run_config
from sensors.view_health import NAME

pytestmark = pytest.mark.timeout(240)
LOCATION = "from chmv_assets.definitions import build_definitions, load_declared\n\ndefs = build_definitions(load_declared())\n"


def test_a_tick_evaluated_twice_asks_for_the_same_run_and_a_second_run_changes_nothing(scene: Scene) -> None:
    right = scene.evaluate(None)
    assert not right.run_requests, right.skip_message
    scene.site.run("DROP TABLE {db}.daily_mv SYNC")
    insert(scene.site.server, scene.site.database, 2, [])
    (first,), (again,) = (scene.evaluate(right.cursor).run_requests for _ in range(2))
    assert first.run_key == again.run_key, "the daemon makes one run of a key"
    assert first.tags["chmv/damage"] == "dropped"

    ask = first.run_config["ops"]["recover"]["config"]["ask"]
    assert scene.run(ask, dict(first.tags)).success
    assert scene.site.differences() == []
    later = scene.evaluate(right.cursor)  # as if the daemon had died before it kept the cursor
    assert not later.run_requests
    assert "daily_mv: rows missed" not in later.skip_message

    parts, repairs = scene.parts(), scene.repairs()
    by_hand = scene.run(ask)
    assert by_hand.success
    (output,) = [one for one in by_hand.all_events if one.event_type == dg.DagsterEventType.STEP_OUTPUT]
    assert "nothing was changed" in output.step_output_data.metadata["chmv/steps"].value
    assert (scene.parts(), scene.repairs()) == (parts, repairs)

    scene.site.run("DROP TABLE {db}.daily_mv SYNC")  # it is wrong again: then a second run by hand does repair
    insert(scene.site.server, scene.site.database, 3, [])
    assert scene.run(ask).success
    assert scene.site.differences() == []


@pytest.mark.thorough
def test_two_daemons_at_once_repair_once(scene: Scene) -> None:
    location = scene.folder / "location.py"
    location.write_text(LOCATION)
    target = PythonFileTarget(
        python_file=str(location), attribute=None, working_directory=str(Path.cwd()), location_name="chmv"
    )
    log = logging.getLogger("two_daemons")
    with ExitStack() as ending:
        instances = [
            scene.instance,
            ending.enter_context(dg.DagsterInstance.from_ref(scene.instance.get_ref())),
        ]
        daemons = [ending.enter_context(create_test_daemon_workspace_context(target, one)) for one in instances]
        (repository,) = daemons[0].create_request_context().get_code_location("chmv").get_repositories().values()
        scene.instance.start_sensor(repository.get_sensor(NAME))
        list(execute_sensor_iteration(daemons[0], log, None, None))
        (seen,) = ticks(scene)
        assert "all right" in str(seen.tick_data.skip_reason), seen

        scene.site.run("DROP TABLE {db}.daily_mv SYNC")
        insert(scene.site.server, scene.site.database, 2, [])
        threading.Event().wait(5.2)  # the sensor's interval
        together(*[lambda daemon=one: list(execute_sensor_iteration(daemon, log, None, None)) for one in daemons])
        threading.Event().wait(5.2)
        list(execute_sensor_iteration(daemons[1], log, None, None))

    job = InMemoryJob(scene.definitions.resolve_job_def(RECOVERY_JOB))
    for run in scene.runs():  # the newest first: a run that was made twice is begun in the wrong order
        execute_run(job, run, scene.instance)
    runs = scene.runs()
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    assert len({run.tags[ASK_TAG] for run in runs}) == 1
    assert len([run for run in runs if DUPLICATE_TAG not in run.tags]) == 1, [run.tags for run in runs]
    assert [row[:3] for row in scene.repairs()] == [(f"{scene.site.database}.daily_mv", "dropped", "repaired")]
    assert scene.site.rows("SELECT count() FROM chmv.recoveries WHERE status = 'running'")[0][0] in (0, 1)
    assert scene.site.differences() == []
    print(f"runs: {len(runs)}, of them duplicates: {sum(DUPLICATE_TAG in run.tags for run in runs)}")


def test_a_duplicate_run_steps_back_and_does_not_count(scene: Scene) -> None:
    """Dagster looks for a run of the key before it makes one; two daemons may look at the same moment."""
    right = scene.evaluate(None)
    scene.site.run("DROP TABLE {db}.daily_mv SYNC")
    (request,) = scene.evaluate(right.cursor).run_requests
    ask = request.run_config["ops"]["recover"]["config"]["ask"]
    tags = {**request.tags, "dagster/run_key": request.run_key}
    job = scene.definitions.resolve_job_def(RECOVERY_JOB)
    first = scene.instance.create_run_for_job(
        job_def=job, run_config=recovery_run_config(ask), tags=tags, status=dg.DagsterRunStatus.STARTED
    )
    duplicate = scene.run(ask, tags)
    assert duplicate.dagster_run.run_id != first.run_id
    (found,) = [run for run in scene.runs() if run.run_id == duplicate.dagster_run.run_id]
    assert found.tags[DUPLICATE_TAG] == first.run_id
    assert scene.repairs() == [], "it did nothing"
    told = scene.evaluate(right.cursor)
    assert not told.run_requests
    assert "daily_mv: dropped, under repair" in told.skip_message
    scene.instance.report_run_failed(first)
    assert scene.run(ask, tags).success, "the first one has failed: this one is no duplicate"
    assert [row[2] for row in scene.repairs()] == ["repaired"]


def ticks(scene: Scene) -> list[Any]:
    (state,) = scene.instance.all_instigator_state()
    return list(scene.instance.get_ticks(state.instigator_origin_id, state.selector_id))


def together(*works: Any) -> None:
    """Begin all at the same moment; raise what one of them raised."""
    barrier, wrong = threading.Barrier(len(works)), []

    def go(work: Any) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=go, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if wrong:
        raise wrong[0]
