"""SIGKILL after each step of a deployment, in turn, under writers; then it is resumed, or taken back: the same end as without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_changes import CHANGES
from deploy_stage import ALL, Stage
from leases import age_leases

from chmv_assets.core.deploy.codec import encode_plan
from chmv_assets.core.errors import DeployRefused
from chmv_assets.deploy import make_rollback, open_applier

ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("deploy_crash_driver.py")
THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))
CASES = ("column_through_the_chain", "changed_order_by", "merged_targets")
STRIDE = 8  # of steps to die after; with all first ones of a stride, that is every step
PAUSE = 0.05  # of each writer: the processor is for the deployments that follow one another
FIRSTS = range(1, STRIDE + 1) if THOROUGH else (1,)


def drive(stage: Stage, tmp_path: Path, steps: int) -> tuple[int, list[str]]:
    """One deployment in a process of its own; gives its exit code and the steps that it told."""
    path = tmp_path / "plan.json"
    path.write_text(encode_plan(stage.plan()), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(DRIVER), stage.endpoint.url, str(path), str(steps)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -9), done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("end", ["resumed", pytest.param("taken back", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", CASES if THOROUGH else CASES[1:2])
def test_killed_after_each_step(stage: Stage, tmp_path: Path, name: str, end: str, first: int) -> None:
    before = dict(stage.files)
    begin = first if THOROUGH or end == "resumed" else first + STRIDE // 2
    for killed, step in enumerate(range(begin, 200, STRIDE)):
        with stage.writers("src", PAUSE):
            CHANGES[name](stage)
            code, told = drive(stage, tmp_path, step)
            age_leases(stage.server.rows, stage.server.command)
            applier = open_applier(stage.server, lambda _line: None)
            if told[-1].startswith("done"):  # and in the journal as such
                code = 0
            if code == -9 and end == "resumed":
                with pytest.raises(DeployRefused, match="unfinished"):
                    applier.apply(stage.plan(), ALL)
                applier.resume()
            elif code == -9:
                applier.apply(make_rollback(stage.server), ALL)
                stage.files = dict(before)
        try:
            stage.check()
        except AssertionError as error:
            raise AssertionError(f"killed after step {step}, {told[-1]}, {end}: {error}") from error
        if code == 0:
            assert killed >= (1 if THOROUGH else 2)
            return
        if end == "resumed":  # and back, to begin again
            stage.files = dict(before)
            stage.apply(stage.plan())
    raise AssertionError("a deployment of more than 200 steps")


def test_taken_back_when_it_is_done(stage: Stage) -> None:
    before = dict(stage.files)
    with stage.writers("src"):
        CHANGES["several_at_once"](stage)
        stage.apply(stage.plan())
        plan = make_rollback(stage.server)
        open_applier(stage.server, lambda _line: None).apply(plan, ALL)
    stage.files = before
    stage.check()


def test_table_that_was_put_aside_comes_back_with_its_rows(stage: Stage) -> None:
    stage.server.command(f"CREATE TABLE {stage.database}.notes (x UInt8) ENGINE = MergeTree ORDER BY x")
    stage.files["80_notes"] = "CREATE TABLE {db}.notes (x UInt8) ENGINE = MergeTree ORDER BY x;"
    stage.files["81_other"] = "CREATE TABLE {db}.other (x UInt8) ENGINE = MergeTree ORDER BY x;"
    stage.apply(stage.plan())
    stage.server.command(f"INSERT INTO {stage.database}.notes VALUES (1), (2)")
    del stage.files["80_notes"]
    plan = stage.plan()
    assert [(change.action, change.risk) for change in plan.changes] == [("drop", "destructive")]
    applied = stage.apply(plan)
    assert [name.table for name in applied.kept] == [f"kept.{applied.deploy_id}.{stage.database}.notes"]
    open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)
    assert stage.server.rows(f"SELECT count() FROM {stage.database}.notes") == [(2,)]
