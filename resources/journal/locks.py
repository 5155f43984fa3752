"""Take, renew and release locks in ClickHouse. What is created when is decided in `core.locks`.

A held lock is valid until its lease ends by the *local* clock, counted from before the server was asked, so a holder gives
up before anyone may take over. Writers that outlive their lease are caught by `renew` or `check`, or by comparing the
fencing token, which strictly rises from holder to holder.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from chmv_assets.core.errors import LockRefused, ServerError
from chmv_assets.core.locks import (
    KEEP_GENERATIONS,
    LOST_RACE_CODES,
    LockState,
    decode_generation,
    plan_acquire,
    plan_release,
    plan_renew,
    read_generations,
    render_forget,
    render_generation,
)
from resources.clickhouse import Server

DEFAULT_LEASE_SECONDS = 60.0
PATIENCE_SECONDS = 1.0  # a wait that is longer is told
_POLL_SECONDS = 0.1


@dataclass
class HeldLock:
    """A lock that we hold; `token` is its fencing token."""

    name: str
    owner: str
    state: LockState
    valid_until: float  # by the clock of the `Locks` that gave it

    @property
    def token(self) -> int:
        return self.state.token


@dataclass
class Locks:
    """The locks of one server or cluster. Not for sharing between threads, as its connection is not."""

    server: Server
    cluster: str = ""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def try_acquire(self, name: str, owner: str, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> HeldLock | None:
        """Take a lock that is free or whose lease has ended; None if somebody holds it."""
        started = self.clock()
        holder = f"{owner}#{secrets.token_hex(4)}"  # two takers of the same name are still two
        seen, _, now_us = self._read(name)
        wanted = plan_acquire(seen, holder, now_us, _micros(lease_seconds))
        if wanted is None:
            return None
        try:
            won = self._create(name, wanted)
        except BaseException as error:
            if not isinstance(error, Exception):  # interrupted: nobody would know that we hold it
                self._give_back(name, wanted)
            raise
        return HeldLock(name, holder, wanted, started + lease_seconds) if won else None

    def _give_back(self, name: str, wanted: LockState) -> None:
        """Release a generation if it was created and is ours; its owner's name is unique."""
        with suppress(ServerError):
            seen, _, _ = self._read(name)
            if seen == wanted:
                self._create(name, plan_release(wanted))

    def acquire(
        self,
        name: str,
        owner: str,
        *,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        wait_seconds: float = 0.0,
        log: Callable[[str], None] = lambda _line: None,
    ) -> HeldLock:
        """Take a lock, waiting for it up to the given time; `log` hears of a wait that is not over at once."""
        started = self.clock()
        deadline, told = started + wait_seconds, False
        while True:
            held = self.try_acquire(name, owner, lease_seconds)
            if held is not None:
                return held
            if self.clock() >= deadline:
                raise LockRefused(name, self.holder(name), "it to be free")
            if not told and self.clock() - started >= PATIENCE_SECONDS:
                told = True
                log(self._describe_wait(name, deadline - self.clock()))
            self.sleep(min(_POLL_SECONDS, max(0.0, deadline - self.clock())))

    def renew(self, held: HeldLock, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> None:
        """Prolong the lease, or raise if the lock was taken over."""
        started = self.clock()
        seen, _, now_us = self._read(held.name)
        wanted = plan_renew(held.state, now_us, _micros(lease_seconds))
        if seen != held.state or not self._create(held.name, wanted):
            raise LockRefused(held.name, self.holder(held.name), f"it still held by {held.owner}")
        held.state, held.valid_until = wanted, started + lease_seconds

    def check(self, held: HeldLock) -> None:
        """Raise unless the lease still runs by our own clock; costs nothing, call it before every write."""
        if self.clock() >= held.valid_until:
            raise LockRefused(held.name, "whoever came after the lease had ended", f"it still held by {held.owner}")

    def release(self, held: HeldLock) -> bool:
        """Give a lock back; False if it was not ours any more."""
        return self._create(held.name, plan_release(held.state), confirmed=True)

    def forget(self, name: str) -> None:
        """Remove every trace of a lock whose subject is done for good; its fencing tokens begin anew."""
        _, states, _ = self._read(name)
        for state in states:
            self.server.command(render_forget(name, state.generation, self.cluster))

    def _describe_wait(self, name: str, left_seconds: float) -> str:
        seen, _, now_us = self._read(name)
        lease = max(0.0, (seen.expires_us - now_us) / 1e6)
        return (
            f"lock {name}: waiting, {left_seconds:.0f} s at most, for {seen.owner or 'nobody any more'}. If that process is dead, its lease ends "
            f"in {lease:.0f} s; while it lives, it prolongs it."
        )

    def holder(self, name: str) -> str:
        """Who holds a lock now, or nothing."""
        seen, _, now_us = self._read(name)
        return "" if seen.free_at(now_us) else seen.owner

    @contextmanager
    def hold(
        self, name: str, owner: str, *, lease_seconds: float = DEFAULT_LEASE_SECONDS, wait_seconds: float = 0.0
    ) -> Iterator[HeldLock]:
        """Hold a lock for the length of a block."""
        held = self.acquire(name, owner, lease_seconds=lease_seconds, wait_seconds=wait_seconds)
        try:
            yield held
        except BaseException:
            with suppress(ServerError):  # what went wrong inside matters more; the lease ends by itself
                self.release(held)
            raise
        self.release(held)

    def _read(self, name: str) -> tuple[LockState, list[LockState], int]:
        statement = read_generations(name, self.cluster)
        rows = self.server.fetch(statement)
        states = [decode_generation(str(table), str(comment)) for table, comment, _ in rows]
        return states[0], states, int(rows[0][2])

    def _create(self, name: str, wanted: LockState, *, confirmed: bool = False) -> bool:
        """Win the generation or not; a win counts only if no higher one exists, which the server's word confirms for a release."""
        try:
            self.server.command(render_generation(name, wanted, self.cluster))
        except ServerError as error:
            if error.code in LOST_RACE_CODES:
                return False
            if error.code is not None:
                raise
            # No answer: it may have been created. The read below tells, since the owner in the comment is unique.
        else:
            if confirmed:
                return True
        seen, states, _ = self._read(name)
        if wanted not in states:
            return False
        if seen.generation > wanted.generation and wanted.owner:
            return False
        for old in states:
            if old.generation <= seen.generation - KEEP_GENERATIONS:
                self.server.command(render_forget(name, old.generation, self.cluster))
        return True


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
