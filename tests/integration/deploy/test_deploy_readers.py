"""Readers of serving views see the target of before or of after, never a copy of the old meaning, and never an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deploy_changes import CHANGES
from deploy_stage import ALL, Stage

from chmv_assets.core.deploy.deploy_journal import DEPLOY_LOCK
from chmv_assets.core.errors import ChmvError, DeployRefused, ServerError
from chmv_assets.core.names import QName
from chmv_assets.deploy import make_rollback, open_applier
from resources.clickhouse import Server
from resources.deploy.store import DeployStore
from resources.journal import Journal
from resources.serving import Router


def router(stage: Stage) -> Router:
    return Router(stage.server, Journal(stage.server), stage.write().catalog, 3600.0)


def serve(stage: Stage) -> Router:
    made = router(stage)
    made.refresh_snapshots()
    return made


@pytest.mark.parametrize(
    "name",
    [
        "changed_order_by",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("changed_filter", "changed_type", "column_through_the_chain")
        ),
    ],
)
def test_serving_views_follow(stage: Stage, name: str) -> None:
    serve(stage)
    with stage.writers("src"):
        CHANGES[name](stage)
        stage.apply(stage.plan())
    stage.check()
    now = router(stage)
    asked = {
        "daily": "SELECT day, country, sum(events), sum(amount) FROM {} GROUP BY ALL ORDER BY ALL",
        "large": "SELECT id, ts, amount FROM {} ORDER BY ALL",
    }
    for target, sql in asked.items():
        view = now.view_of(QName(stage.database, target))
        assert stage.server.rows(sql.format(view.sql)) == stage.server.rows(sql.format(f"{stage.database}.{target}")), (
            target
        )
    if name == "column_through_the_chain":
        assert stage.server.rows(f"SELECT sum(web) FROM {now.view_of(QName(stage.database, 'daily')).sql}")[0][0] > 0


@pytest.mark.parametrize("also", [pytest.param("", marks=pytest.mark.thorough), "another order"])
def test_readers_of_other_columns_meet_no_error_when_one_goes_and_comes_back(stage: Stage, also: str) -> None:
    """In place, and with a table of another shape."""
    serving = serve(stage)
    view = serving.view_of(QName(stage.database, "monthly"))
    with reading(stage, f"SELECT sum(events) FROM {view.sql}") as errors:
        CHANGES["removed_column"](stage)
        if also:
            stage.edit("40_monthly", ("ORDER BY (month, country)", "ORDER BY (country, month)"))
        stage.apply(stage.plan())
        assert stage.server.rows(
            f"SELECT count() FROM system.columns WHERE database = '{view.database}' AND table = '{view.table}'"
        ) == [(3,)]
        open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)
    assert errors == []
    sums = "SELECT sum(events), sum(amount) FROM {}"
    assert stage.server.rows(sums.format(view.sql)) == stage.server.rows(sums.format(f"{stage.database}.monthly"))


@contextmanager
def reading(stage: Stage, sql: str) -> Iterator[list[str]]:
    """Three readers without a pause; gives the errors that they meet."""
    errors, done = list[str](), threading.Event()

    def read() -> None:
        with Server(stage.server.endpoint) as server:
            while not done.is_set():
                try:
                    server.rows(sql)
                except ChmvError as error:
                    errors.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for one in readers:
        one.start()
    try:
        yield errors
    finally:
        done.set()
        for one in readers:
            one.join()


def test_readers_meet_no_error_while_copies_of_another_shape_take_their_place(stage: Stage) -> None:
    """The soak found it: for a moment there was no table that the view names."""
    serving, target = serve(stage), QName(stage.database, "daily")
    with reading(stage, f"SELECT count() FROM {serving.view_of(target).sql}") as errors:
        for number in range(5):
            stage.server.command(f"ALTER TABLE {target.sql} ADD COLUMN extra_{number} UInt8")
            serving.refresh_snapshots([one for one in serving.targets() if one.name == target])
    assert errors == []


def test_a_target_whose_readers_are_on_the_snapshot_waits(stage: Stage) -> None:
    serving = serve(stage)
    serving.switch(QName(stage.database, "large"), "snapshot", "a repair", "")
    CHANGES["changed_filter"](stage)
    with pytest.raises(DeployRefused, match=r"its readers are on the snapshot \(a repair\)"):
        stage.apply(stage.plan())


def test_who_refreshes_meanwhile_leaves_the_views_of_a_deployment_alone(stage: Stage) -> None:
    """The soak found it: `snapshot_job` asked again for a column that a deployment was about to drop."""
    serving, target = serve(stage), stage.write().catalog.objects[QName(stage.database, "monthly")]
    CHANGES["removed_column"](stage)
    after = stage.write().catalog
    another = Journal(stage.server, owner="another deployment")
    with another.locks.hold(DEPLOY_LOCK, another.owner):
        assert Router(stage.server, another, after, 0.0, deploying=True).narrow([after.objects[target.name]])
        results = serving.refresh_snapshots()
        assert columns_of(stage, serving.view_of(target.name)) == ["month", "country", "events"]
        assert not [one for one in results if "deployment" in one.skipped], "their copies are of the right shape"
    serving.refresh_snapshots()
    assert columns_of(stage, serving.view_of(target.name)) == ["month", "country", "events", "amount"]


def columns_of(stage: Stage, view: QName) -> list[str]:
    rows = stage.server.rows(
        "SELECT name FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
        {"d": view.database, "t": view.table},
    )
    return [str(name) for (name,) in rows]


def test_a_deployment_whose_readers_cannot_be_prepared_is_noted_as_failed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(stage)
    CHANGES["removed_column"](stage)
    plan = stage.plan()

    def refuse(*_: object) -> None:
        raise ServerError("no more threads", code=439, code_name="CANNOT_SCHEDULE_TASK")

    with monkeypatch.context() as patch:
        patch.setattr(Router, "narrow", refuse)
        with pytest.raises(ServerError, match="no more threads"):
            stage.apply(plan)
    (failed,) = [one for one in DeployStore(Journal(stage.server)).read() if one.plan_id == plan.plan_id]
    assert (failed.status, failed.step) == ("failed", 0) and "no more threads" in failed.detail
    open_applier(stage.server, lambda _line: None).resume()
    stage.check()
