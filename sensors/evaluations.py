"""What asset checks said lately: one read of Dagster's log, and one more for every check that was evaluated since.

Evaluations are told apart by their times, and those of the last minute are read again, since clocks differ: whoever follows them has to
bear one twice. (Events by number are not for SQLite, where every run numbers its own.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg

OVERLAP_SECONDS = 60.0
_KEPT = 50  # evaluations of one check that are read at most


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One check that was evaluated."""

    number: int
    at: float
    run_id: str
    evaluation: dg.AssetCheckEvaluation


def read_evaluations(instance: dg.DagsterInstance, keys: Iterable[dg.AssetCheckKey], after: float) -> list[Evaluated]:
    """What was evaluated since a moment, or shortly before, oldest first."""
    log, since = instance.event_log_storage, after - OVERLAP_SECONDS
    found: list[Evaluated] = []
    for key, latest in log.get_latest_asset_check_execution_by_key(list(keys)).items():
        if latest.event is None or latest.event.timestamp < since:
            continue
        for record in log.get_asset_check_execution_history(key, limit=_KEPT):
            event = record.event.dagster_event if record.event is not None else None
            if record.event is None or event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                continue  # planned, and not there yet
            if record.event.timestamp >= since:
                found.append(
                    Evaluated(record.id, record.event.timestamp, record.run_id, event.asset_check_evaluation_data)
                )
    return sorted(found, key=lambda one: (one.at, one.number))
