"""Versions that only rise: a hybrid clock with a sequence, as one UInt64 per version.

    bit 63      62             61 … 20                      19 … 12     11 … 0
    0           lane           milliseconds since 1970      process     sequence
    (fits       0 = live,      (42 bits: until 2109;        (8 bits)    (4,096 per millisecond; the clock part
    Int64)      1 = replay     the clock, or ahead of it)               moves on by itself when they are used up)

Invariants: an allocator never gives a version twice nor a lower one in the same lane, even if the clock goes back; any
replay version outranks any live one; after `next(above=v)` everything given in v's lane is above v. Two processes that share
an id in the same millisecond may tie; whoever needs more (the journal does) passes `above`. The clock is the caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Lane = Literal["live", "replay"]

SEQUENCE_BITS = 12
PROCESS_BITS = 8
CLOCK_BITS = 42
_CLOCK_SHIFT = SEQUENCE_BITS + PROCESS_BITS
_LANE_SHIFT = _CLOCK_SHIFT + CLOCK_BITS
_MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
_MAX_PROCESS = (1 << PROCESS_BITS) - 1
_MAX_CLOCK = (1 << CLOCK_BITS) - 1
MAX_VERSION = (1 << (_LANE_SHIFT + 1)) - 1


@dataclass(frozen=True, slots=True, order=True)
class VersionParts:
    """A version taken apart, in order of weight."""

    lane: int
    milliseconds: int
    process: int
    sequence: int


def split_version(version: int) -> VersionParts:
    """Take a version apart.

    >>> split_version(join_version(VersionParts(1, 1700000000000, 7, 3)))
    VersionParts(lane=1, milliseconds=1700000000000, process=7, sequence=3)
    """
    if not 0 <= version <= MAX_VERSION:
        raise ValueError(f"version {version}: outside of 0 … {MAX_VERSION}")
    return VersionParts(
        version >> _LANE_SHIFT,
        (version >> _CLOCK_SHIFT) & _MAX_CLOCK,
        (version >> SEQUENCE_BITS) & _MAX_PROCESS,
        version & _MAX_SEQUENCE,
    )


def join_version(parts: VersionParts) -> int:
    """Put a version together."""
    return (
        (parts.lane << _LANE_SHIFT)
        | (parts.milliseconds << _CLOCK_SHIFT)
        | (parts.process << SEQUENCE_BITS)
        | parts.sequence
    )


@dataclass
class VersionAllocator:
    """Gives rising versions; one per process, safe to share between its threads.

    >>> stopped = VersionAllocator(clock_ms=lambda: 1000)
    >>> first, second = stopped.next(), stopped.next()
    >>> second > first, stopped.next("replay") > stopped.next("live")
    (True, True)
    """

    clock_ms: Callable[[], int]
    process: int = 0  # any number; its low 8 bits count (a process id will do)
    _milliseconds: int = 0
    _sequence: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def next(self, lane: Lane = "live", *, above: int = 0) -> int:
        """The next version of a lane, in any case above the given one (which may lift it into the replay lane)."""
        with self._lock:
            self._observe(above)
            self._tick()
            made = VersionParts(int(lane == "replay"), self._milliseconds, self.process & _MAX_PROCESS, self._sequence)
            version = join_version(made)
            return version if version > above else version | (1 << _LANE_SHIFT)

    def _observe(self, version: int) -> None:
        seen = split_version(version).milliseconds
        if seen >= self._milliseconds:  # the other's process bits are not ours: leave its millisecond altogether
            self._milliseconds, self._sequence = seen, _MAX_SEQUENCE

    def _tick(self) -> None:
        now = min(max(self.clock_ms(), 0), _MAX_CLOCK)
        if now > self._milliseconds:
            self._milliseconds, self._sequence = now, 0
        elif self._sequence < _MAX_SEQUENCE:
            self._sequence += 1
        elif self._milliseconds < _MAX_CLOCK:
            self._milliseconds, self._sequence = self._milliseconds + 1, 0
        else:
            raise OverflowError("versions are used up: the clock part is at its end in the year 2109")
