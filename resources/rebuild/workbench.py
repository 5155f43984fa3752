"""What every protocol works with: feeds, scratches, the state of sources, the swap. No protocol of its own.

A scratch is built beside the target from the view's own SELECT and swapped in partition by partition, so that readers see the
old or the new partition, never a hole. When that is safe is decided by the protocols: `closed`, `gated`, `fenced`, `owned` and `whole`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.cluster import refuse_unspread
from chmv_assets.core.ddl_reader import view_of_inner
from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import (
    Feed,
    covered_window,
    plan_feed,
    render_feed,
    scratch_name,
    split_feed,
    with_parts,
)
from chmv_assets.core.rebuild_plan import can_prebuild
from chmv_assets.core.windows import ChPartition, Window, ch_partitions
from resources.executor import Executor
from resources.inner_tables import fetch_inner_table
from resources.introspect import (
    PartitionState,
    describe_select,
    fetch_columns,
    fetch_free_bytes,
    fetch_part_names,
    fetch_partitions,
    fetch_running_inserts,
    select_states,
)
from resources.journal.lease import LEASE_SECONDS
from resources.rebuild.scratch_parts import merge_aside
from resources.rebuild.swap import Swapped, swap
from resources.scratch_marks import ScratchMarks

DRAIN_SECONDS = 60.0
_DRAIN_POLL_SECONDS = 0.02  # writers may be waiting behind a gate
MAX_PIECES = 256
_PIECES_STEP = 4
_MEMORY_LIMIT = 241
_HEADROOM = 1.2
_SMALL = 2**26  # bytes that are not worth asking for


SourceState = list[tuple[str, int, int, int]]  # changes with every insert into what a share depends on
Shape = tuple[
    Sequence[str], Sequence[tuple[str, str]]
]  # columns that a target takes; columns and types that a view gives


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchResult:
    """One view's share of one window, ready to be published."""

    view: QName
    scratch: QName
    rows: int
    seconds: float
    reused: bool


@dataclass
class Workbench:
    """One catalog on one server."""

    executor: Executor
    catalog: Catalog
    timezone: str
    now: Callable[[], datetime]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    lease_seconds: float = LEASE_SECONDS
    archives: dict[QName, QName] = field(default_factory=dict)  # source → table with its replayed rows
    may_empty: Callable[[QName], bool] = lambda _target: (
        False
    )  # whether a window may be deleted that has no rows any more
    lost_before: dict[QName, set[str]] = field(default_factory=dict)  # read from the snapshot until `guards.release`
    shaped_like: dict[QName, QName] = field(default_factory=dict)  # target → the table that is to take its place
    _shapes: dict[tuple[QName, QName], Shape] = field(default_factory=dict)
    _server_zone: str = ""
    _marks: ScratchMarks | None = None

    @property
    def marks(self) -> ScratchMarks:
        self._marks = self._marks or ScratchMarks(self.executor)
        return self._marks

    @property
    def cluster(self) -> str:
        return self.executor.cluster

    @property
    def server_zone(self) -> str:
        self._server_zone = self._server_zone or self.executor.server.timezone
        return self._server_zone

    def session(self, view: Object) -> str:
        """Where unqualified names of a view's SELECT belong; nothing if no declared object is there."""
        database = view.session_database
        return database if any(name.database == database for name in self.catalog.objects) else ""

    def build_scratch(self, view: Object, window: Window | None) -> ScratchResult:
        """Compute a view's share of a window into its scratch table; a share that is still valid is kept.

        For whoever holds that scratch: two at once would both fill it.
        """
        started = self.clock()
        feed, partitions = self.feed(view, window)
        scratch = scratch_name(feed.target.name, view.name)
        self.marks.expire()
        self.executor.create_like(scratch, feed.target.name)
        made_of = _made_of(feed, self.source_state(feed))
        done = self.marks.read(scratch, window)
        held = self.real_name(feed.target.name)
        found = fetch_partitions(self.executor.server, [scratch, held])
        states = self.of_window(found.get(scratch, ()), feed.target, partitions)
        reused = done == _mark(made_of, states)
        if not reused:
            for state in states:
                self.executor.drop_partition(scratch, state.partition_id)
            self.check_room(feed, self.of_window(found.get(held, ()), feed.target, partitions))
            self.fill(feed, scratch)
            states = self.states(scratch, feed.target, partitions)
            self.marks.write(scratch, window, _mark(made_of, states))
        rows = sum(state.rows for state in states)
        return ScratchResult(view=view.name, scratch=scratch, rows=rows, seconds=self.clock() - started, reused=reused)

    def has_mark(self, view: Object, window: Window | None) -> bool:
        """Whether a share of a view may be there; `find_share` tells whether it is what it should be."""
        feed, _ = self.feed(view, window)
        return bool(self.marks.read(scratch_name(feed.target.name, view.name), window))

    def find_share(self, view: Object, window: Window | None, state: SourceState) -> QName | None:
        """The scratch that holds a view's share, computed from this very state of its source, if there is one."""
        feed, partitions = self.feed(view, window)
        scratch = scratch_name(feed.target.name, view.name)
        done = self.marks.read(scratch, window)
        if not done or done != _mark(_made_of(feed, state), self.states(scratch, feed.target, partitions)):
            return None
        return scratch

    def fill(
        self,
        feed: Feed,
        scratch: QName,
        parts: Sequence[str] | None = None,
        *,
        partitions: Sequence[str] | None = None,
        is_new: bool = False,
        in_haste: bool = False,
    ) -> None:
        """Insert a view's share into a scratch; with `parts` or `partitions`, only what these of the source give.

        A share that does not fit into memory is computed in pieces of time, smaller and smaller, where its class allows that.
        A scratch that `is_new` has no parts yet; who is `in_haste` (behind a gate) does not wait for its merges.
        """
        self._require_spread(feed)
        session = self.session(feed.view)
        sql = self._render(feed, scratch, session)
        may_split = can_prebuild(self.catalog, feed.view)
        self.executor.stop_merges(scratch)  # parts of a statement that fails must be told from the others
        pieces = 1
        while True:
            before = () if is_new else fetch_part_names(self.executor.server, scratch)
            try:
                for piece in split_feed(feed, pieces, self.timezone):
                    if (
                        piece.source_filter != feed.source_filter and not before
                    ):  # with parts of others they cannot be told apart
                        self._merge_aside(scratch, feed.target)
                    filtered = with_parts(piece.source_filter, parts, partitions)
                    self.executor.insert_select(scratch, sql, feed.reads, filtered, session)
                if not in_haste:
                    self._merge_aside(scratch, feed.target)
                return
            except ServerError as error:
                if error.code != _MEMORY_LIMIT or not may_split or feed.source_time is None or pieces >= MAX_PIECES:
                    raise
            self.executor.keep_only(scratch, before)
            pieces *= _PIECES_STEP
            self.executor.log(f"{feed.view.name}: out of memory, going on in {pieces} pieces")

    def _merge_aside(self, scratch: QName, target: Object) -> None:
        merge_aside(self.executor, scratch, target, self.sleep, self.clock)

    def _render(self, feed: Feed, scratch: QName, session: str) -> str:
        """The INSERT of a share; what it takes to know the columns is asked once per publication (`begin`)."""
        key = (feed.view.name, feed.reads)
        if key not in self._shapes:
            name = feed.target.name
            stored = fetch_columns(self.executor.server, self.shaped_like.get(name) or self.real_name(name))
            takes = [name for name, _, kind in stored if kind not in ("MATERIALIZED", "ALIAS")]
            self._shapes[key] = (takes, describe_select(self.executor.server, feed.select, session))
        held, outputs = self._shapes[key]
        return render_feed(feed, scratch, outputs, held, self.timezone)

    def begin(self) -> None:
        """Forget what was asked for an earlier publication: tables may have changed since."""
        self._shapes.clear()
        self.executor.real_names.clear()
        self.lost_before.clear()

    def real_name(self, name: QName) -> QName:
        """What a table is called on the server; a hidden inner table is asked for once per publication."""
        made = self.catalog.objects.get(name)
        if made is None or made.kind != "inner_table":
            return name
        known = self.executor.real_names
        if name not in known:
            view = view_of_inner(name)
            found = fetch_inner_table(self.executor.server, view)
            if found is None:
                raise RebuildRefused(
                    f"view {view}: found no inner table of it on the server but wanted one. It was not created yet, or has a target of "
                    "its own there. Compare its DDL with the server's (`chmv check --live`)."
                )
            known[name] = found
        return known[name]

    def check_room(self, feed: Feed, states: Sequence[PartitionState] | None = None) -> None:
        """Refuse to fill the disk: a scratch may become as large as what it replaces (`states`, if they are known)."""
        states = self.target_states(feed.target, feed.window) if states is None else states
        wanted = _HEADROOM * sum(state.bytes_on_disk for state in states)
        free = fetch_free_bytes(self.executor.server, self.real_name(feed.target.name)) if wanted > _SMALL else None
        if free is not None and free < wanted:
            raise RebuildRefused(
                f"target {feed.target.name}: {free / 1e9:.1f} GB are free on its disk but wanted {wanted / 1e9:.1f} GB for a second copy of "
                "the window. A full disk stops the server. Free space, or rebuild smaller windows."
            )

    def rebuildable_views(self, target: Object) -> tuple[Object, ...]:
        views = self.catalog.views_into(target.name)
        for view in views:
            if view.kind == "refreshable_view":
                raise RebuildRefused(
                    f"target {target.name}: is written by {view.name}, which refreshes it as a whole. Materialize that view instead, or run "
                    f"`chmv recover {view.name}`."
                )
        return views

    def feed(
        self, view: Object, window: Window | None, *, partly: bool = False
    ) -> tuple[Feed, tuple[ChPartition, ...]]:
        scheme = self.catalog.scheme(view.name)
        covered, partitions = covered_window(scheme, window, self.timezone, self.server_zone)
        trigger = self.catalog.trigger_of(view.name)
        archive = self.archives.get(trigger) if trigger is not None else None
        zones = self.timezone, self.server_zone
        feed = plan_feed(self.catalog, view, covered, *zones, self.now(), archive, partly=partly)
        self.real_name(feed.target.name)
        return feed, partitions

    def _require_spread(self, feed: Feed) -> None:
        """Refuse tables of which every replica has one of its own."""
        if not self.cluster:
            return
        replicas = self.executor.topology.replicas
        for kind, table in (("source", feed.source), ("target", feed.target)):
            if why := refuse_unspread(kind, table.name, table.engine, replicas):
                raise RebuildRefused(why)

    def states(self, table: QName, target: Object, partitions: Sequence[ChPartition]) -> tuple[PartitionState, ...]:
        """The partitions of a table of the target's shape that belong to the window; all of them without a window."""
        held = self.real_name(table)
        return self.of_window(fetch_partitions(self.executor.server, [held]).get(held, ()), target, partitions)

    def of_window(
        self, states: tuple[PartitionState, ...], target: Object, partitions: Sequence[ChPartition]
    ) -> tuple[PartitionState, ...]:
        """Those that belong to a window of a target; all of them without one."""
        scheme = self.catalog.schemes.get(target.name)
        if not partitions or scheme is None:
            return states
        return select_states(states, scheme, partitions)

    def target_states(self, target: Object, window: Window | None) -> tuple[PartitionState, ...]:
        scheme = self.catalog.schemes.get(target.name)
        _, partitions = covered_window(scheme, window, self.timezone, self.server_zone)
        return self.states(target.name, target, partitions)

    def look(
        self, target: Object, window: Window | None, views: Sequence[Object]
    ) -> tuple[list[SourceState], tuple[PartitionState, ...]]:
        """The state of each view's source and the target's partitions of the window, with one query."""
        feeds = [self.feed(view, window)[0] for view in views]
        self.catch_up_all(views)
        held = self.real_name(target.name)
        found = fetch_partitions(self.executor.server, [held, *{feed.source.name for feed in feeds}])
        scheme = self.catalog.schemes.get(target.name)
        _, partitions = covered_window(scheme, window, self.timezone, self.server_zone)
        states = [self._state_of(feed, found.get(feed.source.name, ())) for feed in feeds]
        return states, self.of_window(found.get(held, ()), target, partitions)

    def source_state(self, feed: Feed) -> SourceState:
        """What the share depends on: the source's partitions that overlap the window, or all of them.

        A source that holds no rows (Null, replayed) tells nothing of inserts; who replays it holds its commit lock.
        """
        if not feed.source.engine.endswith("MergeTree"):
            return []
        return self._state_of(
            feed, fetch_partitions(self.executor.server, [feed.source.name]).get(feed.source.name, ())
        )

    def _state_of(self, feed: Feed, states: Sequence[PartitionState]) -> SourceState:
        if not feed.source.engine.endswith("MergeTree"):
            return []
        states = self.overlapping(feed, states)
        if family(feed.source.engine) == "plain":
            return [state.fingerprint for state in states]
        # Merges of a Summing or Replacing source drop rows without changing what it says; only blocks tell of inserts.
        return [(state.partition_id, 0, state.max_block, state.data_version) for state in states]

    def overlapping(self, feed: Feed, states: Sequence[PartitionState]) -> tuple[PartitionState, ...]:
        """The source's partitions that can hold rows of a share: all of them where its time column does not tell."""
        scheme = self.catalog.schemes.get(feed.source.name)
        facts = self.catalog.facts[feed.view.name]
        if (
            feed.window is None or not feed.source_filter or scheme is None
            or facts.time_source is None or facts.time_source.column != scheme.column
        ):  # fmt: skip
            return tuple(states)
        overlap = ch_partitions(feed.window, scheme, self.timezone, server_timezone=self.server_zone)
        return select_states(states, scheme, overlap)

    def catch_up(self, source: Object) -> None:
        """Let this replica of a source have what the others have written; any other table is never behind."""
        if source.engine.startswith("Replicated"):
            self.executor.sync_replica(source.name)

    def catch_up_all(self, views: Sequence[Object]) -> None:
        """The same for the sources of these views."""
        for name in dict.fromkeys(self.catalog.trigger_of(view.name) for view in views):
            if name is not None and name in self.catalog.objects:
                self.catch_up(self.catalog.objects[name])

    def drain(self, limit_seconds: float = DRAIN_SECONDS) -> None:
        """Wait until every insert that runs now has ended."""
        waiting = fetch_running_inserts(self.executor.server, self.cluster)
        deadline = self.clock() + limit_seconds
        while waiting:
            if self.clock() > deadline:
                raise RebuildRefused(
                    f"{len(waiting)} insert(s) still run after {limit_seconds:.0f} s. What they write cannot be told apart. "
                    "Try again when they have ended (system.processes shows them)."
                )
            self.sleep(_DRAIN_POLL_SECONDS)
            waiting &= fetch_running_inserts(self.executor.server, self.cluster)

    def swap(
        self,
        target: Object,
        window: Window | None,
        scratches: Sequence[QName],
        before_chunk: Callable[[], None] = lambda: None,
        stays: Collection[str] = (),
    ) -> Swapped:
        """Publish what the scratches hold together; partitions that became empty go, those that are named stay as they are."""
        return swap(self, target, window, scratches, before_chunk, stays)


def _made_of(feed: Feed, state: SourceState) -> list[object]:
    return [[feed.view.digest, feed.target.digest, str(feed.archive or "")], state]


def _mark(made_of: object, states: Sequence[PartitionState]) -> str:
    """What a share was made of and the parts that hold it, which a neighbouring window or a person may have removed.

    Row counts are left out: merges of a Summing or Replacing scratch change them and nothing else.
    """
    return json.dumps([made_of, [[state.partition_id, state.max_block, state.data_version] for state in states]])
