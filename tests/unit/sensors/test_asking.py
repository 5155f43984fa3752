"""Which asks become runs: once for the same evidence, again after a failure, never more than the cap."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import KINDS, Ask, load_ask
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.windows import Window
from chmv_assets.jobs import ASK_TAG, RECOVERY_JOB
from sensors.asking import ask_digest, choose, recovery_request, result_of
from sensors.attempts import LOST_SECONDS, Attempts, next_attempt

NOW = 1_000_000.0
START = datetime(2026, 11, 16, tzinfo=timezone.utc)


def ask(name: str = "daily_mv", evidence: str = "e1", **more: object) -> Ask:
    return Ask(kind="view", subject=QName("shop", name), damage="dropped", evidence=evidence, **more)  # type: ignore[arg-type]


def attempts(runs: int, latest: str, ago: float) -> Attempts:
    return Attempts(runs=runs, latest=latest, since=NOW - ago)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "number", "word"),
    [
        (None, 0, ""),
        (attempts(1, "done", 5), None, "repaired"),
        (attempts(1, "going", 5), None, "under repair"),
        (attempts(1, "going", LOST_SECONDS + 1), 1, "seems lost, try 2"),
        (attempts(1, "failed", 59), None, "the next try comes in 1 s"),
        (attempts(1, "failed", 60), 1, "try 2"),
        (attempts(2, "failed", 119), None, "in 1 s"),
        (attempts(2, "failed", 120), 2, "try 3"),
    ],
)
def test_a_failed_repair_is_asked_for_again_less_and_less_often(
    before: Attempts | None, number: int | None, word: str
) -> None:
    found, told = next_attempt(before, NOW, 60.0)
    assert (found, word in told) == (number, True)


def test_the_same_evidence_is_asked_for_once_and_other_evidence_again() -> None:
    chosen = choose([ask(), ask(), ask(evidence="e2")], {}, NOW, Limits())
    assert [one.evidence for one, _ in chosen.requests] == ["e1", "e2"]
    repaired = {ask_digest(ask()): attempts(1, "done", 5)}
    again = choose([ask(), ask(evidence="e2")], repaired, NOW, Limits())
    assert [one.evidence for one, _ in again.requests] == ["e2"]


def test_in_a_full_queue_readers_come_before_views_and_late_rows_come_last() -> None:
    """The soak found it on a busy machine: readers waited on an old snapshot behind rebuilds for late rows."""
    asks = [replace(ask(), kind=kind) for kind in KINDS]
    by_priority = sorted(asks, key=lambda one: -int(recovery_request(one, 0, "x").tags["dagster/priority"]))
    assert [one.kind for one in by_priority] == ["route", "view", "backlog", "late"]


def test_a_tick_asks_for_no_more_than_its_cap_and_says_what_waits() -> None:
    chosen = choose([ask(f"v{at}") for at in range(7)], {}, NOW, Limits(runs_per_tick=3))
    assert [one.subject.table for one, _ in chosen.requests] == ["v0", "v1", "v2"]
    assert sum("the next one goes on" in line for line in chosen.told) == 4


def test_what_is_not_asked_for_does_not_count_towards_the_cap() -> None:
    done = {ask_digest(ask(f"v{at}")): attempts(1, "done", 5) for at in range(5)}
    chosen = choose([ask(f"v{at}") for at in range(7)], done, NOW, Limits(runs_per_tick=2))
    assert [one.subject.table for one, _ in chosen.requests] == ["v5", "v6"]


def test_run_keys_are_deterministic_and_differ_by_attempt() -> None:
    first, second = recovery_request(ask(), 0, "s"), recovery_request(ask(), 1, "s")
    assert first.run_key == recovery_request(ask(detected_ms=5, seen={"parts": "7"}), 0, "s").run_key
    assert first.run_key != second.run_key
    assert (first.job_name, first.tags[ASK_TAG]) == (RECOVERY_JOB, ask_digest(ask()))
    assert second.tags["chmv/attempt"] == "2"


def test_a_tick_without_runs_tells_the_numbers_it_saw() -> None:
    result = result_of(choose([], {}, NOW, Limits()), "s", "12 views hooked", "{}")
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "12 views hooked"
    assert result.cursor == "{}"


def test_an_ask_survives_its_way_through_the_run_configuration() -> None:
    said = ask(
        windows=(Window(START, START + timedelta(days=1)),), since_ms=12, detected_ms=34, seen={"odd": 'ünï "code"\n\''}
    )
    assert load_ask(said.dump()) == said
    odd = Ask(kind="late", subject=QName("a.b", "c`d"), damage="late rows", evidence="x")
    assert load_ask(odd.dump()).subject == odd.subject


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind":"drop all","subject":"a.b","damage":"","evidence":""}', "null"]
)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ChmvError, match="wanted what a sensor writes"):
        load_ask(text)
