"""SIGKILL after each step of a gated rebuild, in turn, while rows arrive: the next rebuild finds the same end, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from rebuild_cases import CASES, ROWS
from rebuild_oracle import Pipe, day

from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild.recovery import recover_rebuilds

KEY = "2026-07-05"
DRIVER = Path(__file__).with_name("crash_driver.py")
ROOT = Path(__file__).parents[3]


def drive(pipe: Pipe, engine: EngineInfo, ddl: Path, step: int) -> int:
    command = [sys.executable, str(DRIVER), engine.url, str(ddl), str(pipe.name("target")), KEY, str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def gates(client: Client) -> list[str]:
    found = client.query("SELECT name FROM system.tables WHERE position(create_table_query, '__chmv_fence_') > 0")
    return [name for (name,) in found.result_rows]


@pytest.mark.parametrize("case", ["two_views", "opaque"])
def test_killed_after_every_step_in_turn(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    clickhouse: Client,
    engine: EngineInfo,
    tmp_path: Path,
    case: str,
) -> None:
    pipe = make(CASES[case], f"crash_{case}", rows=600)
    ddl = tmp_path / "x.sql"
    text = CASES[case].source.strip() + "\n" + CASES[case].ddl
    ddl.write_text(text.replace("{db}", pipe.database).replace("{case}", pipe.case))
    node = pipe.catalog.objects[pipe.name("target")]
    _, _, steps = pipe.rebuilder().explain(node, day(KEY), "gated")
    for number in range(len(steps)):
        pipe.damage("double", [p for p in pipe.checksums() if p == KEY.replace("-", "")])
        assert drive(pipe, engine, ddl, number) == -9, steps[number]
        try:
            pipe.run(ROWS.format(db=pipe.database, case=pipe.case, first=10_000 + number * 50, count=50))
        except ClickHouseError as error:
            assert error.code == 469  # the gate is still shut, and said so; a writer sends again
        assert drive(pipe, engine, ddl, -1) == 0
        assert pipe.rows(pipe.name("target")) == pipe.truth(), steps[number]
    assert left_over() == [] and gates(clickhouse) == []


def test_whoever_starts_first_clears_up(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    clickhouse: Client,
    server: Server,
    engine: EngineInfo,
    tmp_path: Path,
) -> None:
    pipe = make(CASES["additive"], "clear_up", rows=600)
    ddl = tmp_path / "x.sql"
    text = CASES["additive"].source.strip() + "\n" + CASES["additive"].ddl
    ddl.write_text(text.replace("{db}", pipe.database).replace("{case}", pipe.case))
    node = pipe.catalog.objects[pipe.name("target")]
    _, _, steps = pipe.rebuilder().explain(node, day(KEY), "gated")
    behind_the_gate = next(at for at, step in enumerate(steps) if step.kind == "drain")
    drive(pipe, engine, ddl, behind_the_gate)
    assert gates(clickhouse) == [pipe.name("source").table] and len(left_over()) == 1
    stopped = (
        "SELECT count() FROM system.tables WHERE 0"  # the server shows no list of stopped merges; starting is a no-op
    )
    clickhouse.query(stopped)
    executor = Executor(server, log=pipe.logged.append)
    recovered = []
    for _ in range(50):
        recovered += recover_rebuilds(executor, Journal(server))
        if recovered:
            break
        time.sleep(0.1)  # its lease has to end first
    assert [(one.target, one.status) for one in recovered] == [(node.name, "rolled_back")]
    assert gates(clickhouse) == [] and left_over() == []
    pipe.run(ROWS.format(db=pipe.database, case=pipe.case, first=20_000, count=5))
    assert pipe.rows(pipe.name("target")) == pipe.truth()
