"""Leases of the dead, ended at once: who comes after need not wait, and who lives may hold long ones on a slow machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def age_leases(rows: Callable[[str], Sequence[Sequence[Any]]], command: Callable[[str], object]) -> None:
    """Let the leases run out that no living process of this machine holds."""
    tables = rows(
        "SELECT name, comment FROM system.tables WHERE database = 'chmv' AND startsWith(name, 'lock.') ORDER BY name"
    )
    newest = {str(name).rpartition(".")[0]: (name, comment) for name, comment in tables}
    for name, comment in newest.values():
        state = json.loads(comment)
        if state["owner"] and state["expires_us"] > time.time() * 1e6 and not _lives(state["owner"]):
            text = json.dumps({**state, "expires_us": 1}).replace("\\", "\\\\").replace("'", "\\'")
            command(f"ALTER TABLE chmv.`{name}` MODIFY COMMENT '{text}'")


def _lives(owner: str) -> bool:
    """Whether another process than this one holds a lock; our own work has ended when leases are aged."""
    pid = int(owner.partition("#")[0].rpartition(":")[2])
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
