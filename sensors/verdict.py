"""What a recovery sensor decides in a tick. Pure; `recovery_sensor` makes runs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from chmv_assets.core.recovery import Ask


class Dumped(Protocol):
    """What a sensor remembers."""

    def dump(self) -> str: ...


C = TypeVar("C", bound=Dumped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Generic[C]):
    """What a tick asks for and says."""

    asks: tuple[Ask, ...]
    cursor: C
    told: str
