"""Who this process is to everybody else: its name in the journal and the versions that it gives.

Outside of the core, which knows no clock and no process; beside it, because drivers of Spark and Dagster's processes both write
the journal. Invariant: one allocator per process, whoever asks, so that what the process writes later has the higher version.
Goes to Spark's executors too (`resources.spark_package`): nothing but the standard library and the core is imported here.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from chmv_assets.core.versions import VersionAllocator

VERSIONS = VersionAllocator(clock_ms=lambda: time.time_ns() // 1_000_000, process=os.getpid())


def this_owner() -> str:
    """Who writes: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def new_rebuild_id() -> str:
    """An id for a rebuild that begins now; it says when (`core.rebuild_journal.SQL_STARTED_MS` reads that again)."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(4)}"
