"""A cutover that is done again, or that cannot be taken back: what is kept of before, what stands afterwards, what is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deploy_stage import ALL, Stage

from chmv_assets.core.deploy.changes import Cutover
from chmv_assets.core.errors import ChmvError, CutoverHalfDone, ServerError
from chmv_assets.deploy import make_rollback, open_applier
from resources.deploy import DeployStore, Progress
from resources.deploy.cutover import CutoverRun
from resources.executor import Executor
from resources.journal import Journal

ROWS = "SELECT count(), sum(cityHash64(id, ts, amount)) FROM "


def exchanged(stage: Stage) -> None:
    """The target becomes another table."""
    stage.edit("50_large", ("ORDER BY id", "ORDER BY (id, ts)"), ("amount > 500", "amount > 600"))


def replaced(stage: Stage) -> None:
    """The target stays, its partitions are replaced."""
    stage.edit("50_large", ("amount > 500", "amount > 600"))


BOTH = pytest.mark.parametrize("change", [exchanged, replaced])


def rows_of(stage: Stage, table: str) -> tuple[object, ...]:
    return tuple(stage.server.rows(f"{ROWS}{table}")[0])


def insert(stage: Stage, first: int) -> None:
    stage.server.command(
        f"INSERT INTO {stage.database}.src (id, ts, country, kind, amount) SELECT {first} + number, "
        "toDateTime('2026-07-31 00:00:00', 'UTC') + number, 'DE', 1, 900 FROM numbers(100)",
        settings={"async_insert": 0},
    )
    stage.sent |= set(range(first, first + 100))


def kept_of(stage: Stage, deploy: str) -> list[str]:
    return [name.sql for name, of in DeployStore(Journal(stage.server)).kept() if of == deploy]


def undo_note(stage: Stage) -> str:
    """As if another cutover of the same wave had failed: nothing of the wave counts as done."""
    store = DeployStore(Journal(stage.server))
    record = store.read(1)[0]
    store.note(record, "failed", 0)
    return record.deploy_id


class Killed(BaseException):
    """Whoever deploys is gone."""


@BOTH
def test_a_cutover_that_is_done_twice_keeps_what_was_before_the_first(
    stage: Stage, change: Callable[[Stage], None]
) -> None:
    before = rows_of(stage, f"{stage.database}.large")
    change(stage)
    (kept,) = stage.apply(stage.plan()).kept
    assert rows_of(stage, kept.sql) == before
    deploy = undo_note(stage)
    insert(stage, 1_000_000)
    for _ in range(2):
        assert stage.resume().kept == (kept,)
        assert kept_of(stage, deploy) == [kept.sql] and rows_of(stage, kept.sql) == before
        undo_note(stage)
    stage.resume()
    stage.check()


@pytest.mark.parametrize(
    ("change", "statement", "is_run"),
    [
        (exchanged, "RENAME TABLE", False),
        (exchanged, "EXCHANGE TABLES", False),
        (exchanged, "EXCHANGE TABLES", True),
        (replaced, "ATTACH PARTITION", False),
        (replaced, "ATTACH PARTITION", True),
        (replaced, "REPLACE PARTITION", True),
    ],
)
def test_what_was_before_is_kept_wherever_the_first_try_was_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, change: Callable[[Stage], None], statement: str, is_run: bool
) -> None:
    before = rows_of(stage, f"{stage.database}.large")
    change(stage)
    plan, run = stage.plan(), Executor._run

    def run_or_die(self: Executor, step: str, name: object, sql: str, *args: object, **named: object) -> None:
        if statement not in sql:
            return run(self, step, name, sql, *args, **named)  # type: ignore[arg-type]
        if is_run:
            run(self, step, name, sql, *args, **named)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_run", run_or_die)
        patch.setattr(CutoverRun, "take_back", lambda _self: None)
        with pytest.raises(Killed):
            stage.apply(plan)
    (kept,) = stage.resume().kept
    assert rows_of(stage, kept.sql) == before
    stage.check()


@BOTH
def test_a_second_try_that_fails_leaves_what_the_first_has_made(stage: Stage, change: Callable[[Stage], None]) -> None:
    view = f"SELECT as_select FROM system.tables WHERE database = '{stage.database}' AND name = 'large_mv'"
    before = rows_of(stage, f"{stage.database}.large")
    change(stage)
    (kept,) = stage.apply(stage.plan()).kept
    select = stage.server.rows(view)
    undo_note(stage)
    insert(stage, 1_000_000)
    made = rows_of(stage, f"{stage.database}.large")
    with pytest.raises(ChmvError, match="on purpose"):
        open_applier(stage.server, lambda _line: None, failing_at("switch")).resume()
    assert (rows_of(stage, f"{stage.database}.large"), stage.server.rows(view)) == (made, select)
    assert rows_of(stage, kept.sql) == before
    insert(stage, 2_000_000)
    assert stage.resume().kept == (kept,) and rows_of(stage, kept.sql) == before
    stage.check()


def test_a_second_try_that_fails_leaves_a_view_that_the_first_has_not_reached(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = f"SELECT as_select FROM system.tables WHERE database = '{stage.database}' AND name = 'large_mv'"
    before, select = rows_of(stage, f"{stage.database}.large"), stage.server.rows(view)
    exchanged(stage)
    plan = stage.plan()

    def die(progress: Progress) -> None:
        if progress.step.startswith("publish"):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CutoverRun, "take_back", lambda _self: None)
        with pytest.raises(Killed):
            stage.apply(plan, die)
    made = rows_of(stage, f"{stage.database}.large")
    with pytest.raises(ChmvError, match="on purpose"):
        open_applier(stage.server, lambda _line: None, failing_at("switch")).resume()
    assert (rows_of(stage, f"{stage.database}.large"), stage.server.rows(view)) == (made, select)
    (kept,) = stage.resume().kept
    assert rows_of(stage, kept.sql) == before
    stage.check()


@BOTH
def test_a_first_try_that_fails_keeps_nothing_of_what_stands_again(
    stage: Stage, change: Callable[[Stage], None]
) -> None:
    change(stage)
    with pytest.raises(ChmvError, match="on purpose"):
        stage.apply(stage.plan(), failing_at("switch"))
    deploy = DeployStore(Journal(stage.server)).read(1)[0].deploy_id
    assert kept_of(stage, deploy) == []
    insert(stage, 1_000_000)
    before = rows_of(stage, f"{stage.database}.large")
    (kept,) = stage.resume().kept
    assert rows_of(stage, kept.sql) == before
    stage.check()


def failing_at(step: str) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        if progress.step.startswith(step):
            raise ChmvError("failed on purpose.")

    return on_progress


@BOTH
def test_what_cannot_be_taken_back_is_named_and_holds_back_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, change: Callable[[Stage], None]
) -> None:
    before = rows_of(stage, f"{stage.database}.large")
    change(stage)
    plan, run, view = stage.plan(), Executor._run, f"{stage.database}.large_mv"
    failing = failing_at("switch")
    broken = False

    def on_progress(progress: Progress) -> None:
        nonlocal broken
        broken = progress.step.startswith("switch")
        failing(progress)

    def refuse_drop(self: Executor, step: str, name: object, sql: str, *args: object, **named: object) -> None:
        if broken and name == f"drop {view}":
            raise ServerError("no drop today.", code=1)
        return run(self, step, name, sql, *args, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_run", refuse_drop)
        with pytest.raises(CutoverHalfDone) as caught:
            open_applier(stage.server, lambda _line: None, on_progress).apply(plan, ALL)
    said = str(caught.value)
    assert caught.value.not_restored == (view,)
    for part in (view, "failed on purpose", "no drop today", "`chmv apply --resume`", "`chmv rollback`"):
        assert part in said
    assert DeployStore(Journal(stage.server)).read(1)[0].detail == said
    assert rows_of(stage, f"{stage.database}.large") == before  # its target is as it was nevertheless
    stage.resume()
    stage.check()


def test_what_two_cutovers_side_by_side_could_not_take_back_is_all_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.files["90_other"] = """
CREATE TABLE {db}.other (id UInt64) ENGINE = MergeTree ORDER BY id;
CREATE TABLE {db}.odd (id UInt64) ENGINE = MergeTree ORDER BY id;
CREATE MATERIALIZED VIEW {db}.odd_mv TO {db}.odd AS SELECT id FROM {db}.other WHERE id % 2 = 1;
"""
    stage.apply(stage.plan())
    replaced(stage)
    stage.edit("90_other", ("id % 2 = 1", "id % 2 != 0"))
    plan = stage.plan()

    def fail(_bench: object, _journal: object, cutover: Cutover, *_: object) -> float:
        raise CutoverHalfDone(cutover.title, {f"view of {cutover.title}": "no drop today."}, ChmvError("on purpose."))

    with monkeypatch.context() as patch:
        patch.setattr("resources.deploy.applier.cut_over", fail)
        with pytest.raises(ChmvError) as caught:
            stage.apply(plan)
    assert len(plan.cutovers) == 2
    assert [f"view of {one.title}" in str(caught.value) for one in plan.cutovers] == [True, True]
    stage.resume()
    assert stage.plan().is_empty


COLUMNS = "a UInt64, d Date, b String DEFAULT 'x' COMMENT 'c', m UInt8 MATERIALIZED 1, al UInt8 ALIAS 1, c UInt32 CODEC(ZSTD(3)), w UInt8 TTL d + INTERVAL 1 DAY"
PLAIN = "a UInt64, d Date, b String COMMENT 'n', m UInt8, al UInt8, c UInt32, w UInt8, z Date"
PARTS = ", INDEX i c TYPE minmax GRANULARITY 1, PROJECTION p (SELECT a ORDER BY c), CONSTRAINT k CHECK a > 0"
TAIL = " TTL d + INTERVAL 1 DAY SETTINGS merge_max_block_size = 100 COMMENT 'notes'"


@pytest.mark.parametrize("is_back", [False, True])
def test_every_alter_may_be_done_twice(stage: Stage, is_back: bool) -> None:
    """What is removed from a column or a table is refused the second time."""
    texts = (f"({COLUMNS}{PARTS}) ENGINE = MergeTree ORDER BY a{TAIL}", f"({PLAIN}) ENGINE = MergeTree ORDER BY a")
    before, after = reversed(texts) if is_back else texts
    stage.files["80_notes"] = f"CREATE TABLE {{db}}.notes {before};"
    stage.apply(stage.plan())
    stage.files["80_notes"] = f"CREATE TABLE {{db}}.notes {after};"
    plan = stage.plan()
    (change,) = plan.changes
    assert change.action == "alter" and len(change.early) > 6
    stage.apply(plan)
    for _ in range(2):
        undo_note(stage)
        stage.resume()
    assert stage.plan().is_empty


def test_what_cannot_be_removed_for_another_reason_is_an_error(stage: Stage) -> None:
    stage.files["80_notes"] = "CREATE TABLE {db}.notes (a UInt64, b UInt8 DEFAULT 1) ENGINE = MergeTree ORDER BY a;"
    stage.apply(stage.plan())
    stage.files["80_notes"] = stage.files["80_notes"].replace(" DEFAULT 1", "")
    plan = stage.plan()
    stage.server.command(f"ALTER TABLE {stage.database}.notes MODIFY COLUMN b UInt8 MATERIALIZED 1")
    applier = open_applier(stage.server, lambda _line: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applier, "_require_unmoved", lambda _plan: None)
        with pytest.raises(ServerError, match="Use REMOVE MATERIALIZED"):
            applier.apply(plan, ALL)
    open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)


def test_a_table_that_is_created_is_not_replaced_when_that_is_done_again(stage: Stage) -> None:
    stage.files["80_notes"] = "CREATE OR REPLACE TABLE {db}.notes (x UInt8) ENGINE = MergeTree ORDER BY x;"
    plan = stage.plan()
    stage.apply(plan)
    stage.server.command(f"INSERT INTO {stage.database}.notes VALUES (1), (2)")
    undo_note(stage)
    stage.resume()
    assert stage.server.rows(f"SELECT count() FROM {stage.database}.notes") == [(2,)]
    stage.check()
