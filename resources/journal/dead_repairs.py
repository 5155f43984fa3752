"""Repairs that were killed: their rows say "running" although nobody says so any more. They are noted as failed, so that the journal is true."""

from __future__ import annotations

import json
from dataclasses import replace

from chmv_assets.core.recovery import ALIVE_SECONDS, RecoveryRecord, decode_recovery, read_recoveries, write_recovery
from resources.journal.store import Journal


def bury_repairs(journal: Journal, now_ms: int) -> list[RecoveryRecord]:
    """Note dead repairs as failed; one that wakes up again writes over it. Gives them."""
    rows = journal.server.fetch_if_there(read_recoveries(journal.cluster, statuses=("running",)))
    dead = [one for one in map(decode_recovery, rows) if now_ms - one.said_ms > ALIVE_SECONDS * 1000]
    for one in dead:
        detail = json.loads(one.detail or "{}")
        told = f"failed: it was killed, {one.owner} has not said since that it runs"
        journal.run(
            write_recovery(
                replace(
                    one,
                    status="failed",
                    ended_ms=one.said_ms,
                    detail=json.dumps({**detail, "steps": [*detail.get("steps", ()), told]}),
                    version=journal.versions.next(above=one.version),
                ),
                journal.cluster,
            )
        )
    return dead
