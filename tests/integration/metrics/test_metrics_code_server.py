"""Who carries the endpoint: Dagster's code server, one of several, and nobody else. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from resources.engine import EngineInfo
from resources.engine.ports import free_ports

THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))
ROOT = Path(__file__).parents[3]
DDL = "CREATE TABLE metrics_code_server.t (a UInt8) ENGINE = MergeTree ORDER BY a;"


@contextmanager
def code_server(
    tmp_path: Path, number: int, environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`dagster api grpc`, as the webserver and the daemon start it."""
    log = tmp_path / f"code_server_{number}.log"
    where = [
        "--socket",
        str(tmp_path / f"s{number}"),
        "--working-directory",
        str(ROOT),
        "-m",
        "chmv_assets.definitions",
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CHMV_", "DAGSTER_"))}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "api", "grpc", *where],
            cwd=ROOT, env={**kept, **environment}, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield process, log
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def scrape(port: int, seconds: float = 60.0) -> dict[str, float]:
    """The samples without labels, as soon as somebody answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                return {one.name: one.value for family in families for one in family.samples if not one.labels}
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def wait_for(log: Path, words: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


@pytest.fixture
def environment(tmp_path: Path, engine: EngineInfo) -> dict[str, str]:
    (tmp_path / "ddl").mkdir()
    (tmp_path / "ddl" / "t.sql").write_text(DDL)
    return {
        "CHMV_DDL_DIR": str(tmp_path / "ddl"), "CHMV_CACHE_DIR": str(tmp_path / "cache"), "CHMV_CLICKHOUSE_URL": engine.url,
        "CHMV_START": "2026-11-01", "CHMV_METRICS_PORT": str(free_ports(1)[0]),
    }  # fmt: skip


def test_a_code_server_carries_the_endpoint(tmp_path: Path, environment: dict[str, str]) -> None:
    """And of several only one, until it ends, as at a reload: the new one is up before the old one goes (on demand, 10 s)."""
    port = int(environment["CHMV_METRICS_PORT"])
    with code_server(tmp_path, 1, environment) as (first, log):
        assert scrape(port)["chmv_up"] == 1
        wait_for(log, f"metrics: http://127.0.0.1:{port}/metrics")
        assert first.poll() is None
        if not THOROUGH:
            return
        with code_server(tmp_path, 2, environment) as (second, log):
            wait_for(log, "is taken")
            wait_for(log, "Started Dagster code server")
            assert second.poll() is None
            first.terminate()
            first.wait(20)
            assert scrape(port, 30)["chmv_up"] == 1
            wait_for(log, f"metrics: http://127.0.0.1:{port}/metrics")
    with code_server(tmp_path, 3, {**environment, "CHMV_METRICS_PORT": "many"}) as (third, log):
        wait_for(log, "found 'many' but wanted a port")
        wait_for(log, "Started Dagster code server")
        assert third.poll() is None
