"""What is asked of a server before rows are sent: can the source deduplicate, is it under pressure, do codes mean what we think."""

from __future__ import annotations

import pytest
from journal_driver import COLUMNS, EXACT, ROWS, TASKS, WINDOW, create_pipeline, facts, stage

from chmv_assets.core.batches import plan_commit
from chmv_assets.core.errors import IngestRefused, ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.pressure import judge_pressure
from chmv_assets.core.retry import RULES
from resources.capabilities import probe_capability
from resources.clickhouse import Server
from resources.journal import Journal, finish_batch
from resources.pressure import read_pressure


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
        journal.prepare()
        slices = stage(server, source, "cured", "a", "one")
        journal.note_batch(source, "cured", "staged", slices=slices)
        for _ in range(2):
            for one in plan_commit(source, "cured", [name for name, _ in COLUMNS], slices):
                server.run(one)
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
    journal.prepare()
    slices = stage(server, source, "through", "a", "one")
    journal.note_batch(source, "through", "staged", slices=slices)
    for one in plan_commit(source, "through", [name for name, _ in COLUMNS], slices):
        server.run(one)
    finish_batch(journal, source, "through")
    counted = server.rows(f"SELECT count(), uniqExact(id) FROM {database}.behind")
    assert counted == [(TASKS * ROWS, TASKS * ROWS)]


def test_pressure_is_read_against_the_tables_own_limits(server: Server, source: QName) -> None:
    name = QName(source.database, "full")
    server.command(
        f"CREATE TABLE {name.sql} (x UInt8) ENGINE = MergeTree ORDER BY x "
        "SETTINGS parts_to_delay_insert = 5, parts_to_throw_insert = 9"
    )
    server.command(f"SYSTEM STOP MERGES {name.sql}")
    for _ in range(4):
        server.command(f"INSERT INTO {name.sql} SELECT 1")
    seen = read_pressure(server, [source, name])
    assert (seen.parts, seen.parts_to_delay, seen.parts_to_throw) == (4, 5, 9)
    assert seen.pool_size > 0 and judge_pressure(seen)[0] == "busy"
    assert read_pressure(server, []).parts == 0


def test_a_table_without_a_limit_hides_no_other(server: Server, database: str) -> None:
    """0 means that inserts are never delayed: such a table is not the fullest, whatever the number of its parts."""
    unlimited, full = QName(database, "unlimited"), QName(database, "nearly_full")
    for name, delay, parts in ((unlimited, 0, 6), (full, 5, 4)):
        server.command(
            f"CREATE TABLE {name.sql} (x UInt8) ENGINE = MergeTree ORDER BY x "
            f"SETTINGS parts_to_delay_insert = {delay}, parts_to_throw_insert = 100, non_replicated_deduplication_window = 0"
        )
        server.command(f"SYSTEM STOP MERGES {name.sql}")
        for _ in range(parts):
            server.command(f"INSERT INTO {name.sql} SELECT 1")
    seen = read_pressure(server, [unlimited, full])
    assert (seen.parts, seen.parts_to_delay) == (4, 5)
    assert judge_pressure(seen)[0] == "busy"
    assert read_pressure(server, [unlimited]).parts == 6


def test_the_retry_table_names_codes_as_the_server_does(server: Server) -> None:
    rows = server.rows(
        "SELECT arrayJoin({c:Array(Int32)}) AS c, errorCodeToName(c)", {"c": [rule.code for rule in RULES]}
    )
    assert dict(rows) == {rule.code: rule.name for rule in RULES}
    with pytest.raises(ServerError) as caught:
        server.command("CREATE TABLE system.one (x UInt8) ENGINE = Null")
    assert caught.value.code is not None
    assert str(caught.value).endswith(f"[query_id {caught.value.query_id}]") and len(caught.value.query_id) == 36
