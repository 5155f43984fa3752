"""The reaper's decision, purely: which started runs have lost their process, for two ticks in a row → those to fail, cursor, a sentence.

A run belongs to this host if its own tag says so, or if its code server was addressed as this machine by the one daemon that launches
everything: then it was started beside this very sensor. Of any other run nothing is known, so nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sensors.cursors import dump_cursor, read_cursor

CURSOR_VERSION = 1
TICKS = 2  # a run whose process has just ended may be writing its last event


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run that Dagster calls started."""

    run_id: str
    pid: int | None  # None: it was not started as a process of its own
    alive: bool = True
    tagged: str = ""  # the host that its tags name
    addressed_here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What earlier ticks saw on a host."""

    host: str = ""
    dead: Mapping[str, int] = field(default_factory=dict)  # run → ticks in a row

    def dump(self) -> str:
        return dump_cursor(CURSOR_VERSION, {"host": self.host, "dead": dict(self.dead)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which runs to fail."""

    orphans: tuple[StartedRun, ...]
    cursor: Cursor
    told: str


def load_cursor(text: str | None, host: str) -> Cursor:
    """Read a cursor; what another host saw says nothing about this one.

    >>> load_cursor(Cursor(host="a", dead={"r": 1}).dump(), "b").dead
    {}
    """
    fresh = Cursor(host=host)

    def decode(document: Any) -> Cursor:
        dead = {str(run): int(ticks) for run, ticks in document["dead"].items()}
        return Cursor(host=host, dead=dead) if document["host"] == host else fresh

    return read_cursor(text, CURSOR_VERSION, decode, lambda _note: fresh)


def decide(runs: Sequence[StartedRun], cursor: Cursor) -> Verdict:
    """Fail what has had no process for two ticks."""
    ours = [run for run in runs if run.pid is not None and _is_here(run, cursor.host)]
    dead = {run.run_id: cursor.dead.get(run.run_id, 0) + 1 for run in ours if not run.alive}
    orphans = tuple(run for run in ours if dead.get(run.run_id, 0) >= TICKS)
    elsewhere = len(runs) - len(ours)
    told = f"{len(runs)} run(s) started, {len(ours)} on {cursor.host}, {len(dead)} without their process"
    if elsewhere:
        told += f"; {elsewhere} of other hosts, or without a process of their own, are left alone"
    if len(dead) > len(orphans):
        told += f"; {len(dead) - len(orphans)} get one more tick"
    return Verdict(orphans=orphans, cursor=Cursor(host=cursor.host, dead=dead), told=told)


def _is_here(run: StartedRun, host: str) -> bool:
    return run.tagged == host if run.tagged else run.addressed_here
