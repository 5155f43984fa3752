"""What the whole protocol does before its gate: source partitions that rest are computed one after another, with merges running.

Nothing has to be done again because of late rows: a partition that got some while it was computed is taken out of the scratch
and left to the gated part of the rebuild, and so is one whose later rows were merged with the computed ones. Who moves on from
here (`gated_run`) holds merges, asks `computed` which parts are done, and computes all others by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.errors import RebuildDisturbed, ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.whole import Fence, Part, computed_parts, find_cold, find_fences, group_partitions
from resources.rebuild.parts import counts_rows, fetch_parts, fetch_source_parts
from resources.rebuild.workbench import Workbench

BUSY_SECONDS = 120.0
_MEMORY_LIMIT = 241


@dataclass(frozen=True)
class _Group:
    """Source partitions that one statement has computed."""

    feed: Feed
    scratch: QName
    fences: dict[str, Fence]
    made: frozenset[str]  # parts of the scratch
    witnesses: frozenset[str]  # while all of these are there, nothing was merged into those


@dataclass
class ColdShares:
    """Shares of source partitions that rest; `hot` keeps those that did not, for the next try as well."""

    bench: Workbench
    hot: set[tuple[QName, str]]
    check: Callable[[], None] = lambda: None  # raises when we may not go on
    _groups: list[_Group] = field(default_factory=list)
    _dropped: set[str] = field(default_factory=set)  # parts of the scratch that were taken out

    def prebuild(self, feed: Feed, scratch: QName) -> None:
        """Compute what rests. The fences are read before running inserts are waited for, so later ones are seen."""
        parts = fetch_source_parts(self.bench, feed)
        fences = find_fences(parts, counts_rows=counts_rows(feed))
        self.bench.drain()
        self.bench.catch_up(feed.source)
        cold = [one for one in find_cold(parts, BUSY_SECONDS) if (feed.source.name, one) not in self.hot]
        rows = dict.fromkeys(cold, 0)
        for part in parts:
            if part.partition_id in rows:
                rows[part.partition_id] += part.rows
        groups = group_partitions(cold, rows)
        for number, group in enumerate(groups, start=1):
            self.check()
            self._compute(feed, scratch, {one: fences[one] for one in group})
            self.bench.executor.log(
                f"{feed.view.name}: {group[0]}{f'…{group[-1]}' if len(group) > 1 else ''} of {feed.source.name} computed, "
                f"{sum(rows[one] for one in group)} rows ({number} of {len(groups)})"
            )

    def computed(self, feed: Feed, parts: Sequence[Part]) -> set[str]:
        """Which of the source's parts are computed; call it with merges held. What cannot be told apart any more is taken back."""
        done: set[str] = set()
        for group in [one for one in self._groups if one.feed is feed]:
            found = [
                computed_parts(parts, one, fence, counts_rows=counts_rows(feed)) for one, fence in group.fences.items()
            ]
            if any(names is None for names in found):
                self._take_back(group)
            else:
                done |= {name for names in found for name in names or ()}
        return done

    def _compute(self, feed: Feed, scratch: QName, fences: dict[str, Fence]) -> None:
        """One group; partitions that are not as they were at their fences are left out, and so are all if one moves meanwhile."""
        resting = self._resting(feed, fences)
        if not resting:
            return
        before = self._names(scratch)
        try:
            self.bench.fill(feed, scratch, partitions=sorted(resting))
        except ServerError as error:
            if error.code != _MEMORY_LIMIT or len(resting) == 1:
                raise
            self._drop(scratch, self._names(scratch) - before, before)
            names = sorted(resting)
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                self._compute(feed, scratch, {one: fences[one] for one in half})
            return
        made = self._names(scratch) - before
        if self._resting(feed, resting) == resting:
            self._groups.append(_Group(feed, scratch, resting, frozenset(made), frozenset(made | before)))
        else:
            self.bench.executor.log(
                f"{feed.view.name}: rows came into {feed.source.name} meanwhile; they are computed later"
            )
            self._drop(scratch, made, before)

    def _resting(self, feed: Feed, fences: dict[str, Fence]) -> dict[str, Fence]:
        now = find_fences(fetch_source_parts(self.bench, feed), counts_rows=counts_rows(feed))
        return {one: fence for one, fence in fences.items() if now.get(one) == fence}

    def _take_back(self, group: _Group) -> None:
        self.hot |= {(group.feed.source.name, one) for one in group.fences}
        self.bench.executor.log(
            f"{group.feed.view.name}: {', '.join(sorted(group.fences)[:3])} moved on, computed again"
        )
        self._drop(group.scratch, group.made, group.witnesses)
        self._groups.remove(group)

    def _drop(self, scratch: QName, made: Collection[str], witnesses: Collection[str]) -> None:
        """Take parts out of a scratch, if it is certain that they hold nothing else: no merge has touched the witnesses."""
        there = self._names(scratch)
        if not there.issuperset(set(witnesses) - self._dropped):
            raise RebuildDisturbed(
                f"scratch {scratch}: parts were merged but wanted them apart, since rows came into computed partitions of its source. "
                "Nothing was published. Run it again."
            )
        self.bench.executor.keep_only(scratch, there.difference(made))
        self._dropped |= set(made)

    def _names(self, scratch: QName) -> set[str]:
        return {part.name for part in fetch_parts(self.bench.executor.server, scratch)}
