"""The way out of a fenced rebuild, from wherever it stands: let rows go on, move in those that waited, put the views back.

A fenced rebuild is never rolled back once rows may wait in a shadow: dropping it would lose them. Every step here does nothing where
nothing is left to do, so whoever comes after a crash walks the same steps to the end, and may be killed on the way too.
What cannot be told any more (a moment that may have been set too late) stays in the state as `doubt`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.fence import (
    NEVER_US,
    FenceState,
    read_moments,
    render_close,
    render_moment_ahead,
)
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.rebuild_plan import StepKind
from resources.executor import Executor
from resources.introspect import fetch_existing, fetch_partitions, fetch_running_inserts

DRAIN_SECONDS = 60.0
LATE_RAISE = "the fence may have been raised too late"
LATE_LOWER = "the fence may have been lowered too late"
LATE_ROWS = "rows that say they arrived behind the fence came after it was lowered"
DIED_MOVING = "the server died while rows were moved in"
_POLL_SECONDS = 0.1


@dataclass
class WayOut:
    """Leads one fenced rebuild to its end; `note` writes the state into the journal, `check` raises when we may not go on."""

    executor: Executor
    state: FenceState
    note: Callable[[FenceState], None]
    check: Callable[[], None] = lambda: None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def work(self) -> dict[StepKind, Callable[[QName], None]]:
        """What each step of the way out does; commits are released by whoever holds them."""
        return {
            "lower fence": self._lower,
            "close fence": self._close,
            "release commits": lambda _root: None,
            "move back": self._move,
            "restore view": self._restore,
            "drop twin": self.executor.drop_table,
            "drop shadow": self._drop_shadow,
            "drop scratch": self.executor.drop_table,
            "drop fence": self._drop_fence,
        }

    def save(self, **changes: object) -> None:
        """Change the state, in the journal first: what is about to be done is known to whoever comes after."""
        self.check()
        state = replace(self.state, **changes)  # type: ignore[arg-type]
        self.note(state)
        self.state = state

    def set_moment(self, *, raised: bool) -> bool:
        """Set F (or G) a lead ahead of the server's clock; False if inserts may not have known of it when it came.

        The server takes the moment when the statement starts: if all of it took less than the lead, it was visible in time.
        """
        before, verb = self.state.doubt, "raise" if raised else "lower"
        self.save(doubt=before or (LATE_RAISE if raised else LATE_LOWER))
        started = self.clock()
        sql = render_moment_ahead(self.state.fence, self.state.lead_seconds, raised=raised)
        self.executor.run_ddl(f"{verb} fence", sql)
        in_time = self.clock() - started < self.state.lead_seconds
        from_us, until_us, now_us = (int(us) for us in self.executor.server.rows(read_moments(self.state.fence))[0])
        in_time = in_time or now_us < (from_us if raised else until_us)
        moments = {"from_us": from_us} if raised else {"until_us": until_us}
        self.save(doubt=before if in_time else self.state.doubt, **moments)
        return in_time

    def wait_until(self, moment_us: int) -> None:
        """Wait for a moment of the server's clock."""
        while (left := moment_us - self.now_us()) > 0:
            self.sleep(min(left / 1e6 + 0.01, 0.5))

    def drain(self, limit_seconds: float = DRAIN_SECONDS) -> None:
        """Wait until every insert that runs now has ended."""
        self.executor.flush_async_inserts()
        waiting = fetch_running_inserts(self.executor.server)
        deadline = self.clock() + limit_seconds
        while waiting:
            if self.clock() > deadline:
                raise RebuildRefused(
                    f"fence {self.state.fence}: {len(waiting)} insert(s) still run after {limit_seconds:.0f} s but wanted all ended. They may "
                    "still write into a shadow. Whoever rebuilds next goes on from here; end them, then run it again."
                )
            self.sleep(_POLL_SECONDS)
            waiting &= fetch_running_inserts(self.executor.server)

    def now_us(self) -> int:
        return int(self.executor.server.rows("SELECT toUnixTimestamp64Micro(now64(6))")[0][0])

    def _there(self, name: QName) -> bool:
        return bool(fetch_existing(self.executor.server, [name]))

    def _moments(self) -> tuple[int, int]:
        raised, lowered, _ = self.executor.server.rows(read_moments(self.state.fence))[0]
        return int(raised), int(lowered)

    def _lower(self, fence: QName) -> None:
        if not self._there(fence):
            return
        raised, lowered = self._moments()
        if raised >= NEVER_US or raised == 0:  # never raised, or not even its first row is there
            return
        if lowered >= NEVER_US:
            self.set_moment(raised=False)
            lowered = self.state.until_us
        self.wait_until(lowered)
        self.drain()

    def _close(self, fence: QName) -> None:
        """From here on no insert is routed aside; rows whose writers say an arrival of the past are looked for."""
        if not self._there(fence):
            return
        raised, lowered = self._moments()
        waited = 0 < raised < NEVER_US and lowered > 0
        before = self._count_waiting(raised, lowered) if waited else 0
        self.drain()
        self.executor.run_ddl("close fence", render_close(fence))
        self.drain()
        if waited and self._count_waiting(raised, lowered) != before:
            self.save(doubt=self.state.doubt or LATE_ROWS)
        if self.state.doubt == LATE_RAISE and self._moments()[0] >= NEVER_US:
            self.save(doubt="")  # it was never raised at all

    def _count_waiting(self, raised: int, lowered: int) -> int:
        """Rows of the sources that say they arrived behind the fence, in partitions that were written since."""
        found = 0
        there = fetch_existing(self.executor.server, [one.source for one in self.state.arrivals])
        for arrival in (one for one in self.state.arrivals if one.supplied and one.source in there):
            column = quote_identifier(arrival.column)
            rows = self.executor.server.rows(
                f"SELECT count() FROM {arrival.source.sql} WHERE {column} >= fromUnixTimestamp64Micro({raised}, 'UTC') "
                f"AND {column} < fromUnixTimestamp64Micro({lowered}, 'UTC') AND _partition_id IN (SELECT partition_id "
                "FROM system.parts WHERE active AND database = {d:String} AND table = {t:String} "
                "AND toUnixTimestamp(modification_time) >= {since:Int64})",
                {"d": arrival.source.database, "t": arrival.source.table, "since": raised // 1_000_000 - 5},
            )
            found += int(rows[0][0])
        return found

    def _move(self, shadow: QName) -> None:
        """Parts change their table one partition at a time; nothing fires, so each target of a chain has a shadow of its own."""
        target = next(one.target for one in self.state.shadows if one.name == shadow)
        waiting = [state for state in fetch_partitions(self.executor.server, [shadow]).get(shadow, ()) if state.rows]
        if not waiting or not self._has_target(shadow, target):
            return
        now = self.now_us()
        if not self.state.moving_since_us:
            self.save(moving_since_us=now)
        elif now - self._uptime_us() > self.state.moving_since_us:
            self.save(doubt=self.state.doubt or DIED_MOVING, moving_since_us=now)
        for state in waiting:
            self.check()
            sql = f"ALTER TABLE {shadow.sql} MOVE PARTITION ID {quote_string(state.partition_id)} TO TABLE {target.sql}"
            self.executor.run_ddl(f"move {state.rows} waiting rows of {state.partition_id} into {target}", sql)

    def _has_target(self, shadow: QName, target: QName) -> bool:
        """Whether there is a table to move rows into; without its database nobody can want them any more."""
        if self._there(target):
            return True
        known = self.executor.server.rows(
            "SELECT 1 FROM system.databases WHERE name = {d:String}", {"d": target.database}
        )
        if known:
            raise RebuildRefused(
                f"shadow {shadow}: holds rows of {target}, which is not there, but wanted to move them into it. Dropping it would lose them. "
                f"Create {target} again and run any rebuild, or drop the shadow by hand."
            )
        self.executor.log(f"{shadow}: the database of {target} is gone, and with it what these rows were for")
        return False

    def _uptime_us(self) -> int:
        return int(self.executor.server.rows("SELECT uptime()")[0][0]) * 1_000_000

    def _restore(self, view: QName) -> None:
        wanted = next(one.select for one in self.state.views if one.view == view)
        rows = self.executor.server.rows(
            "SELECT as_select FROM system.tables WHERE database = {d:String} AND name = {t:String}",
            {"d": view.database, "t": view.table},
        )
        if rows and str(rows[0][0]) != wanted:
            self.check()
            self.executor.run_ddl(f"restore {view}", f"ALTER TABLE {view.sql} MODIFY QUERY {wanted}")

    def _drop_shadow(self, shadow: QName) -> None:
        """Inserts that began before their twin was dropped have ended; if they left rows, these go the same way."""
        if not self._there(shadow):
            return
        self._move(shadow)
        target = next(one.target for one in self.state.shadows if one.name == shadow)
        left = self.executor.server.rows(f"SELECT count() FROM {shadow.sql}")[0][0]
        if int(left) and self._has_target(shadow, target):
            raise RebuildRefused(
                f"shadow {shadow}: {left} rows are left but wanted none. Dropping it would lose them. Run any rebuild again."
            )
        self.executor.drop_table(shadow)

    def _drop_fence(self, fence: QName) -> None:
        """Inserts that began with the fenced query still read the fence, block by block."""
        if self._there(fence):
            self.drain()
            self.executor.drop_table(fence)
