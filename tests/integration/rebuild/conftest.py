"""Fixtures of the rebuild's tests: a pipeline per case, and what scratch tables a test leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clickhouse_connect.driver.client import Client
from rebuild_cases import ROWS, Case
from rebuild_oracle import Pipe, apply_ddl

from resources.clickhouse import Server


@pytest.fixture(scope="module")
def make(clickhouse: Client, server: Server, database: str) -> Callable[..., Pipe]:
    """Build a case at first use; with another name it is a fresh one."""
    made: dict[str, Pipe] = {}

    def build(case: Case, name: str, *, rows: int = 2000) -> Pipe:
        if name not in made:
            text = (case.source.strip() + "\n" + case.ddl).replace("{db}", database).replace("{case}", name)
            pipe = Pipe(clickhouse, server, database, name, apply_ddl(clickhouse, text))
            pipe.client.command(f"SYSTEM STOP MERGES {pipe.name('target').sql}")  # they change raw rows
            for sql in case.prepare:
                pipe.run(sql)
            for first in range(0, rows, max(rows // 3, 1)):
                pipe.run(ROWS.format(db=database, case=name, first=first, count=max(rows // 3, 1)))
            made[name] = pipe
        return made[name]

    return build


@pytest.fixture
def left_over(clickhouse: Client) -> Iterator[Callable[[], list[str]]]:
    """Names of scratch tables that this test has made; each test must leave none."""

    def every() -> list[str]:
        found = clickhouse.query("SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE 'scratch.%'")
        return [name for (name,) in found.result_rows]

    before = set(every())

    def list_tables() -> list[str]:
        return [name for name in every() if name not in before]

    yield list_tables
    for name in list_tables():
        clickhouse.command(f"DROP TABLE chmv.`{name}` SYNC")
