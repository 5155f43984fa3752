"""The tuner's hands: apply a step, settle it, take it back; the journal first, then the server. What to do is decided by `core.tuner`.

Every write is made under a short lock, and what was decided is held once more against the journal and the table: two tuners, or one that
was slow, do no step twice, and nothing is put back over what somebody else has set since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from chmv_assets.core.capabilities import setting_of
from chmv_assets.core.names import QName
from chmv_assets.core.tuner import Action, Back
from chmv_assets.core.tunings import PARALLELISM, TUNER_LOCK, Tuning, TuningStatus, write_tuning
from resources.executor import Executor
from resources.journal import HeldLock, Journal
from resources.tuning_reads import fetch_tunings

_LEASE_SECONDS = 15.0  # one read, one ALTER, two rows
_WAIT_SECONDS = 30.0  # longer than the lease of one that died
GONE = "its table is gone"


@dataclass
class TuningStore:
    """Applies and takes back tunings."""

    executor: Executor
    journal: Journal
    clock: Callable[[], float] = time.time

    def read(self, subjects: Iterable[QName] = ()) -> list[Tuning]:
        """Active tunings and those of the last hours, the oldest first."""
        return fetch_tunings(self.journal.server, self.journal.cluster, self.clock(), subjects)

    def apply(self, action: Action, watch_seconds: float) -> tuple[Tuning | None, str]:
        """Do one step; None and the reason if it is not due any more."""
        self.journal.prepare()
        with self._lock() as held:
            own = [one for one in self.read([action.subject]) if one.setting == action.setting and one.is_active]
            present, set_to = self._present(action, own)
            if present != action.expected:
                return None, f"{action.setting} is {present} by now, not {action.expected}: somebody was faster"
            started = int(self.clock() * 1000)
            tuning = Tuning(
                tuning=f"{started}-{self.journal.versions.next()}", subject=action.subject, setting=action.setting, previous=set_to,
                base=action.base, value=action.value, status="proposed", reason=action.reason, numbers=action.numbers, started_ms=started,
                watch_until_ms=started + int(watch_seconds * 1000),
            )  # fmt: skip
            tuning = self._note(tuning, "proposed")
            self.journal.locks.check(held)
            if action.setting != PARALLELISM:
                self.executor.set_table_setting(action.subject, action.setting, action.value)
            return self._note(tuning, "applied"), ""

    def _lock(self) -> AbstractContextManager[HeldLock]:
        return self.journal.locks.hold(
            TUNER_LOCK, self.journal.owner, lease_seconds=_LEASE_SECONDS, wait_seconds=_WAIT_SECONDS
        )

    def _present(self, action: Action, own: list[Tuning]) -> tuple[int | None, int | None]:
        """What is in force, and what is set; no value set leaves the base in force."""
        if action.setting == PARALLELISM:
            set_to = own[-1].value if own else None
        else:
            set_to = self.fetch_set(action.subject, action.setting)
        return (action.base if set_to is None and not own else set_to), set_to

    def fetch_set(self, table: QName, setting: str) -> int | None:
        """What a table sets now."""
        text = self._engine_of(table)
        return None if text is None else setting_of(text, setting)

    def _engine_of(self, table: QName) -> str | None:
        rows = self.journal.server.rows(
            "SELECT engine_full FROM system.tables WHERE database = {d:String} AND name = {t:String}",
            {"d": table.database, "t": table.table},
        )
        return str(rows[0][0]) if rows else None

    def finish(self, back: Back) -> Tuning | None:
        """Take a tuning back, or settle it; None if somebody else has ended it meanwhile."""
        with self._lock() as held:
            present = next((one for one in self.read([back.tuning.subject]) if one.tuning == back.tuning.tuning), None)
            if present is None or not present.is_active or (back.settle and present.status != "applied"):
                return None
            if back.settle:
                return self._note(present, "settled", back.reason)
            self.journal.locks.check(held)
            status, reason = self._restore(present)
            return self._note(present, status, f"{back.kind}: {back.reason}{reason}")

    def _restore(self, tuning: Tuning) -> tuple[TuningStatus, str]:
        """Put back what a tuning found, if the table still has what it set."""
        if tuning.setting == PARALLELISM:
            return "rolled_back", ""
        text = self._engine_of(tuning.subject)
        if text is None:
            return "left", f"; {GONE}"
        live = setting_of(text, tuning.setting)
        if live == tuning.previous:
            return "rolled_back", "; the server has the previous value already"
        if live != tuning.value:
            return "left", f"; somebody has set {tuning.setting} to {live if live is not None else 'nothing'} since"
        self.executor.set_table_setting(tuning.subject, tuning.setting, tuning.previous)
        return "rolled_back", ""

    def _note(self, tuning: Tuning, status: TuningStatus, reason: str = "") -> Tuning:
        ended = int(self.clock() * 1000) if status in ("rolled_back", "left") else 0
        why = "; ".join(filter(None, (tuning.reason, reason)))
        noted = replace(
            tuning, status=status, reason=why, ended_ms=ended, owner=self.journal.owner,
            version=self.journal.versions.next(above=tuning.version),
        )  # fmt: skip
        self.journal.run(write_tuning(noted, self.journal.cluster))
        return noted
