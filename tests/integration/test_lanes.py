"""Work side by side: in order, on few connections, to its end."""

from __future__ import annotations

import threading

import pytest

from resources.clickhouse import Server
from resources.heartbeat import heartbeat
from resources.lanes import run_in_lanes


def test_results_come_in_order_from_as_many_connections_as_there_are_lanes(server: Server) -> None:
    used: set[int] = set()

    def square(server: Server, number: int) -> int:
        used.add(id(server))
        return int(server.rows("SELECT {n:UInt32} * {n:UInt32}", {"n": number})[0][0])

    assert run_in_lanes(server, 3, range(20), square) == [one * one for one in range(20)]
    assert len(used) <= 3 and id(server) not in used, "a connection is not for sharing between threads"
    used.clear()
    assert run_in_lanes(server, 1, range(3), square) == [0, 1, 4]
    assert used == {id(server)}, "one lane needs no other connection"
    assert run_in_lanes(server, 3, [], square) == []


def test_a_failure_is_raised_when_all_others_have_ended(server: Server) -> None:
    done: list[int] = []

    def work(_server: Server, number: int) -> None:
        if number in (1, 4):
            raise ValueError(number)
        done.append(number)

    with pytest.raises(ValueError, match="1"):
        run_in_lanes(server, 2, range(8), work)
    assert sorted(done) == [0, 2, 3, 5, 6, 7]


def test_a_heart_beats_while_the_block_runs_and_not_after(server: Server) -> None:
    said: list[int] = []
    enough = threading.Event()

    def say(mine: Server) -> None:
        said.append(int(mine.rows("SELECT 1")[0][0]))
        if len(said) == 1:
            mine.rows("SELECT no_such_column")  # what fails is left; the next beat comes
        enough.set()

    with heartbeat(server.endpoint, 0.05, say):
        assert enough.wait(30), "a second beat after one that failed"
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(beat)")]
