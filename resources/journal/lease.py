"""A lock that is kept for as long as the work takes: a thread of its own renews it over a connection of its own.

Invariant: `check` raises as soon as the lease may have ended by our clock, so a holder that was frozen stops before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from chmv_assets.core.errors import ChmvError
from resources.clickhouse import Server
from resources.heartbeat import heartbeat
from resources.journal.locks import HeldLock, Locks
from resources.journal.store import Journal

LEASE_SECONDS = 30.0


@dataclass
class Lease:
    """A kept lock."""

    held: HeldLock
    locks: Locks

    def check(self) -> None:
        """Raise unless we still hold it."""
        self.locks.check(self.held)


@contextmanager
def keep_lease(
    journal: Journal,
    name: str,
    *,
    lease_seconds: float = LEASE_SECONDS,
    wait_seconds: float = 0.0,
    log: Callable[[str], None] = lambda _line: None,
) -> Iterator[Lease]:
    """Hold a lock for the length of a block, however long that is; waits for it at most `wait_seconds`, and `log` hears of that."""
    journal.prepare()
    locks = journal.locks
    held = locks.acquire(name, journal.owner, lease_seconds=lease_seconds, wait_seconds=wait_seconds, log=log)

    def renew(server: Server) -> None:
        """Errors are left to `check`, which sees the time run out."""
        Locks(server, journal.cluster).renew(held, lease_seconds)

    try:
        with heartbeat(journal.server.endpoint, lease_seconds / 3, renew):
            yield Lease(held, locks)
    finally:
        with suppress(ChmvError):  # what happened inside matters more; the lease ends by itself
            locks.release(held)
