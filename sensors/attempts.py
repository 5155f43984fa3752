"""How runs went that were asked for with the same evidence, and when to ask again. Pure; `asking` reads Dagster's runs.

A run that failed is asked for again, less and less often; one that goes on or has succeeded is not. Run keys are deterministic, so that
a tick that is evaluated twice launches nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RunState = Literal["going", "done", "failed"]
RETRY_CAP_SECONDS = 6 * 3_600.0
LOST_SECONDS = (
    3_600.0  # Dagster calls a run "started" for ever if its host died; a second one beside a slow one does no harm
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The runs that were asked for with one piece of evidence, and how the latest of them stands."""

    runs: int
    latest: RunState
    since: float  # when it ended, or, while it goes on, when it began


def retry_after_seconds(runs: int, first: float) -> float:
    """How long to wait after the given number of runs that failed.

    >>> [retry_after_seconds(runs, 600.0) / 60 for runs in (1, 2, 3, 20)]
    [10.0, 20.0, 40.0, 360.0]
    """
    return min(RETRY_CAP_SECONDS, first * 2.0 ** min(max(runs, 1) - 1, 10))


def next_attempt(attempts: Attempts | None, now: float, retry_after: float) -> tuple[int | None, str]:
    """Which attempt to ask for (None: not now), and what to say."""
    if attempts is None:
        return 0, ""
    if attempts.latest == "done":
        return None, "repaired"
    if attempts.latest == "going":
        if now - attempts.since < LOST_SECONDS:
            return None, "under repair"
        return attempts.runs, f"its repair seems lost, try {attempts.runs + 1}"
    wait = attempts.since + retry_after_seconds(attempts.runs, retry_after) - now
    if wait > 0:
        return None, f"{attempts.runs} repairs failed, the next try comes in {wait:.0f} s"
    return attempts.runs, f"{attempts.runs} repairs failed, try {attempts.runs + 1}"
