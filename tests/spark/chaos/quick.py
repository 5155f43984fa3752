"""Backoff without the waiting, in this process and in Spark's Python workers. Nothing else of the retries is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from resources.journal import finish_batch
from resources.retry import call_with_retry
from spark_jobs.connection import Retry

QUICK_SECONDS = 0.05
# Python imports a module of this name at its start: workers sleep shortly, whatever they are told.
_SITE = f"""
import time
_sleep = time.sleep
time.sleep = lambda seconds: _sleep(min(seconds, {QUICK_SECONDS}))
"""


def nap(seconds: float) -> None:
    """Sleep, but not for long."""
    time.sleep(min(seconds, QUICK_SECONDS))


@contextmanager
def quick_retries(spark: SparkSession, folder: Path, extra_site: str = "") -> Iterator[None]:
    """Make all backoff short; `extra_site` is more code for the workers' start."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_SITE + extra_site)
    environment = spark.sparkContext.environment
    with pytest.MonkeyPatch.context() as patch:
        for function in (call_with_retry, finish_batch, Retry.__init__):
            defaults = function.__kwdefaults__
            assert defaults is not None and "sleep" in defaults
            patch.setitem(defaults, "sleep", nap)
        patch.setitem(environment, "PYTHONPATH", str(folder))
        yield
