"""Reading what the check `target_matches_source` said lately: one read of Dagster's log, one more for every target that was checked since.

No query to ClickHouse. Evaluations are told apart by their times, and those of the last minute are read again, since clocks differ:
following them twice gives the same. (Events by number are not for SQLite, where every run numbers its own.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from chmv_assets.core.deficits import CHECK, DIFFERENT, EQUAL, Compared, Deficit, follow
from chmv_assets.core.names import QName

OVERLAP_SECONDS = 60.0
_KEPT = 50  # evaluations of one target that are read at most
_KEY_PARTS = 2


def read_deficits(
    instance: dg.DagsterInstance, targets: Iterable[QName], after: float, known: Mapping[QName, Deficit]
) -> dict[QName, Deficit]:
    """What is open, after what was evaluated since a moment."""
    keys = [dg.AssetCheckKey(dg.AssetKey([name.database, name.table]), CHECK) for name in targets]
    found: list[tuple[float, Compared]] = []
    for key, latest in instance.event_log_storage.get_latest_asset_check_execution_by_key(keys).items():
        if latest.event is None or latest.event.timestamp < after - OVERLAP_SECONDS:
            continue
        for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=_KEPT):
            event = record.event.dagster_event if record.event is not None else None
            if record.event is None or event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                continue  # planned, and not there yet
            compared = compared_of(record.id, record.run_id, event.asset_check_evaluation_data)
            if compared is not None and record.event.timestamp >= after - OVERLAP_SECONDS:
                found.append((record.event.timestamp, compared))
    return follow(known, (one for _, one in sorted(found, key=lambda pair: pair[0])))


def compared_of(number: int, run_id: str, evaluation: dg.AssetCheckEvaluation) -> Compared | None:
    """What an evaluation says of windows; None if it says nothing, or only warns."""
    if evaluation.check_name != CHECK or len(evaluation.asset_key.path) != _KEY_PARTS:
        return None
    is_defect = not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR
    different, equal = (_texts(evaluation.metadata, name) for name in (DIFFERENT, EQUAL))
    if not equal and not (is_defect and different):
        return None
    return Compared(
        target=QName(*evaluation.asset_key.path), number=number, run_id=run_id, different=different if is_defect else (), equal=equal
    )  # fmt: skip


def _texts(metadata: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = metadata[name].value if name in metadata else ()
    return tuple(str(one) for one in value) if isinstance(value, list) else ()
