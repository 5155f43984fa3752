"""Cutovers that share nothing go side by side, under writers of both; what fails in one leaves the other whole."""

from __future__ import annotations

import threading

import pytest
from deploy_stage import DEDUP, Stage

from chmv_assets.core.errors import ChmvError
from resources.deploy import Progress

OTHER = f"""
CREATE TABLE {{db}}.other (id UInt64, ts DateTime('UTC')) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id {DEDUP};
CREATE TABLE {{db}}.hours (hour UInt8, n UInt64) ENGINE = SummingMergeTree ORDER BY hour {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.hours_mv TO {{db}}.hours AS SELECT toHour(ts) AS hour, count() AS n FROM {{db}}.other GROUP BY hour;
"""


def begin(stage: Stage) -> None:
    stage.files["70_other"] = OTHER
    stage.apply(stage.plan())
    stage.server.command(
        f"INSERT INTO {stage.database}.other SELECT number, toDateTime('2026-08-01 00:00:00', 'UTC') + number * 60 FROM numbers(3000)"
    )
    stage.edit("70_other", ("count() AS n", "count() * 2 AS n"))
    stage.edit("30_daily", ("sum(amount) AS amount", "sum(amount * 2) AS amount"))  # and monthly behind it


def test_two_cutovers_at_once(stage: Stage) -> None:
    begin(stage)
    threads: dict[str, set[int]] = {}
    begun: list[int] = []

    def on_progress(progress: Progress) -> None:
        assert progress.side_by_side
        if progress.step:
            threads.setdefault(progress.title, set()).add(threading.get_ident())
        elif progress.done < progress.of:
            begun.append(progress.begun)

    lines: list[str] = []
    with stage.writers():
        plan = stage.plan()
        assert len(plan.cutovers) == 2
        applied = stage.apply(plan, on_progress, lines.append)
    stage.check()
    assert applied.units == 2 and begun == [1, 2]
    assert len(set.union(*threads.values())) == 2  # each in a thread of its own
    compared = [line for line in lines if line.endswith("keys are equal")]
    assert len(compared) == 3, lines  # daily and hours before the gate, monthly behind it


def test_one_that_fails_is_taken_back_and_resumed(stage: Stage) -> None:
    begin(stage)
    plan = stage.plan()

    def on_progress(progress: Progress) -> None:
        if "hours" in progress.title and progress.step.startswith("publish"):
            raise ChmvError("disturbed by the test")

    with pytest.raises(ChmvError, match="disturbed by the test"):
        stage.apply(plan, on_progress)
    assert stage.server.rows(f"SELECT sum(n) FROM {stage.database}.hours") == [(3000,)]  # as before
    stage.resume()
    stage.check()


@pytest.mark.parametrize("arrives", [False, True])
def test_views_over_new_tables_are_only_created_unless_a_writer_is_faster(stage: Stage, arrives: bool) -> None:
    stage.files["70_other"] = OTHER
    plan, steps = stage.plan(), []

    def on_progress(progress: Progress) -> None:
        steps.append(progress.step.partition(":")[0])
        if (
            arrives and progress.title.startswith("cut over") and not progress.step
        ):  # the table is there, its view is not
            stage.server.command(f"INSERT INTO {stage.database}.other VALUES (1, '2026-08-01 05:00:00')")

    applied = stage.apply(plan, on_progress)
    assert ("shut gate" in steps) == arrives == (applied.gate_seconds > 0)
    stage.server.command(f"INSERT INTO {stage.database}.other VALUES (2, '2026-08-01 05:00:00')")
    stage.check()
    assert stage.server.rows(f"SELECT sum(n) FROM {stage.database}.hours") == [(1 + arrives,)]
