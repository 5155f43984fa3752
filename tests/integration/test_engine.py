"""The embedded ClickHouse, for real: start, stop, crash, restart, refuse. Fetches it when the cache has none."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from chmv_assets.core.errors import EngineError
from resources.engine import (
    EngineInfo,
    EngineOptions,
    connection_env,
    ensure_engine,
    find_engine,
    install_engine,
    lifecycle,
    start_engine,
    stop_engine,
)
from resources.engine.lock import process_start
from resources.engine.packages import LIBRARY_NAME, this_package
from resources.engine.ports import choose_ports

SECRET = "s3cret-&<pass>'word"
SETUP = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.events (day Date, n UInt64) ENGINE = MergeTree PARTITION BY day ORDER BY n",
    "CREATE TABLE shop.totals (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day",
    "CREATE MATERIALIZED VIEW shop.totals_mv TO shop.totals AS SELECT day, sum(n) AS n FROM shop.events GROUP BY day",
    "CREATE TABLE default.plain (n UInt64) ENGINE = MergeTree ORDER BY n",
    "INSERT INTO shop.events VALUES ('2026-01-01', 1), ('2026-01-01', 2), ('2026-01-02', 4)",
    "INSERT INTO default.plain VALUES (7)",
)


def environment(**extra: str) -> dict[str, str]:
    """Ours, without what would choose another server."""
    dropped = ("CHMV_CLICKHOUSE_URL", "CHMV_CLICKHOUSE_USER", "CHMV_CLICKHOUSE_PASSWORD", "CHMV_DATA_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "CHMV_ENGINE": "embedded", **extra}


def ask(info: EngineInfo, sql: str, user: str = "default", password: str = "") -> str:
    connection = HTTPConnection("127.0.0.1", info.http_port, timeout=30)
    headers = {"X-ClickHouse-User": user, "X-ClickHouse-Key": password}
    connection.request("POST", "/", body=sql.encode(), headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text.strip()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EngineInfo]]:
    """Start on this test's folder; whatever runs there at the end is stopped."""

    def run(http_port: int = 0, tcp_port: int = 0, **extra: str) -> EngineInfo:
        options = EngineOptions(data_dir=tmp_path / "da ta & é", http_port=http_port, tcp_port=tcp_port)
        return start_engine(options, environ=environment(**extra))

    yield run
    stop_engine(tmp_path / "da ta & é")


def cli(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from chmv_assets.cli.engine import engine_group; engine_group()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**extra), check=False, timeout=120)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_command_line_starts_shows_and_stops_one_server(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "da ta & é"))
    assert cli("status", *data).returncode == 3
    first = json.loads(cli("start", *data, "--json").stdout)
    try:
        again = json.loads(cli("start", *data, "--json").stdout)
        shown = json.loads(cli("status", *data, "--json").stdout)
        assert (first["state"], again["state"], shown["state"]) == ("started", "already running", "running")
        assert first["pid"] == again["pid"] == shown["pid"]
        assert first["version"].startswith("26.7")
    finally:
        stopped = json.loads(cli("stop", *data, "--json").stdout)
    assert stopped == {"result": "stopped", "pid": first["pid"]}
    assert process_start(first["pid"]) is None
    assert not (tmp_path / "da ta & é" / "engine.json").exists()


def test_stop_is_clean_and_data_survives_a_restart(start: Callable[..., EngineInfo], tmp_path: Path) -> None:
    info = start()
    for sql in SETUP:
        ask(info, sql)
    outcome = stop_engine(tmp_path / "da ta & é")
    assert outcome.result == "stopped"
    assert (tmp_path / "da ta & é" / "logs" / "process.log").read_text().endswith("chmv engine: ended in order\n")
    check_after_restart(start())


def test_data_survives_kill_9(start: Callable[..., EngineInfo]) -> None:
    info = start()
    for sql in SETUP:
        ask(info, sql)
    assert info.pid is not None
    os.kill(info.pid, signal.SIGKILL)
    again = start()
    assert again.started and again.pid != info.pid
    check_after_restart(again)


def check_after_restart(info: EngineInfo) -> None:
    """Rows are there, the view fires, and all three logs work and work on."""
    assert ask(info, "SELECT sum(n) FROM shop.events") == "7"
    assert ask(info, "SELECT n FROM default.plain") == "7"
    ask(info, "INSERT INTO shop.events VALUES ('2026-01-02', 10)")
    assert ask(info, "SELECT day, sum(n) FROM shop.totals GROUP BY day ORDER BY day") == "2026-01-01\t3\n2026-01-02\t14"
    ask(info, "SYSTEM FLUSH LOGS")
    assert ask(info, "SELECT view_name FROM system.query_views_log") == "shop.totals_mv"
    assert int(ask(info, "SELECT count() FROM system.query_log WHERE query_kind = 'Insert'")) >= 1
    assert int(ask(info, "SELECT count() FROM system.part_log WHERE database = 'shop' AND event_type = 'NewPart'")) == 2
    assert ask(info, "SELECT count() FROM system.tables WHERE name IN ('metric_log', 'trace_log', 'text_log')") == "0"


@pytest.mark.thorough
def test_idle_server_stays_idle_and_its_waiting_query_does_not_end(
    start: Callable[..., EngineInfo], tmp_path: Path
) -> None:
    info = start()
    assert info.pid is not None
    for sql in SETUP:
        ask(info, sql)
    time.sleep(2)
    before, began = cpu_seconds(info.pid), time.monotonic()
    time.sleep(20)
    share = (cpu_seconds(info.pid) - before) / (time.monotonic() - began)
    print(f"idle CPU: {share:.1%} of one core")
    assert share < 0.08
    assert find_engine(tmp_path / "da ta & é") is not None
    assert ask(info, "SELECT count() FROM system.processes WHERE query LIKE '%file(stdin%' AND user = ''") == "1"
    assert "Exception" not in (tmp_path / "da ta & é" / "logs" / "process.log").read_text()


def test_given_port_in_use_names_the_process_and_the_option(start: Callable[..., EngineInfo]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port}: found it in use by process {os.getpid()} .*--http-port"):
            start(http_port=port)
        with pytest.raises(EngineError, match="--tcp-port"):
            start(tcp_port=port)


def test_chosen_port_that_is_taken_meanwhile_is_replaced_by_another(
    start: Callable[..., EngineInfo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start_engine(EngineOptions(data_dir=tmp_path / "other"), environ=environment())
    answers = [(other.http_port, choose_ports(0, 0)[1]), choose_ports(0, 0)]
    monkeypatch.setattr(lifecycle, "choose_ports", lambda *_: answers.pop(0))
    try:
        info = start()
        assert info.started and info.http_port != other.http_port
        assert ask(info, "SELECT count() FROM system.databases") == "4"
    finally:
        stop_engine(tmp_path / "other")


def test_server_listens_on_loopback_only(start: Callable[..., EngineInfo]) -> None:
    info = start()
    lines = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    ports = {f"{info.http_port:04X}", f"{info.tcp_port:04X}"}
    hosts = {line.split()[1].split(":")[0] for line in lines if line.split()[1].rpartition(":")[2] in ports}
    assert hosts == {"0100007F"}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pid": 1}', "\x00\xff"])
def test_damaged_lock_file_of_a_dead_server_is_replaced(
    start: Callable[..., EngineInfo], tmp_path: Path, damage: str
) -> None:
    (tmp_path / "da ta & é").mkdir()
    (tmp_path / "da ta & é" / "engine.json").write_text(damage)
    assert find_engine(tmp_path / "da ta & é") is None
    assert start().started


def test_running_server_is_found_again_after_its_lock_file_was_damaged(
    start: Callable[..., EngineInfo], tmp_path: Path
) -> None:
    info = start()
    (tmp_path / "da ta & é" / "engine.json").write_text("{")
    again = start()
    assert (again.started, again.pid, again.http_port) == (False, info.pid, info.http_port)


def test_lock_file_with_a_reused_pid_is_stale(start: Callable[..., EngineInfo], tmp_path: Path) -> None:
    info = start()
    record = tmp_path / "da ta & é" / "engine.json"
    facts = json.loads(record.read_text())
    stop_engine(tmp_path / "da ta & é")
    record.write_text(json.dumps({**facts, "pid": os.getpid()}))
    assert find_engine(tmp_path / "da ta & é") is None
    assert stop_engine(tmp_path / "da ta & é").result == "not_running"
    assert start().pid not in (info.pid, os.getpid())


def test_two_concurrent_starts_give_one_server(start: Callable[..., EngineInfo]) -> None:
    with ThreadPoolExecutor(4) as pool:
        infos = list(pool.map(lambda _: start(), range(4)))
    assert len({info.pid for info in infos}) == 1
    assert sorted(info.started for info in infos) == [False, False, False, True]


def test_password_that_would_guard_nothing_is_refused_and_not_repeated(
    start: Callable[..., EngineInfo], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="CHMV_CLICKHOUSE_PASSWORD: found a password but wanted none") as refusal:
        start(CHMV_CLICKHOUSE_PASSWORD=SECRET)
    assert SECRET not in str(refusal.value)
    assert not (tmp_path / "da ta & é").exists()


def test_ensure_engine_takes_the_configured_server_and_child_processes_reach_it(
    start: Callable[..., EngineInfo], tmp_path: Path
) -> None:
    info = start()
    child = environment(**connection_env(info))
    external = ensure_engine(EngineOptions(data_dir=tmp_path / "unused"), environ=child)
    assert (external.kind, external.url, external.started, external.version) == (
        "external",
        info.url,
        False,
        info.version,
    )
    assert not (tmp_path / "unused").exists()
    nothing = cli("start", **connection_env(info))
    assert nothing.returncode == 0 and "nothing to start" in nothing.stdout


def test_users_added_in_users_d_log_in_with_their_own_rights(start: Callable[..., EngineInfo], tmp_path: Path) -> None:
    folder = tmp_path / "da ta & é" / "config" / "users.d"
    folder.mkdir(parents=True)
    hashed = hashlib.sha256(SECRET.encode()).hexdigest()
    login = f"<password_sha256_hex>{hashed}</password_sha256_hex><networks><ip>127.0.0.1</ip></networks>"
    grants = "<grants><query>GRANT SELECT ON shop.*</query></grants>"
    user = f"<reader>{login}<profile>default</profile>{grants}</reader>"
    (folder / "reader.xml").write_text(f"<clickhouse><users>{user}</users></clickhouse>")
    info = start()
    for sql in SETUP:
        ask(info, sql)
    assert ask(info, "SELECT sum(n) FROM shop.events", "reader", SECRET) == "7"
    with pytest.raises(AssertionError, match="AUTHENTICATION_FAILED"):
        ask(info, "SELECT 1", "reader", "wrong")
    with pytest.raises(AssertionError, match="ACCESS_DENIED"):
        ask(info, "DROP TABLE shop.events", "reader", SECRET)


def test_stop_with_a_running_query_leaves_no_process(start: Callable[..., EngineInfo], tmp_path: Path) -> None:
    info = start()
    no_limit = "max_block_size = 1, function_sleep_max_microseconds_per_block = 0"
    slow = f"SELECT sleepEachRow(1) FROM numbers(60) SETTINGS {no_limit}"
    connection = HTTPConnection("127.0.0.1", info.http_port, timeout=30)
    connection.request("POST", "/", body=slow.encode())
    time.sleep(0.3)
    assert stop_engine(tmp_path / "da ta & é").result == "stopped"
    connection.close()
    assert info.pid is not None and process_start(info.pid) is None


def test_frozen_server_is_killed_after_the_time_limit(start: Callable[..., EngineInfo], tmp_path: Path) -> None:
    info = start()
    assert info.pid is not None
    os.kill(info.pid, signal.SIGSTOP)
    assert stop_engine(tmp_path / "da ta & é", timeout_seconds=0.5).result == "killed"
    assert process_start(info.pid) is None


def test_library_for_another_machine_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    folder = install_engine(environment()).parent
    cache = tmp_path / "cache"
    copy = cache / "engine" / folder.name
    copy.mkdir(parents=True)
    with (folder / LIBRARY_NAME).open("rb") as file:
        whole_head = file.read(64)
    shutil.copy(folder / LIBRARY_NAME, copy / LIBRARY_NAME)
    with (copy / LIBRARY_NAME).open("r+b") as file:
        file.seek(18)
        file.write((243).to_bytes(2, "little"))  # RISC-V
    options = EngineOptions(data_dir=tmp_path / "da ta & é")
    with pytest.raises(EngineError, match=f"linux-machine243 but wanted {this_package().platform}"):
        start_engine(options, environ=environment(CHMV_CACHE_DIR=str(cache)))
    os.truncate(copy / LIBRARY_NAME, 1_000_000)
    with (copy / LIBRARY_NAME).open("r+b") as file:
        file.write(whole_head)
    with pytest.raises(EngineError, match="found 1,000,000 bytes but wanted"):
        start_engine(options, environ=environment(CHMV_CACHE_DIR=str(cache)))


def test_server_that_ends_at_once_shows_the_last_lines_of_its_log(
    start: Callable[..., EngineInfo], tmp_path: Path
) -> None:
    folder = tmp_path / "da ta & é" / "config" / "config.d"
    folder.mkdir(parents=True)
    (folder / "broken.xml").write_text("<clickhouse><mark_cache_size>many</mark_cache_size></clickhouse>")
    with pytest.raises(EngineError, match=r"(?s)process \d+ ended .*many"):
        start()
    assert not (tmp_path / "da ta & é" / "engine.json").exists()


def test_engine_stops_although_its_starter_ignores_signals(tmp_path: Path) -> None:
    """A background job ignores SIGINT, and Dagster gives SIGTERM whatever SIGINT has; a program inherits that."""
    program = tmp_path / "bin" / "clickhouse"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{FAKE_BINARY}")
    program.chmod(0o755)
    env = {**environment(), "CHMV_ENGINE": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        start_engine(EngineOptions(data_dir=tmp_path / "data"), environ=env)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stop_engine(tmp_path / "data", timeout_seconds=5).result == "stopped"


def test_clickhouse_binary_on_path_is_used_and_remembered(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "clickhouse"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{FAKE_BINARY}")
    program.chmod(0o755)
    env = {**environment(), "CHMV_ENGINE": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    options = EngineOptions(data_dir=tmp_path / "da ta & é")
    info = start_engine(options, environ={**env, "CHMV_CLICKHOUSE_PASSWORD": SECRET})
    assert (info.kind, info.version) == ("binary", "1.2.3")
    assert SECRET not in repr(info) + json.dumps(connection_env(info))
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{info.pid}/{name}").read_bytes()
    written = [path for path in (tmp_path / "da ta & é").rglob("*") if path.is_file()]
    assert written and not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert stop_engine(tmp_path / "da ta & é").result == "stopped"
    with pytest.raises(EngineError, match="found data of the binary engine but wanted embedded"):
        start_engine(options, environ={**env, "CHMV_ENGINE": "embedded"})
    with pytest.raises(EngineError, match="found no `clickhouse` on PATH"):
        start_engine(options, environ={**env, "PATH": str(tmp_path)})


FAKE_BINARY = """
import re, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
assert sys.argv[1] == "server"
config = open(sys.argv[2].partition("=")[2]).read()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Ok.\\n" if self.path == "/ping" else b"1.2.3\\n")
HTTPServer(("127.0.0.1", int(re.search("<http_port>(\\\\d+)<", config).group(1))), Handler).serve_forever()
"""
