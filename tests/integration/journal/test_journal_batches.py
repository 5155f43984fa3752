"""Batches on the real server: a driver that dies at any step, two drivers at once, refusals, garbage."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from journal_driver import COLUMNS, EXACT, ROWS, TASKS, Killed, MortalServer, drive, facts, recover, run_all, stage

from chmv_assets.core.batches import BATCHES, Slice, plan_commit, staging_name
from chmv_assets.core.errors import JournalRefused, ServerError
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal, collect_garbage, fetch_staging, finish_batch


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["before", "after"])
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
    journal.note_batch(source, batch, "staged", slices=slices, detail="two files")

    def commit() -> None:
        with Server(server.endpoint) as own:
            for statement in plan_commit(source, batch, [name for name, _ in COLUMNS], slices):
                own.run(statement)

    run_all([commit] * 4)
    assert finish_batch(journal, source, batch).detail == "two files; finished from staging"
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


def test_batches_are_read_by_source_and_status_and_only_a_limit_leaves_any_out(server: Server, source: QName) -> None:
    journal = Journal(server)
    mine, other = (QName(source.database, name) for name in ("mine", "it's `another`"))
    server.command(
        f"INSERT INTO {BATCHES.sql} (batch_id, source, status, version) SELECT toString(number), {{source:String}}, 'committed', 1 "
        "FROM numbers(1100)",
        {"source": str(mine)},
    )
    journal.note_batch(mine, "open", "staged", slices=[Slice(0, "a", 1)])
    journal.note_batch(other, "theirs", "staged", slices=[Slice(0, "a", 1)])
    assert len(journal.read_batches(source=mine)) == 1_101
    assert [one.batch for one in journal.read_batches(source=mine, status="staged")] == ["open"]
    assert [one.batch for one in journal.read_batches(source=other)] == ["theirs"]
    assert [one.batch for one in journal.read_batches(2)] == ["theirs", "open"]
    for name in (mine, other):  # what is staged would be in doubt for other tests
        for record in journal.read_batches(source=name, status="staged"):
            journal.note_batch(name, record.batch, "failed")


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
    with journal.locks.hold(f"batch {source} busy", "alive"):
        assert collect_garbage(journal, older_than=timedelta(0)) == [], "somebody is at work on it"
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
