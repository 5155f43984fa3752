"""The reaper on a real instance: a run worker as Dagster starts it, killed with -9; and everything that must be left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._grpc.types import ExecuteRunArgs

from chmv_assets.pipeline import DEMO_DDL, load_pipeline
from resources.processes import is_running, this_host
from sensors.reaper import HOST_TAG, NAME, build_reaper_sensor
from sensors.reaper_verdict import Cursor, StartedRun, decide, load_cursor

GRPC = {".dagster/grpc_info": json.dumps({"host": "localhost", "socket": "/tmp/x"})}
OVERRIDES = {"run_retries": {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False}}


@dataclass
class Site:
    """An instance, the sensor, its cursor."""

    folder: Path
    instance: dg.DagsterInstance
    cursor: str | None = None

    def tick(self, host: str | None = None) -> Any:
        definitions = dg.Definitions(sensors=[build_reaper_sensor(load_pipeline(DEMO_DDL), running=True, host=host)])
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor, definitions=definitions) as context:
            data = definitions.resolve_sensor_def(NAME).evaluate_tick(context)
        self.cursor = data.cursor
        return data

    def start(self, tags: dict[str, str]) -> tuple[str, subprocess.Popen[bytes]]:
        """A run in a process of its own, by the command that Dagster's launchers use; returns when its op runs."""
        job = dg.reconstructable(waiting_job())
        origin = job.get_python_origin()
        run = self.instance.create_run_for_job(
            job_def=job.get_definition(), tags=tags, status=dg.DagsterRunStatus.STARTING, job_code_origin=origin
        )
        arguments = ExecuteRunArgs(job_origin=origin, run_id=run.run_id, instance_ref=self.instance.get_ref())
        command = arguments.get_command_args()
        started, said = self.folder / f"{run.run_id}.pid", self.folder / f"{run.run_id}.log"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dagster", *command[command.index("api") :]],
                env=os.environ | {"ORPHAN_STARTED": str(started), "PYTHONPATH": str(Path(__file__).parent)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 120
        while not started.exists():
            assert process.poll() is None, said.read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return run.run_id, process

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status


def waiting_job() -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from orphan_location import waiting_job as job
    finally:
        sys.path.pop(0)
    return job


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(overrides=OVERRIDES, temp_dir=str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Site]:
    yield Site(tmp_path, instance)
    for run in instance.get_runs():
        instance.delete_run(run.run_id)


def test_a_killed_run_is_failed_after_two_ticks_and_will_be_retried(site: Site) -> None:
    run_id, process = site.start(GRPC)
    try:
        assert "1 on" in site.tick().skip_message
        site.tick()
        assert site.status(run_id) == dg.DagsterRunStatus.STARTED, "it lives"
    finally:
        process.kill()
        process.wait(30)
    assert site.status(run_id) == dg.DagsterRunStatus.STARTED, "nobody has noticed: this is what the reaper is for"
    assert "1 get one more tick" in site.tick().skip_message
    assert site.status(run_id) == dg.DagsterRunStatus.STARTED
    assert f"run {run_id} failed: process {process.pid} is gone" in site.tick().skip_message
    run = site.instance.get_run_by_id(run_id)
    assert run is not None
    assert (run.status, run.tags["dagster/will_retry"]) == (dg.DagsterRunStatus.FAILURE, "true")
    assert "0 run(s) started" in site.tick().skip_message


def fake_run(site: Site, pid: int, tags: dict[str, str]) -> str:
    """A started run that said that it is that process."""
    run = site.instance.create_run_for_job(job_def=waiting_job(), tags=tags, status=dg.DagsterRunStatus.STARTED)
    site.instance.report_engine_event(f"Started process for run (pid: {pid}).", run)
    return run.run_id


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait(30)
    return process.pid


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param({}, id="nothing says where it was started"),
        pytest.param({HOST_TAG: "another-host", **GRPC}, id="its tag names another host"),
        pytest.param({".dagster/grpc_info": json.dumps({"host": "code.example", "port": 4000})}, id="a code server elsewhere"),
        pytest.param({".dagster/grpc_info": "[]"}, id="an unreadable tag"),
    ],
)  # fmt: skip
def test_runs_of_other_hosts_are_left_alone(site: Site, dead_pid: int, tags: dict[str, str]) -> None:
    run_id = fake_run(site, dead_pid, tags)
    for _ in range(4):
        site.tick()
    assert site.status(run_id) == dg.DagsterRunStatus.STARTED


def test_a_tag_of_this_host_is_enough(site: Site, dead_pid: int) -> None:
    run_id = fake_run(site, dead_pid, {HOST_TAG: this_host()})
    site.tick()
    site.tick()
    assert site.status(run_id) == dg.DagsterRunStatus.FAILURE


def test_a_run_without_a_process_of_its_own_is_left_alone(site: Site) -> None:
    run = site.instance.create_run_for_job(job_def=waiting_job(), tags=GRPC, status=dg.DagsterRunStatus.STARTED)
    for _ in range(3):
        site.tick()
    assert site.status(run.run_id) == dg.DagsterRunStatus.STARTED


def test_a_tick_that_is_evaluated_twice_fails_a_run_once(site: Site, dead_pid: int) -> None:
    run_id = fake_run(site, dead_pid, GRPC)
    site.tick()
    before = site.cursor
    site.tick()
    site.cursor = before
    site.tick()
    failures = site.instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
    assert len(failures) == 1


def test_a_process_that_got_the_id_later_is_another_one() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert is_running(process.pid, time.time())
        assert not is_running(process.pid, time.time() - 3_600)
    finally:
        process.kill()
        deadline = time.monotonic() + 10
        while is_running(process.pid, time.time()):  # a zombie until we wait for it
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.wait(30)
    assert not is_running(process.pid, time.time())


def test_what_another_host_counted_does_not_count_here() -> None:
    gone = StartedRun(run_id="r", pid=7, alive=False, addressed_here=True)
    first = decide([gone], Cursor(host="h"))
    assert first.orphans == ()
    assert decide([gone], load_cursor(first.cursor.dump(), "h")).orphans == (gone,)
    assert decide([gone], load_cursor(first.cursor.dump(), "other")).orphans == ()


def test_a_process_that_comes_back_starts_the_count_anew() -> None:
    dead = StartedRun(run_id="r", pid=7, alive=False, addressed_here=True)
    living = StartedRun(run_id="r", pid=7, addressed_here=True)
    cursor = Cursor(host="h")
    for run in (dead, living, dead):
        verdict = decide([run], cursor)
        assert verdict.orphans == ()
        cursor = verdict.cursor


@pytest.mark.parametrize("text", [None, "", "nonsense", "[]", '{"version":9,"host":"h","dead":{}}'])
def test_a_cursor_that_cannot_be_used_is_started_afresh(text: str | None) -> None:
    assert load_cursor(text, "h") == Cursor(host="h")
