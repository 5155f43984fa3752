"""The record of a running server, and who counts as running."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chmv_assets.core.errors import EngineError
from resources.engine.lock import (
    EngineRecord,
    command_line,
    hold_guard,
    is_alive,
    process_start,
    read_record,
    write_record,
)

RECORD = EngineRecord(
    pid=12, process_started="345", http_port=8123, tcp_port=9000, data_dir="/d", kind="embedded", version="26.7"
)


def test_record_is_read_back_and_belongs_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    write_record(path, RECORD)
    assert read_record(path) == RECORD
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["engine.json"]


@pytest.mark.parametrize(
    "change", [{"pid": "12"}, {"pid": 0}, {"pid": True}, {"http_port": None}, {"kind": "external"}, {"more": 1}]
)
def test_record_with_wrong_values_counts_for_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "engine.json"
    write_record(path, RECORD)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_record(path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"pid": 1}'])
def test_damaged_record_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(content)
    assert read_record(path) is None


def test_missing_record_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "engine.json") is None


def test_living_process_has_a_start_and_a_dead_one_none() -> None:
    assert process_start(os.getpid()) == process_start(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_start(child.pid) is None
    assert command_line(os.getpid())[0] == sys.orig_argv[0]
    assert command_line(child.pid) == []


def test_zombie_does_not_run() -> None:
    read_end, write_end = os.pipe()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", ""], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, read_end)]
    )
    os.close(write_end)
    os.read(read_end, 1)  # returns when the child has ended
    os.close(read_end)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_start(pid) is None
    os.waitpid(pid, 0)


def test_reused_pid_is_not_our_server() -> None:
    record = EngineRecord(
        pid=os.getpid(), process_started="1", http_port=1, tcp_port=2, data_dir="/d", kind="embedded", version=""
    )
    assert not is_alive(record)


def test_guard_that_stays_held_is_an_error_after_the_time_limit(tmp_path: Path) -> None:
    path = tmp_path / "guard"
    with hold_guard(path, 1, purpose="one"):
        refused = pytest.raises(EngineError, match="wanted it free for two")
        with refused, hold_guard(path, -1, purpose="two"):
            pass
    with hold_guard(path, 0, purpose="three"):
        pass
