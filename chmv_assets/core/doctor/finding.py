"""What a rule says: one frozen record that a table, a JSON document and an asset check show alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from chmv_assets.core.doctor.facts import Facts

Severity = Literal["error", "warn", "advice"]
SEVERITIES: tuple[Severity, ...] = ("error", "warn", "advice")
SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ailment:
    """One thing that is not as it should be, and what mends it."""

    rule: str
    subject: str  # a table or view as `database.table`, a disk, a user, or the server
    severity: Severity
    measured: str
    wanted: str
    why: str
    fix: tuple[str, ...] = ()  # statements or pieces of configuration, ready to copy

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "fix": list(self.fix)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thought: facts in, ailments out. The texts are what `docs/doctor.md` says about it."""

    id: str
    severity: Severity  # the worst that it gives
    measured: str
    wanted: str
    why: str
    judge: Callable[[Facts, Rule], Iterable[Ailment]]

    def ailment(self, subject: str, measured: str, wanted: str, *fix: str, severity: Severity | None = None) -> Ailment:
        return Ailment(
            rule=self.id, subject=subject, severity=severity or self.severity, measured=measured, wanted=wanted,
            why=self.why, fix=fix,
        )  # fmt: skip
