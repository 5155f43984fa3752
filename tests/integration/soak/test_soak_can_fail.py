"""What the soak looks for, on a real server: each thing that is left is found, and a rebuild that loses rows is seen to."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.gate import render_open, render_shut
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.journal import Journal
from resources.reconcile import Reconciler
from soak.account import read_left
from soak.verdict import Compared, Findings, Reads, count_ids, judge

DDL = """
CREATE TABLE {db}.s (day Date, id UInt64) ENGINE = MergeTree PARTITION BY day ORDER BY id;
CREATE TABLE {db}.t (day Date, id UInt64, n UInt64) ENGINE = SummingMergeTree PARTITION BY day ORDER BY (day, id);
CREATE MATERIALIZED VIEW {db}.v TO {db}.t AS SELECT day, id, count() AS n FROM {db}.s GROUP BY day, id;
"""


@pytest.fixture
def tables(server: Server, database: str) -> Iterator[str]:
    Journal(server).prepare()
    for sql in DDL.replace("{db}", database).split(";\n"):
        if sql.strip():
            server.command(sql)
    yield database
    for name in ("v", "t", "s"):
        server.command(f"DROP TABLE IF EXISTS {database}.{name} SYNC")


def test_everything_that_is_left_is_found(server: Server, tables: str) -> None:
    source, names = QName(tables, "s"), [f"{tables}.s", f"{tables}.t"]
    server.command(f"INSERT INTO {tables}.s VALUES ('2026-11-01', 1)")
    before = set(read_left(server, names))
    mark = secrets.token_hex(4)
    scratch = f"chmv.`scratch.{mark}`"
    server.command(f"CREATE TABLE {scratch} AS {tables}.t")
    server.command(f"CREATE TABLE chmv.`kept.{mark}.a.b` AS {tables}.t")
    server.command(render_shut(source, mark, int(time.time() * 1000) + 20_000))
    server.command(f"SYSTEM STOP MERGES {tables}.t")
    journal = Journal(server)
    held = journal.locks.acquire(f"soak {mark}", "somebody")
    server.command(f"DETACH TABLE {tables}.v PERMANENTLY")
    try:
        found = set(read_left(server, names)) - before
    finally:
        server.command(f"ATTACH TABLE {tables}.v")
        journal.locks.release(held)
        server.command(f"SYSTEM START MERGES {tables}.t")
        server.command(render_open(source, f"__chmv_fence_{mark}"))
        server.command(f"DROP TABLE {scratch} SYNC")
        server.command(f"DROP TABLE chmv.`kept.{mark}.a.b` SYNC")
    assert found == {
        f"table scratch.{mark}", f"table that was put aside kept.{mark}.a.b", f"gate __chmv_fence_{mark} on {tables}.s",
        f"merges of {tables}.t are stopped", f"lock soak {mark} held by {held.owner}", f"{tables}.v is detached",
    }  # fmt: skip
    assert set(read_left(server, names)) - before == set()


def test_scratch_and_replace_with_the_view_live_is_reported_as_lost_rows(server: Server, tables: str) -> None:
    """The textbook rebuild: rows that arrive between its computation and its swap are gone."""
    insert = f"INSERT INTO {tables}.s SELECT '2026-11-01', number FROM numbers({{}})"
    server.command(insert.format("100"))
    server.command(f"CREATE TABLE {tables}.scratch AS {tables}.t")
    server.command(f"INSERT INTO {tables}.scratch SELECT day, id, count() FROM {tables}.s GROUP BY day, id")
    server.command(insert.replace("number FROM", "1000 + number FROM").format("7"))  # a writer
    server.command(f"ALTER TABLE {tables}.t REPLACE PARTITION '2026-11-01' FROM {tables}.scratch")
    server.command(f"DROP TABLE {tables}.scratch SYNC")
    sent = [*range(100), *range(1000, 1007)]
    rows = server.rows(f"SELECT id, sum(n) FROM {tables}.t GROUP BY id")
    account = count_ids("t", {int(one): int(n) for one, n in rows}, sent)
    catalog = build_catalog([SourceFile(path="x.sql", text=DDL.replace("{db}", tables))]).require_sound()
    found = Reconciler(server, catalog, "UTC").run(catalog.get(f"{tables}.t"), None)
    compared = Compared(
        target="t", windows=1, keys=found.keys, wrong=(found.sentence(),) if found.status != "equal" else ()
    )
    assert (account.lost, account.doubled) == (7, 0)
    why = judge(Findings(accounts=(account,), compared=(compared,), reads=Reads(polls=1)))
    assert len(why) == 2
    assert why[0] == "t: 7 lost, 0 doubled, 0 that nobody sent"
    assert "7 missing" in why[1]
