"""`chmv rebuild` stopped by a signal in the middle of a window: nothing is left, what was done is told; and `chmv rebuilds`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client

from chmv_assets.cli.main import main
from chmv_assets.core.catalog import SourceFile
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import RebuildRecord, lease_name, write_rebuild
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.statements import split_statements
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal
from resources.journal.locks import Locks

DDL = """
CREATE TABLE {db}.clicks (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY page;
CREATE TABLE {db}.names (page String, name String) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.slow (at DateTime('UTC'), name String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE MATERIALIZED VIEW {db}.slow_mv TO {db}.slow AS SELECT c.at AS at, n.name AS name FROM {db}.clicks AS c
LEFT ANY JOIN {db}.names AS n ON n.page = c.page WHERE sleepEachRow(0.25) = 0;
"""
ROOT = Path(__file__).parents[3]


@pytest.fixture
def database(clickhouse: Client, tmp_path: Path) -> Iterator[str]:
    """Three days of a view that takes two seconds for each."""
    name = f"stop_{secrets.token_hex(3)}"
    text = DDL.replace("{db}", name)
    (tmp_path / "all.sql").write_text(text)
    clickhouse.command(f"CREATE DATABASE {name}")
    for statement in split_statements(SourceFile(path="x", text=text))[0]:
        clickhouse.command(statement.text)
    for day in (1, 2, 3):
        clickhouse.command(
            f"INSERT INTO {name}.clicks SELECT toDateTime('2026-07-0{day} 00:00:00', 'UTC') + number, 'p' FROM numbers(8)"
        )
    yield name
    clickhouse.command(f"DROP DATABASE {name} SYNC")


@pytest.mark.parametrize(("protocol", "sent", "code"), [("gated", signal.SIGINT, 130), ("closed", signal.SIGTERM, 143)])
def test_signal_in_the_middle_of_a_window(
    database: str, engine: EngineInfo, server: Server, clickhouse: Client, tmp_path: Path,
    left_over: Callable[[], list[str]], protocol: str, sent: signal.Signals, code: int,
) -> None:  # fmt: skip
    environ = {**os.environ, "CHMV_CLICKHOUSE_URL": engine.url, "CHMV_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "chmv_assets.cli.main", "rebuild", f"{database}.slow", "--all", "--json"]
    process = subprocess.Popen(
        [*command, "--protocol", protocol, "--ddl", str(tmp_path)], cwd=ROOT, env=environ, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    busy = f"SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO `chmv`.%' AND query LIKE '%{database}%'"
    done = (
        "SELECT count() FROM system.tables WHERE database = 'chmv' AND name = 'rebuilds'",
        f"SELECT count() FROM chmv.rebuilds FINAL WHERE target = '{database}.slow' AND status = 'published'",
        busy,
    )
    deadline = time.monotonic() + 90
    while not all(clickhouse.query(sql).result_rows[0][0] for sql in done):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(sent)
    told, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    document = json.loads(told)
    assert [one["window"][:10] for one in document["windows"]] == ["2026-07-03"]
    assert [one[:10] for one in document["left"]] == ["2026-07-02", "2026-07-01"]
    assert f"stopped by {sent.name}" in document["error"] and document["error"] in errors
    assert "Traceback" not in errors
    nothing = (
        f"SELECT count() FROM system.tables WHERE database = '{database}' AND position(create_table_query, '__chmv_fence_') > 0",
        f"SELECT count() FROM chmv.rebuilds FINAL WHERE target = '{database}.slow' AND status IN ('running', 'unverified')",
        busy,
    )
    assert [clickhouse.query(sql).result_rows[0][0] for sql in nothing] == [0, 0, 0]
    assert left_over() == []
    assert Locks(server).holder(lease_name(QName(database, "slow"))) == ""


def test_rebuilds_are_listed_with_those_that_need_a_look_first(
    database: str, engine: EngineInfo, server: Server, clickhouse: Client, tmp_path: Path
) -> None:
    environ = {"CHMV_CLICKHOUSE_URL": engine.url, "CHMV_CACHE_DIR": str(tmp_path / "cache")}
    target = QName(database, "slow")
    journal = Journal(server)
    journal.prepare()
    steps = (Step("drain", target), Step("publish", target))
    windows = ["2026-07-01T06:00:00+00:00/2026-07-01T07:00:00+00:00", "all", "cutover", "2026-07-01T00:00:00+00:00/2026-08-01T00:00:00+00:00"]  # fmt: skip
    for number, status in enumerate(("running", "unverified", "published", "rolled_back")):
        record = RebuildRecord(
            rebuild_id=f"{database}{number}", target=target, window=windows[number], protocol="gated", status=status,  # type: ignore[arg-type]
            steps=steps, step=1, version=journal.versions.next(), owner="somebody",
        )  # fmt: skip
        journal.run(write_rebuild(record))
    runner = CliRunner()
    found = runner.invoke(main, ["rebuilds", "--target", str(target), "--json"], env=environ)
    assert found.exit_code == 0, found.output
    rebuilds = json.loads(found.stdout)["rebuilds"]
    assert {one["status"] for one in rebuilds[:2]} == {"running", "unverified"}
    assert {one["status"] for one in rebuilds[2:]} == {"published", "rolled_back"}
    assert {one["step"] for one in rebuilds} == {"2 of 2: publish"} and {one["holder"] for one in rebuilds} == {""}
    assert all(one["updated"] for one in rebuilds)
    assert {one["window"] for one in rebuilds} == set(windows)
    table = runner.invoke(main, ["rebuilds", "--target", str(target)], env=environ).output
    assert all(f"│ {window} " in table for window in ("2026-07-01T06", "all", "cutover", "2026-07")), table
    shown = runner.invoke(main, ["rebuilds", "--target", str(target), "--limit", "1"], env=environ)
    assert shown.exit_code == 0 and "rebuilds: 1" in shown.output
    none = runner.invoke(main, ["rebuilds", "--target", "no.where"], env=environ)
    assert none.exit_code == 0 and "No rebuilds of no.where." in none.output
    clickhouse.command(f"DELETE FROM chmv.rebuilds WHERE target = '{target}'")
