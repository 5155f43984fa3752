"""When to try again and how long to wait: one table by server code, one backoff schedule. Pure.

Invariant: what is not in the table is not retried. An answer without any server code means that the connection broke: that is
retried too, since every write of ours is a no-op when repeated (tokens, versions, IF EXISTS). Waiting itself is in
`resources.retry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BASE_SECONDS = 2.0
CAP_SECONDS = 30.0
CLIENT_MARGIN_SECONDS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """What a server code means for a second try."""

    code: int
    name: str
    retriable: bool
    reason: str
    only_with: str = ""  # the message must hold this, else the rule says no


def _yes(code: int, name: str, reason: str, only_with: str = "") -> RetryRule:
    return RetryRule(code=code, name=name, retriable=True, reason=reason, only_with=only_with)


def _no(code: int, name: str, reason: str) -> RetryRule:
    return RetryRule(code=code, name=name, retriable=False, reason=reason)


RULES: tuple[RetryRule, ...] = (
    _yes(3, "UNEXPECTED_END_OF_FILE", "the stream broke off; the request did not arrive whole"),
    _yes(32, "ATTEMPT_TO_READ_AFTER_EOF", "the connection was cut in mid-answer"),
    _yes(95, "CANNOT_READ_FROM_SOCKET", "network"),
    _yes(96, "CANNOT_WRITE_TO_SOCKET", "network"),
    _yes(159, "TIMEOUT_EXCEEDED", "took longer than max_execution_time or the lock timeout; load passes"),
    _yes(198, "DNS_ERROR", "name service hiccup"),
    _yes(202, "TOO_MANY_SIMULTANEOUS_QUERIES", "a slot becomes free"),
    _yes(203, "NO_FREE_CONNECTION", "a connection becomes free"),
    _yes(209, "SOCKET_TIMEOUT", "network"),
    _yes(210, "NETWORK_ERROR", "network"),
    _yes(225, "NO_ZOOKEEPER", "Keeper is electing a leader or restarting"),
    _yes(236, "ABORTED", "the server is shutting down or merges were stopped"),
    _yes(241, "MEMORY_LIMIT_EXCEEDED", "others may give memory back; the next try is smaller"),
    _yes(242, "TABLE_IS_READ_ONLY", "the replica has lost its Keeper session for a moment"),
    _yes(252, "TOO_MANY_PARTS", "merges catch up while we wait"),
    _yes(279, "ALL_CONNECTION_TRIES_FAILED", "no replica answered; one may come back"),
    _yes(285, "TOO_FEW_LIVE_REPLICAS", "quorum is missing until a replica is back"),
    _yes(286, "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE", "the write before has to reach its quorum first"),
    _yes(319, "UNKNOWN_STATUS_OF_INSERT", "in doubt; the token makes the second try a no-op if the first one arrived"),
    _yes(439, "CANNOT_SCHEDULE_TASK", "no thread was free"),
    _yes(469, "VIOLATED_CONSTRAINT", "our gate is shut for a moment; any other constraint is for good", "fence"),
    _yes(473, "DEADLOCK_AVOIDED", "lock timeout: another DDL or partition command held the table"),
    _yes(499, "S3_ERROR", "object stores throttle and time out"),
    _yes(517, "CANNOT_ASSIGN_ALTER", "another ALTER came first"),
    _yes(722, "ASYNC_LOAD_WAIT_FAILED", "the server is still loading its tables"),
    _yes(733, "TABLE_IS_BEING_RESTARTED", "back in a moment"),
    _yes(745, "SERVER_OVERLOADED", "the server asks us to come back later"),
    _yes(774, "TABLE_IS_PERMANENTLY_READ_ONLY", "table_readonly is how a gate shuts on servers from 26.3 on"),
    _yes(999, "KEEPER_EXCEPTION", "session lost or operation timed out"),
    _no(16, "NO_SUCH_COLUMN_IN_TABLE", "the statement does not fit the table"),
    _no(36, "BAD_ARGUMENTS", "the statement is wrong"),
    _no(47, "UNKNOWN_IDENTIFIER", "the statement does not fit the table"),
    _no(53, "TYPE_MISMATCH", "the data does not fit the table"),
    _no(57, "TABLE_ALREADY_EXISTS", "that is an answer: somebody was first"),
    _no(60, "UNKNOWN_TABLE", "it has to be created by somebody"),
    _no(62, "SYNTAX_ERROR", "the statement is wrong"),
    _no(81, "UNKNOWN_DATABASE", "it has to be created by somebody"),
    _no(117, "INCORRECT_DATA", "the data does not fit the table"),
    _no(122, "INCOMPATIBLE_COLUMNS", "the tables do not fit each other"),
    _no(164, "READONLY", "the account may not write"),
    _no(243, "NOT_ENOUGH_SPACE", "somebody has to free disk space"),
    _no(253, "REPLICA_ALREADY_EXISTS", "that is an answer: somebody was first"),
    _no(394, "QUERY_WAS_CANCELLED", "somebody wanted it to stop"),
    _no(497, "ACCESS_DENIED", "the account lacks a grant"),
    _no(516, "AUTHENTICATION_FAILED", "user or password are wrong"),
)
_BY_CODE = {rule.code: rule for rule in RULES}
_BROKEN_CONNECTION = RetryRule(code=0, name="", retriable=True, reason="the connection broke before an answer came")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    retriable: bool
    reason: str


def decide_retry(code: int | None, message: str = "") -> RetryDecision:
    """Whether an error is worth a second try, and why.

    >>> decide_retry(252).retriable, decide_retry(62).retriable, decide_retry(None).retriable
    (True, False, True)
    """
    rule = _BROKEN_CONNECTION if code is None else _BY_CODE.get(code)
    if rule is None:
        return RetryDecision(retriable=False, reason=f"code {code} is not known to pass by itself")
    if rule.only_with and rule.only_with not in message.lower():
        return RetryDecision(
            retriable=False, reason=f"{rule.name} without our {rule.only_with}: it will not pass by itself"
        )
    return RetryDecision(retriable=rule.retriable, reason=rule.reason)


def backoff_ceiling(attempt: int) -> float:
    """The longest wait after the given failed attempt (from 1): 2, 4, 8, 16, 30, 30, … seconds.

    >>> [backoff_ceiling(attempt) for attempt in range(1, 7)]
    [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    """
    return min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(max(attempt, 1) - 1, 10))


def backoff_seconds(attempt: int, random: Callable[[], float]) -> float:
    """Full jitter: anything between nothing and the ceiling, so that many clients do not come back at once."""
    return backoff_ceiling(attempt) * random()


def client_timeout_seconds(max_execution_time_seconds: int) -> int:
    """How long a client waits for an answer: the server's own limit comes first.

    >>> client_timeout_seconds(300)
    315
    """
    return max_execution_time_seconds + CLIENT_MARGIN_SECONDS
