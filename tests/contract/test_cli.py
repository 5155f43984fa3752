"""The command line as people and CI use it: output, exit codes, help."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from chmv_assets import demo
from chmv_assets.cli.main import _COMMANDS, _TASKS, main
from chmv_assets.cli.output import console
from chmv_assets.pipeline import DEMO_DDL
from resources.clickhouse import Server
from resources.engine import EngineInfo

FIXTURES = Path(__file__).parents[1] / "fixtures"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found: list[tuple[str, ...]] = [path]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]
    return found


def test_graph_of_the_demo_is_what_was_checked_by_hand() -> None:
    result = run("graph", "--format", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    wanted = json.loads((FIXTURES / "demo_graph.json").read_text())
    fields = ("name", "kind", "engine", "cadence", "file", "line")
    assert [{field: node[field] for field in fields} for node in document["nodes"]] == wanted["nodes"]
    assert document["edges"] == wanted["edges"]
    assert document["version"] == 1


@pytest.mark.parametrize(("form", "first"), [("dot", "digraph chmv {"), ("mermaid", "flowchart LR")])
def test_graph_has_pictures_too(form: str, first: str) -> None:
    result = run("graph", "--format", form)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == first
    assert "shop.revenue_daily" in result.stdout


def test_check_of_a_sound_folder_exits_0() -> None:
    assert run("check").exit_code == 0
    document = json.loads(run("check", "--json").stdout)
    assert document["sound"] is True and document["objects"] == 33 and document["edges"] == 33


def test_check_names_all_defects_with_file_and_line_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "CREATE TABLE d.a (x UInt8) ENGINE = Log;\n\nCREATE TABLE d.a (x UInt8) ENGINE = Log;\nnonsense here;\n"
    )
    (tmp_path / "b.sql").write_text("SELECT 'never closed")
    (tmp_path / "chmv.yaml").write_text("version: 1\nsourcs: {}\n")
    result = run("check", "--ddl", str(tmp_path))
    assert result.exit_code == 1
    for place, code in (
        ("a.sql:3", "duplicate-object"),
        ("a.sql:4", "unreadable-statement"),
        ("b.sql:1", "unterminated"),
        ("chmv.yaml:2", "settings-"),
    ):
        assert any(line.startswith(f"{place}: ") and code in line for line in result.stdout.splitlines()), (
            place,
            result.stdout,
        )
    document = json.loads(run("check", "--ddl", str(tmp_path), "--json").stdout)
    assert document["sound"] is False and len(document["findings"]) >= 4


def test_warnings_fail_only_with_strict(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "CREATE TABLE d.s (x UInt8) ENGINE = MergeTree ORDER BY x; CREATE TABLE d.t (x UInt8) ENGINE = Log;"
        "CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT x FROM d.s"
    )
    assert run("check", "--ddl", str(tmp_path)).exit_code == 0
    assert run("check", "--ddl", str(tmp_path), "--strict").exit_code == 1


def test_graph_of_a_cycle_prints_the_path_and_exits_1() -> None:
    result = CliRunner().invoke(main, ["graph", "--ddl", str(FIXTURES / "ddl"), "--format", "json"])
    assert result.exit_code == 1
    assert "cycle" in result.stderr and "→" in result.stderr


@pytest.fixture
def demo_on_server(configured: EngineInfo, server: Server) -> Iterator[None]:
    server.command("DROP DATABASE IF EXISTS shop SYNC")
    demo.apply_ddl(server)
    yield
    server.command("DROP DATABASE shop SYNC")


@pytest.mark.usefixtures("demo_on_server")
def test_live_graph_is_the_declared_one_and_agrees_with_the_hooks(server: Server) -> None:
    result = run("graph", "--live", "--database", "shop")
    assert result.exit_code == 0, result.stderr
    live, declared = json.loads(result.stdout), json.loads(run("graph").stdout)
    assert live["disagreements"] == []
    assert live["edges"] == declared["edges"]
    fields = ("name", "kind", "engine", "cadence", "role", "class")
    assert [[n[f] for f in fields] for n in live["nodes"]] == [[n[f] for f in fields] for n in declared["nodes"]]
    server.command("DROP VIEW shop.traffic_hourly_mv SYNC")
    server.command(
        "CREATE MATERIALIZED VIEW shop.traffic_hourly_mv TO shop.traffic_hourly AS SELECT ordered_at AS hour FROM shop.order_changes"
    )
    moved = json.loads(run("graph", "--live", "--database", "shop").stdout)
    assert {"from": "shop.order_changes", "to": "shop.traffic_hourly_mv", "kind": "trigger"} in moved["edges"]


def test_live_without_a_server_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    result = CliRunner().invoke(main, ["check", "--live"])
    assert result.exit_code == 1
    assert "no usable answer" in result.stderr and "chmv engine status" in result.stderr


@pytest.mark.parametrize("command", [
        ["plan"], ["drift"], ["apply", "--resume"], ["status"], ["doctor"], ["tune", "--dry-run"], ["metrics"], ["reconcile", "shop.revenue_daily"],
        ["recover", "shop.traffic_hourly_mv"], ["rebuild", "shop.revenue_daily", "--all"], ["graph", "--runtime"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("said", [False, True])
def test_the_demo_against_a_server_that_was_named_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, command: list[str], said: bool
) -> None:
    monkeypatch.delenv("CHMV_DDL_DIR", raising=False)
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")  # nobody is there, and nothing is started
    result = CliRunner().invoke(main, [*command, *(["--ddl", str(DEMO_DDL)] if said else [])])
    warned = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    wanted = "Warning: neither --ddl nor CHMV_DDL_DIR is set, so the demo's DDL is meant, on the server of CHMV_CLICKHOUSE_URL."
    assert warned == ([] if said else [wanted])


@pytest.mark.parametrize("command", ["check", "thresholds", "grants", "graph"])
def test_a_command_that_asks_no_server_does_not_warn_of_the_demo(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.delenv("CHMV_DDL_DIR", raising=False)
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    assert run(command).stderr == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["rebuild", "shop.revenue_daily", "--all", "--window", "2026-11-14"], "--all and --window exclude each other"),
        (["apply", "--resume", "--soak-hours", "-1"], "not in the range x>=0"),
        (["deploys", "--limit", "0"], "not in the range 1<=x<=100000"),
    ],
    ids=lambda said: said[0] if isinstance(said, list) else "",
)
def test_options_that_would_be_ignored_or_make_no_sense_are_refused(command: list[str], said: str) -> None:
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2 and said in result.stderr


def test_a_target_is_not_recovered_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    result = CliRunner().invoke(main, ["recover", "shop.revenue_daily", "--since", "2h", "--ddl", str(DEMO_DDL)])
    assert result.exit_code == 1 and "found --since but wanted --window" in result.stderr


def test_the_json_of_the_graph_goes_to_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    result = run("graph", "--format", "json", "-o", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert file.read_text(encoding="utf-8") == run("graph").stdout
    refused = CliRunner().invoke(main, ["graph", "--live-status"])
    assert refused.exit_code == 2 and "--live-status is for --format html, dot and mermaid." in refused.stderr


@pytest.mark.parametrize("path", commands(main), ids=" ".join)  # type: ignore[arg-type]
def test_every_command_has_help_with_an_example_and_exit_codes(path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout
    assert path == ("engine",) or "xit code" in " ".join(result.stdout.split())


def test_help_lists_every_command_under_its_task_without_importing_it() -> None:
    told = [name for names in _TASKS.values() for name in names]
    assert len(told) == len(set(told)) and set(told) <= set(_COMMANDS)
    listed = run("--help").stdout
    assert all(f"\n  {name} " in listed for name in _COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["rebuid"], "rebuild"),
        (["engine", "strt"], "start"),
        (["rebuild", "shop.revenu_daily", "--all"], "shop.revenue_daily"),
        (["reconcile", "shop.revenu_daily"], "shop.revenue_daily"),
        (["recover", "shop.traffic_hourl_mv"], "shop.traffic_hourly_mv"),
        (["ingest", "shop.event"], "shop.events"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(arguments: list[str], near: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2, 3)
    assert f"Did you mean {near}" in result.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "coloured"), [(Terminal, True), (io.StringIO, False)])
def test_colour_is_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    written = stream()
    monkeypatch.setattr("sys.stdout", written)
    console().print("[green]ACTIVE[/]")
    assert ("\x1b[" in written.getvalue()) is coloured
