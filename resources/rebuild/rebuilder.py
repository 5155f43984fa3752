"""Choose a protocol for a window and carry it out; what Dagster and the command line call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from chmv_assets.core.errors import ChmvError, RebuildDisturbed, RebuildRefused
from chmv_assets.core.fence import LEAD_SECONDS
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE, needs_replay, scratch_name
from chmv_assets.core.rebuild_journal import RebuildRecord, read_published
from chmv_assets.core.rebuild_plan import (
    Step,
    choose_protocol,
    find_downstream,
    find_roots,
    plan_closed,
    plan_owned,
)
from chmv_assets.core.settings_values import FeedChoice, Protocol
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.lease import keep_lease
from resources.rebuild.closed import publish_closed
from resources.rebuild.fenced import explain_fenced, publish_fenced
from resources.rebuild.gated import explain_gated, publish_gated
from resources.rebuild.gated_run import OnStep
from resources.rebuild.guards import release
from resources.rebuild.leases import hold_target
from resources.rebuild.marks import note_rebuilt, read_stale
from resources.rebuild.owned import Replay, publish_owned
from resources.rebuild.recovery import recover_rebuilds, recover_targets
from resources.rebuild.result import Published
from resources.rebuild.shares import forget_shares, share_lock
from resources.rebuild.workbench import ScratchResult, Workbench
from resources.scratch_marks import window_key

CHAIN = "a chain under one gate"
SHARE_WAIT_SECONDS = 300.0  # another run that fills the same share: it will be valid for us too


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a window is rebuilt, and why. `explain` and `publish` take the same one, so a dry run cannot lie."""

    protocol: Protocol
    why: str
    asked: bool = False  # by name: then no other protocol takes over
    replayed: bool = False


@dataclass
class Rebuilder(Workbench):
    """Rebuilds windows of one catalog on one server."""

    replay: Replay | None = None
    fence_lead_seconds: float = LEAD_SECONDS  # how long a fence is known before it comes
    origin: str = ""  # for whom, as the journal's records name it behind the process
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
        choice = self.decide(target, window, protocol, feed)
        self.executor.detail(f"{target.name} {window_key(window)}: {choice.protocol}, because {choice.why}")
        published = self._carry_out(journal, target, window, choice, on_step)
        release(self)
        note_rebuilt(journal, stale, f"rebuild {journal.versions.next()}")
        return published

    def _carry_out(
        self, journal: Journal, target: Object, window: Window | None, choice: Choice, on_step: OnStep
    ) -> Published:
        if choice.protocol in ("gated", "whole"):
            return publish_gated(
                self, journal, target, window, choice.why, on_step, cold_first=choice.protocol == "whole"
            )
        if choice.protocol == "fenced":
            return publish_fenced(self, journal, target, window, choice.why, on_step, self.fence_lead_seconds)
        if choice.protocol == "owned":
            with self._alone(journal, target, window) as unverified:
                replay = self.replay if choice.replayed else None
                return publish_owned(self, journal, target, window, choice.why, replay, unverified)
        try:
            with self._alone(journal, target, window) as unverified:
                return publish_closed(self, journal, target, window, choice.why, unverified=unverified)
        except RebuildDisturbed as error:
            if choice.asked:
                raise
            self.executor.log(f"{target.name}: {error} Going on gated.")
        return publish_gated(self, journal, target, window, "inserts disturbed the closed protocol", on_step)

    @contextmanager
    def _alone(self, journal: Journal, target: Object, window: Window | None) -> Iterator[list[RebuildRecord]]:
        """Hold the target; whoever is cut off or fails takes scratches along, and the journal does not call it running.

        Gives the records of the target that are unverified. Rows of a fenced rebuild that died may wait in its shadow, so it is
        finished first.
        """
        with hold_target(self, journal, target.name):
            unverified = recover_targets(self.executor, journal, [target.name])
            try:
                yield unverified
            except BaseException:
                with suppress(ChmvError):  # what happened inside matters more; the next rebuild clears up the rest
                    recover_targets(self.executor, journal, [target.name])
                    forget_shares(self, journal, target, window)
                raise

    def build_scratch(self, view: Object, window: Window | None) -> ScratchResult:
        """Compute a view's share of a window for its target; one at a time."""
        journal = self._journal()
        lock = share_lock(scratch_name(view.target if view.target is not None else view.name, view.name))
        with keep_lease(
            journal, lock, lease_seconds=self.lease_seconds, wait_seconds=SHARE_WAIT_SECONDS, log=self.executor.log
        ):
            return super().build_scratch(view, window)

    def publish_chain(
        self,
        target: Object,
        window: Window | None,
        on_step: OnStep = lambda _number, _step: None,
        protocol: Protocol = "auto",
        feed: FeedChoice = "auto",
    ) -> Published:
        """Rebuild a window of a target and of every target that is computed from it, behind one gate."""
        downstream = self._behind(target, protocol, feed)
        journal = self._journal()
        stale = [mark for one in (target, *downstream) for mark in read_stale(journal, one.name, window)]
        published = publish_gated(self, journal, target, window, CHAIN, on_step, downstream)
        release(self)
        note_rebuilt(journal, stale, f"rebuild {journal.versions.next()}")
        return published

    def _behind(self, target: Object, protocol: Protocol, feed: FeedChoice) -> list[Object]:
        """The targets that are rebuilt along with one; only the gated protocol can do that."""
        if protocol not in ("auto", "gated") or feed == "replay":
            found = f"protocol {protocol}" if protocol not in ("auto", "gated") else "a replay"
            raise RebuildRefused(
                f"target {target.name}: found {found} for all that is downstream but wanted the gated protocol. A chain is rebuilt behind one "
                "gate. Leave the other option out."
            )
        self._require_views(target)
        return [self.catalog.objects[name] for name in find_downstream(self.catalog, target.name)]

    def _require_views(self, target: Object) -> None:
        """Refuse what no view writes: there is nothing to rebuild it from."""
        if self.rebuildable_views(target):
            return
        what = target.kind.replace("_", " ")
        if target.kind == "refreshable_view":
            raise RebuildRefused(
                f"{what} {target.name}: found a view that refreshes as a whole but wanted a target that inserts fill. It has no windows of its own. "
                f"Materialize it, or run `chmv recover {target.name}`: both refresh it."
            )
        if target.target is not None:
            raise RebuildRefused(
                f"{what} {target.name}: found a view but wanted the target that it writes. Windows are replaced there, from all of its views. "
                f"Rebuild {target.target}."
            )
        raise RebuildRefused(
            f"{what} {target.name}: found no view that writes into it but wanted a target. It cannot be computed from anything. `chmv graph` "
            "shows targets."
        )

    def explain(
        self,
        target: Object,
        window: Window | None,
        protocol: Protocol = "auto",
        feed: FeedChoice = "auto",
        downstream: bool = False,
    ) -> tuple[Protocol, str, tuple[Step, ...]]:
        """The protocol that `publish` would choose (or `publish_chain`, with `downstream`), why, and its steps."""
        if downstream:
            return "gated", CHAIN, explain_gated(self, target, window, self._behind(target, protocol, feed))
        choice = self.decide(target, window, protocol, feed)
        return choice.protocol, choice.why, self._steps(target, window, choice)

    def _steps(self, target: Object, window: Window | None, choice: Choice) -> tuple[Step, ...]:
        if choice.protocol in ("gated", "whole"):
            return explain_gated(self, target, window, cold_first=choice.protocol == "whole")
        if choice.protocol == "fenced":
            return explain_fenced(self, target, window, self.cluster)
        views, roots = self.rebuildable_views(target), find_roots(self.catalog, target.name)
        steps = plan_closed(target.name, views, roots, QName(SCRATCH_DATABASE, "scratch.plan.0"))
        if choice.protocol == "owned":
            return plan_owned(
                steps, roots, [source.name for source in self._sources(target)] if choice.replayed else ()
            )
        return steps

    def decide(self, target: Object, window: Window | None, protocol: Protocol, feed: FeedChoice) -> Choice:
        """The protocol and the feed for a window, with the reason."""
        self._require_views(target)
        if reason := self._why_replay(target, window, protocol, feed):
            return Choice(protocol="owned", why=f"replayed: {reason}", asked=protocol != "auto", replayed=True)
        chosen, why = self.choose(target, window, protocol)
        return Choice(protocol=chosen, why=why, asked=protocol != "auto")

    def _sources(self, target: Object) -> list[Object]:
        """The declared tables whose inserts fire a target's views."""
        triggers = {self.catalog.trigger_of(view.name) for view in self.rebuildable_views(target)}
        names = sorted(name for name in triggers if name is not None)
        return [self.catalog.objects[name] for name in names if name in self.catalog.objects]

    def _why_replay(self, target: Object, window: Window | None, protocol: Protocol, feed: FeedChoice) -> str:
        """Why a window is replayed from landing files; nothing if its sources are read."""
        gone = [reason for source in self._sources(target) if (reason := needs_replay(source, window, self.now()))]
        if feed == "pushdown" or (feed == "auto" and (not gone or self.replay is None)):
            return ""
        if self.replay is None:
            raise RebuildRefused(
                f"target {target.name}: found feed replay but wanted a landing archive. None of its sources declares a `landing` in "
                "chmv.yaml. Rebuild it from the source."
            )
        if protocol not in ("auto", "owned"):
            raise RebuildRefused(
                f"target {target.name}: found protocol {protocol} with a replay but wanted owned or auto. Landing files hold what chmv has "
                "committed, so its commits are held back meanwhile. Leave the protocol out."
            )
        return "; ".join(gone) or "asked for a replay"

    def windows_published_for(self, target: Object, origins: Sequence[str]) -> Mapping[str, str]:
        """Keys of the windows of a target that were published for one of these origins, each with the origin."""
        journal = self._journal()
        found: dict[str, str] = {}
        for origin in origins:
            statement = read_published(target.name, origin, journal.cluster)
            rows = journal.server.fetch(statement)
            found |= {str(window): origin for (window,) in rows}
        return found

    def choose(self, target: Object, window: Window | None, protocol: Protocol) -> tuple[Protocol, str]:
        """The protocol for a window and the reason."""
        gates = [self.catalog.objects[root] for root in find_roots(self.catalog, target.name)]
        looks = protocol == "auto" and window is not None
        quiet_seconds = self._quiet_seconds(target, window) if looks else None
        return choose_protocol(protocol, gates=gates, quiet_seconds=quiet_seconds, whole=window is None)

    def _quiet_seconds(self, target: Object, window: Window | None) -> float | None:
        """Seconds since the newest insert of the window into one of the sources.

        A part of one block is an insert, whatever its level (Summing and its kin are born with 1); merges span several. Parts that were
        merged since are still listed for minutes, as not active.
        """
        ages = []
        for view in self.rebuildable_views(target):
            feed, _ = self.feed(view, window)
            ids = sorted({partition_id for partition_id, *_ in self.source_state(feed)})
            rows = self.executor.server.rows(
                "SELECT dateDiff('second', max(modification_time), now()), count() FROM system.parts "
                "WHERE min_block_number = max_block_number AND database = {d:String} AND table = {t:String} AND partition_id IN {ids:Array(String)}",
                {"d": feed.source.name.database, "t": feed.source.name.table, "ids": ids},
            )
            if int(rows[0][1]):
                ages.append(float(rows[0][0]))
        return min(ages, default=None)

    def _journal(self) -> Journal:
        """One journal for all windows; the first one also clears up what dead rebuilds have left."""
        self.begin()
        if self._kept is None:
            self._kept = Journal(self.executor.server, self.cluster)
            self._kept.owner = f"{self._kept.owner} {self.origin}".strip()
            recover_rebuilds(self.executor, self._kept)
        return self._kept
