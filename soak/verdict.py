"""What a soak found, and whether that is good: numbers to a verdict. Pure; who counts is `account` and `growth`.

Good means: nothing lost, nothing doubled, every target equal to its queries, all ACTIVE, readers never wrong, nothing left behind, no growth above its bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Ids of one table against those that its writers sent."""

    table: str
    sent: int
    found: int
    lost: int
    doubled: int
    foreign: int = 0


def count_ids(table: str, found: Mapping[int, int], sent: Iterable[int], in_doubt: Iterable[int] = ()) -> Account:
    """Compare ids and how often they are there with what was sent; an insert without an answer may be there, once, or not.

    >>> count_ids("t", {1: 1, 2: 2, 9: 1, 5: 1}, [1, 2, 3], [5])
    Account(table='t', sent=3, found=4, lost=1, doubled=1, foreign=1)
    """
    wanted, may_be = set(sent), set(in_doubt)
    times = Counter({one: count for one, count in found.items() if count > 0})
    return Account(
        table=table, sent=len(wanted), found=len(times), lost=len(wanted - times.keys()),
        doubled=sum(count - 1 for count in times.values()), foreign=len(times.keys() - wanted - may_be),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One target against its views' queries over the source, by chmv's own reconciliation."""

    target: str
    windows: int
    keys: int
    wrong: tuple[str, ...] = ()  # sentences of windows that are not equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A measure over time; `bound` is how much more the last may be than the first."""

    what: str
    unit: str
    first: float
    last: float
    bound: float

    @property
    def is_leak(self) -> bool:
        return self.last - self.first > self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What the reader of serving views saw."""

    polls: int = 0
    steps_back: int = 0
    holes: tuple[str, ...] = ()
    doubles: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that is judged."""

    accounts: tuple[Account, ...] = ()
    compared: tuple[Compared, ...] = ()
    reads: Reads = Reads()
    left: tuple[str, ...] = ()  # what somebody left behind, one sentence each
    growths: tuple[Growth, ...] = ()
    not_active: tuple[str, ...] = ()


def judge(found: Findings) -> tuple[str, ...]:
    """Why a soak failed; nothing if it did not."""
    why: list[str] = []
    if not found.accounts or not any(one.sent for one in found.accounts):
        why.append("no row was sent, so nothing is proved")
    for one in found.accounts:
        if one.lost or one.doubled or one.foreign:
            why.append(f"{one.table}: {one.lost} lost, {one.doubled} doubled, {one.foreign} that nobody sent")
    why += [f"{one.target}: {sentence}" for one in found.compared for sentence in one.wrong]
    if not found.compared:
        why.append("no target was compared, so nothing is proved")
    if not found.reads.polls:
        why.append("nobody read, so nothing is proved about readers")
    for name, seen in (
        ("a hole", found.reads.holes),
        ("a double", found.reads.doubles),
        ("an error", found.reads.errors),
    ):
        if seen:
            why.append(f"readers saw {name} {len(seen)} times, first {seen[0]}")
    why += [f"left behind: {one}" for one in found.left]
    why += [
        f"{one.what}: grew from {one.first:.0f} to {one.last:.0f} {one.unit}, more than the bound of {one.bound:.0f}"
        for one in found.growths
        if one.is_leak
    ]
    why += [f"not ACTIVE: {one}" for one in found.not_active]
    return tuple(why)
