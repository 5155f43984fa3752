"""A real Spark standalone cluster, and a Spark Connect server, from the pip package: processes on 127.0.0.1 only.

For tests. Every wait is bounded, every process is ended by its own id, and what it printed is in its log file. Spark code of
the tests that use this runs in subprocesses (`run_script`): one process can hold only one SparkContext.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.engine.ports import free_ports
from resources.spark_session import spark_home
from resources.toolchain import find_java

START_SECONDS = 60.0
SCRIPT_SECONDS = 120.0
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def run_script(script: str, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Run Python code in a process of its own and return the JSON object that it printed on its last line."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CHMV_", "SPARK_", "PYSPARK_"))}
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    result = json.loads(answer.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return {**result, "stderr": answer.stderr, "noise": answer.stdout.splitlines()[:-1]}


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """A master and its workers with one core each; gives the master's address."""
    (port,) = free_ports(1)
    address = f"spark://127.0.0.1:{port}"
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", *place, "--port", str(port)]
        wait_for(stack.enter_context(spark_process(folder / "master", master)), "I have been elected leader")
        started = []
        for number in range(1, workers + 1):
            home = folder / f"worker{number}"
            size = ["--port", "0", "--cores", "1", "--memory", "600m", "--work-dir", str(home)]
            worker = ["org.apache.spark.deploy.worker.Worker", *place, *size, address]
            started.append(stack.enter_context(spark_process(home, worker)))
        for process in started:
            wait_for(process, "Successfully registered with master")
        yield address


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server with two local threads; gives its address."""
    (port,) = free_ports(1)
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.defaultJavaOptions": FLAGS,
    }
    command = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    command += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with spark_process(folder / "connect", command) as process:
        wait_for(process, "Spark Connect server started at")
        yield f"sc://127.0.0.1:{port}"


@dataclass(frozen=True, kw_only=True)
class SparkProcess:
    """A running Java process of Spark's and the file that it prints to."""

    popen: subprocess.Popen[bytes]
    log: Path


@contextmanager
def spark_process(folder: Path, command: list[str]) -> Iterator[SparkProcess]:
    """One Java process of Spark's in a folder of its own."""
    folder.mkdir(parents=True)
    log = folder / "log.txt"
    variables = {
        "JAVA_HOME": str(find_java().parent.parent),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "600m",
        "SPARK_DAEMON_JAVA_OPTS": FLAGS,
        "SPARK_LAUNCHER_OPTS": FLAGS,
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [str(spark_home() / "bin" / "spark-class"), *command],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield SparkProcess(popen=popen, log=log)
    finally:
        popen.terminate()
        try:
            popen.wait(timeout=15)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def wait_for(process: SparkProcess, ready: str) -> None:
    """Wait until the process's log says that it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = process.log.read_text(encoding="utf-8", errors="replace")
        if ready in text:
            return
        assert process.popen.poll() is None, f"{process.popen.args!r} ended:\n{text}"
        time.sleep(0.2)
    raise AssertionError(f"{process.popen.args!r} was not ready after {START_SECONDS:.0f} s:\n{text}")
