"""The soak in words: tables for people, from what was found. Pure text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from soak.verdict import Findings, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One repair of the journal; `after_seconds` is the time from the last fault that can have caused it to its detection."""

    kind: str
    damage: str
    status: str
    after_seconds: float | None
    repair_seconds: float


def match_repairs(
    recoveries: Iterable[Sequence[Any]], events: Iterable[Mapping[str, Any]], started: float
) -> list[Repair]:
    """Rows (kind, subject, damage, status, detected_ms, ended_ms) with the faults of the timeline that they repair."""
    faults = [one for one in events if "view" in one or "target" in one]
    found = []
    for kind, subject, damage, status, detected, ended in recoveries:
        name = str(subject).partition(".")[2]
        at = int(detected) / 1000 - started
        causes = [
            one["t"] for one in faults
            if name in (one.get("view"), one.get("target")) and one["t"] <= at + 1
        ]  # fmt: skip
        after = max(0.0, at - max(causes)) if causes else None
        seconds = (int(ended) - int(detected)) / 1000 if ended else 0.0
        found.append(
            Repair(kind=kind, damage=damage, status=status, after_seconds=after, repair_seconds=max(0.0, seconds))
        )
    return found


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown under a title."""
    lines = [f"\n## {title}\n", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(str(one) for one in row)} |" for row in rows]
    return "\n".join(lines)


def render(
    found: Findings,
    repairs: Sequence[Repair],
    routes: Mapping[tuple[str, int], tuple[str, str]],
    done: Counter[str],
    facts: Mapping[str, object],
) -> str:
    """The whole report, its verdict last."""
    reads, why = found.reads, judge(found)
    parts = [
        "# Soak\n\n" + "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        table("What was done", ("action", "times"), sorted(done.items())),
        table(
            "Rows by id", ("table", "ids sent", "ids found", "lost", "doubled", "sent by nobody"),
            [(one.table, one.sent, one.found, one.lost, one.doubled, one.foreign) for one in found.accounts],
        ),
        table(
            "Targets against their queries", ("target", "windows", "keys", "verdict"),
            [(one.target, one.windows, one.keys, "; ".join(one.wrong) or "equal") for one in found.compared],
        ),
        table("Repairs", ("kind", "damage", "status", "number", "detected after, median s", "repaired after that, median s", "most s"), _repairs(repairs)),
        table("Routes of readers", ("target", "route", "reason"), [(target, route, reason[:90]) for (target, _), (route, reason) in sorted(routes.items(), key=lambda one: one[0][1])]),
        table("Growth", ("what", "first", "last", "unit", "bound of growth"), [(one.what, f"{one.first:.0f}", f"{one.last:.0f}", one.unit, f"{one.bound:.0f}") for one in found.growths]),
        f"\nReaders: {reads.polls} polls of serving views, {len(reads.holes)} holes, {len(reads.doubles)} doubles, {len(reads.errors)} errors, "
        f"{reads.steps_back} steps back to a snapshot.",
        f"Left behind: {len(found.left)}. Not ACTIVE: {len(found.not_active)}.",
        "\n## Verdict\n",
        "\n".join(f"- FAILED {one}" for one in why) or "GOOD: 0 lost, 0 doubled, all targets equal and ACTIVE, nothing left behind.",
    ]  # fmt: skip
    return "\n".join(parts)


def _repairs(repairs: Sequence[Repair]) -> list[tuple[object, ...]]:
    groups: dict[tuple[str, str, str], list[Repair]] = {}
    for one in repairs:
        groups.setdefault((one.kind, one.damage, one.status), []).append(one)
    rows: list[tuple[object, ...]] = []
    for key, ones in sorted(groups.items()):
        known = [one.after_seconds for one in ones if one.after_seconds is not None]
        times = [one.repair_seconds for one in ones]
        after = f"{median(known):.0f}" if known else "—"
        rows.append((*key, len(ones), after, f"{median(times):.0f}", f"{max(times):.0f}"))
    return rows
