"""Ingest: landing files → rows of a source, exactly once, with late and bad rows counted.

The order makes it exact: files are taken in the manifest before they are read; every row is judged and the bad ones quarantined;
what will be inserted is written down in the journal; only then do rows reach the source, under fixed tokens; watermarks move when
all are in, and last of all the batch is marked. A crash anywhere is finished by the next ingest. Parquet goes directly
(`direct_load`), the rest through staging (`staged_load`); the pure rules are in `core.landing` and `core.chunks`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pyspark.sql import SparkSession

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.chunks import is_direct
from chmv_assets.core.diversions import holds_commits
from chmv_assets.core.errors import IngestPaused, ServerError, WriteRefused
from chmv_assets.core.landing import (
    Batch,
    IngestSummary,
    LandingFile,
    LandingPlan,
    LandingRefused,
    plan_batches,
    shape_of,
)
from chmv_assets.core.manifest import TakenFile
from chmv_assets.core.model import Object
from chmv_assets.core.pressure import Pace, PaceLimits, adapt_pace, first_pace
from chmv_assets.core.rebuild_journal import COMMIT_LOCK_WAIT_SECONDS, commit_lock
from chmv_assets.core.settings import Landing
from chmv_assets.core.windows import Window
from chmv_assets.direct_load import (
    can_go_direct,
    commit_direct,
    plan_direct,
    read_footers,
    resume_direct,
    survey_batch,
)
from chmv_assets.landing_windows import files_in_window
from chmv_assets.load import Columns, LoadSite, Ready, Taken
from chmv_assets.pipeline import Pipeline
from chmv_assets.staged_load import commit_staged, resume_staged, stage_batch
from chmv_assets.watermark_moves import HourCount, move_watermarks, reached_targets
from resources.capabilities import probe_capability
from resources.executor import Executor
from resources.journal import Journal
from resources.journal.diversions import read_diversion
from resources.journal.lease import Lease, keep_lease
from resources.journal.manifest import hold_landing, read_taken_files, take_files
from resources.journal.recovery import collect_garbage, drop_leftovers
from resources.landing import found_columns, list_files
from resources.pressure import read_pressure
from resources.rebuild.recovery import recover_rebuilds
from resources.tuning_reads import fetch_ceiling

PACE_LIMITS = PaceLimits(normal_rows=500_000, max_parallelism=8)
_POLL_SECONDS = 5.0
_STAGING_KEPT = timedelta(
    days=7
)  # of batches that were planned and never staged; a Spark job is not silent for so long
_POLLS = 120  # ten minutes of a server that refuses inserts


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """One ingest, told in numbers; what it finished for an earlier one counts too."""

    summary: IngestSummary
    batches: tuple[str, ...]
    resumed: tuple[str, ...]  # batches that an earlier ingest had begun to commit
    unfinished: tuple[tuple[str, str], ...]  # batches that could not be finished, and why
    unreadable: tuple[tuple[str, str], ...]  # file and why
    reasons: Mapping[str, int]  # why rows were quarantined
    hours: tuple[HourCount, ...]  # what each hour of event time received
    seconds: float
    held: tuple[str, ...] = ()  # batches that wait in staging: the source is diverted


@dataclass
class Ingester:
    """Ingests one source on one server."""

    pipeline: Pipeline
    source: Object
    landing: Landing
    journal: Journal
    spark: Callable[[], SparkSession]
    log: Callable[[str], None] = field(default=lambda _line: None)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _pace: Pace = field(default_factory=lambda: first_pace(PACE_LIMITS))
    _held: list[str] = field(default_factory=list)

    def run(self, root: str, window: Window | None = None) -> IngestReport:
        """Finish what an earlier ingest left, then load every new file below the root (that has rows in the window)."""
        started = self.clock()
        self._held = []
        probe_capability(self.journal.server, self.source.name).require()
        site = self._site(root)
        executor = Executor(self.journal.server, log=self.log, cluster=self.journal.cluster)
        self._clear_away(executor)
        drop_leftovers(self.journal, self.source.name)
        for table in collect_garbage(self.journal, older_than=_STAGING_KEPT):
            self.log(
                f"{table.name}: dropped, {table.owner} has not written to it for {table.idle_seconds // 86_400} days"
            )
        files = list_files(root, self.landing.format)
        columns, unreadable = self._columns_of(site, files)
        readable = [file for file in files if file.path in columns]
        if window is not None:
            readable = self._in_window(site, readable, columns, window)
        with hold_landing(self.journal, self.source.name):
            taken = read_taken_files(self.journal, self.source.name)
            records = {record.batch: record for record in self.journal.read_batches(source=self.source.name)}
            plan, versions = self._take(readable, columns, taken, records)
        resumed, unfinished = self._resume_all(site, records.values(), taken, readable, columns)
        loaded = [self._load(site, Taken(batch=batch, version=versions[batch.id]), columns) for batch in plan.batches]
        done = [one for one in loaded if one is not None]
        if self._held:
            self.log(f"{self.source.name}: diverted: {len(self._held)} batches wait in staging")
        return IngestReport(
            summary=_summary([*resumed, *done], plan),
            batches=tuple(batch.id for batch in plan.batches),
            resumed=tuple(one.record.batch for one in resumed),
            unfinished=unfinished,
            unreadable=unreadable,
            reasons=_sum_reasons([*resumed, *done]),
            hours=tuple(itertools.chain.from_iterable(one.hours for one in [*resumed, *done])),
            seconds=self.clock() - started,
            held=tuple(self._held),
        )

    def _clear_away(self, executor: Executor) -> None:
        """Open a gate that nobody opens any more; an account that may only ingest leaves that to another, and waits."""
        try:
            recover_rebuilds(executor, self.journal)
        except ServerError as error:
            if not error.is_denied:
                raise
            self.log(
                f"{self.source.name}: this account only ingests; what a dead rebuild has left is for the recovery account"
            )

    def _site(self, root: str) -> LoadSite:
        policy = self.pipeline.settings.policy(self.source.name)
        return LoadSite(
            source=self.source,
            policy=policy,
            landing=self.landing,
            root=root,
            journal=self.journal,
            spark=self.spark,
        )

    def _columns_of(self, site: LoadSite, files: Sequence[LandingFile]) -> tuple[Columns, tuple[tuple[str, str], ...]]:
        """The columns of every readable file; refuses columns that do not fit before anything is taken."""
        columns: dict[str, tuple[str, ...]] = {}
        unreadable: list[tuple[str, str]] = []
        for file in files:
            try:
                columns[file.path] = found_columns(site.root, file, self.landing.format)
            except LandingRefused as error:
                unreadable.append((file.path, str(error)))
        for found in set(columns.values()):
            site.loaded_columns(found)
        return columns, tuple(unreadable)

    def _in_window(
        self, site: LoadSite, files: Sequence[LandingFile], columns: Columns, window: Window
    ) -> list[LandingFile]:
        """All files that are taken already, and of the new ones those that touch the window.

        Looking into files takes long, so it is done before the landing is held. What is taken is read again then: it decides.
        """
        known = {one.checksum for one in read_taken_files(self.journal, self.source.name)}
        fresh = [file for file in files if file.checksum not in known]
        return [*(file for file in files if file.checksum in known), *files_in_window(site, fresh, columns, window)]

    def _take(
        self,
        files: Sequence[LandingFile],
        columns: Columns,
        taken: Sequence[TakenFile],
        records: Mapping[str, BatchRecord],
    ) -> tuple[LandingPlan, Mapping[str, int]]:
        """Plan and take what is new. What was taken but never written down comes again under its old id and version."""
        by_checksum = {file.checksum: file for file in reversed(files)}
        done = {batch for batch, record in records.items() if record.status in ("staged", "committed")}
        open_batches: dict[str, list[LandingFile]] = {}
        versions: dict[str, int] = {}
        for one in taken:
            if one.batch not in done and one.checksum in by_checksum:
                open_batches.setdefault(one.batch, []).append(by_checksum[one.checksum])
                versions[one.batch] = min(one.version, versions.get(one.batch, one.version))
        again = {file.path for group in open_batches.values() for file in group}
        paths = {one.checksum: one.path for one in taken}
        shapes = {path: shape_of(self.source, found) for path, found in columns.items()}
        plan = plan_batches(self.source.name, [f for f in files if f.path not in again], paths, shapes=shapes)
        version = take_files(self.journal, self.source.name, plan.batches)
        old = [Batch(id=batch, files=tuple(group)) for batch, group in sorted(open_batches.items())]
        versions |= {batch.id: version for batch in plan.batches}
        return replace(plan, batches=(*old, *plan.batches)), versions

    def _resume_all(
        self,
        site: LoadSite,
        records: Iterable[BatchRecord],
        taken: Sequence[TakenFile],
        files: Sequence[LandingFile],
        columns: Columns,
    ) -> tuple[list[Ready], tuple[tuple[str, str], ...]]:
        """Commit what is written down: its driver died before it could. What cannot be finished is told and left."""
        resumed: list[Ready] = []
        unfinished: list[tuple[str, str]] = []
        files_of: dict[str, list[TakenFile]] = {}
        for one in taken:
            files_of.setdefault(one.batch, []).append(one)
        present = {file.checksum: file for file in files}
        for record in records:
            if record.status != "staged" or record.batch not in files_of:
                continue  # done, not begun, or a frame that somebody saved with `hold` and will commit
            if self._is_diverted():
                self._held.append(record.batch)
                continue
            self.log(f"{self.source.name}: finishing batch {record.batch} of {record.owner}, {record.rows} rows")
            try:
                resumed.append(self._resume(site, record, files_of[record.batch], present, columns))
            except (LandingRefused, WriteRefused) as error:
                self.log(str(error))
                unfinished.append((record.batch, str(error)))
        return resumed, tuple(unfinished)

    def _resume(
        self,
        site: LoadSite,
        record: BatchRecord,
        mine: Sequence[TakenFile],
        present: Mapping[str, LandingFile],
        columns: Columns,
    ) -> Ready:
        found = tuple(present[one.checksum] for one in mine if one.checksum in present)
        batch = Taken(batch=Batch(id=record.batch, files=found), version=min(one.version for one in mine))
        pace = self._next_pace()
        if not is_direct(record):
            ready = resume_staged(site, record, batch)
            with self._committing():
                commit_staged(site, ready, lambda: self._move(ready), pace.parallelism)
            return ready
        if len(found) < len(mine):
            missing = [one.path for one in mine if one.checksum not in present]
            raise LandingRefused(
                f"batch {record.batch} of {self.source.name}: found {len(found)} of its {len(mine)} files but wanted all. Some of its "
                f"rows may be in the source already. Bring {', '.join(missing[:3])} back as it was, then ingest again."
            )
        job, ready = resume_direct(site, record, batch, columns, read_footers(site, batch), pace.parallelism)
        with self._committing():
            commit_direct(site, job, ready, lambda: self._move(ready), pace.parallelism)
        return ready

    def _load(self, site: LoadSite, taken: Taken, columns: Columns) -> Ready | None:
        """Load a batch; None: it is staged and waits, since the source is diverted."""
        if self._is_diverted():
            with self._committing():  # a drain that finds it staged waits until we are done with it
                stage_batch(site, taken, columns)
            self._held.append(taken.batch.id)
            return None
        pace = self._next_pace()
        footers = read_footers(site, taken) if self.landing.format == "parquet" else ()
        if footers and can_go_direct(site, columns, taken, footers):
            job = plan_direct(site, taken, columns, footers, pace.batch_rows)
            with self._committing():
                ready = survey_batch(site, job, pace.parallelism)
                commit_direct(site, job, ready, lambda: self._move(ready), pace.parallelism)
        else:
            with self._committing():
                ready = stage_batch(site, taken, columns)
                commit_staged(site, ready, lambda: self._move(ready), pace.parallelism)
        self.log(
            f"{self.source.name}: batch {taken.batch.id}, {len(taken.batch.files)} files, {ready.record.rows} rows, "
            f"{ready.rows_quarantined} quarantined"
        )
        return ready

    def _is_diverted(self) -> bool:
        """Whether batches wait in staging for now; asked before each, since it may change during a long ingest."""
        return holds_commits(read_diversion(self.journal, self.source.name))

    def _committing(self) -> AbstractContextManager[Lease]:
        """Hold the source's commit lock: an owned rebuild runs between two batches, never during one."""
        return keep_lease(
            self.journal, commit_lock(self.source.name), wait_seconds=COMMIT_LOCK_WAIT_SECONDS, log=self.log
        )

    def _move(self, ready: Ready) -> None:
        move_watermarks(self.journal, self.pipeline, self.source.name, ready.record.batch, ready.hours)

    def _next_pace(self) -> Pace:
        """Rows per insert and inserts side by side, by the pressure of the moment; waits while the server refuses inserts."""
        tables = reached_targets(self.pipeline.catalog, self.source.name)
        for _ in range(_POLLS):
            before = self._pace.level
            ceiling = fetch_ceiling(self.journal.server, self.source.name, self.journal.cluster)
            limits = PACE_LIMITS if ceiling is None else replace(PACE_LIMITS, max_parallelism=ceiling)
            pressure = read_pressure(self.journal.server, tables)
            self._pace = adapt_pace(self._pace, pressure, limits, self.pipeline.settings.limits)
            if self._pace.level != before:
                self.log(f"{self.source.name}: server is {self._pace.level}: {self._pace.reason}")
            if self._pace.parallelism:
                return self._pace
            self.sleep(_POLL_SECONDS)
        raise IngestPaused(str(self.source.name), self._pace.reason, _POLLS * _POLL_SECONDS)


def _summary(done: Sequence[Ready], plan: LandingPlan) -> IngestSummary:
    late = sum(hour.late for one in done for hour in one.hours)
    return IngestSummary(
        files=sum(len(batch.files) for batch in plan.batches),
        files_known=plan.known,
        files_duplicate=len(plan.duplicates),
        rows_read=sum(one.rows_read for one in done),
        rows_on_time=sum(one.record.rows for one in done) - late,
        rows_late=late,
        rows_quarantined=sum(one.rows_quarantined for one in done),
    ).require_sum()


def _sum_reasons(done: Sequence[Ready]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for one in done:
        total.update(one.reasons)
    return dict(total)
