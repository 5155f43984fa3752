"""`chmv graph --runtime` on a real server: what its logs saw of a small pipeline, and what they saw besides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from click.testing import CliRunner, Result
from declared import declared_folder

from chmv_assets.cli.main import main
from chmv_assets.core.errors import ServerError
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.runtime import fetch_observed

DDL = """
CREATE TABLE {db}.hits (page String, ms UInt32) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.names (page String) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.pages (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits WHERE page NOT IN (SELECT page FROM {db}.names) GROUP BY page;
CREATE TABLE {db}.sums (total UInt64) ENGINE = SummingMergeTree ORDER BY tuple();
CREATE MATERIALIZED VIEW {db}.sums_mv TO {db}.sums AS SELECT sum(total) AS total FROM {db}.pages;
CREATE VIEW {db}.shown AS SELECT * FROM {db}.pages;
CREATE MATERIALIZED VIEW {db}.`odd name` ENGINE = MergeTree ORDER BY page AS SELECT page FROM {db}.hits;
CREATE TABLE {db}.top (page String) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.top_mv REFRESH EVERY 1 YEAR TO {db}.top EMPTY AS SELECT page FROM {db}.pages;
CREATE TABLE {db}.quiet (page String) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.quiet_mv TO {db}.names AS SELECT page FROM {db}.quiet;
"""


@dataclass
class Folder:
    """A folder on the server, and somebody who uses it without us."""

    path: Path
    database: str
    engine: EngineInfo

    def other(self, sql: str) -> None:
        client = clickhouse_connect.get_client(
            host="127.0.0.1", port=self.engine.http_port, client_name="reports", autogenerate_session_id=False
        )
        try:
            client.command(sql.replace("{db}", self.database))
        finally:
            client.close()

    def graph(self, *arguments: str) -> Result:
        command = ["graph", "--runtime", "--ddl", str(self.path), *arguments]
        return CliRunner().invoke(main, command, catch_exceptions=False)

    def runtime(self) -> dict[str, Any]:
        result = self.graph("--format", "json")
        assert result.exit_code == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout.replace(f"{self.database}.", ""))["runtime"]
        return found


@pytest.fixture
def folder(configured: EngineInfo, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("CHMV_CACHE_DIR", str(tmp_path / "cache"))
    with declared_folder(server.command, tmp_path, "runtime", DDL) as (path, name):
        yield Folder(path, name, configured)


def edges(runtime: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["from"], one["to"]): one for one in runtime["edges"]}


def test_edges_are_seen_as_data_flows(folder: Folder) -> None:
    before = edges(folder.runtime())
    assert {one["state"] for one in before.values()} == {"never seen"}
    assert not any(one["suspicious"] for one in before.values())
    for _ in range(3):
        folder.other("INSERT INTO {db}.hits VALUES ('a', 1), ('b', 2)")
    folder.other("SELECT count() FROM {db}.shown")
    after = edges(folder.runtime())
    for pair in (("hits", "pages_mv"), ("pages_mv", "pages"), ("pages", "sums_mv"), ("sums_mv", "sums"), ("hits", "`odd name`"), ("`odd name`", "`.inner.odd name`")):  # fmt: skip
        assert (after[pair]["state"], after[pair]["count"]) == ("seen", 3), pair
        assert after[pair]["last"]
    assert after["pages", "shown"]["state"] == "seen"
    assert after["names", "pages_mv"]["state"] == "seen"
    assert {after[pair]["state"] for pair in (("pages", "top_mv"), ("top_mv", "top"))} == {"never seen"}
    for verb in ("REFRESH", "WAIT"):
        folder.other(f"SYSTEM {verb} VIEW {{db}}.top_mv")
    after = edges(folder.runtime())
    assert {after[pair]["state"] for pair in (("pages", "top_mv"), ("top_mv", "top"))} == {"seen"}
    assert after["quiet", "quiet_mv"] == {
        "from": "quiet", "to": "quiet_mv", "kind": "trigger", "state": "never seen", "count": 0, "last": None,
        "source_inserts": 0, "suspicious": False,
    }  # fmt: skip


def test_a_view_that_is_gone_is_suspicious_once_its_source_is_written(folder: Folder, server: Server) -> None:
    server.command(f"DROP VIEW {folder.database}.sums_mv SYNC")
    folder.other("INSERT INTO {db}.hits VALUES ('a', 1)")
    found = edges(folder.runtime())
    assert found["pages", "sums_mv"]["suspicious"] and found["pages", "sums_mv"]["source_inserts"] == 1
    assert found["hits", "pages_mv"]["state"] == "seen"


def test_what_nobody_declared(folder: Folder) -> None:
    folder.other("CREATE TABLE {db}.loot (page String) ENGINE = MergeTree ORDER BY page")
    folder.other("CREATE MATERIALIZED VIEW {db}.rogue TO {db}.loot AS SELECT page FROM {db}.hits")
    folder.other("INSERT INTO {db}.hits VALUES ('a', 1)")
    folder.other("/* nightly */ INSERT INTO {db}.`hits` (page) SELECT page FROM {db}.pages")
    runtime = folder.runtime()
    found = {(one["from"], one["to"], one["kind"]): one for one in runtime["undeclared_edges"]}
    assert set(found) == {("rogue", "loot", "writes"), ("hits", "rogue", "trigger"), ("pages", "hits", "insert")}
    assert found["rogue", "loot", "writes"]["count"] == 2
    (by,) = found["pages", "hits", "insert"]["by"]
    assert by["user"] == "default" and "reports" in by["client"]
    uses = {(one["table"], one["what"], one["kind"]): one for one in runtime["uses"]}
    assert uses["hits", "written", "Insert"]["count"] == 2
    assert uses["pages", "read", "Insert"]["count"] == 1
    assert not [one for one in runtime["uses"] if one["table"] in ("names", "sums")], "only views read and wrote these"
    assert uses["loot", "changed", "Create"]["declared"] is False
    assert "nightly" not in json.dumps(runtime)
    picture = folder.graph("--format", "dot").stdout
    assert "style=dashed, color=red" in picture and "rogue" in picture
    assert "-.->|undeclared insert|" in folder.graph("--format", "mermaid").stdout


def test_the_table_is_for_people_and_ends_with_a_summary(folder: Folder) -> None:
    folder.other("INSERT INTO {db}.hits VALUES ('a', 1)")
    result = folder.graph()
    assert result.exit_code == 0
    assert "declared edges" in result.stdout and "queries of others" in result.stdout
    assert "0 suspicious" in result.stdout.splitlines()[-1]


def test_wrong_command_lines(folder: Folder) -> None:
    assert folder.graph("--since", "0").exit_code == 2
    assert folder.graph("--since", "10000").exit_code == 2
    without = CliRunner().invoke(main, ["graph", "--format", "table"])
    assert without.exit_code == 2 and "--runtime" in without.stderr


def test_a_constant_number_of_queries(folder: Folder, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    rows = Server.rows

    def counted(self: Server, sql: str, *values: Any, **more: Any) -> Any:
        asked.append(sql)
        return rows(self, sql, *values, **more)

    monkeypatch.setattr(Server, "rows", counted)
    fetch_observed(server, [folder.database], 24)
    assert len(asked) == 3


def test_a_server_without_logs_is_told_and_exits_0(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.runtime._VIEWS_LOG", "no_such_log")
    monkeypatch.setattr("resources.runtime._QUERY_LOG", "no_such_log_either")
    result = folder.graph()
    assert result.exit_code == 0
    assert "The server has no system.no_such_log." in result.stdout
    assert "Nothing is known of what ran" in result.stdout
    assert folder.runtime()["known"] is False


def test_logs_that_may_not_be_flushed_are_read_as_they_are(folder: Folder, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def refuse(_self: Server, sql: str, *_values: Any, **_more: Any) -> str:
        raise ServerError(f"Not enough privileges for {sql}", code=497, code_name="ACCESS_DENIED")

    monkeypatch.setattr(Server, "command", refuse)
    found = fetch_observed(server, [folder.database], 24)
    assert found.known and "could not be flushed" in found.notes[0]
    monkeypatch.undo()
