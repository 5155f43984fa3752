"""Locks on the real server: one holder at a time, rising tokens, leases that end."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from journal_driver import run_all

from chmv_assets.core.errors import LockRefused
from resources.clickhouse import Server
from resources.journal import Locks


def test_a_lock_is_held_by_one_and_its_token_rises(server: Server, lock: str) -> None:
    locks = Locks(server)
    first = locks.acquire(lock, "a")
    assert locks.try_acquire(lock, "a") is None and locks.holder(lock).startswith("a#")
    with pytest.raises(LockRefused, match="held by a#"):
        locks.acquire(lock, "b", wait_seconds=0.1)
    token = first.token
    for _ in range(12):
        locks.renew(first)
    assert first.token == token
    assert locks.release(first) and locks.holder(lock) == ""
    second = locks.acquire(lock, "b")
    assert second.token > token
    assert not locks.release(first)
    with pytest.raises(LockRefused):
        locks.renew(first)
    assert locks.release(second)
    kept = server.rows(
        "SELECT count() FROM system.tables WHERE database = 'chmv' AND comment LIKE {c:String}", {"c": f"%{lock}%"}
    )
    assert kept[0][0] <= 9


class Interrupted(Server):
    """A connection on which Ctrl-C comes right after a statement was done."""

    armed = True

    def command(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> str:
        done = super().command(sql, parameters, settings)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return done


def test_a_lock_is_given_back_by_who_is_interrupted_while_taking_it(server: Server, lock: str) -> None:
    with Interrupted(server.endpoint) as connection, pytest.raises(KeyboardInterrupt):
        Locks(connection).acquire(lock, "hasty")
    locks = Locks(server)
    assert locks.holder(lock) == ""
    assert locks.release(locks.acquire(lock, "next"))


def test_a_statement_ends_on_the_server_when_who_waits_for_it_is_interrupted(server: Server) -> None:
    word = secrets.token_hex(8)
    sql = f"INSERT INTO FUNCTION null('x UInt8') SELECT sleepEachRow(0.1) AS x FROM numbers(100) WHERE '{word}' != ''"
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        server.command(sql, settings={"max_block_size": 1, "function_sleep_max_microseconds_per_block": 0})
    timer.join()
    running = server.rows(
        "SELECT count() FROM system.processes WHERE position(query, {w:String}) > 0 AND query_kind = 'Insert'",
        {"w": word},
    )
    assert running == [(0,)]


def test_the_lease_of_a_crashed_owner_ends(server: Server, lock: str) -> None:
    locks = Locks(server)
    dead = locks.acquire(lock, "dead", lease_seconds=0.3)
    heir = locks.acquire(lock, "heir", wait_seconds=10)
    assert heir.token > dead.token
    with pytest.raises(LockRefused, match="still held by dead#"):
        locks.check(dead)
    with pytest.raises(LockRefused, match="held by heir#"):
        locks.renew(dead)
    assert not locks.release(dead)
    locks.check(heir)
    assert locks.release(heir)


def test_a_wait_that_is_long_is_told_once(server: Server, lock: str) -> None:
    """Two holders after another are still one wait; one that is over at once is nobody's business."""
    locks, said = Locks(server), list[str]()
    locks.acquire(lock, "brief", lease_seconds=0.2)
    locks.release(locks.acquire(lock, "heir", wait_seconds=10, log=said.append))
    assert said == []
    held = locks.acquire(lock, "busy", lease_seconds=20)
    with pytest.raises(LockRefused, match="held by busy#"):
        locks.acquire(lock, "heir", wait_seconds=1.6, log=said.append)
    (line,) = said
    assert line.startswith(f"lock {lock}: waiting, ") and "for busy#" in line and "its lease ends in 1" in line
    assert locks.release(held)


def test_competing_holders_never_hold_it_at_once(server: Server, lock: str) -> None:
    """Some release, some renew, some just die; what each believed to hold must not overlap."""
    held: list[tuple[float, float, int]] = []
    until = time.monotonic() + 4

    def compete(number: int) -> None:
        with Server(server.endpoint) as own:
            locks = Locks(own)
            for turn in range(1_000):
                if time.monotonic() > until:
                    return
                mine = locks.try_acquire(lock, f"t{number}", lease_seconds=0.15)
                if mine is None:
                    continue
                begin = time.monotonic()
                if turn % 3 == 0:
                    try:
                        locks.renew(mine, lease_seconds=0.15)
                    except LockRefused:
                        held.append((begin, min(time.monotonic(), mine.valid_until), mine.token))
                        continue
                time.sleep(0.005)
                held.append((begin, min(time.monotonic(), mine.valid_until), mine.token))
                if turn % 4:
                    locks.release(mine)

    run_all([lambda number=number: compete(number) for number in range(4)])  # type: ignore[misc]
    spans = sorted((begin, end, token) for begin, end, token in held if end > begin)
    assert len(spans) > 10
    for (_, end, token), (begin, _, later) in itertools.pairwise(spans):
        assert end <= begin and token < later
