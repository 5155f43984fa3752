"""Readers of serving views see the target of before or of after, never a copy of the old meaning, and never an error."""

from __future__ import annotations

import threading

import pytest
from deploy_changes import CHANGES
from deploy_stage import Stage

from chmv_assets.core.errors import ChmvError, DeployRefused
from chmv_assets.core.names import QName
from resources.clickhouse import Server
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
        "changed_filter",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("changed_type", "column_through_the_chain")),
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


def test_readers_meet_no_error_while_copies_of_another_shape_take_their_place(stage: Stage) -> None:
    """The soak found it: for a moment there was no table that the view names."""
    serving, target = serve(stage), QName(stage.database, "daily")
    sql, errors, done = f"SELECT count() FROM {serving.view_of(target).sql}", list[str](), threading.Event()

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
    for number in range(10):
        stage.server.command(f"ALTER TABLE {target.sql} ADD COLUMN extra_{number} UInt8")
        serving.refresh_snapshots([one for one in serving.targets() if one.name == target])
    done.set()
    for one in readers:
        one.join()
    assert errors == []


def test_a_target_whose_readers_are_on_the_snapshot_waits(stage: Stage) -> None:
    serving = serve(stage)
    serving.switch(QName(stage.database, "large"), "snapshot", "a repair", "")
    CHANGES["changed_filter"](stage)
    with pytest.raises(DeployRefused, match=r"its readers are on the snapshot \(a repair\)"):
        stage.apply(stage.plan())
