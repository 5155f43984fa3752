"""Which errors are worth a second try, and how long we wait."""

from __future__ import annotations

import pytest

from chmv_assets.core.errors import ServerError
from chmv_assets.core.retry import RULES, backoff_ceiling, backoff_seconds, client_timeout_seconds, decide_retry
from resources.retry import call_with_retry


def test_every_code_has_one_rule_with_a_reason() -> None:
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert all(rule.reason and rule.name.isupper() for rule in RULES)


@pytest.mark.parametrize("code", [252, 241, 473, 159, 210, 319, 774, None])
def test_errors_that_pass_are_retried(code: int | None) -> None:
    assert decide_retry(code).retriable


@pytest.mark.parametrize("code", [57, 60, 62, 497, 243, 123_456])
def test_errors_that_stay_and_unknown_ones_are_not(code: int) -> None:
    assert not decide_retry(code).retriable


def test_a_violated_constraint_is_retried_only_if_it_is_our_fence() -> None:
    assert decide_retry(469, "Constraint `__fence` for table d.s is violated").retriable
    assert not decide_retry(469, "Constraint `positive` for table d.s is violated").retriable


def test_the_schedule_starts_at_2_s_and_is_capped_at_30_s_with_full_jitter() -> None:
    assert [backoff_ceiling(attempt) for attempt in (1, 2, 3, 4, 5, 6, 1_000)] == [2, 4, 8, 16, 30, 30, 30]
    assert (backoff_seconds(3, lambda: 0.0), backoff_seconds(3, lambda: 0.5)) == (0, 4)
    assert client_timeout_seconds(300) == 315


class World:
    """A clock that only sleeping moves, and a call that fails as told."""

    def __init__(self, *failures: int | None) -> None:
        self.failures = list(failures)
        self.now = 0.0
        self.slept: list[float] = []
        self.told: list[str] = []
        self.calls = 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def call(self) -> str:
        self.calls += 1
        if self.failures:
            raise ServerError("no", code=self.failures.pop(0))
        return "done"

    def run(self, limit: float = 300) -> str:
        return call_with_retry(
            self.call, sleep=self.sleep, random=lambda: 1.0, clock=lambda: self.now, log=self.told.append, limit=limit
        )


def test_it_waits_longer_each_time_and_says_why() -> None:
    world = World(252, None, 241)
    assert world.run() == "done"
    assert world.slept == [2, 4, 8]
    assert "merges catch up" in world.told[0] and "connection broke" in world.told[1]


def test_an_error_that_stays_is_raised_at_once() -> None:
    world = World(62)
    with pytest.raises(ServerError):
        world.run()
    assert (world.calls, world.slept) == (1, [])


def test_it_gives_up_before_the_limit_is_passed() -> None:
    world = World(*[252] * 100)
    with pytest.raises(ServerError, match="252"):
        world.run(limit=20)
    assert world.slept == [2, 4, 8] and world.now <= 20
