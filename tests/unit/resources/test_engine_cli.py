"""`chmv engine` without a server: help, exit codes, messages."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from chmv_assets.cli.engine import engine_group
from resources.engine.report import InstallStep, show_progress


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name in ("CHMV_CLICKHOUSE_URL", "CHMV_CLICKHOUSE_USER", "CHMV_CLICKHOUSE_PASSWORD", "CHMV_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner()


@pytest.mark.parametrize("command", [[], ["start"], ["stop"], ["status"], ["install"]])
def test_every_command_has_help_with_an_example(run: CliRunner, command: list[str]) -> None:
    answer = run.invoke(engine_group, [*command, "--help"])
    assert answer.exit_code == 0
    assert "Example:\n" in answer.output and "chmv engine" in answer.output


def test_status_without_a_server_exits_with_3(run: CliRunner, tmp_path: Path) -> None:
    answer = run.invoke(engine_group, ["status", "--data", str(tmp_path), "--json"])
    assert answer.exit_code == 3
    assert json.loads(answer.stdout) == {"state": "not running", "data_dir": str(tmp_path)}
    assert "chmv engine start" in run.invoke(engine_group, ["status", "--data", str(tmp_path)]).stdout


def test_stop_without_a_server_is_fine(run: CliRunner, tmp_path: Path) -> None:
    answer = run.invoke(engine_group, ["stop", "--data", str(tmp_path)])
    assert (answer.exit_code, answer.stdout) == (0, f"Not running on {tmp_path}.\n")
    assert list(tmp_path.iterdir()) == []


def test_external_server_is_not_stopped(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:1")
    assert "nothing to stop" in run.invoke(engine_group, ["stop"]).stdout
    failed = run.invoke(engine_group, ["status"])
    assert failed.exit_code == 1 and failed.stderr.startswith("Error: engine http://127.0.0.1:1: found no answer")


def test_port_out_of_range_is_refused(run: CliRunner) -> None:
    assert run.invoke(engine_group, ["start", "--http-port", "70000"]).exit_code == 2


@pytest.mark.parametrize("terminal", [True, False])
def test_installation_is_shown_as_a_bar_or_as_two_lines(terminal: bool) -> None:
    out = io.StringIO()
    with show_progress(Console(file=out, force_terminal=terminal, width=100)) as report:
        for step in (
            InstallStep(text="installing x"),
            InstallStep(text="checking", done_bytes=1, total_bytes=2),
            InstallStep(text="installed x"),
        ):
            report(step)
    lines = "chmv engine: installing x\nchmv engine: installed x\n"
    assert (out.getvalue() == lines) is not terminal
    assert ("\x1b" in out.getvalue()) is terminal
