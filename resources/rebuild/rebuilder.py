"""Choose a protocol for a window and carry it out; what Dagster and the command line call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.rebuild import needs_replay
from chmv_assets.core.rebuild_journal import lease_name
from chmv_assets.core.rebuild_plan import Step, choose_protocol, find_downstream, find_roots, plan_closed
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.lease import keep_lease
from resources.rebuild.closed import publish_closed
from resources.rebuild.gated import OnStep, explain_gated, publish_gated
from resources.rebuild.marks import note_rebuilt, read_stale
from resources.rebuild.owned import Replay, publish_owned
from resources.rebuild.recovery import recover_rebuilds
from resources.rebuild.result import Published
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

FeedChoice = Literal["auto", "pushdown", "replay"]
_BUILT: tuple[Protocol, ...] = ("closed", "gated", "owned")


@dataclass
class Rebuilder(Workbench):
    """Rebuilds windows of one catalog on one server."""

    replay: Replay | None = None
    _kept: Journal | None = None

    def publish(
        self,
        target: Object,
        window: Window | None,
        protocol: Protocol = "auto",
        on_step: OnStep = lambda _number, _step: None,
        feed: FeedChoice = "auto",
    ) -> Published:
        """Replace a window of a target by what its views give; a closed rebuild that inserts disturb goes on gated."""
        journal = self._journal()
        stale = read_stale(journal, target.name, window)
        published = self._publish(journal, target, window, protocol, on_step, feed)
        note_rebuilt(journal, stale, f"rebuild {journal.versions.next()}")
        return published

    def _publish(
        self,
        journal: Journal,
        target: Object,
        window: Window | None,
        protocol: Protocol,
        on_step: OnStep,
        feed: FeedChoice,
    ) -> Published:
        if reason := self._why_replay(target, window, protocol, feed):
            return self._publish_replayed(journal, target, window, reason)
        chosen, why = self.choose(target, window, protocol)
        self.executor.log(f"{target.name} {window_key(window)}: {chosen}, because {why}")
        if chosen == "gated":
            return publish_gated(self, journal, target, window, why, on_step)
        lease = keep_lease(
            journal, lease_name(target.name), lease_seconds=self.lease_seconds, wait_seconds=1.5 * self.lease_seconds
        )
        if chosen == "owned":
            with lease:
                return publish_owned(self, journal, target, window, why)
        try:
            with lease:
                return publish_closed(self, journal, target, window, why)
        except RebuildDisturbed as error:
            if protocol != "auto":
                raise
            self.executor.log(f"{target.name}: {error} Going on gated.")
        return publish_gated(self, journal, target, window, "inserts disturbed the closed protocol", on_step)

    def publish_chain(
        self, target: Object, window: Window | None, on_step: OnStep = lambda _number, _step: None
    ) -> Published:
        """Rebuild a window of a target and of every target that is computed from it, behind one gate."""
        journal = self._journal()
        downstream = [self.catalog.objects[name] for name in find_downstream(self.catalog, target.name)]
        stale = [mark for one in (target, *downstream) for mark in read_stale(journal, one.name, window)]
        published = publish_gated(self, journal, target, window, "a chain under one gate", on_step, downstream)
        note_rebuilt(journal, stale, f"rebuild {journal.versions.next()}")
        return published

    def _why_replay(self, target: Object, window: Window | None, protocol: Protocol, feed: FeedChoice) -> str:
        """Why a window is replayed from landing files; nothing if its sources are read."""
        triggers = [self.catalog.trigger_of(view.name) for view in self.rebuildable_views(target)]
        sources = [self.catalog.objects[name] for name in triggers if name is not None and name in self.catalog.objects]
        gone = [reason for source in sources if (reason := needs_replay(source, window, self.now()))]
        if feed == "pushdown" or (feed == "auto" and (not gone or self.replay is None)):
            return ""
        if self.replay is None:
            raise RebuildRefused(
                f"target {target.name}: found --feed replay but wanted a landing archive. None of its sources declares a `landing` in "
                "chmv.yaml. Rebuild it from the source."
            )
        if protocol not in ("auto", "owned"):
            raise RebuildRefused(
                f"target {target.name}: found protocol {protocol} with a replay but wanted owned or auto. Landing files hold what chmv has "
                "committed, so its commits are held back meanwhile. Leave --protocol out."
            )
        return "; ".join(gone) or "asked for a replay"

    def _publish_replayed(self, journal: Journal, target: Object, window: Window | None, reason: str) -> Published:
        self.executor.log(f"{target.name} {window_key(window)}: replayed from landing files, because {reason}")
        with keep_lease(
            journal, lease_name(target.name), lease_seconds=self.lease_seconds, wait_seconds=1.5 * self.lease_seconds
        ):
            return publish_owned(self, journal, target, window, f"replayed: {reason}", self.replay)

    def explain(
        self, target: Object, window: Window | None, protocol: Protocol = "auto"
    ) -> tuple[Protocol, str, tuple[Step, ...]]:
        """The protocol that `publish` would choose, why, and its steps."""
        chosen, why = self.choose(target, window, protocol)
        views = self.rebuildable_views(target)
        return (
            chosen,
            why,
            explain_gated(self, target, window) if chosen == "gated" else plan_closed(target.name, views),
        )

    def choose(self, target: Object, window: Window | None, protocol: Protocol) -> tuple[Protocol, str]:
        """The protocol for a window and the reason."""
        gates = [self.catalog.objects[root] for root in find_roots(self.catalog, target.name)]
        chosen, why = choose_protocol(protocol, gates=gates, quiet_seconds=self._quiet_seconds(target, window))
        if chosen not in _BUILT:
            raise RebuildRefused(
                f"target {target.name}: found protocol {chosen} but wanted one of {', '.join(_BUILT)}. It is not built yet. "
                "Set `protocol: auto` in chmv.yaml, or leave it out."
            )
        return chosen, why

    def _quiet_seconds(self, target: Object, window: Window | None) -> float | None:
        """Seconds since the newest part of the window came into one of the sources; merges make new parts too."""
        ages = []
        for view in self.rebuildable_views(target):
            feed, _ = self.feed(view, window)
            ids = sorted({partition_id for partition_id, *_ in self.source_state(feed)})
            rows = self.executor.server.rows(
                "SELECT dateDiff('second', max(modification_time), now()), count() FROM system.parts WHERE active "
                "AND level = 0 AND database = {d:String} AND table = {t:String} AND partition_id IN {ids:Array(String)}",
                {"d": feed.source.name.database, "t": feed.source.name.table, "ids": ids},
            )
            if int(rows[0][1]):
                ages.append(float(rows[0][0]))
        return min(ages, default=None)

    def _journal(self) -> Journal:
        """One journal for all windows; the first one also clears up what dead rebuilds have left."""
        self.begin()
        if self._kept is None:
            self._kept = Journal(self.executor.server)
            recover_rebuilds(self.executor, self._kept)
        return self._kept
