"""How asset checks become steps: what one found out, and one op for the checks of many objects.

Which checks there are is in `asset_checks` and `second_opinion_check`; how each judges, in the module of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.names import QName
from chmv_assets.steps import build_op

_OUT = dg.Out(is_required=False)
_OBJECTS_PER_STEP = 250  # Dagster loads a step in time quadratic in its checks: 0.7 s per job for 2,000 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a check found out about one object."""

    passed: bool
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    def result(self, key: dg.AssetKey, check: str) -> dg.AssetCheckResult:
        """What Dagster is told."""
        return dg.AssetCheckResult(
            passed=self.passed,
            asset_key=key,
            check_name=check,
            severity=self.severity,
            description=self.description,
            metadata=self.metadata,
        )


def declared_targets(catalog: Catalog) -> list[QName]:
    """The tables of the folder that its views write to."""
    targets = (made.target for made in catalog.objects.values())
    return list(dict.fromkeys(name for name in targets if name is not None and name in catalog.objects))


def share_out(check: str, names: Sequence[QName]) -> Iterator[tuple[str, Sequence[QName]]]:
    """Share objects out to steps; the first one is called like the check."""
    for number, first in enumerate(range(0, len(names), _OBJECTS_PER_STEP), start=1):
        yield check if number == 1 else f"{check}_{number}", names[first : first + _OBJECTS_PER_STEP]


def checks_definition(
    step: str, specs: Sequence[dg.AssetCheckSpec], run: Callable[..., Iterator[dg.AssetCheckResult]]
) -> dg.AssetChecksDefinition:
    """One op for many checks; by hand, because the decorator derives names from keys, and a table may be called anything."""
    inputs = {f"asset_{at}": spec.asset_key for at, spec in enumerate(specs)}
    outputs = {f"check_{at}": spec for at, spec in enumerate(specs)}
    made: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        node_def=build_op(step, run, inputs=inputs, outputs=dict.fromkeys(outputs, _OUT)),
        keys_by_input_name=inputs,
        check_specs_by_output_name=outputs,
        can_subset=True,
    )
    return made
