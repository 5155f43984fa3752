"""Whether a comparison saw one state of its tables: the questions around it, on every replica of a cluster. Only reads.

A comparison reads this replica. Before it, this replica gets what the others have written, the inserts that run anywhere end, and what they
wrote is got as well; after it the highest blocks must be as before. Invariant: a difference is firm only if nothing moved meanwhile
and nothing could move unseen (`doubts`). Comparing itself is in `reconcile` and `second_opinion`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.windows import Window
from resources.introspect import PartitionState, fetch_partitions
from resources.rebuild.barrier import require_every_replica
from resources.rebuild.workbench import Workbench

DRAIN_SECONDS = 20.0
ARRIVING = "Inserts kept arriving, so this may be rows on their way. Compare again when the window is quiet"
_NOT_ALLOWED = frozenset({164, 497})  # a user who may only read


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen before a comparison."""

    state: object  # changes when rows come into a source or the target; not with merges
    drained: bool  # whether the inserts that ran have ended
    behind: str  # why this replica may lack rows of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Watches the tables of one comparison."""

    bench: Workbench
    target: Object
    window: Window | None
    feeds: Sequence[Feed]
    upstream: Sequence[QName] = ()  # of a refreshable view, which has no feeds

    def look(self) -> Look:
        """Look at the tables; the comparison follows."""
        behind = self._catch_up()
        state, drained = self._state(), self._drained()
        return Look(state=state, drained=drained, behind=behind or self._catch_up())

    def is_still(self, before: Look) -> bool:
        """Whether what was compared since is one state."""
        return before.drained and before.state == self._state()

    def doubts(self, before: Look) -> str:
        """Why a difference may be one of replicas only; nothing if it may not."""
        if before.behind:
            return before.behind
        try:
            for name in (*(feed.source.name for feed in self.feeds), *self.upstream):
                require_every_replica(self.bench, name)
        except RebuildRefused as error:
            return str(error)
        return ""

    def _tables(self) -> Iterator[Object]:
        """Those that rows come into: sources, and the target under the name that it has on the server."""
        yield from {feed.source.name: feed.source for feed in self.feeds}.values()
        yield from (node for name in self.upstream if (node := self.bench.catalog.objects.get(name)) is not None)
        yield replace(self.target, name=self.bench.real_name(self.target.name))

    def _catch_up(self) -> str:
        try:
            for table in self._tables():
                self.bench.catch_up(table)
        except ServerError as error:
            if error.code not in _NOT_ALLOWED:
                raise
            return f"this replica may lack rows that others have, and was not let wait for them: {error}"
        return ""

    def _state(self) -> object:
        sources: list[object] = [self.bench.source_state(feed) for feed in self.feeds]
        if self.upstream:
            found = fetch_partitions(self.bench.executor.server, self.upstream)
            sources += [(name, _blocks(found[name])) for name in found]
        return sources, _blocks(self.bench.target_states(self.target, self.window))

    def _drained(self) -> bool:
        """Wait for the inserts that run now; tell whether all have ended."""
        try:
            self.bench.drain(DRAIN_SECONDS)
        except RebuildRefused:
            return False
        return True


def _blocks(states: Sequence[PartitionState]) -> list[tuple[str, int, int]]:
    return [(state.partition_id, state.max_block, state.data_version) for state in states]
