"""Watermarks on the real server: kept to the microsecond, never moved back, shown by the commands."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner
from journal_driver import ROWS, TASKS, UTC, drive, outcome, run_all, window

from chmv_assets.cli.main import main
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import Watermark, advance, seal
from resources.clickhouse import Server
from resources.journal import Journal


def test_watermarks_are_kept_exactly_and_move_by_the_rules(server: Server, database: str) -> None:
    journal = Journal(server)
    source, target = QName(database, "odd `name`"), QName(database, "daily")
    exact = datetime(2026, 7, 5, 23, 59, 59, 999_999, tzinfo=UTC)
    changes = {
        window(5): lambda mark, version: advance(mark, outcome(exact), "additive", version),
        window(6): lambda mark, version: advance(mark, outcome(exact, succeeded=False), "additive", version),
    }
    moved = journal.move_watermarks(source, {target: changes})
    assert [mark.status for mark in moved] == ["processed", "open"]
    assert journal.read_watermarks(source, target) == moved[:1]
    assert moved[0].last_processed_ts == exact

    def sealed(mark: Watermark, version: int) -> Watermark:
        return seal(mark, datetime(2026, 7, 9, tzinfo=UTC), version, reconciled=True)

    journal.move_watermarks(source, {target: {window(5): sealed, window(6): sealed}})
    assert [mark.status for mark in journal.read_watermarks(source)] == ["sealed", "sealed"]
    late = {window(5): lambda mark, version: advance(mark, outcome(exact, late_rows=3), "opaque", version)}
    journal.move_watermarks(source, {target: late})
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
                journal.move_watermarks(source, {target: change})

    run_all([lambda n=n: work(moments[n::3][::-1]) for n in range(3)])  # type: ignore[misc]
    (mark,) = Journal(server).read_watermarks(source, target)
    assert mark.last_processed_ts == max(moments)


@pytest.mark.usefixtures("configured")
def test_the_commands_show_batches_and_watermarks(server: Server, source: QName) -> None:
    journal = Journal(server)
    drive(journal, source, "shown", "one")
    change = {window(5): lambda mark, version: advance(mark, outcome(window(5).start), "append", version)}
    journal.move_watermarks(source, {QName(source.database, "copy"): change})

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
    assert "No watermarks of no.such." in run("watermarks", "--target", "no.such")
    assert f"Did you mean {source.database}.copy" in run("watermarks", "--target", f"{source.database}.copi")
