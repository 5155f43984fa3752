"""Try again where the table in `core.retry` says so. Waits with the caller's `sleep`; decides nothing itself.

Invariant: only calls that are no-ops when repeated may be passed in; the last error is raised as it came.
"""

from __future__ import annotations

import logging
import random as _random
import time
from collections.abc import Callable
from typing import TypeVar

from chmv_assets.core.errors import ServerError
from chmv_assets.core.retry import backoff_seconds, decide_retry

T = TypeVar("T")
DEFAULT_LIMIT_SECONDS = 300.0
_jitter = _random.SystemRandom().random
_warn = logging.getLogger("chmv").warning


def call_with_retry(
    fn: Callable[[], T],
    *,
    sleep: Callable[[float], None] = time.sleep,
    random: Callable[[], float] = _jitter,
    clock: Callable[[], float] = time.monotonic,
    log: Callable[[str], None] = _warn,
    limit: float = DEFAULT_LIMIT_SECONDS,
) -> T:
    """Call until it works, the error is for good, or the next wait would pass `limit` seconds since the start."""
    started = clock()
    attempt = 0
    while True:
        attempt += 1
        try:
            return fn()
        except ServerError as error:
            decision = decide_retry(error.code, str(error))
            wait = backoff_seconds(attempt, random)
            if not decision.retriable or clock() - started + wait > limit:
                raise
            log(f"attempt {attempt} failed ({decision.reason}); again in {wait:.1f} s: {error}")
            sleep(wait)
