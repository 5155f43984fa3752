"""`chmv rebuild` on the real server: windows, dry run, all at once, chains, and errors that say what to do."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from clickhouse_connect.driver.client import Client

from chmv_assets.cli.main import main
from chmv_assets.core.catalog import SourceFile
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import lease_name
from chmv_assets.core.statements import split_statements
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.journal import Journal

DDL = """
CREATE TABLE {db}.s (ts DateTime('UTC'), id UInt64) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY ts;
CREATE TABLE {db}.daily (d Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY d ORDER BY d;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS SELECT toDate(ts) AS d, count() AS n FROM {db}.s GROUP BY d;
CREATE TABLE {db}.monthly (m Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY m ORDER BY m;
CREATE MATERIALIZED VIEW {db}.monthly_mv TO {db}.monthly AS
    SELECT toStartOfMonth(d) AS m, sum(n) AS n FROM {db}.daily GROUP BY m;
CREATE TABLE {db}.total (one UInt8, n UInt64) ENGINE = SummingMergeTree ORDER BY one;
CREATE MATERIALIZED VIEW {db}.total_mv TO {db}.total AS SELECT 1 AS one, count() AS n FROM {db}.s;
"""


class Shop:
    """A small pipeline, damaged, and the command on it."""

    def __init__(self, client: Client, engine: EngineInfo, folder: Path) -> None:
        self.client, self.engine, self.folder = client, engine, folder
        self.database = f"cli_{secrets.token_hex(3)}"
        text = DDL.replace("{db}", self.database)
        (folder / "all.sql").write_text(text)
        client.command(f"CREATE DATABASE {self.database}")
        for statement in split_statements(SourceFile(path="x", text=text))[0]:
            client.command(statement.text)
        client.command(
            f"INSERT INTO {self.database}.s SELECT toDateTime('2026-07-01 00:00:00', 'UTC') + number * 3600, number FROM numbers(96)"
        )

    def call(self, *arguments: str) -> Result:
        environ = {"CHMV_CLICKHOUSE_URL": self.engine.url, "CHMV_CACHE_DIR": str(self.folder / "cache")}
        return CliRunner().invoke(main, ["rebuild", *arguments, "--ddl", str(self.folder)], env=environ)

    def damage(self) -> None:
        for table in ("daily", "monthly", "total"):
            self.client.command(f"INSERT INTO {self.database}.{table} SELECT * FROM {self.database}.{table}")

    def sums(self) -> tuple[int, ...]:
        parts = [f"(SELECT sum(n) FROM {self.database}.{table})" for table in ("daily", "monthly", "total")]
        return tuple(int(value) for value in self.client.query(f"SELECT {', '.join(parts)}").result_rows[0])


@pytest.fixture
def shop(clickhouse: Client, engine: EngineInfo, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(clickhouse, engine, tmp_path)
    yield made
    clickhouse.command(f"DROP DATABASE {made.database} SYNC")


def test_windows_newest_first_as_table_and_json(shop: Shop) -> None:
    shop.damage()
    told = shop.call(f"{shop.database}.daily", "--window", "2026-07-02..2026-07-03")
    assert told.exit_code == 0, told.output
    assert "2 windows rebuilt" in told.output and "(2 of 2)" in told.output
    assert shop.sums()[0] == 96 + 48
    found = shop.call(f"{shop.database}.daily", "--all", "--json")
    document = json.loads(found.stdout)
    assert [one["window"][:10] for one in document["windows"]] == [f"2026-07-0{day}" for day in (4, 3, 2, 1)]
    assert {one["rows_after"] for one in document["windows"]} == {1}
    assert shop.sums()[0] == 96


def test_who_waits_for_another_rebuild_is_told(shop: Shop) -> None:
    shop.damage()
    with Server(Endpoint(shop.engine.url)) as server:
        journal = Journal(server)
        journal.prepare()
        target = QName(shop.database, "daily")
        journal.locks.acquire(lease_name(target), "one who died", lease_seconds=2.5)
    found = shop.call(str(target), "--all", "--json")
    assert found.exit_code == 0, found.output
    assert len(json.loads(found.stdout)["windows"]) == 4
    waits, *windows = found.stderr.splitlines()
    assert waits.startswith(f"lock rebuild {target}: waiting, ") and "for one who died#" in waits
    assert len(windows) == 4, "statements are for logs"
    assert shop.sums()[0] == 96


def test_chain_behind_one_gate_and_whole_target(shop: Shop) -> None:
    shop.damage()
    done = shop.call(f"{shop.database}.daily", "--all", "--downstream", "--json")
    assert done.exit_code == 0, done.output
    assert {tuple(one["downstream"]) for one in json.loads(done.stdout)["windows"]} == {(f"{shop.database}.monthly",)}
    assert shop.call(f"{shop.database}.total").exit_code == 0
    assert shop.sums() == (96, 96, 96)


def test_dry_run_changes_nothing_and_names_every_step(shop: Shop) -> None:
    shop.damage()
    before = shop.sums()
    told = shop.call(f"{shop.database}.daily", "--window", "2026-07-02", "--protocol", "gated", "--dry-run")
    assert told.exit_code == 0 and "gated, because asked for" in told.output
    for word in (
        "settle",
        "scratch",
        "hold merges",
        "prebuild",
        "shut gate",
        "drain",
        "complete",
        "publish",
        "open gate",
    ):
        assert f". {word}: " in told.output
    plans = json.loads(shop.call(f"{shop.database}.daily", "--all", "--dry-run", "--json").stdout)["plans"]
    assert len(plans) == 4 and all(plan["why"] for plan in plans)
    assert shop.sums() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["daily"], "found no --window but wanted one"),
        (["total", "--window", "2026-07-01"], "has no time partitions"),
        (["daily", "--window", "yesterday"], "wanted `A..B` or `A`"),
        (["daily", "--window", "2026-07-01", "--protocol", "fenced"], "found no arrival column"),
        (["daily", "--window", "2026-07-01", "--protocol", "whole"], "takes all windows at once"),
        (["daily_mv", "--window", "2026-07-01"], "found a view but wanted the target that it writes"),
        (["s", "--window", "2026-07-01", "--dry-run"], "found no view that writes into it"),
        (["daily", "--window", "2026-07-01", "--feed", "replay"], "wanted a landing archive"),
        (["daily", "--window", "2026-07-01", "--downstream", "--protocol", "closed"], "wanted the gated protocol"),
        (["nothing", "--window", "2026-07-01"], "not in the catalog"),
    ],
)
def test_errors_say_what_was_wanted(shop: Shop, arguments: list[str], sentence: str) -> None:
    told = shop.call(f"{shop.database}.{arguments[0]}", *arguments[1:])
    assert told.exit_code == 1 and sentence in told.output.replace("\n", " "), told.output
