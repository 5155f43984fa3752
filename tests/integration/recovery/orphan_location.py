"""A job whose run waits for a file that never comes; the reaper's test runs it in a process of its own and kills that."""

import os
import time
from pathlib import Path

import dagster as dg


@dg.op
def wait() -> None:
    """Say that it runs, then wait."""
    Path(os.environ["ORPHAN_STARTED"]).write_text(str(os.getpid()))
    time.sleep(600)


@dg.job(executor_def=dg.in_process_executor)
def waiting_job() -> None:
    wait()
