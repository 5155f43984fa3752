"""SIGKILL at each point of a rebuild, in turn, while rows arrive: the next rebuild finds the same end, and nothing is left."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from rebuild_cases import CASES, ROWS, Case
from rebuild_oracle import Pipe, day

from chmv_assets.core.settings_values import Protocol
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild.recovery import recover_rebuilds

KEY = "2026-07-05"
STRIDE = 1 if os.environ.get("CHMV_THOROUGH") else 3  # of points to die at
DRIVER = Path(__file__).with_name("crash_driver.py")
ROOT = Path(__file__).parents[3]


@dataclass
class Driver:
    """Rebuilds of one target, each in a process of its own."""

    process: subprocess.Popen[str]
    errors: Path

    def drive(self, protocol: str, key: str = KEY, *, step: int = -1, statement: int = 0) -> int:
        """The exit code of one rebuild; -9 if it was killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        where = f"statement {statement}" if statement else f"step {step}"
        for _ in range(5):
            seen = len(self.errors.read_text(encoding="utf-8"))
            self.process.stdin.write(f"{protocol} {key} {where}\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
            said = self.errors.read_text(encoding="utf-8")[seen:]
            if "LockRefused" not in said:  # its lease is a second, which a busy machine may take for one statement
                break
        assert code in (0, -9), said
        return code


@pytest.fixture
def start(engine: EngineInfo, tmp_path: Path) -> Iterator[Callable[[Pipe, Case], Driver]]:
    made: list[subprocess.Popen[str]] = []

    def build(pipe: Pipe, case: Case) -> Driver:
        ddl, errors = tmp_path / "x.sql", tmp_path / "errors.txt"
        text = case.source.strip() + "\n" + case.ddl
        ddl.write_text(text.replace("{db}", pipe.database).replace("{case}", pipe.case))
        command = [sys.executable, str(DRIVER), engine.url, str(ddl), str(pipe.name("target"))]
        with errors.open("w") as sink:
            made.append(
                subprocess.Popen(
                    command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink
                )
            )
        return Driver(made[-1], errors)

    yield build
    for process in made:
        process.communicate(timeout=60)


def gates(client: Client) -> list[str]:
    found = client.query("SELECT name FROM system.tables WHERE position(create_table_query, '__chmv_fence_') > 0")
    return [name for (name,) in found.result_rows]


def pending(client: Client, pipe: Pipe) -> list[str]:
    found = client.query(
        "SELECT status FROM chmv.rebuilds FINAL WHERE target = {t:String} AND status NOT IN ('published', 'rolled_back')",
        parameters={"t": str(pipe.name("target"))},
    )
    return [status for (status,) in found.result_rows]


def insert_somewhere(pipe: Pipe, number: int) -> None:
    try:
        pipe.run(ROWS.format(db=pipe.database, case=pipe.case, first=10_000 + number * 50, count=50))
    except ClickHouseError as error:
        assert error.code == 469  # the gate is still shut, and said so; a writer sends again


@pytest.mark.parametrize(
    ("case", "protocol", "key"),
    [
        ("two_views", "gated", KEY),
        ("opaque", "gated", KEY),
        pytest.param("two_views", "whole", "all", marks=pytest.mark.thorough),
        ("unpartitioned", "whole", "all"),
    ],
)
def test_killed_after_every_step_in_turn(
    make: Callable[..., Pipe],
    start: Callable[[Pipe, Case], Driver],
    left_over: Callable[[], list[str]],
    clickhouse: Client,
    case: str,
    protocol: Protocol,
    key: str,
) -> None:
    pipe = make(CASES[case], f"crash_{case}_{protocol}", rows=600)
    driver = start(pipe, CASES[case])
    node = pipe.catalog.objects[pipe.name("target")]
    _, _, steps = pipe.rebuilder().explain(node, None if key == "all" else day(key), protocol)
    for number in range(0, len(steps), 1 if (case, protocol) == ("two_views", "gated") else STRIDE):
        pipe.damage("double", [p for p in pipe.checksums() if key == "all" or p == key.replace("-", "")])
        assert driver.drive(protocol, key, step=number) == -9, steps[number]
        insert_somewhere(pipe, number)
        assert driver.drive(protocol, key) == 0
        assert pipe.rows(pipe.name("target")) == pipe.truth(), steps[number]
    assert left_over() == [] and gates(clickhouse) == [] and pending(clickhouse, pipe) == []


@pytest.mark.parametrize(("case", "protocol", "first"), [("two_views", "closed", 1), ("additive", "owned", 2)])
def test_killed_after_statements_in_turn(
    make: Callable[..., Pipe],
    start: Callable[[Pipe, Case], Driver],
    left_over: Callable[[], list[str]],
    clickhouse: Client,
    case: str,
    protocol: Protocol,
    first: int,
) -> None:
    """These have no gate; every statement that writes is a point to die at, those of the journal and its locks as well.

    Every second one here and there: an owned rebuild is a closed one with a lock around it.
    """
    pipe = make(CASES[case], f"crash_{case}_{protocol}", rows=600)
    driver = start(pipe, CASES[case])
    for number in itertools.count(first, 2 * STRIDE):
        pipe.damage("double", [p for p in pipe.checksums() if p == KEY.replace("-", "")])
        if driver.drive(protocol, statement=number) == 0:
            break
        insert_somewhere(pipe, number)
        assert driver.drive(protocol) == 0
        assert pipe.rows(pipe.name("target")) == pipe.truth(), number
    assert number > 10 and pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == [] and gates(clickhouse) == [] and pending(clickhouse, pipe) == []


def test_whoever_starts_first_clears_up(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    clickhouse: Client,
    server: Server,
    start: Callable[[Pipe, Case], Driver],
) -> None:
    pipe = make(CASES["additive"], "clear_up", rows=600)
    node = pipe.catalog.objects[pipe.name("target")]
    _, _, steps = pipe.rebuilder().explain(node, day(KEY), "gated")
    behind_the_gate = next(at for at, step in enumerate(steps) if step.kind == "drain")
    start(pipe, CASES["additive"]).drive("gated", step=behind_the_gate)
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
