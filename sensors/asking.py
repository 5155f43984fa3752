"""From asks to runs of `recovery_job`: keys, tags, caps. What every recovery sensor does in the same way.

Decided: which asks of a tick become runs now. An ask whose evidence is repaired, under repair or waiting for its next try does not. The
cap takes the first ones, so a verdict puts the most important in front. Nothing is lost: what is not asked for now is seen again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from chmv_assets.core.recovery import PRIORITY, Ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.jobs import ASK_TAG, DUPLICATE_TAG, RECOVERY_JOB, recovery_run_config
from sensors.attempts import Attempts, RunState, next_attempt

_STATES: dict[dg.DagsterRunStatus, RunState] = {
    dg.DagsterRunStatus.SUCCESS: "done",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a tick asks for, and what it says of every ask."""

    requests: tuple[tuple[Ask, int], ...]  # with the number of earlier tries
    told: tuple[str, ...]


def ask_digest(ask: Ask) -> str:
    """The ask's key as a tag's value."""
    return hashlib.sha256(ask.key.encode()).hexdigest()[:20]


def choose(asks: Sequence[Ask], attempts: Mapping[str, Attempts], now: float, limits: Limits) -> Chosen:
    """Which asks become runs; pure."""
    requests: list[tuple[Ask, int]] = []
    told: list[str] = []
    seen: set[str] = set()
    for ask in asks:
        digest = ask_digest(ask)
        if digest in seen:
            continue
        seen.add(digest)
        number, state = next_attempt(attempts.get(digest), now, limits.retry_after)
        line = f"{ask.subject}: {ask.damage}" + (f", {state}" if state else "")
        if number is not None and len(requests) >= limits.runs_per_tick:
            number, line = (
                None,
                f"{line}, but a tick asks for {limits.runs_per_tick:g} runs at most; the next one goes on",
            )
        if number is not None:
            requests.append((ask, number))
        told.append(line)
    return Chosen(requests=tuple(requests), told=tuple(told))


def read_ask_attempts(instance: dg.DagsterInstance, asks: Sequence[Ask]) -> Mapping[str, Attempts]:
    """How earlier runs for these asks went, by digest."""
    return read_attempts(instance, RECOVERY_JOB, ASK_TAG, [ask_digest(ask) for ask in asks])


def read_done(instance: dg.DagsterInstance, asks: Sequence[Ask]) -> set[str]:
    """The keys of those of these asks whose run has succeeded."""
    attempts = read_ask_attempts(instance, asks)
    return {ask.key for ask in asks if (tried := attempts.get(ask_digest(ask))) is not None and tried.latest == "done"}


def recovery_request(ask: Ask, attempt: int, sensor: str) -> dg.RunRequest:
    """The run that repairs; its tags say who saw what."""
    digest = ask_digest(ask)
    return dg.RunRequest(
        run_key=f"{digest}:{attempt}" if attempt else digest,
        job_name=RECOVERY_JOB,
        run_config=recovery_run_config(ask.dump()),
        tags={
            ASK_TAG: digest,
            "chmv/sensor": sensor,
            "chmv/subject": str(ask.subject),
            "chmv/damage": ask.damage,
            "chmv/evidence": ask.evidence,
            "chmv/detected_ms": str(ask.detected_ms),
            "dagster/priority": str(PRIORITY[ask.kind]),
            **({"chmv/attempt": str(attempt + 1)} if attempt else {}),
        },
    )


def result_of(chosen: Chosen, sensor: str, told: str, cursor: str) -> dg.SensorResult:
    """The tick's result: runs, or the reason why there are none, with the numbers that were seen."""
    text = "; ".join([told, *chosen.told]) if told else "; ".join(chosen.told)
    return dg.SensorResult(
        run_requests=[recovery_request(ask, attempt, sensor) for ask, attempt in chosen.requests],
        skip_reason=None if chosen.requests else dg.SkipReason(text or "nothing to repair"),
        cursor=cursor,
    )


def read_attempts(
    instance: dg.DagsterInstance, job_name: str, tag: str, values: Iterable[str]
) -> Mapping[str, Attempts]:
    """How the runs of a job with one of these values of a tag went, by value; one read of Dagster's runs."""
    wanted = sorted(set(values))
    if not wanted:
        return {}
    records = instance.get_run_records(dg.RunsFilter(job_name=job_name, tags={tag: wanted}))
    found: dict[str, list[dg.RunRecord]] = {}
    for record in records:  # the newest first
        if DUPLICATE_TAG in record.dagster_run.tags:
            continue  # it says nothing of how the repair went
        found.setdefault(record.dagster_run.tags[tag], []).append(record)
    return {value: _attempts(runs) for value, runs in found.items()}


def _attempts(runs: Sequence[dg.RunRecord]) -> Attempts:
    latest = runs[0]
    state = _STATES.get(latest.dagster_run.status, "going")
    moment = latest.start_time if state == "going" else latest.end_time
    return Attempts(runs=len(runs), latest=state, since=moment or latest.create_timestamp.timestamp())
