"""Runs of many windows that fail or are cancelled half way, each in a process of its own: what counts, what is left, what is resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import Site, open_site

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import lease_name
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal.locks import Locks

DDL = """
CREATE TABLE {db}.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY page;
CREATE TABLE {db}.daily (day Date, page String, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, page);
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS SELECT toDate(at) AS day, page, count() AS hits FROM {db}.hits GROUP BY day, page;
CREATE TABLE {db}.clicks (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY page;
CREATE TABLE {db}.names (page String, name String) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.slow (at DateTime('UTC'), name String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE MATERIALIZED VIEW {db}.slow_mv TO {db}.slow AS SELECT c.at AS at, n.name AS name FROM {db}.clicks AS c
LEFT ANY JOIN {db}.names AS n ON n.page = c.page WHERE sleepEachRow(0.25) = 0;
"""
SETTINGS = """
version: 1
default_database: {db}
start: "2026-10-01"
sources:
  {db}.hits: {event_time: at}
  {db}.clicks: {event_time: at}
"""
DRIVER = Path(__file__).with_name("dagster_run.py")
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 90


@dataclass
class Runs(Site):
    """A location whose runs are processes on an instance with files."""

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "CHMV_DDL_DIR": str(self.folder), "DAGSTER_HOME": os.environ["DAGSTER_HOME"]}
        return subprocess.Popen([sys.executable, str(DRIVER), *words], cwd=ROOT, env=environment)

    def execute(self, *words: str) -> dg.DagsterRun:
        with self.start(*words) as process:
            process.wait(PATIENCE_SECONDS)
        return self.newest()

    def newest(self) -> dg.DagsterRun:
        return self.store.get_runs(limit=1)[0]

    @property
    def store(self) -> dg.DagsterInstance:
        if not hasattr(self, "_store"):
            self._store = dg.DagsterInstance.get()
        return self._store

    def events(self, table: str, run: dg.DagsterRun) -> list[tuple[str | None, dict[str, Any]]]:
        """Partition and metadata of every materialization of a run."""
        found = self.store.fetch_materializations(self.key(table), limit=100).records
        kept = [record.asset_materialization for record in found if record.run_id == run.run_id]
        told = [(one.partition, {k: v.value for k, v in one.metadata.items()}) for one in kept if one is not None]
        return sorted(told, key=lambda pair: str(pair[0]))

    def statuses(self, table: str, keys: list[str]) -> dict[str, str]:
        definition = self.definitions.resolve_asset_graph().get(self.key(table)).partitions_def
        assert definition is not None
        found = self.store.get_status_by_partition(self.key(table), keys, definition) or {}
        return {key: status.value if status is not None else "" for key, status in found.items()}

    def log(self, run: dg.DagsterRun) -> str:
        return "\n".join(entry.user_message for entry in self.store.all_logs(run.run_id))

    def published(self, table: str) -> dict[str, int]:
        """Day of each window in the journal → how often it was published."""
        rows = self.rows(
            "SELECT substring(window, 1, 10), count() FROM chmv.rebuilds FINAL WHERE status = 'published' "
            f"AND target = '{self.database}.{table}' GROUP BY 1"
        )
        return dict(rows)


@pytest.fixture
def site(configured: EngineInfo, clickhouse: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with open_site(Runs, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        yield made
        made.store.dispose()


def add_hits(site: Runs, *days: int) -> None:
    for day in days:
        site.command(
            f"INSERT INTO {{db}}.hits SELECT toDateTime('2026-10-0{day} 00:00:00', 'UTC') + number * 600, "
            "'p' || toString(number % 3) FROM numbers(10)"
        )


@pytest.mark.parametrize("mode", ["again", pytest.param("failed", marks=pytest.mark.thorough)])
def test_failed_half_way_counts_what_is_done_and_is_resumed(site: Runs, mode: str) -> None:
    add_hits(site, 2, 3, 4, 5)
    site.command("INSERT INTO {db}.daily SELECT * FROM {db}.daily")  # damage
    site.command("ALTER TABLE {db}.hits DROP PARTITION ID '20261003'")  # its window is refused
    failed = site.execute("start", site.database, "daily", "2026-10-02", "2026-10-05")
    assert failed.status == dg.DagsterRunStatus.FAILURE
    events = site.events("daily", failed)
    assert [key for key, _ in events] == ["2026-10-04", "2026-10-05"]
    told = events[0][1]
    assert told["chmv/protocol"] in ("closed", "gated") and told["chmv/why"]
    assert (told["chmv/rows_before"], told["chmv/rows_after"], told["chmv/tries"]) == (6, 3, 1)
    assert "2 windows were finished before" in site.log(failed)
    assert site.statuses("daily", ["2026-10-02", "2026-10-03", "2026-10-04", "2026-10-05"]) == {
        "2026-10-02": "FAILED", "2026-10-03": "FAILED", "2026-10-04": "MATERIALIZED", "2026-10-05": "MATERIALIZED",
    }  # fmt: skip
    add_hits(site, 3)
    resumed = site.execute(mode, failed.run_id)
    assert resumed.status == dg.DagsterRunStatus.SUCCESS
    log = site.log(resumed)
    assert f"2026-10-05 (1 of 4): skipped, run {failed.run_id} has published it (3 rows now)" in log
    assert "2026-10-02 (4 of 4): rows 6 → 3" in log
    again = site.events("daily", resumed)
    assert [key for key, _ in again] == ["2026-10-02", "2026-10-03", "2026-10-04", "2026-10-05"]  # one each, not two
    assert [one.get("chmv/published_by_run") for _, one in again] == [None, None, failed.run_id, failed.run_id]
    assert site.published("daily") == {f"2026-10-0{day}": 1 for day in (2, 3, 4, 5)}
    assert site.rows("SELECT toDayOfMonth(day), sum(hits) FROM {db}.daily GROUP BY 1 ORDER BY 1") == [
        (day, 10) for day in (2, 3, 4, 5)
    ]


def test_rerun_of_a_run_that_succeeded_rebuilds_again(site: Runs) -> None:
    add_hits(site, 2, 3)
    first = site.execute("start", site.database, "daily", "2026-10-02", "2026-10-03", "chmv/protocol=gated")
    assert first.status == dg.DagsterRunStatus.SUCCESS
    assert {one["chmv/protocol"] for _, one in site.events("daily", first)} == {"gated"}
    second = site.execute("again", first.run_id)
    assert second.status == dg.DagsterRunStatus.SUCCESS
    assert site.published("daily") == {"2026-10-02": 2, "2026-10-03": 2}
    assert len(site.events("daily", second)) == 2


GATES = (
    "SELECT count() FROM system.tables WHERE database = '{db}' AND position(create_table_query, '__chmv_fence_') > 0"
)
BUSY = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO `chmv`.%' AND query LIKE '%{db}%'"
SCRATCHES = "SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE 'scratch.%'"


def start_in_the_middle(site: Runs, protocol: str) -> subprocess.Popen[bytes]:
    """A run over three windows of a slow view, when one is done and the second one is being computed."""
    for day in (2, 3, 4):
        site.command(
            f"INSERT INTO {{db}}.clicks SELECT toDateTime('2026-10-0{day} 00:00:00', 'UTC') + number, 'p' FROM numbers(8)"
        )
    process = site.start("start", site.database, "slow", "2026-10-02", "2026-10-04", f"chmv/protocol={protocol}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _has_journal(site) or not site.published("slow") or site.rows(BUSY) == [(0,)]:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return process


def _has_journal(site: Runs) -> bool:
    return site.rows("SELECT count() FROM system.tables WHERE database = 'chmv' AND name = 'rebuilds'") == [(1,)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("protocol", "status"),
    [("gated", dg.DagsterRunStatus.CANCELED)]
    + ([("closed", dg.DagsterRunStatus.FAILURE)] if os.environ.get("CHMV_THOROUGH") else []),
)
def test_stopped_in_the_middle_leaves_nothing_and_is_resumed(
    site: Runs, server: Server, protocol: str, status: dg.DagsterRunStatus
) -> None:
    before = site.rows(SCRATCHES)
    process = start_in_the_middle(site, protocol)
    process.send_signal(signal.SIGSTOP)  # so that it is still in the middle when we have looked, on a busy machine too
    if status == dg.DagsterRunStatus.CANCELED:  # what "terminate" says first; without it a host takes its process away
        site.store.report_run_canceling(site.newest())
    gates = site.rows(GATES)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    process.wait(30)
    stopped = site.newest()
    assert stopped.status == status
    assert gates == [(int(protocol == "gated"),)]  # an opaque view is computed behind the gate, which was shut then
    done = sorted(site.published("slow"))
    assert [key for key, _ in site.events("slow", stopped)] == done and "2026-10-02" not in done
    assert site.rows(GATES) == [(0,)] and site.rows(BUSY) == [(0,)]
    assert set(site.rows(SCRATCHES)) <= set(before)
    assert Locks(server).holder(lease_name(QName(site.database, "slow"))) == ""
    statuses = "SELECT DISTINCT status FROM chmv.rebuilds FINAL WHERE target = '{db}.slow' AND status IN ('running', 'unverified')"
    assert site.rows(statuses) == []
    site.command("INSERT INTO {db}.clicks VALUES ('2026-10-01 00:00:00', 'p')")  # writers are let through
    resumed = site.execute("again", stopped.run_id)
    assert resumed.status == dg.DagsterRunStatus.SUCCESS
    assert site.published("slow") == {f"2026-10-0{day}": 1 for day in (2, 3, 4)}
    assert site.rows("SELECT count() FROM {db}.slow") == [(25,)]


@pytest.mark.thorough
def test_killed_in_the_middle_is_resumed_by_the_journal(site: Runs) -> None:
    before = site.rows(SCRATCHES)
    process = start_in_the_middle(site, "gated")
    process.kill()
    process.wait(30)
    killed = site.newest()
    assert site.events("slow", killed) == []  # nobody was left to write them
    resumed = site.execute("again", killed.run_id)  # waits until the lease of the dead has ended
    assert resumed.status == dg.DagsterRunStatus.SUCCESS
    assert f"2026-10-04 (1 of 3): skipped, run {killed.run_id} has published it" in site.log(resumed)
    assert [key for key, _ in site.events("slow", resumed)] == ["2026-10-02", "2026-10-03", "2026-10-04"]
    assert site.published("slow") == {f"2026-10-0{day}": 1 for day in (2, 3, 4)}
    assert site.rows(GATES) == [(0,)] and set(site.rows(SCRATCHES)) <= set(before)
    assert site.rows("SELECT count() FROM {db}.slow") == [(24,)]
