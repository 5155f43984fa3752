"""Each status of a window, how it is reached and left; and the journal's DDL as text."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from chmv_assets.core.journal_schema import MIGRATIONS, pending_migrations, read_replicas, render_foundation
from chmv_assets.core.locks import LockState, read_generations, render_forget, render_generation
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import read_settings, write_settings
from chmv_assets.core.watermarks import BatchOutcome, Watermark, advance, rebuilt, reopen, seal

UTC = timezone.utc
START = datetime(2026, 7, 5, tzinfo=UTC)
END = START + timedelta(days=1)
MARK = Watermark(source_id=QName("d", "s"), target_table=QName("d", "t"), window_start=START, window_end=END)
DONE = BatchOutcome(
    batch_id="b1", succeeded=True, max_event_ts=START + timedelta(hours=3), max_arrival_ts=START + timedelta(hours=4)
)
LATE = replace(DONE, late_rows=1)


def test_a_batch_that_failed_moves_nothing() -> None:
    assert advance(MARK, replace(DONE, succeeded=False), "additive", 1) == MARK


def test_a_batch_that_succeeded_moves_the_window_to_processed() -> None:
    after = advance(MARK, DONE, "additive", 1)
    assert after == replace(
        MARK, status="processed", batch_id="b1", version=1,
        last_processed_ts=DONE.max_event_ts, last_arrival_ts=DONE.max_arrival_ts,
    )  # fmt: skip


def test_earlier_rows_do_not_move_timestamps_back() -> None:
    early = replace(DONE, batch_id="b2", max_event_ts=START, max_arrival_ts=START)
    after = advance(advance(MARK, DONE, "append", 1), early, "append", 2)
    assert (after.last_processed_ts, after.last_arrival_ts) == (DONE.max_event_ts, DONE.max_arrival_ts)


def test_a_version_that_does_not_rise_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted more than 5"):
        advance(replace(MARK, version=5), DONE, "append", 5)


def test_a_window_is_sealed_when_it_is_reconciled_and_older_than_the_tolerance() -> None:
    mark = advance(MARK, DONE, "append", 1)
    ripe = END + timedelta(minutes=15)
    assert seal(mark, ripe, 2, reconciled=True).status == "sealed"
    assert seal(mark, ripe, 2, reconciled=False) == mark
    assert seal(mark, ripe - timedelta(microseconds=1), 2, reconciled=True) == mark


@pytest.mark.parametrize(
    ("view_class", "status"),
    [("append", "reopened"), ("additive", "reopened"), ("replacing", "reopened"), ("opaque", "stale")],
)
def test_rows_for_a_sealed_window_reopen_it_or_make_it_stale(view_class: str, status: str) -> None:
    sealed = replace(MARK, status="sealed", version=1)
    assert advance(sealed, DONE, view_class, 2).status == status  # type: ignore[arg-type]
    assert reopen(sealed, END, view_class, 2).status == status  # type: ignore[arg-type]


def test_late_rows_for_an_opaque_view_are_stale_until_rebuilt() -> None:
    stale = advance(MARK, LATE, "opaque", 1)
    assert stale.status == "stale"
    assert advance(stale, DONE, "opaque", 2).status == "stale"
    assert seal(stale, END + timedelta(days=9), 2, reconciled=True) == stale
    again = rebuilt(stale, "rebuild-1", 2)
    assert again.status == "processed"
    assert seal(again, END + timedelta(days=9), 3, reconciled=True).status == "sealed"


def test_the_journal_of_one_server_is_plain() -> None:
    sql = "\n".join([*render_foundation(), *(text for one in MIGRATIONS for text in one.render(""))])
    assert "ON CLUSTER" not in sql and "Replicated" not in sql
    assert sql.count("ENGINE = ReplacingMergeTree(version) ORDER BY (") == 13
    assert sql.count("SETTINGS non_replicated_deduplication_window = 10000") == 14
    assert (write_settings(), read_settings()) == ({"async_insert": 0}, {})


def test_the_journal_of_a_cluster_is_replicated_with_quorum() -> None:
    statements = [*render_foundation("main"), *(text for one in MIGRATIONS for text in one.render("main"))]
    assert all(" ON CLUSTER `main`" in sql for sql in statements if not sql.startswith("INSERT"))
    assert sum("ReplicatedReplacingMergeTree('/clickhouse/chmv/main/tables/" in sql for sql in statements) == 13
    assert all("'{shard}-{replica}', version)" in sql for sql in statements if "ReplicatedReplacing" in sql)
    assert "ReplicatedMergeTree('/clickhouse/chmv/main/tables/quarantine', '{shard}-{replica}')" in "\n".join(
        statements
    )
    assert write_settings("main")["insert_quorum"] == "auto"
    assert read_settings("main") == {"select_sequential_consistency": 1}
    assert "system.replicas" in read_replicas() and "'chmv'" in read_replicas()


def test_locks_of_a_cluster_are_decided_by_keeper() -> None:
    create = render_generation("x'y", LockState(generation=3, owner="a", token=3, expires_us=9), "main")
    assert "ReplicatedMergeTree('/clickhouse/chmv/main/locks/lock." in create and "'lock') ORDER BY tuple()" in create
    assert "x\\'y" in create and "IF NOT EXISTS" not in create
    assert "clusterAllReplicas('main', system.tables)" in read_generations("x", "main").sql
    assert "ON CLUSTER `main` SYNC" in render_forget("x", 1, "main")


def test_only_migrations_that_have_not_run_are_pending() -> None:
    assert [one.number for one in pending_migrations(set())] == list(range(1, 12))
    assert [one.number for one in pending_migrations({1})] == list(range(2, 12))
