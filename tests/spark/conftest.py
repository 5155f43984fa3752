"""One local Spark session for all Spark tests. Tasks are tried four times, so that injected failures can be retried."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What pyspark itself warns about, in this folder only: sockets to its JVM that it leaves to the collector."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """`local[2,4]`: two threads, four attempts per task."""
    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "JDK_JAVA_OPTIONS", "PYTHONPATH")}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JDK_JAVA_OPTIONS"] = _FLAGS
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), before["PYTHONPATH"])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = (
            SparkSession.builder.master("local[2,4]")
            .appName("chmv-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.python.worker.reuse", "true")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        try:
            yield session
        finally:
            session.stop()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
