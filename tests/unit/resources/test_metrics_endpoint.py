"""Which processes listen, and that the others do not even import what it takes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from chmv_assets.core.catalog import build_catalog
from chmv_assets.core.errors import EngineError
from chmv_assets.core.settings import Settings
from resources.metrics import MetricsCollector
from resources.metrics_endpoint import carry_metrics, is_code_server, open_endpoint, read_port

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("argv", "is_child", "wanted"),
    [
        (["/v/dagster/__main__.py", "api", "grpc", "--socket", "/tmp/s"], False, True),
        (["/v/bin/dagster", "api", "grpc", "--lazy-load-user-code"], False, True),
        (
            ["/v/dagster/__main__.py", "api", "grpc", "--socket", "/tmp/s"],
            True,
            False,
        ),  # a run: it has its parent's arguments
        (["/v/dagster/__main__.py", "api", "execute_run", "{}"], False, False),
        (["/v/dagster/__main__.py", "api", "execute_step", "{}"], False, False),
        (["/v/bin/dagster", "dev"], False, False),
        (["/v/bin/chmv", "demo"], False, False),
        (["pytest"], False, False),
        ([], False, False),
    ],
)
def test_who_listens(argv: list[str], is_child: bool, wanted: bool) -> None:
    assert is_code_server(argv, is_child=is_child) is wanted


@pytest.mark.parametrize("said", ["many", "-1", "65536", "٣", "80 80", "1" * 5000])
def test_a_port_that_is_none_is_said_and_fails_nothing(said: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineError, match="wanted a port from 0 to 65535"):
        read_port(said)
    carried = carry_metrics(build_catalog([]), Settings(), {"CHMV_METRICS_PORT": said}, ["dagster", "api", "grpc"])
    assert carried is None
    assert "wanted a port" in caplog.text


def test_nothing_is_served_unless_asked_for() -> None:
    assert multiprocessing.parent_process() is None
    assert carry_metrics(build_catalog([]), Settings(), {}, ["dagster", "api", "grpc"]) is None
    assert (
        carry_metrics(build_catalog([]), Settings(), {"CHMV_METRICS_PORT": "0"}, ["dagster", "api", "execute_run"])
        is None
    )


def test_a_run_loads_the_location_without_the_client_library(tmp_path: Path) -> None:
    code = (
        "import sys, threading, chmv_assets.definitions\n"
        "print('prometheus_client' in sys.modules, 'resources.metrics' in sys.modules, [t.name for t in threading.enumerate()])"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CHMV_", "DAGSTER_"))}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
        env={**kept, "CHMV_CACHE_DIR": str(tmp_path), "CHMV_METRICS_PORT": "0"},
    )  # fmt: skip
    assert result.stdout.strip() == "False False ['MainThread']", result.stderr[-2000:]


def test_without_a_page_nothing_promises_one() -> None:
    server = open_endpoint(MetricsCollector(build_catalog([]), Settings()))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        asked = HTTPConnection("127.0.0.1", int(server.server_address[1]), timeout=10)
        asked.request("GET", "/graph")
        answer = asked.getresponse()
        answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert (answer.status, answer.reason) == (404, "metrics are at /metrics")
