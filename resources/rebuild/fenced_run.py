"""One try of a fenced rebuild: its steps carried out one by one, and the way out (`unfence`) from wherever one fails.

What a step leaves behind is in the journal before it is done. Which try this is, and what is repaired afterwards, is decided in `fenced`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused
from chmv_assets.core.fence import (
    NEVER_US,
    FenceState,
    encode_state,
    plan_way_out,
    render_before,
    render_create_fence,
    render_moment,
)
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, commit_lock, write_rebuild
from chmv_assets.core.rebuild_plan import StepKind
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.lease import Lease, keep_lease
from resources.rebuild.barrier import deliver
from resources.rebuild.fence_recovery import status_of
from resources.rebuild.fenced_plan import FencedPlan, check_narrowed
from resources.rebuild.gated_run import OnStep
from resources.rebuild.owned import COMMIT_WAIT_SECONDS
from resources.rebuild.settle import find_in_doubt, settle
from resources.rebuild.unfence import LATE_RAISE, WayOut
from resources.rebuild.workbench import Workbench
from resources.scratch_marks import window_key

MAX_SWAPS = 12
NOT_COMPARED = "the window was swapped in and not compared yet"
IN_DOUBT = "an insert failed half way behind the fence and may be sent again"


@dataclass(frozen=True, slots=True)
class Repair:
    """What has to be rebuilt gated, since rows may have gone wrong."""

    window: Window | None


@dataclass
class FencedRun:
    """Carries the steps out; whatever happens, rows that wait are led into the target."""

    bench: Workbench
    journal: Journal
    leases: list[Lease]
    plan: FencedPlan
    on_step: OnStep
    changed: tuple[str, ...] = ()
    repair: Repair | None = None
    out: WayOut = field(init=False)
    _counted: list[int] = field(default_factory=list)
    _commits: dict[QName, ExitStack] = field(default_factory=dict)
    _version: int = 0
    _step: int = 0

    def __post_init__(self) -> None:
        bench = self.bench
        self.out = WayOut(bench.executor, self.plan.state, self._note, self._check, bench.sleep, bench.clock)

    def carry_out(self) -> None:
        """All steps; if one fails, the way out from there."""
        work = self._work()
        skipped = False
        try:
            for number, step in enumerate(self.plan.steps):
                self._step = number
                self._check()
                if skipped and step.kind in ("compute", "publish", "compare arrivals"):
                    continue
                work[step.kind](step.name)
                skipped = skipped or self.out.state.doubt == LATE_RAISE
                self.on_step(self._step, step)
        except BaseException:
            self._leave(work)
            raise
        finally:
            self._release_all()
        self._note(self.out.state, status_of(self.out.state))

    def _leave(self, work: dict[StepKind, Callable[[QName], None]]) -> None:
        """Go to the end without publishing; if that fails too, whoever comes next does it."""
        if not self._version:  # nothing was begun
            return
        try:
            for step in plan_way_out(self.out.state, self.plan.roots):
                self._check()
                work[step.kind](step.name)
            self._note(self.out.state, status_of(self.out.state))
        except Exception as error:
            self.bench.executor.log(f"{self.plan.target.name}: left to whoever rebuilds next: {error}")

    def _work(self) -> dict[StepKind, Callable[[QName], None]]:
        executor = self.bench.executor
        return {
            **self.out.work(),
            "settle": self._settle,
            "fence": self._create_fence,
            "shadow": self._create_shadow,
            "scratch": lambda name: executor.create_like(name, self.plan.target.name),
            "twin": lambda twin: executor.run_ddl(f"create {twin}", self.plan.twins[twin]),
            "divert": self._divert,
            "drain": lambda _name: self._drain(),
            "hold commits": self._hold_commits,
            "raise fence": self._raise,
            "compute": self._compute,
            "publish": self._publish,
            "compare arrivals": self._compare,
            "close fence": self._close,
            "release commits": self._release,
        }  # fmt: skip

    def _settle(self, root: QName) -> None:
        settle(self.bench, self.journal, root)

    def _check(self) -> None:
        for lease in self.leases:
            lease.check()

    def _note(self, state: FenceState, status: RebuildStatus = "running") -> None:
        self._version = self.journal.versions.next(above=self._version)
        record = RebuildRecord(
            rebuild_id=self.plan.rebuild_id, target=self.plan.target.name, window=window_key(self.plan.window),
            protocol="fenced", status=status, steps=self.plan.steps, step=self._step, detail=encode_state(state),
            owner=self.journal.owner, version=self._version,
        )  # fmt: skip
        self.journal.run(write_rebuild(record, self.journal.cluster))

    def _create_fence(self, fence: QName) -> None:
        """From here on something is left behind, so the journal is told; the fence has its first row before any view reads it."""
        for feed in self.plan.feeds.values():
            self.bench.check_room(feed)
        self._note(self.out.state)
        self.bench.executor.run_ddl(f"create {fence}", render_create_fence(fence))
        self.bench.executor.run_ddl(f"open {fence}", render_moment(fence, NEVER_US, NEVER_US))
        check_narrowed(self.bench, self.plan)

    def _create_shadow(self, name: QName) -> None:
        target = next(shadow.target for shadow in self.plan.state.shadows if shadow.name == name)
        self.bench.executor.create_like(name, target)

    def _divert(self, view: QName) -> None:
        self.bench.executor.run_ddl(f"divert {view}", f"ALTER TABLE {view.sql} MODIFY QUERY {self.plan.diverted[view]}")

    def _drain(self) -> None:
        """From here on every insert that runs knows the fence; what waits in queues was dated long ago and comes in now."""
        deliver(self.bench, self.plan.roots)
        self.out.drain()

    def _hold_commits(self, root: QName) -> None:
        """chmv's own commits say their arrival themselves; none may come between computing and swapping."""
        stack = self._commits[root] = ExitStack()
        seconds = self.bench.lease_seconds
        lease = keep_lease(
            self.journal, commit_lock(root), lease_seconds=seconds, wait_seconds=COMMIT_WAIT_SECONDS, log=self.bench.executor.log
        )  # fmt: skip
        self.leases = [*self.leases, stack.enter_context(lease)]
        if problem := find_in_doubt(self.journal, root):
            raise RebuildDisturbed(
                f"source {root}: {problem} but wanted every insert done or given up. Its retry would double its rows. Nothing was published. "
                "Let its writer finish (`chmv ingest` for ours) and run it again."
            )

    def _release(self, root: QName) -> None:
        if stack := self._commits.pop(root, None):
            self.leases = [lease for lease in self.leases if lease.held.name != commit_lock(root)]
            stack.close()

    def _release_all(self) -> None:
        for root in list(self._commits):
            self._release(root)

    def _raise(self, fence: QName) -> None:
        if not self.out.set_moment(raised=True):
            self.bench.executor.log(f"{fence}: it came too late, nothing is published behind it")
            return
        moment = self.out.state.from_us
        self._wait_for_old(moment)
        self._refuse_future(moment)
        self.out.wait_until(moment)
        self.out.drain()
        self._count()

    def _wait_for_old(self, moment: int) -> None:
        """Inserts that may not know the fence have to end before it comes, for what writers say of arrivals to be comparable."""
        try:
            self.out.drain(max(0.0, (moment - self.out.now_us()) / 1e6))
        except RebuildRefused as error:
            raise RebuildDisturbed(
                f"target {self.plan.target.name}: inserts from before the fence ran longer than its lead of {self.out.state.lead_seconds:.0f} s but "
                "wanted them ended. Nothing was published. Run it again when they are shorter, or with `--protocol gated`."
            ) from error

    def _refuse_future(self, moment: int) -> None:
        """Rows that claim to arrive after F, before F: they are in the target and would not be in the rebuilt data."""
        for feed in self.plan.feeds.values():
            arrival = self.plan.arrivals[feed.source.name].column
            found = self._rows(
                feed.source.name, feed.source_filter, f"NOT ({render_before(arrival, moment, table='')})"
            )
            if not found:
                continue
            if self.out.now_us() < moment:
                raise RebuildRefused(
                    f"source {feed.source.name}: {found} rows have {arrival} in the future but wanted none. They cannot be told from rows that wait. "
                    "Nothing was published. Use `--protocol gated`."
                )
            raise RebuildDisturbed(
                f"source {feed.source.name}: looking for rows with {arrival} in the future took longer than the fence's lead. Nothing was published. "
                "Run it again, or use `--protocol gated`."
            )

    def _rows(self, source: QName, source_filter: str, condition: str) -> int:
        where = f"({source_filter}) AND ({condition})" if source_filter else condition
        return int(self.bench.executor.server.rows(f"SELECT count() FROM {source.sql} WHERE {where}")[0][0])

    def _old_rows(self) -> list[int]:
        """Rows of the window from before the fence, per view."""
        moment = self.out.state.from_us
        return [
            self._rows(
                feed.source.name,
                feed.source_filter,
                render_before(self.plan.arrivals[feed.source.name].column, moment, table=""),
            )
            for feed in self.plan.feeds.values()
        ]

    def _count(self) -> None:
        """Count first, then wait for inserts that run: what was counted has reached the target, or is waited for."""
        self._counted = self._old_rows()
        self.out.drain()

    def _compute(self, view: QName) -> None:
        feed = self.plan.feed_before(view, self.out.state.from_us)
        self.bench.fill(feed, self.plan.state.scratch)

    def _publish(self, _target: QName) -> None:
        self.out.save(doubt=NOT_COMPARED)
        self._swap()

    def _swap(self) -> None:
        self._check()
        self.changed = self.bench.swap(self.plan.target, self.plan.window, [self.plan.state.scratch]).partitions

    def _compare(self, target: QName) -> None:
        """A late row from before the fence, which its writer dated himself, may have fallen between: then once more."""
        for number in range(1, MAX_SWAPS + 1):
            self.out.drain()
            if self._old_rows() == self._counted:
                self.out.save(doubt="", published=True)
                return
            if number == MAX_SWAPS:
                break
            self.bench.executor.log(f"{target}: rows from before the fence came late, computing again")
            scratch = self.plan.state.scratch
            self.bench.executor.drop_table(scratch)
            self.bench.executor.create_like(scratch, self.plan.target.name)
            self._count()
            for view in self.plan.feeds:
                self._compute(view)
            self._swap()
        self.bench.executor.log(f"{target}: rows from before the fence kept coming for {MAX_SWAPS} swaps")

    def _close(self, fence: QName) -> None:
        """The last moment at which it can be said what the shadows hold."""
        if not self.out.state.doubt and any(find_in_doubt(self.journal, root) for root in self.plan.roots):
            self.out.save(doubt=IN_DOUBT)
        self.out.work()["close fence"](fence)
        if self.out.state.doubt:
            self.repair = Repair(self._touched())

    def _touched(self) -> Window | None:
        """The window and all that the target's shadow holds, as one window."""
        scheme, window = self.bench.catalog.schemes.get(self.plan.target.name), self.plan.window
        if scheme is None or window is None:
            return None
        column = quote_identifier(scheme.column)
        shadow = self.plan.state.shadows[0].name
        zone = self.bench.timezone
        instant = (
            f"toUnixTimestamp(toDateTime64(toString({column}), 0, {quote_string(zone)}))"
            if scheme.is_date
            else f"toUnixTimestamp({column})"
        )
        rows = self.bench.executor.server.rows(f"SELECT count(), min({instant}), max({instant}) FROM {shadow.sql}")
        held, first, last = (int(value) for value in rows[0])
        if not held:
            return window
        start, end = (datetime.fromtimestamp(at, timezone.utc) for at in (first, last + 1))
        return Window(min(window.start, start), max(window.end, end))
