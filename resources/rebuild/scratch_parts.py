"""Parts of a scratch: so few, when it is published, that the server does not slow writers of the target down.

A scratch does not merge while it is filled, so that the parts of a statement that failed can be told from the others; a very large
share, or one in many pieces, therefore leaves many parts. Published as they are, they would count against the target's limits
(`parts_to_delay_insert`, `parts_to_throw_insert`) and its writers would wait or fail. So they merge aside first, for a bounded time.
"""

from __future__ import annotations

from collections.abc import Callable

from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from resources.executor import Executor

PARTS_SECONDS = 300.0
_SETTING = "parts_to_delay_insert"
_FEW = 100  # parts of one partition that no server minds, unless the table says so
_POLL_SECONDS = 0.5


def merge_aside(
    executor: Executor, scratch: QName, target: Object, sleep: Callable[[float], None], clock: Callable[[], float]
) -> None:
    """Let a scratch merge until no partition has more than half the parts from which the target's writers are slowed down."""
    most = _count_parts(executor, scratch)
    said = target.setting(_SETTING)
    if (said is None and most <= _FEW) or most <= (limit := _half(said or _fetch_default(executor))):
        return
    executor.log(f"{scratch}: {most} parts in one partition, merging them to {limit} before they are published")
    executor.start_merges(scratch)
    deadline = clock() + PARTS_SECONDS
    while most > limit and clock() < deadline:
        sleep(_POLL_SECONDS)
        most = _count_parts(executor, scratch)
    executor.stop_merges(scratch)
    while _merges(executor, scratch) and clock() < deadline + PARTS_SECONDS:  # those that run end by themselves
        sleep(_POLL_SECONDS)
    if most > limit:
        executor.log(
            f"{scratch}: still {most} parts after {PARTS_SECONDS:.0f} s; writers of {target.name} may be slowed"
        )


def _count_parts(executor: Executor, table: QName) -> int:
    """The number of parts in the partition that has most of them."""
    rows = executor.server.rows(
        "SELECT count() AS parts FROM system.parts WHERE active AND database = {d:String} AND table = {t:String} "
        "GROUP BY partition_id ORDER BY parts DESC LIMIT 1",
        {"d": table.database, "t": table.table},
    )
    return int(rows[0][0]) if rows else 0


def _fetch_default(executor: Executor) -> str:
    rows = executor.server.rows("SELECT value FROM system.merge_tree_settings WHERE name = {s:String}", {"s": _SETTING})
    return str(rows[0][0])


def _half(said: str) -> int:
    """Half of a limit; very many for 0, which stands for none."""
    return max(int(said) // 2, 1) if int(said) else 10**9


def _merges(executor: Executor, table: QName) -> bool:
    return bool(
        executor.server.rows(
            "SELECT 1 FROM system.merges WHERE database = {d:String} AND table = {t:String} LIMIT 1",
            {"d": table.database, "t": table.table},
        )
    )
