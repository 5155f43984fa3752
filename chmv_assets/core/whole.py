"""Source partitions that rest: which they are, in what groups they are computed, and how later rows are told from computed ones. Pure.

Invariant: a partition is computed between two equal fences, and every insert that began before the first one has ended. So what is
computed are exactly the rows up to the fence's block; rows that come later are in parts with higher block numbers, for as long as
no merge joins both. `resources.rebuild.whole` reads the parts and runs the statements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

GROUP_ROWS = 10_000_000  # small partitions are computed together, up to so many rows
GROUP_PARTITIONS = 100
STATEMENT_ROWS = 200_000_000  # of parts that are named one by one
STATEMENT_PARTS = 2_000
SWAP_SECONDS_PER_PART = 0.005  # three times what was measured for REPLACE PARTITION


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One active part of a table."""

    name: str
    partition_id: str
    partition: str  # as the server prints its value
    rows: int
    min_block: int
    max_block: int
    data_version: int  # of the last mutation, 0 without one
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A partition at one moment; any insert, mutation or replacement gives another one, a merge does not."""

    rows: int  # 0 where merges drop rows
    max_block: int
    data_version: int


def find_fences(parts: Iterable[Part], *, counts_rows: bool) -> dict[str, Fence]:
    """The fence of every partition; rows count only where merges keep them."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.partition_id, []).append(part)
    return {partition_id: _fence(mine, counts_rows) for partition_id, mine in found.items()}


def _fence(parts: Sequence[Part], counts_rows: bool) -> Fence:
    return Fence(
        rows=sum(part.rows for part in parts) if counts_rows else 0,
        max_block=max(part.max_block for part in parts),
        data_version=max(part.data_version for part in parts),
    )


def find_cold(parts: Iterable[Part], busy_within: float) -> list[str]:
    """Partitions without a fresh insert; a guess that saves work, the fences decide.

    A part of one block is an insert, whatever its level: those of a Summing table are born with 1.
    """
    by_age: dict[str, float] = {}
    for part in parts:
        age = part.age_seconds if part.min_block == part.max_block else float("inf")
        by_age[part.partition_id] = min(age, by_age.get(part.partition_id, float("inf")))
    return sorted(partition_id for partition_id, age in by_age.items() if age > busy_within)


def group_partitions(partition_ids: Sequence[str], rows: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Neighbours together, so that small partitions do not cost a statement each.

    >>> group_partitions(["a", "b", "c"], {"a": 9_000_000, "b": 500_000, "c": 600_000})
    [('a', 'b'), ('c',)]
    """
    return _group(partition_ids, rows, GROUP_ROWS, GROUP_PARTITIONS)


def group_parts(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """Names of parts, so many per statement that it stays within its time and its text."""
    return _group(
        [part.name for part in parts], {part.name: part.rows for part in parts}, STATEMENT_ROWS, STATEMENT_PARTS
    )


def _group(names: Sequence[str], rows: Mapping[str, int], max_rows: int, max_count: int) -> list[tuple[str, ...]]:
    groups: list[list[str]] = []
    total = 0
    for one in names:
        if not groups or total + rows[one] > max_rows or len(groups[-1]) >= max_count:
            groups.append([])
            total = 0
        groups[-1].append(one)
        total += rows[one]
    return [tuple(group) for group in groups]


def computed_parts(parts: Iterable[Part], partition_id: str, fence: Fence, *, counts_rows: bool) -> list[str] | None:
    """Names of the parts that hold just the rows up to a fence; None if they cannot be told from later ones any more."""
    old = [part for part in parts if part.partition_id == partition_id and part.min_block <= fence.max_block]
    if not old or _fence(old, counts_rows) != fence:
        return None
    return [part.name for part in old]


def estimate_swap_seconds(parts: Collection[Part]) -> float:
    """How long the swap of all parts of a scratch may take."""
    return SWAP_SECONDS_PER_PART * len(parts)
