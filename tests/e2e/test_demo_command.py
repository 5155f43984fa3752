"""`chmv demo` as a person runs it: a process of its own, with real children, ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "chmv_assets.cli.main", "demo", "--rows", "5000", "--days", "2", "--port", "0", "--state"]


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("CHMV_CLICKHOUSE", "CHMV_START", "DAGSTER_"))}


def processes_naming(text: str) -> list[int]:
    """Ids of running processes whose command line or environment names a folder."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            known = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in known:
            found.append(int(folder.name))
    return found


# As /proc/net/tcp and tcp6 write 127.0.0.1, ::1 and ::ffff:127.0.0.1.
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def listening_hosts(pids: list[int]) -> set[tuple[str, int]]:
    """Addresses and ports on which any of these processes waits for somebody."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(link.readlink()).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, _, port = fields[1].rpartition(":")
                found.add((host, int(port, 16)))
    return found


@pytest.mark.timeout(420)
def test_headless_demo_prints_its_table_and_leaves_nothing_running(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [*DEMO, str(state), "--headless"]
    first = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=360)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "shop.revenue_daily" in first.stdout
    counted = re.search(r"(\d+) assets, (\d+) of (\d+) partitions filled, (\d+) of (\d+) checks passed", first.stdout)
    assert counted is not None, first.stdout
    assets, filled, total, passed, checks = map(int, counted.groups())
    assert assets == 33 and filled > 100 and filled <= total and passed == checks == 71
    assert "Targets: 12 ACTIVE." in first.stdout
    assert processes_naming(str(state)) == []


@pytest.mark.timeout(420)
def test_interrupt_stops_everything(tmp_path: Path) -> None:
    state = tmp_path / "state"
    log = tmp_path / "out.txt"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*DEMO, str(state)], cwd=tmp_path, env=clean_environment(), stdout=output, stderr=output
        )
    try:
        url = _wait_for_url(child, log)
        with urllib.request.urlopen(f"{url}/server_info", timeout=20) as answer:
            assert answer.status == 200
        assert len(processes_naming(str(state))) > 2
        listening = listening_hosts(processes_naming(str(state)))
        assert len(listening) >= 3 and {host for host, _ in listening} <= LOOPBACK, listening
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0, log.read_text()
        assert "Engine stopped." in log.read_text()
        assert processes_naming(str(state)) == []
    finally:
        if child.poll() is None:
            child.kill()


def _wait_for_url(child: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        text = log.read_text()
        if "Ctrl-C stops everything" in text:
            match = re.search(r"http://127\.0\.0\.1:\d+(?=/asset-groups)", text)
            assert match is not None, text
            return match.group()
        assert child.poll() is None, text
        time.sleep(0.5)
    raise AssertionError(f"the demo did not come up:\n{log.read_text()}")
