"""The journal on the real server: a driver that dies at any step, competing lock holders, garbage, probes."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import CliRunner

from chmv_assets.cli.main import main
from chmv_assets.core.batches import (
    ATTEMPT_COLUMN,
    TASK_COLUMN,
    Slice,
    plan_commit,
    render_create_staging,
    staging_name,
)
from chmv_assets.core.errors import IngestRefused, JournalRefused, LockRefused, ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.pressure import judge_pressure
from chmv_assets.core.retry import RULES
from chmv_assets.core.watermarks import BatchOutcome, Watermark, advance, seal
from chmv_assets.core.windows import Window
from resources.capabilities import probe_capability
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal, Locks, collect_garbage, fetch_staging, finish_batch
from resources.pressure import read_pressure

UTC = timezone.utc
WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
PIPELINE = """
CREATE TABLE {db}.source (batch String, id UInt64, day Date, amount UInt64)
ENGINE = MergeTree PARTITION BY day ORDER BY id {settings};
CREATE TABLE {db}.daily (day Date, amount UInt64, events UInt64)
ENGINE = SummingMergeTree PARTITION BY day ORDER BY day {settings};
CREATE TABLE {db}.total (k UInt8, amount UInt64, events UInt64) ENGINE = SummingMergeTree ORDER BY k {settings};
CREATE TABLE {db}.copy (batch String, id UInt64) ENGINE = MergeTree ORDER BY id {settings};
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS
SELECT day, sum(amount) AS amount, count() AS events FROM {db}.source GROUP BY day;
CREATE MATERIALIZED VIEW {db}.total_mv TO {db}.total AS
SELECT 1 AS k, sum(amount) AS amount, sum(events) AS events FROM {db}.daily GROUP BY k;
CREATE MATERIALIZED VIEW {db}.copy_mv TO {db}.copy AS SELECT batch, id FROM {db}.source
"""
TASKS, ROWS = 3, 40
COLUMNS = [("batch", "String"), ("id", "UInt64"), ("day", "Date"), ("amount", "UInt64")]


def create_pipeline(server: Server, database: str, settings: str) -> None:
    for statement in PIPELINE.format(db=database, settings=settings).split(";"):
        server.command(statement)


@pytest.fixture(scope="module")
def source(server: Server, database: str) -> QName:
    create_pipeline(server, database, WINDOW)
    Journal(server).prepare()
    return QName(database, "source")


class Killed(BaseException):
    """kill -9: nothing of the process runs after it, no cleanup either."""


class MortalServer:
    """Dies before or after its n-th statement; whatever the dead process still tries to do dies too."""

    def __init__(self, server: Server, dies_at: int, after: bool) -> None:
        self.server, self.left, self.after = server, dies_at, after

    def _live(self, run: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise Killed
        result = run()
        if self.left == 0:
            raise Killed
        return result

    def rows(self, *args: Any) -> Any:
        return self._live(lambda: self.server.rows(*args))

    def command(self, *args: Any) -> Any:
        return self._live(lambda: self.server.command(*args))


def stage(server: Any, source: QName, batch: str, owner: str, attempt: str) -> list[Slice]:
    """What the workers do; a zombie attempt leaves rows behind as well."""
    server.command(render_create_staging(source, batch, COLUMNS, owner))
    for tag in ("zombie", attempt):
        server.command(
            f"INSERT INTO {staging_name(source, batch).sql} ({TASK_COLUMN}, {ATTEMPT_COLUMN}, batch, id, day, amount) "
            f"SELECT number % {TASKS}, '{tag}', '{batch}', number, toDate('2026-07-01') + number % 4, number * 7 "
            f"FROM numbers({TASKS * ROWS})"
        )
    return [Slice(task, attempt, ROWS) for task in range(TASKS)]


def drive(journal: Journal, source: QName, batch: str, attempt: str) -> None:
    """A whole batch, from plan to commit."""
    journal.note_batch(source, batch, "planned")
    slices = stage(journal.server, source, batch, journal.owner, attempt)
    journal.note_batch(source, batch, "staged", slices=slices)
    finish_batch(journal, source, batch, lease_seconds=0.05, wait_seconds=20)


def recover(journal: Journal, source: QName, batch: str) -> None:
    """What the next run does."""
    record = journal.read_batch(source, batch)
    if record is None or record.status == "planned":
        drive(journal, source, batch, secrets.token_hex(4))
    finish_batch(journal, source, batch, lease_seconds=0.05, wait_seconds=20)


def facts(server: Server, source: QName, batch: str) -> tuple[Any, ...]:
    """Rows of one batch in the source and its copy; then whether the aggregates equal the source as a whole."""
    db = source.database
    return server.rows(
        f"SELECT (SELECT (count(), uniqExact(id)) FROM {db}.source WHERE batch = {{b:String}}), "
        f"(SELECT (count(), uniqExact(id)) FROM {db}.copy WHERE batch = {{b:String}}), "
        f"(SELECT (sum(amount), sum(events)) FROM {db}.daily) = (SELECT (sum(amount), count()) FROM {db}.source), "
        f"(SELECT (sum(amount), sum(events)) FROM {db}.total) = (SELECT (sum(amount), count()) FROM {db}.source)",
        {"b": batch},
    )[0]


EXACT = ((TASKS * ROWS, TASKS * ROWS), (TASKS * ROWS, TASKS * ROWS), 1, 1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_driver_killed_at_any_statement_loses_and_doubles_nothing(server: Server, source: QName, after: bool) -> None:
    Journal(server).prepare()
    for step in range(1, 200):
        batch = f"crash-{after}-{step}"
        mortal = Journal(MortalServer(server, step, after), owner="victim", _ready=True)  # type: ignore[arg-type]
        try:
            drive(mortal, source, batch, "first")
        except Killed:
            finished = False
        else:
            finished = True
        recover(Journal(server, owner="heir"), source, batch)
        assert facts(server, source, batch) == EXACT, f"killed at statement {step}"
        if finished:
            break
    assert finished and step > 15
    assert not [table for table in fetch_staging(Journal(server)) if table.batch.startswith(f"crash-{after}")]


def test_two_drivers_that_commit_the_same_batch_at_once_are_exact(
    server: Server, source: QName, engine: EngineInfo
) -> None:
    batch = "twins"
    journal = Journal(server)
    slices = stage(server, source, batch, "a", "one")
    journal.note_batch(source, batch, "staged", slices=slices)

    def commit() -> None:
        with Server(server.endpoint) as own:
            for statement in plan_commit(source, batch, [name for name, _ in COLUMNS], slices):
                own.command(statement.sql, statement.parameters, statement.settings)

    run_all([commit] * 4)
    finish_batch(journal, source, batch)
    assert facts(server, source, batch) == EXACT


def test_a_commit_of_which_a_view_failed_half_way_is_healed(server: Server, source: QName) -> None:
    journal = Journal(server)
    slices = stage(server, source, "poison", "a", "one")
    journal.note_batch(source, "poison", "staged", slices=slices)
    copy = f"{source.database}.copy"
    server.command(f"ALTER TABLE {copy} ADD CONSTRAINT healthy CHECK batch != 'poison' OR id % 3 != 1")
    with pytest.raises(ServerError) as caught:
        finish_batch(journal, source, "poison", lease_seconds=0.2)
    assert caught.value.code == 469
    damaged = facts(server, source, "poison")
    assert damaged[0] == (2 * ROWS, 2 * ROWS) and damaged[1] == (ROWS, ROWS), (
        "the source has rows that the view has not"
    )
    server.command(f"ALTER TABLE {copy} DROP CONSTRAINT healthy")
    finish_batch(journal, source, "poison")
    assert facts(server, source, "poison") == EXACT


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Run jobs side by side and raise the first error of any."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_staging_that_does_not_hold_what_was_written_down_is_refused(server: Server, source: QName) -> None:
    journal = Journal(server)
    slices = stage(server, source, "short", "a", "one")
    journal.note_batch(source, "short", "staged", slices=[*slices[:-1], Slice(TASKS - 1, "one", ROWS + 1)])
    with pytest.raises(JournalRefused, match=f"found {ROWS} staged rows of task 2 but wanted {ROWS + 1}"):
        finish_batch(journal, source, "short")
    server.command(f"DROP TABLE {staging_name(source, 'short').sql} SYNC")
    with pytest.raises(JournalRefused, match="found no staging table"):
        finish_batch(journal, source, "short")
    with pytest.raises(JournalRefused, match="found it unknown"):
        finish_batch(journal, source, "never-seen")
    assert facts(server, source, "short")[0] == (0, 0)


def test_a_committed_batch_cannot_be_planned_again(server: Server, source: QName) -> None:
    journal = Journal(server)
    drive(journal, source, "once", "one")
    with pytest.raises(JournalRefused, match="found it committed but wanted it planned"):
        journal.note_batch(source, "once", "planned")


def test_of_two_drivers_that_move_the_same_batch_one_is_told(server: Server, source: QName) -> None:
    """Both have read the same row; the second write is dropped by the server and its writer learns of it."""

    class Slow(Journal):
        def read_batch(self, source: QName, batch: str) -> Any:
            found = super().read_batch(source, batch)
            if self.owner == "slow" and found is not None and found.status == "planned":
                self.owner = "slow "  # once
                Journal(server, owner="fast").note_batch(source, batch, "staged", slices=[Slice(0, "fast", 1)])
            return found

    Journal(server).note_batch(source, "raced", "planned")
    with pytest.raises(JournalRefused, match="moved to staged by fast"):
        Slow(server, owner="slow").note_batch(source, "raced", "staged", slices=[Slice(0, "slow", 1)])
    present = Journal(server).read_batch(source, "raced")
    assert present is not None and present.slices == (Slice(0, "fast", 1),)


def test_garbage_is_collected_by_age_and_owner_but_never_of_staged_batches(server: Server, source: QName) -> None:
    journal = Journal(server, owner="collector")
    for batch, owner in (("orphan", "dead"), ("busy", "alive"), ("kept", "dead"), ("unknown", "dead")):
        slices = stage(server, source, batch, owner, "one")
        if batch != "unknown":
            journal.note_batch(source, batch, "planned")
        if batch == "kept":
            journal.note_batch(source, batch, "staged", slices=slices)
    server.command("CREATE TABLE chmv.`stage.somebody.elses` (x UInt8) ENGINE = Null COMMENT 'no JSON'")
    assert collect_garbage(journal, older_than=timedelta(hours=1)) == []
    dropped = collect_garbage(journal, older_than=timedelta(0), owners=["alive"])
    assert {table.batch for table in dropped} == {"orphan", "unknown"}
    assert {table.batch for table in fetch_staging(journal)} >= {"busy", "kept"}
    orphan = journal.read_batch(source, "orphan")
    assert orphan is not None and (orphan.status, orphan.detail) == ("failed", "orphaned by dead")
    server.command("DROP TABLE chmv.`stage.somebody.elses` SYNC")
    finish_batch(journal, source, "kept")
    assert facts(server, source, "kept") == EXACT
    collect_garbage(journal, older_than=timedelta(0))


def test_a_journal_of_a_newer_chmv_is_refused(server: Server) -> None:
    Journal(server).prepare()
    server.command("INSERT INTO chmv.schema_versions (number, title, version) VALUES (999, 'from the future', 1)")
    try:
        with pytest.raises(JournalRefused, match="found schema version 999"):
            Journal(server).prepare()
    finally:
        server.command("ALTER TABLE chmv.schema_versions DELETE WHERE number = 999 SETTINGS mutations_sync = 1")
    Journal(server).prepare()


@pytest.fixture
def lock(server: Server) -> Iterator[str]:
    Journal(server).prepare()
    yield f"test {secrets.token_hex(4)}"


def test_a_lock_is_held_by_one_and_its_token_rises(server: Server, lock: str) -> None:
    locks = Locks(server)
    first = locks.acquire(lock, "a")
    assert locks.try_acquire(lock, "a") is None and locks.holder(lock).startswith("a#")
    with pytest.raises(LockRefused, match="held by a#"):
        locks.acquire(lock, "b", wait_seconds=0.1)
    token = first.token
    for _ in range(12):
        locks.renew(first)
    assert first.token == token
    assert locks.release(first) and locks.holder(lock) == ""
    second = locks.acquire(lock, "b")
    assert second.token > token
    assert not locks.release(first)
    with pytest.raises(LockRefused):
        locks.renew(first)
    assert locks.release(second)
    kept = server.rows(
        "SELECT count() FROM system.tables WHERE database = 'chmv' AND comment LIKE {c:String}", {"c": f"%{lock}%"}
    )
    assert kept[0][0] <= 9


def test_the_lease_of_a_crashed_owner_ends(server: Server, lock: str) -> None:
    locks = Locks(server)
    dead = locks.acquire(lock, "dead", lease_seconds=0.3)
    heir = locks.acquire(lock, "heir", wait_seconds=10)
    assert heir.token > dead.token
    with pytest.raises(LockRefused, match="still held by dead#"):
        locks.check(dead)
    with pytest.raises(LockRefused, match="held by heir#"):
        locks.renew(dead)
    assert not locks.release(dead)
    locks.check(heir)
    assert locks.release(heir)


def test_competing_holders_never_hold_it_at_once(server: Server, lock: str) -> None:
    """Some release, some renew, some just die; what each believed to hold must not overlap."""
    held: list[tuple[float, float, int]] = []
    until = time.monotonic() + 4

    def compete(number: int) -> None:
        with Server(server.endpoint) as own:
            locks = Locks(own)
            for turn in range(1_000):
                if time.monotonic() > until:
                    return
                mine = locks.try_acquire(lock, f"t{number}", lease_seconds=0.15)
                if mine is None:
                    continue
                begin = time.monotonic()
                if turn % 3 == 0:
                    try:
                        locks.renew(mine, lease_seconds=0.15)
                    except LockRefused:
                        held.append((begin, min(time.monotonic(), mine.valid_until), mine.token))
                        continue
                time.sleep(0.005)
                held.append((begin, min(time.monotonic(), mine.valid_until), mine.token))
                if turn % 4:
                    locks.release(mine)

    run_all([lambda number=number: compete(number) for number in range(4)])  # type: ignore[misc]
    spans = sorted((begin, end, token) for begin, end, token in held if end > begin)
    assert len(spans) > 10
    for (_, end, token), (begin, _, later) in itertools.pairwise(spans):
        assert end <= begin and token < later


def window(day: int) -> Window:
    start = datetime(2026, 7, day, tzinfo=UTC)
    return Window(start, start + timedelta(days=1))


def outcome(moment: datetime, *, succeeded: bool = True, late_rows: int = 0) -> BatchOutcome:
    return BatchOutcome(
        batch_id="b", succeeded=succeeded, max_event_ts=moment, max_arrival_ts=moment, late_rows=late_rows
    )


def test_watermarks_are_kept_exactly_and_move_by_the_rules(server: Server, database: str) -> None:
    journal = Journal(server)
    source, target = QName(database, "odd `name`"), QName(database, "daily")
    exact = datetime(2026, 7, 5, 23, 59, 59, 999_999, tzinfo=UTC)
    changes = {
        window(5): lambda mark, version: advance(mark, outcome(exact), "additive", version),
        window(6): lambda mark, version: advance(mark, outcome(exact, succeeded=False), "additive", version),
    }
    moved = journal.move_watermarks(source, target, changes)
    assert [mark.status for mark in moved] == ["processed", "open"]
    assert journal.read_watermarks(source, target) == moved[:1]
    assert moved[0].last_processed_ts == exact

    def sealed(mark: Watermark, version: int) -> Watermark:
        return seal(mark, datetime(2026, 7, 9, tzinfo=UTC), version, reconciled=True)

    journal.move_watermarks(source, target, {window(5): sealed, window(6): sealed})
    assert [mark.status for mark in journal.read_watermarks(source)] == ["sealed", "sealed"]
    late = {window(5): lambda mark, version: advance(mark, outcome(exact, late_rows=3), "opaque", version)}
    journal.move_watermarks(source, target, late)
    assert [mark.status for mark in journal.read_watermarks(source)] == ["stale", "sealed"]
    assert [mark.last_arrival_ts for mark in journal.read_watermarks(source)] == [exact, None]


def test_concurrent_batches_never_move_a_watermark_back(server: Server, database: str) -> None:
    source, target = QName(database, "raced"), QName(database, "daily")
    Journal(server).prepare()
    moments = [window(5).start + timedelta(minutes=7 * n) for n in range(12)]

    def work(mine: list[datetime]) -> None:
        with Server(server.endpoint) as own:
            journal = Journal(own)
            for moment in mine:
                change = {window(5): lambda mark, version, m=moment: advance(mark, outcome(m), "append", version)}
                journal.move_watermarks(source, target, change)

    run_all([lambda n=n: work(moments[n::3][::-1]) for n in range(3)])  # type: ignore[misc]
    (mark,) = Journal(server).read_watermarks(source, target)
    assert mark.last_processed_ts == max(moments)


def test_a_source_without_deduplication_is_refused_with_the_statements_that_cure_it(
    server: Server, database: str
) -> None:
    bare = f"{database}_bare"
    server.command(f"CREATE DATABASE {bare}")
    try:
        create_pipeline(server, bare, "")
        server.command(f"CREATE VIEW {bare}.plain AS SELECT * FROM {bare}.source")
        source = QName(bare, "source")
        refused = probe_capability(server, source)
        assert refused.strategy == "refuse"
        assert {one.name.table for one in refused.tables} == {"source", "daily", "total", "copy"}
        with pytest.raises(IngestRefused) as caught:
            refused.require()
        assert len(caught.value.statements) == 4
        for statement in caught.value.statements:
            assert statement in str(caught.value)
            server.command(statement)
        probe_capability(server, source).require()
        journal = Journal(server)
        slices = stage(server, source, "cured", "a", "one")
        journal.note_batch(source, "cured", "staged", slices=slices)
        for _ in range(2):
            for one in plan_commit(source, "cured", [name for name, _ in COLUMNS], slices):
                server.command(one.sql, one.parameters, one.settings)
        finish_batch(journal, source, "cured")
        assert facts(server, source, "cured") == EXACT
        assert "no such table" in probe_capability(server, QName(bare, "nothing")).problems[0]
        server.command(f"CREATE TABLE {bare}.log (x UInt8) ENGINE = Log")
        assert "keeps no deduplication log" in probe_capability(server, QName(bare, "log")).problems[0]
    finally:
        server.command(f"DROP DATABASE {bare} SYNC")


def test_null_tables_pass_tokens_on_to_what_is_behind_them(server: Server, database: str) -> None:
    for statement in (
        "CREATE TABLE {db}.nothing (batch String, id UInt64, day Date, amount UInt64) ENGINE = Null",
        "CREATE TABLE {db}.between (id UInt64) ENGINE = Null",
        f"CREATE TABLE {{db}}.behind (id UInt64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        "CREATE MATERIALIZED VIEW {db}.nothing_mv TO {db}.between AS SELECT id FROM {db}.nothing",
        "CREATE MATERIALIZED VIEW {db}.between_mv TO {db}.behind AS SELECT id FROM {db}.between",
    ):
        server.command(statement.format(db=database))
    source = QName(database, "nothing")
    assert probe_capability(server, source).strategy == "token_slices"
    journal = Journal(server)
    slices = stage(server, source, "through", "a", "one")
    journal.note_batch(source, "through", "staged", slices=slices)
    for one in plan_commit(source, "through", [name for name, _ in COLUMNS], slices):
        server.command(one.sql, one.parameters, one.settings)
    finish_batch(journal, source, "through")
    counted = server.rows(f"SELECT count(), uniqExact(id) FROM {database}.behind")
    assert counted == [(TASKS * ROWS, TASKS * ROWS)]


def test_pressure_is_read_against_the_tables_own_limits(server: Server, database: str) -> None:
    name = QName(database, "full")
    server.command(
        f"CREATE TABLE {name.sql} (x UInt8) ENGINE = MergeTree ORDER BY x "
        "SETTINGS parts_to_delay_insert = 5, parts_to_throw_insert = 9"
    )
    server.command(f"SYSTEM STOP MERGES {name.sql}")
    for _ in range(4):
        server.command(f"INSERT INTO {name.sql} SELECT 1")
    seen = read_pressure(server, [QName(database, "source"), name])
    assert (seen.parts, seen.parts_to_delay, seen.parts_to_throw) == (4, 5, 9)
    assert seen.pool_size > 0 and judge_pressure(seen)[0] == "busy"
    assert read_pressure(server, []).parts == 0


def test_the_retry_table_names_codes_as_the_server_does(server: Server) -> None:
    rows = server.rows(
        "SELECT arrayJoin({c:Array(Int32)}) AS c, errorCodeToName(c)", {"c": [rule.code for rule in RULES]}
    )
    assert dict(rows) == {rule.code: rule.name for rule in RULES}
    with pytest.raises(ServerError) as caught:
        server.command("CREATE TABLE system.one (x UInt8) ENGINE = Null")
    assert caught.value.code is not None


@pytest.mark.usefixtures("configured")
def test_the_commands_show_batches_and_watermarks(server: Server, source: QName) -> None:
    journal = Journal(server)
    drive(journal, source, "shown", "one")
    change = {window(5): lambda mark, version: advance(mark, outcome(window(5).start), "append", version)}
    journal.move_watermarks(source, QName(source.database, "copy"), change)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    batches = {one["batch"]: one for one in json.loads(run("batches", "--json"))["batches"]}
    assert batches["shown"]["status"] == "committed" and batches["shown"]["rows"] == TASKS * ROWS
    assert "shown" in run("batches") and "committed" in run("batches")
    marks = json.loads(run("watermarks", "--json", "--target", f"{source.database}.copy"))["watermarks"]
    assert [(one["status"], one["window_start"]) for one in marks] == [("processed", "2026-07-05T00:00:00.000Z")]
    assert "processed" in run("watermarks", "--source", str(source))
    assert "No watermarks yet" in run("watermarks", "--target", "no.such")
