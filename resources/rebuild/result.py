"""What a publication changed."""

from __future__ import annotations

from dataclasses import dataclass

from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One window of one target, published."""

    protocol: Protocol
    why: str  # why this protocol
    partitions: tuple[str, ...]
    rows_before: int
    rows_after: int
    tries: int
    seconds: float
    shares_reused: int = 0  # scratches that a view's materialization had built already
    gate_seconds: float = 0.0  # for how long writers were refused
    downstream: tuple[QName, ...] = ()  # targets that were rebuilt from it behind the same gate
