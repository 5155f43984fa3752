"""The journal: batches and watermarks in the database `chmv`, made and migrated here at first use.

Invariants: a row's version is above that of the row it follows; a batch moves only along its statuses; watermarks are
changed by read – decide – write under a lock per source. What the rules are is in `core.batches` and `core.watermarks`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chmv_assets.core.batches import (
    BatchRecord,
    BatchStatus,
    Slice,
    decode_batch,
    may_follow,
    read_batch,
    read_batches,
    write_batch,
)
from chmv_assets.core.errors import JournalRefused, ServerError
from chmv_assets.core.journal_schema import (
    SCHEMA_VERSION,
    pending_migrations,
    read_applied,
    read_replicas,
    render_foundation,
    write_applied,
)
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE, Statement
from chmv_assets.core.quorum import JOURNAL_QUORUM, Replicas, find_unreachable
from chmv_assets.core.rebuild_journal import RebuildRecord, RebuildStatus, decode_rebuild, read_rebuilds
from chmv_assets.core.versions import VersionAllocator
from chmv_assets.core.watermarks import Watermark, decode_watermark, read_watermarks, write_watermarks
from chmv_assets.core.windows import Window
from chmv_assets.process_identity import VERSIONS, this_owner
from resources.clickhouse import Server
from resources.journal.locks import Locks
from resources.topology import fetch_topology

CLUSTER_VARIABLE = "CHMV_CLICKHOUSE_CLUSTER"
_MARKS_LEASE_SECONDS = 10.0  # one read and one insert; whoever dies in between is not waited for any longer
_MARKS_WAIT_SECONDS = 15.0
Decide = Callable[[Watermark, int], Watermark]  # the present watermark and a version for the next


def cluster_from_environment(environ: Mapping[str, str] | None = None) -> str:
    """The cluster that the tables and the journal are on; nothing for a single server.

    >>> cluster_from_environment({"CHMV_CLICKHOUSE_CLUSTER": "main"}), cluster_from_environment({})
    ('main', '')
    """
    return (os.environ if environ is None else environ).get(CLUSTER_VARIABLE, "")


def open_journal(server: Server, environ: Mapping[str, str] | None = None) -> Journal:
    """The journal of a server, on the cluster that the environment names: a journal that forgets it would lock for one replica only."""
    return Journal(server, cluster=cluster_from_environment(environ))


@dataclass
class Journal:
    """Reads and writes the journal over one connection. Not for sharing between threads."""

    server: Server
    cluster: str = ""
    owner: str = field(default_factory=this_owner)
    versions: VersionAllocator = field(default_factory=lambda: VERSIONS, repr=False)
    _ready: bool = False

    @property
    def locks(self) -> Locks:
        return Locks(self.server, self.cluster)

    def run(self, statement: Statement) -> None:
        self.server.run(statement)

    def prepare(self) -> None:
        """Create what is missing, migrate what is old, refuse what is newer than this program."""
        if self._ready:
            return
        topology = fetch_topology(self.server, self.cluster) if self.cluster else None
        applied = self._applied_if_there()
        if not applied:
            for sql in render_foundation(self.cluster):
                self.server.command(sql)
        if topology is not None:
            self._check_quorum(topology.replicas)
        applied = applied or self._applied()
        if applied and max(applied) > SCHEMA_VERSION:
            raise JournalRefused(
                f"journal chmv: found schema version {max(applied)} but wanted at most {SCHEMA_VERSION}. A newer chmv has "
                "written here and this one would misread it. Upgrade chmv on this machine."
            )
        for migration in pending_migrations(applied):
            for sql in migration.render(self.cluster):
                self.server.command(sql)
            self.run(write_applied(migration, self.cluster))
        self._ready = True

    def _applied_if_there(self) -> set[int]:
        """As below; nothing if there is no journal yet."""
        try:
            return self._applied()
        except ServerError as error:
            if not error.is_missing:
                raise
            return set()

    def _applied(self) -> set[int]:
        statement = read_applied(self.cluster)
        return {int(number) for (number,) in self.server.rows(statement.sql, {}, statement.settings)}

    def _check_quorum(self, replicas: int) -> None:
        for table, total, active, readonly in self.server.rows(read_replicas()):
            found = Replicas(
                table=f"{OWN_DATABASE}.{table}", total=int(total), active=int(active), readonly=bool(readonly), in_cluster=replicas
            )  # fmt: skip
            if why := find_unreachable(JOURNAL_QUORUM, found):
                raise JournalRefused(why)

    def read_batch(self, source: QName, batch: str) -> BatchRecord | None:
        """What the journal knows of a batch."""
        self.prepare()
        rows = self.server.fetch(read_batch(source, batch, self.cluster))
        return decode_batch(rows[0]) if rows else None

    def read_batches(
        self, limit: int | None = None, *, source: QName | None = None, status: BatchStatus | None = None
    ) -> list[BatchRecord]:
        """All batches (of a source, of a status) or the newest so many; none if there is no journal yet. Creates nothing."""
        statement = read_batches(self.cluster, source=source, status=status, limit=limit)
        return [decode_batch(row) for row in self.server.fetch_if_there(statement)]

    def read_rebuilds(
        self, limit: int | None = None, *, target: str = "", statuses: Sequence[RebuildStatus] = ()
    ) -> list[RebuildRecord]:
        """All rebuilds (of a target, of some statuses) or so many, those that need a look first; none without a journal. Creates nothing."""
        statement = read_rebuilds(statuses, self.cluster, limit, target)
        return [decode_rebuild(row) for row in self.server.fetch_if_there(statement)]

    def note_batch(
        self,
        source: QName,
        batch: str,
        status: BatchStatus,
        *,
        slices: Sequence[Slice] | None = None,
        detail: str = "",
    ) -> BatchRecord:
        """Move a batch to a status, if nobody else moves it meanwhile; slices once given are kept."""
        before = self.read_batch(source, batch)
        if not may_follow(before.status if before else None, status):
            raise JournalRefused(
                f"batch {batch} of {source}: found it {before.status if before else 'unknown'} but wanted it {status}. "
                "That would forget what has happened to its rows. `chmv batches` shows it; send new rows as a new batch."
            )
        if (
            before is not None
            and before.status == "staged"
            and slices is not None
            and tuple(sorted(slices)) != before.slices
        ):
            raise JournalRefused(
                f"batch {batch} of {source}: found other rows written down by {before.owner} but wanted to write down ours. Theirs may "
                "be in the source already; the first account counts. Run again: the batch is finished as they wrote it down."
            )
        kept = tuple(slices) if slices is not None else (before.slices if before else ())
        record = BatchRecord(
            batch=batch,
            source=source,
            status=status,
            slices=tuple(sorted(kept)),
            rows=sum(one.rows for one in kept),
            detail=detail,
            owner=self.owner,
            version=self.versions.next(above=before.version if before else 0),
        )
        self.run(write_batch(record, self.cluster, follows=before.version if before else 0))
        present = self.read_batch(source, batch)
        if present != record:
            raise JournalRefused(
                f"batch {batch} of {source}: found it moved to {present.status if present else 'nothing'} by "
                f"{present.owner if present else 'nobody'} but wanted it {status} by {self.owner}. Two drivers work on the same "
                "batch and the other was first. Nothing is lost or doubled; run again to see where it stands."
            )
        return record

    def read_watermarks(
        self,
        source: QName | None = None,
        target: QName | None = None,
        *,
        between: tuple[datetime, datetime] | None = None,
    ) -> list[Watermark]:
        """Present watermarks; none if there is no journal yet. Creates nothing."""
        statement = read_watermarks(source, target, self.cluster, between=between)
        return [decode_watermark(row) for row in self.server.fetch_if_there(statement)]

    def move_watermarks(
        self,
        source: QName,
        changes: Mapping[QName, Mapping[Window, Decide]],
        *,
        wait_seconds: float = _MARKS_WAIT_SECONDS,
    ) -> list[Watermark]:
        """Apply one decision per target and window and write what has changed, in one insert; gives the new state of all."""
        self.prepare()
        hold = self.locks.hold(
            f"watermarks {source}", self.owner, lease_seconds=_MARKS_LEASE_SECONDS, wait_seconds=wait_seconds
        )
        with hold as held:
            starts = [window.start for windows in changes.values() for window in windows]
            marks = self.read_watermarks(source, between=(min(starts), max(starts)))
            present = {(mark.target_table, mark.window_start): mark for mark in marks}
            moved: list[Watermark] = []
            changed: list[Watermark] = []
            for target, windows in changes.items():
                for window, decide in windows.items():
                    before = present.get((target, window.start)) or _opened(source, target, window)
                    after = decide(before, self.versions.next(above=before.version))
                    moved.append(after)
                    if after != before:
                        changed.append(after)
            self.locks.check(held)
            if changed:
                self.run(write_watermarks(changed, self.cluster))
        return moved


def _opened(source: QName, target: QName, window: Window) -> Watermark:
    return Watermark(source_id=source, target_table=target, window_start=window.start, window_end=window.end)
