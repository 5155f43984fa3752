"""What the check `target_matches_source` said lately, as deficits to repair. No query to ClickHouse.

Evaluations may be read twice (`evaluations`): following one twice gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from chmv_assets.core.deficits import CHECK, DIFFERENT, EQUAL, Compared, Deficit, follow
from chmv_assets.core.names import QName
from sensors.evaluations import read_evaluations

_KEY_PARTS = 2


def read_deficits(
    instance: dg.DagsterInstance, targets: Iterable[QName], after: float, known: Mapping[QName, Deficit]
) -> dict[QName, Deficit]:
    """What is open, after what was evaluated since a moment."""
    keys = [dg.AssetCheckKey(dg.AssetKey([name.database, name.table]), CHECK) for name in targets]
    compared = (compared_of(one.number, one.run_id, one.evaluation) for one in read_evaluations(instance, keys, after))
    return follow(known, (one for one in compared if one is not None))


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
