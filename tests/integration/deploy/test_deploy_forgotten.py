"""Sources with a TTL: what they have forgotten stays in their targets as it is, under live writers; what cannot stay is left to people before anything begins."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from deploy_changes import CHANGES
from deploy_stage import ALL, Stage

from chmv_assets.core.deploy.changes import Plan
from chmv_assets.core.errors import ChmvError, DeployRefused
from chmv_assets.core.names import QName
from chmv_assets.deploy import catalog_of, make_rollback, open_applier
from chmv_assets.pipeline import load_pipeline
from resources.deploy import DeployStore, Progress
from resources.deploy.cutover import _remember
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild import Rebuilder
from resources.reconcile import Reconciler

EDGE = datetime(2026, 7, 31, 12, tzinfo=timezone.utc)  # in the second of four days of history
OLD, NEW = ("2026-07-30", "2026-07-31"), ("2026-08-01", "2026-08-02")


def forget(stage: Stage) -> None:
    """The source forgets what is older than the edge: declared, deployed, and the rows are gone. None is so young that it would go during the test."""
    source = f"{stage.database}.src"
    around = f"ts BETWEEN '{EDGE - timedelta(hours=1):%Y-%m-%d %H:%M:%S}' AND '{EDGE + timedelta(hours=3):%Y-%m-%d %H:%M:%S}'"
    stage.server.command(f"ALTER TABLE {source} DELETE WHERE {around} SETTINGS mutations_sync = 2")
    hours = int((datetime.now(timezone.utc) - EDGE).total_seconds() // 3600)
    stage.edit("10_source", ("ORDER BY id SETTINGS", f"ORDER BY id TTL ts + INTERVAL {hours} HOUR SETTINGS"))
    stage.apply(stage.plan())
    stage.server.command(f"OPTIMIZE TABLE {stage.database}.src FINAL")
    deadline = time.monotonic() + 30
    while stage.server.rows(f"SELECT count() FROM {source} WHERE ts < '{EDGE:%Y-%m-%d %H:%M:%S}'") != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stage.sent = {int(one) for (one,) in stage.server.rows(f"SELECT id FROM {source}")}
    assert 10_000 < len(stage.sent) < 30_000


def days(stage: Stage, table: str, *columns: str) -> dict[str, tuple[int, ...]]:
    sums = ", ".join(f"sum({column})" for column in columns)
    rows = stage.server.rows(f"SELECT toString(day), {sums} FROM {stage.database}.{table} GROUP BY day")
    return {str(day): tuple(map(int, values)) for day, *values in rows}


def whats(plan: Plan) -> dict[str, tuple[int, int]]:
    return {one.how: (one.partitions, one.rows) for one in plan.touched if one.name.table == "daily"}


def check_ids(stage: Stage) -> None:
    """Nothing lost and nothing doubled of what the source remembers."""
    assert not stage.errors and not stage.holes
    ids, rows = stage.server.rows(f"SELECT groupUniqArray(id), count() FROM {stage.database}.src")[0]
    assert set(ids) == stage.sent and rows == len(stage.sent)
    assert stage.plan().is_empty


def status(stage: Stage, table: str) -> str:
    pipeline = load_pipeline(stage.folder)
    return (
        Reconciler(stage.server, pipeline.catalog, "UTC")
        .run(pipeline.catalog.objects[QName(stage.database, table)], None)
        .status
    )


def test_a_changed_query_counts_for_what_the_source_still_holds(stage: Stage) -> None:
    before = days(stage, "daily", "events", "amount")
    forget(stage)
    CHANGES["changed_aggregate"](stage)
    plan = stage.plan()
    assert plan.risk == "rewrites data"
    (stays,) = [how for how in whats(plan) if "stays as it is" in how]
    assert "src keeps rows only since 2026-07-31 1" in stays and whats(plan)[stays] == (2, 8)
    lines: list[str] = []
    with stage.writers():
        stage.apply(plan, log=lines.append)
    check_ids(stage)
    after = days(stage, "daily", "events", "amount")
    assert {day: after[day] for day in OLD} == {day: before[day] for day in OLD}
    truth = stage.server.rows(
        f"SELECT toString(toDate(ts)) AS day, count(), sum(amount * 2) FROM {stage.database}.src WHERE ts >= '2026-08-01' GROUP BY day"
    )
    assert {day: values for day, values in after.items() if day not in OLD} == {day: (n, a) for day, n, a in truth}
    assert any("daily: 2 partition(s) with 8 rows stay as they are, since" in line for line in lines), lines
    assert status(stage, "monthly") == "equal"  # all of what is computed from it, the old days included


def test_a_rollback_leaves_alone_what_was_left_alone(stage: Stage) -> None:
    before = days(stage, "daily", "events", "amount")
    forget(stage)
    CHANGES["changed_aggregate"](stage)
    stage.apply(stage.plan())
    open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)
    assert days(stage, "daily", "events", "amount") == before


def test_a_new_view_gets_what_the_source_still_holds(stage: Stage) -> None:
    forget(stage)
    CHANGES["new_view_and_target"](stage)
    plan = stage.plan()
    assert plan.risk == "safe"
    with stage.writers():
        stage.apply(plan)
    check_ids(stage)
    truth = stage.server.rows(f"SELECT toString(toDate(ts)) AS day, count() FROM {stage.database}.src GROUP BY day")
    assert days(stage, "kinds", "events") == {day: (count,) for day, count in truth}


def test_a_column_goes_through_a_chain_whose_source_forgets(stage: Stage) -> None:
    before = days(stage, "daily", "events", "amount")
    forget(stage)
    CHANGES["column_through_the_chain"](stage)
    with stage.writers():
        stage.apply(stage.plan())
    check_ids(stage)
    after = days(stage, "daily", "events", "amount", "web")
    assert {day: after[day] for day in OLD} == {day: (*before[day], 0) for day in OLD}
    assert all(after[day][0] == after[day][2] > 0 for day in NEW)
    assert status(stage, "monthly") == "equal"


@pytest.mark.parametrize("change", ["changed_order_by", "changed_partition_by", "changed_engine"])
def test_another_table_would_lose_it_and_is_left_to_people(stage: Stage, change: str) -> None:
    forget(stage)
    CHANGES[change](stage)
    plan = stage.plan()
    (daily,) = [one for one in plan.changes if one.name.table == "daily"]
    assert daily.risk == "manual" and "has to become another table, but" in daily.why and not plan.cutovers
    assert "2 partition(s)" in daily.why and "8 rows reach further back" in daily.why
    records = DeployStore(Journal(stage.server)).read()
    with pytest.raises(DeployRefused, match=r"cannot be changed by chmv .* Nothing was changed"):
        stage.apply(plan)
    assert DeployStore(Journal(stage.server)).read() == records, "nothing is left that would have to be taken back"


def test_a_target_without_time_is_left_to_people_unless_it_is_empty(stage: Stage) -> None:
    stage.files["70_kinds"] = """
CREATE TABLE {db}.kinds (kind UInt8, events UInt64) ENGINE = SummingMergeTree ORDER BY kind;
CREATE MATERIALIZED VIEW {db}.kinds_mv TO {db}.kinds AS SELECT kind, count() AS events FROM {db}.src GROUP BY kind;
"""
    stage.apply(stage.plan())
    forget(stage)
    stage.edit("70_kinds", ("count() AS events", "count() * 2 AS events"))
    (change,) = stage.plan().changes
    assert change.risk == "manual" and "do not tell which of its 3 rows are older" in change.why
    stage.server.command(f"TRUNCATE TABLE {stage.database}.kinds")
    stage.apply(stage.plan())
    assert stage.server.rows(f"SELECT sum(events) FROM {stage.database}.kinds") == [(2 * len(stage.sent),)]


def test_what_the_source_forgets_between_plan_and_apply_is_seen(stage: Stage) -> None:
    forget(stage)
    CHANGES["changed_order_by"](stage)
    stage.server.command(
        f"ALTER TABLE {stage.database}.daily DROP PARTITION ID '20260730', DROP PARTITION ID '20260731'"
    )
    plan = stage.plan()
    assert plan.cutovers
    soon = datetime.now(timezone.utc) + timedelta(days=1)
    for now, is_lost in ((soon, True), (datetime.now(timezone.utc), False)):
        bench = Rebuilder(Executor(stage.server), catalog_of(plan), "UTC", lambda now=now: now)  # type: ignore[misc]
        if is_lost:
            with pytest.raises(DeployRefused, match=r"has to become another table, but .* Nothing was changed"):
                _remember(bench, plan.cutovers[0])
        else:
            assert _remember(bench, plan.cutovers[0]).forgotten(plan.cutovers[0].targets) == {}


def failing(progress: Progress) -> None:
    if progress.step.startswith("publish"):
        raise ChmvError("on purpose")


def test_a_way_back_that_failed_is_gone_again_not_taken_back(stage: Stage) -> None:
    before = days(stage, "daily", "events", "amount")
    stage.apply(stage.plan())
    CHANGES["changed_aggregate"](stage)
    applier, store = open_applier(stage.server, lambda _line: None, failing), DeployStore(Journal(stage.server))
    with pytest.raises(ChmvError, match="on purpose"):
        applier.apply(stage.plan(), ALL)
    deploy = store.read(1)[0].deploy_id
    for _ in range(2):
        back = make_rollback(stage.server)
        assert back.rolls_back == deploy
        with pytest.raises(ChmvError, match="on purpose"):
            applier.apply(back, ALL)
    assert len(store.read(statuses=("failed",))) >= 3
    done = open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)
    newest = {one.deploy_id: (one.status, one.detail) for one in store.read(4)}
    assert newest.pop(done.deploy_id) == ("done", "") and newest.pop(deploy) == ("rolled_back", "taken back")
    assert set(newest.values()) == {("rolled_back", "given up")}
    assert store.unfinished([QName(stage.database, "daily")]) is None
    assert days(stage, "daily", "events", "amount") == before
    stage.edit("30_daily", ("sum(amount * 2) AS amount", "sum(amount) AS amount"))
    stage.check()


def test_taking_back_a_way_back_that_failed_returns_to_a_deployment_that_was_done(stage: Stage) -> None:
    CHANGES["changed_aggregate"](stage)
    done = stage.apply(stage.plan()).deploy_id
    back = make_rollback(stage.server)
    assert back.rolls_back == done
    with pytest.raises(ChmvError, match="on purpose"):
        open_applier(stage.server, lambda _line: None, failing).apply(back, ALL)
    again = make_rollback(stage.server)
    assert again.rolls_back not in (done, "")
    open_applier(stage.server, lambda _line: None).apply(again, ALL)
    stage.check()


def drop_oldest(stage: Stage) -> dict[str, tuple[int, ...]]:
    """Retention by hand: the source's oldest partition is dropped, the target keeps what it gave."""
    before = days(stage, "daily", "events", "amount")
    stage.server.command(f"ALTER TABLE {stage.database}.src DROP PARTITION ID '20260730'")
    stage.sent = {int(one) for (one,) in stage.server.rows(f"SELECT id FROM {stage.database}.src")}
    return before


def test_what_was_dropped_of_the_source_by_hand_stays_in_the_target(stage: Stage) -> None:
    before = drop_oldest(stage)
    CHANGES["changed_aggregate"](stage)
    plan = stage.plan()
    (stays,) = [how for how in whats(plan) if "stays as it is" in how]
    assert stays.endswith(".src has no rows before 2026-07-31 00:00") and whats(plan)[stays] == (1, 4)
    with stage.writers():
        stage.apply(plan)
    check_ids(stage)
    after = days(stage, "daily", "events", "amount")
    assert after["2026-07-30"] == before["2026-07-30"]
    truth = stage.server.rows(
        f"SELECT toString(toDate(ts)) AS day, count(), sum(amount * 2) FROM {stage.database}.src GROUP BY day"
    )
    assert {day: values for day, values in after.items() if day != "2026-07-30"} == {day: (n, a) for day, n, a in truth}
    assert status(stage, "monthly") == "equal"


def test_a_source_that_was_emptied_takes_nothing_from_its_target(stage: Stage) -> None:
    before = days(stage, "daily", "events", "amount")
    stage.server.command(f"TRUNCATE TABLE {stage.database}.src")
    CHANGES["changed_aggregate"](stage)
    assert any(how.endswith(".src holds no rows") for how in whats(stage.plan()))
    stage.apply(stage.plan())
    assert days(stage, "daily", "events", "amount") == before and status(stage, "monthly") == "equal"


def test_another_table_would_lose_what_was_dropped_of_the_source(stage: Stage) -> None:
    drop_oldest(stage)
    CHANGES["changed_order_by"](stage)
    (daily,) = [one for one in stage.plan().changes if one.name.table == "daily"]
    assert daily.risk == "manual" and ".src has no rows before 2026-07-31 00:00, and 1 partition(s)" in daily.why


def test_what_a_new_query_leaves_out_goes(stage: Stage) -> None:
    """The source holds these rows, so that they are not in the target any more is what is wanted."""
    stage.edit("30_daily", ("FROM {db}.src GROUP BY", "FROM {db}.src WHERE ts >= '2026-08-01 00:00:00' GROUP BY"))
    assert not any("stays" in how for how in whats(stage.plan()))
    stage.apply(stage.plan())
    assert sorted(days(stage, "daily", "events")) == list(NEW)
    stage.check()
