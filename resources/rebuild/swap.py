"""Putting scratches in the place of what a target holds, partition by partition.

Readers see the old or the new partition, never a hole. A window for which there is nothing to put is not emptied on a mere suspicion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chmv_assets.core.ddl_reader import view_of_inner
from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed, covered_window, scratch_name
from chmv_assets.core.windows import Window
from resources.introspect import fetch_existing, fetch_partitions
from resources.rebuild.guards import loosen

if TYPE_CHECKING:
    from resources.rebuild.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a swap changed: ids of partitions, and the rows that stand in them now."""

    partitions: tuple[str, ...]
    rows: int


SWAP_AT_ONCE = 100  # partitions per statement: 0.16 s of one part each; a gate's time can be looked at in between


def swap(
    bench: Workbench,
    target: Object,
    window: Window | None,
    scratches: Sequence[QName],
    before_chunk: Callable[[], None] = lambda: None,
    stays: Collection[str] = (),
) -> Swapped:
    """Publish what the scratches hold together; partitions that became empty go, those that `stays` names by their ids are left as they are.

    `before_chunk` is asked before every handful of partitions whether there is time for it.
    """
    scheme = bench.catalog.schemes.get(target.name)
    _, partitions = covered_window(scheme, window, bench.timezone, bench.server_zone)
    held = bench.real_name(target.name)
    bench.catch_up(target)
    found = fetch_partitions(bench.executor.server, [*scratches, held])
    mine = {name: bench.of_window(states, target, partitions) for name, states in found.items()}
    by_share = [{state.partition_id for state in mine.get(scratch, ()) if state.rows} for scratch in scratches]
    ready = sorted(set().union(*by_share) - set(stays))
    stale = sorted({state.partition_id for state in mine.get(held, ())} - {*ready, *stays})
    if not ready and stale:
        _require_scratches(target, fetch_existing(bench.executor.server, scratches), scratches)
        _check_emptying(bench, target, window)
    _check_real_name(bench, target)
    source = scratches[0]
    if len(scratches) > 1 and ready:
        source = scratch_name(target.name, None)
        bench.executor.drop_table(source)
        bench.executor.create_like(source, target.name)
        for scratch, ids in zip(scratches, by_share, strict=True):
            for partition_id in sorted(ids):
                bench.executor.attach_partition_from(source, partition_id, scratch)
    loosen(bench, held, ready, stale)
    for first in range(0, len(ready), SWAP_AT_ONCE):
        before_chunk()
        bench.executor.replace_partitions(target.name, ready[first : first + SWAP_AT_ONCE], source)
    for partition_id in stale:
        before_chunk()
        bench.executor.drop_partition(target.name, partition_id)
    if len(scratches) > 1:
        bench.executor.drop_table(scratch_name(target.name, None))
    return Swapped(tuple(ready + stale), sum(state.rows for scratch in scratches for state in mine.get(scratch, ())))


def _require_scratches(target: Object, there: Collection[QName], scratches: Sequence[QName]) -> None:
    """A scratch that somebody dropped gives nothing either, and that says nothing of the sources."""
    if gone := [scratch for scratch in scratches if scratch not in there]:
        raise RebuildDisturbed(
            f"target {target.name}: {', '.join(map(str, gone))} is gone but wanted it as it was filled. Somebody dropped it during the "
            "rebuild. Nothing was published. Run it again."
        )


def _check_emptying(bench: Workbench, target: Object, window: Window | None) -> None:
    """Rows in the target and none from the views: more likely a source lost them than that they never were.

    Unless every source still holds rows of the window, from which the views give nothing; or somebody permits it.
    """
    feeds = [bench.feed(view, window)[0] for view in bench.catalog.views_into(target.name)]
    if feeds and all(_holds_rows(bench, feed) for feed in feeds):
        bench.executor.log(f"{target.name}: its sources hold rows of this window and its views give none of them")
    elif bench.may_empty(target.name):
        bench.executor.log(f"{target.name}: its views give nothing for this window any more; dropped, as permitted")
    else:
        raise RebuildRefused(
            f"target {target.name}: holds rows for this window but its views give none from {', '.join(str(f.source.name) for f in feeds)}. "
            "Publishing would delete them. If they are really to go, say so with `--allow-empty`, or with `allow_empty: true` for this "
            "target in chmv.yaml; else replay from the archive."
        )


def _holds_rows(bench: Workbench, feed: Feed) -> bool:
    """Whether what a share is computed from has rows of its window, for certain."""
    if not feed.source_filter:
        return False
    return bool(bench.executor.server.rows(f"SELECT 1 FROM {feed.reads.sql} WHERE {feed.source_filter} LIMIT 1"))


def _check_real_name(bench: Workbench, target: Object) -> None:
    """A hidden table goes with its view: what was computed for the old one must not be put into a new one."""
    computed_for = bench.executor.real_names.pop(target.name, None)
    if computed_for is not None and bench.real_name(target.name) != computed_for:
        raise RebuildDisturbed(
            f"view {view_of_inner(target.name)}: was created anew during the rebuild but wanted it as it was. Its hidden table is another "
            "one now, and untouched. Run it again."
        )
