"""Bounds: a window that does not fit into memory is computed in pieces; a disk is never filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from rebuild_oracle import Pipe, apply_ddl, day

from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.settings_values import Protocol
from resources.clickhouse import Server
from resources.executor import BOUNDS, Executor

DDL = """
CREATE TABLE {db}.{case}_source (ts DateTime('UTC'), id UInt64) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY ts;
CREATE TABLE {db}.{case}_target (d Date, id UInt64, n UInt64) ENGINE = SummingMergeTree PARTITION BY d ORDER BY (d, id);
CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
SELECT toDate(ts) AS d, id, count() AS n FROM {db}.{case}_source GROUP BY d, id;
"""
TIGHT: dict[str, Any] = {
    **BOUNDS,
    "max_memory_usage": 60_000_000,
    "max_bytes_before_external_group_by": 0,
    "max_bytes_ratio_before_external_group_by": 0,
    "max_threads": 1,
}


@pytest.fixture
def big(clickhouse: Client, server: Server, database: str, request: pytest.FixtureRequest) -> Pipe:
    case = f"big_{abs(hash(request.node.name)) % 10**8}"
    text = DDL.replace("{db}", database).replace("{case}", case)
    pipe = Pipe(clickhouse, server, database, case, apply_ddl(clickhouse, text))
    pipe.run(
        "INSERT INTO {db}.{case}_source SELECT toDateTime('2026-07-05 00:00:00', 'UTC') + number % 86400, number FROM numbers(1500000)"
    )
    return pipe


@pytest.mark.parametrize("protocol", ["closed", "gated"])
def test_window_that_does_not_fit_into_memory_is_computed_in_pieces(
    big: Pipe, server: Server, left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    big.protocol = protocol
    with pytest.raises(ServerError, match="MEMORY_LIMIT_EXCEEDED"):
        server.rows(
            f"SELECT count() FROM (SELECT toDate(ts) AS d, id, count() FROM {big.name('source').sql} GROUP BY d, id)",
            settings=TIGHT,
        )
    big.damage("double", ["20260705"])
    big.publish(day("2026-07-05"), executor=Executor(server, log=big.logged.append, bounds=TIGHT))
    assert any("out of memory, going on in" in line for line in big.logged)
    found = server.rows(f"SELECT count(), sum(n), max(n) FROM {big.name('target').sql} FINAL")
    assert found == [(1_500_000, 1_500_000, 1)]
    assert left_over() == []


def test_disk_is_not_filled(big: Pipe, monkeypatch: pytest.MonkeyPatch, left_over: Callable[[], list[str]]) -> None:
    monkeypatch.setattr("resources.rebuild.workbench.fetch_free_bytes", lambda *_: 1_000)
    monkeypatch.setattr("resources.rebuild.workbench._SMALL", 0)  # a test's window is
    with pytest.raises(RebuildRefused, match=r"0\.0 GB are free on its disk but wanted"):
        big.publish(day("2026-07-05"))
    assert len(left_over()) <= 1


CROWDED = DDL.replace(
    "ORDER BY (d, id)", "ORDER BY (d, id) SETTINGS parts_to_delay_insert = 20, parts_to_throw_insert = 30"
)
MANY_BLOCKS: dict[str, Any] = {
    **BOUNDS,
    "max_block_size": 1000,
    "min_insert_block_size_rows": 1000,
    "min_insert_block_size_bytes": 0,
    "max_insert_threads": 1,
    "group_by_two_level_threshold": 1,
    "group_by_two_level_threshold_bytes": 1,
}


@pytest.mark.parametrize("protocol", ["closed", "gated"])
def test_share_of_very_many_parts_is_merged_aside_before_it_meets_the_writers(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    """Published as they were written, its parts would be above the limits from which inserts into the target fail."""
    text = CROWDED.replace("{db}", database).replace("{case}", f"crowded_{protocol}")
    pipe = Pipe(clickhouse, server, database, f"crowded_{protocol}", apply_ddl(clickhouse, text))
    pipe.protocol = protocol
    pipe.run(
        "INSERT INTO {db}.{case}_source SELECT toDateTime('2026-07-05 00:00:00', 'UTC') + number % 86400, number FROM numbers(200000)"
    )
    pipe.publish(day("2026-07-05"), executor=Executor(server, log=pipe.logged.append, bounds=MANY_BLOCKS))
    assert any("parts in one partition, merging them to 10" in line for line in pipe.logged), pipe.logged
    pipe.run("INSERT INTO {db}.{case}_source VALUES ('2026-07-05 01:00:00', 5)")
    found = server.rows(f"SELECT count(), sum(n), max(n) FROM {pipe.name('target').sql} FINAL")
    assert found == [(200_000, 200_001, 2)]
    assert left_over() == []
