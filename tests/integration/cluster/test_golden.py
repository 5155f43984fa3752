"""Every statement that chmv sends with CHMV_CLICKHOUSE_CLUSTER=main, protocol by protocol, against `tests/fixtures/cluster/*.sql`.

Recorded from real rebuilds, deployments and repairs (`two_servers.Recorder`); the server's own parser reads each statement as it was sent.
After a change that is meant: `CHMV_UPDATE_GOLDEN=1 pytest tests/integration/cluster/test_golden.py`, then read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from two_servers import Pair, Recorder

from chmv_assets.core.batches import Slice, plan_commit, render_create_staging
from chmv_assets.core.deploy.changes import Plan
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import window_of_key
from chmv_assets.deploy import make_plan, make_rollback, open_applier
from chmv_assets.pipeline import Pipeline, load_pipeline
from chmv_assets.recovery.isolation import take_off
from chmv_assets.recovery.mending import mend_view
from chmv_assets.recovery.site import RecoverySite
from resources.clickhouse import Server
from resources.executor import Executor
from resources.journal import Journal, open_journal
from resources.rebuild import Rebuilder
from resources.serving import Router

GOLDEN = Path(__file__).parents[2] / "fixtures" / "cluster"
DAY = window_of_key("2026-07-05", "day", "UTC")
DDL = """
CREATE TABLE gold.src (id UInt64, ts DateTime('UTC'), country String, amount UInt32)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
CREATE TABLE gold.all AS gold.src ENGINE = Distributed('main', gold, src, rand());
CREATE TABLE gold.daily (day Date, country String, events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country);
CREATE MATERIALIZED VIEW gold.daily_mv TO gold.daily AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM gold.src GROUP BY day, country;
"""
ROWS = (
    "INSERT INTO gold.src (id, ts, country, amount) SELECT number, toDateTime('2026-07-04 00:00:00', 'UTC') + number * 300, ['DE', 'FR'][number % 2 + 1], number "
    "FROM numbers(600)"
)


def apply_in_order(server: Server, plan: Plan) -> None:
    """One line after another over the recorder itself, so that its notes are the same each time."""
    applier = open_applier(server, lambda _line: None)
    applier.max_lanes = 1
    applier.apply(plan, ("rewrites data", "destructive"))


class Stage:
    """One pipeline that is deployed, rebuilt and repaired; each act is held against its file."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self.recorder, self.folder = recorder, folder

    def write(self, *pairs: tuple[str, str]) -> Pipeline:
        text = DDL
        for before, after in pairs:
            assert before in text, before
            text = text.replace(before, after)
        (self.folder / "1.sql").write_text(text)
        return load_pipeline(self.folder)

    def apply(self, *pairs: tuple[str, str]) -> None:
        plan = make_plan(self.recorder, self.write(*pairs))
        assert all("ON CLUSTER `main`" in sql for one in plan.changes for sql in (*one.early, *one.late))
        apply_in_order(self.recorder, plan)

    def rebuilder(self) -> Rebuilder:
        executor = Executor(self.recorder, log=lambda _line: None, cluster="main")
        now = datetime(2026, 8, 1, tzinfo=timezone.utc)
        return Rebuilder(executor, self.write().catalog, "UTC", lambda: now)

    def publish(self, protocol: Protocol) -> None:
        one = self.rebuilder()
        target = one.catalog.objects[QName("gold", "daily")]
        one.publish(target, None if protocol == "whole" else DAY, protocol)

    def site(self) -> RecoverySite:
        return RecoverySite(self.write(), self.recorder, open_journal(self.recorder), lambda _line: None)

    def plain(self, sql: str) -> None:
        """What somebody else does."""
        super(Recorder, self.recorder).command(sql)


@pytest.fixture(scope="module")
def stage(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch, Recorder(pair.first.endpoint) as recorder:
        patch.setenv("CHMV_CLICKHOUSE_CLUSTER", "main")
        assert isinstance(recorder, Recorder)
        one = Stage(recorder, tmp_path_factory.mktemp("ddl"))
        yield one
        for database in ("gold", "chmv", "serving", "chmv_snapshots"):
            one.plain(f"DROP DATABASE IF EXISTS {database} SYNC")


def held_against(name: str, recorder: Recorder, act: Callable[[], object], *, locks: bool = False) -> None:
    """Run an act; what it said is what the file says, and the server can parse all of it."""
    recorder.said.clear()
    recorder.noted.clear()
    act()
    for sql, values in recorder.said:
        recorder.driver.raw_query(f"EXPLAIN AST {sql}", parameters=values)
    found = "\n".join(line for line in recorder.noted if locks or "`lock." not in line) + "\n"
    path = GOLDEN / f"{name}.sql"
    if os.environ.get("CHMV_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_journal_and_locks(stage: Stage) -> None:
    journal = Journal(stage.recorder, "main")
    held_against("journal", stage.recorder, journal.prepare)

    def lock() -> None:
        with journal.locks.hold("gold.daily", "me"):
            pass
        journal.locks.forget("gold.daily")

    held_against("locks", stage.recorder, lock, locks=True)


def test_deployments_and_rebuilds(stage: Stage) -> None:
    """In this order, since each begins where the one before has ended."""
    said = stage.recorder
    held_against("apply_create", said, stage.apply)
    stage.plain(ROWS)
    for protocol in ("closed", "gated", "owned", "whole"):
        held_against(f"rebuild_{protocol}", said, lambda protocol=protocol: stage.publish(protocol))  # type: ignore[misc]
    view = stage.write().catalog.objects[QName("gold", "daily_mv")]
    held_against("materialize_view", said, lambda: stage.rebuilder().build_scratch(view, DAY))
    with pytest.raises(RebuildRefused, match=r"found a cluster \(main\) but wanted one server"):
        stage.publish("fenced")

    router = Router(said, open_journal(said), stage.write().catalog, 3600.0)
    held_against("serving", said, router.refresh_snapshots)
    held_against("route", said, lambda: router.switch(QName("gold", "daily"), "snapshot", "golden", ""))
    router.switch(QName("gold", "daily"), "primary", "golden", "")

    stage.plain("DROP TABLE gold.daily_mv SYNC")
    held_against("mend_dropped", said, lambda: mend_view(stage.site(), view))
    stage.plain("ALTER TABLE gold.daily_mv MODIFY QUERY SELECT toDate(ts) AS day, country, count() AS events, 0 AS amount FROM gold.src GROUP BY day, country")  # fmt: skip
    held_against("mend_query", said, lambda: mend_view(stage.site(), view))
    held_against("isolate", said, lambda: take_off(stage.site(), view))
    mend_view(stage.site(), view)

    held_against("apply_alter", said, lambda: stage.apply(("amount UInt32)\n", "amount UInt32, note String)\n")))
    changed = ("amount UInt32)\n", "amount UInt32, note String)\n"), ("sum(amount) AS", "max(amount) AS")
    held_against("apply_query", said, lambda: stage.apply(*changed))
    keyed = (*changed, ("ORDER BY (day, country)", "ORDER BY (country, day)"))
    held_against("apply_storage", said, lambda: stage.apply(*keyed))
    for _ in range(2):
        stage.plain(ROWS)
    stage.plain("OPTIMIZE TABLE gold.daily FINAL")  # the new table merges, though the scratch that it was did not
    gone = (*keyed, ("CREATE TABLE gold.all AS gold.src ENGINE = Distributed('main', gold, src, rand());\n", ""))
    held_against("apply_drop", said, lambda: stage.apply(*gone))

    def roll_back() -> None:
        apply_in_order(said, make_rollback(said))

    held_against("rollback_drop", said, roll_back)


def test_staging_of_a_batch_is_on_one_server() -> None:
    """Sent by Spark's processes, not by ours: as text."""
    source = QName("gold", "src")
    sqls = [
        render_create_staging(source, "b1", [("id", "UInt64")], "me"),
        *(one.sql for one in plan_commit(source, "b1", ["id"], [Slice(0, "a", 1)])),
    ]
    assert not any("ON CLUSTER" in sql for sql in sqls)
