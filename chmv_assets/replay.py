"""Replay: rows of a source from its landing files once more, into a table of their own, for windows that the source has lost.

Only files that the manifest says are committed count, under the stamps they got then, so the rows are those that were inserted.
The target's views are then computed over that table (`resources.rebuild.owned`). Bad rows stay where they are: in quarantine since
their first time. The source itself is not touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.landing import Batch, LandingFile
from chmv_assets.core.manifest import TakenFile
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.windows import Window, window_predicate
from chmv_assets.direct_load import can_go_direct, plan_direct, read_footers
from chmv_assets.landing_windows import files_in_window
from chmv_assets.load import Columns, LoadSite, Taken
from chmv_assets.pipeline import Pipeline
from chmv_assets.staged_load import read_batch
from resources.executor import Executor
from resources.journal import Journal
from resources.journal.manifest import read_taken_files
from resources.landing import found_columns, list_files
from resources.landing_root import resolve_root
from spark_jobs.direct import insert_chunks, survey_chunks
from spark_jobs.landing_reader import FILE, RAW, REASON

CHUNK_ROWS = 500_000
TASKS = 4


@dataclass
class Replayer:
    """Replays sources of one pipeline; call it as `resources.rebuild` wants a `Replay`."""

    pipeline: Pipeline
    journal: Journal
    spark: Callable[[], SparkSession]
    log: Callable[[str], None] = field(default=lambda _line: None)

    def __call__(self, source: Object, window: Window | None, archive: QName) -> int:
        """Fill a new table with a source's rows; those of the window are all there, others may be. Gives their number."""
        site = self._site(source)
        files, columns = self._archived(site)
        if window is not None and site.policy.event_time is not None:
            touching = {file.path for file in files_in_window(site, [file for file, _ in files], columns, window)}
            files = [(file, one) for file, one in files if file.path in touching]
        self._create(source, archive)
        groups: dict[str, list[tuple[LandingFile, TakenFile]]] = {}
        for file, one in files:
            groups.setdefault(one.batch, []).append((file, one))
        for number, (batch, members) in enumerate(sorted(groups.items()), start=1):
            taken = Taken(
                batch=Batch(id=f"{archive.table}.{batch}", files=tuple(file for file, _ in members)),
                version=min(one.version for _, one in members),
            )
            self._load(site, taken, columns, archive)
            self.log(f"{source.name}: replayed batch {batch}, {len(members)} files ({number} of {len(groups)})")
        self._require_complete(site, window, archive)
        return self._count(archive)

    def _site(self, source: Object) -> LoadSite:
        policy = self.pipeline.settings.policy(source.name)
        if policy.landing is None:
            raise RebuildRefused(
                f"source {source.name}: found no landing in chmv.yaml but wanted one to replay from. Its rows are nowhere else. "
                "Declare `landing` if its files still exist."
            )
        return LoadSite(
            source=source,
            policy=policy,
            landing=policy.landing,
            root=resolve_root(policy.landing.path, self.pipeline.ddl_dir, os.environ),
            journal=self.journal,
            spark=self.spark,
        )

    def _archived(self, site: LoadSite) -> tuple[list[tuple[LandingFile, TakenFile]], Columns]:
        """The files of all committed batches, each with its place in the manifest; all have to be there still."""
        done = {one.batch for one in self.journal.read_batches(source=site.source.name, status="committed")}
        taken = [one for one in read_taken_files(self.journal, site.source.name) if one.batch in done]
        by_checksum = {file.checksum: file for file in list_files(site.root, site.landing.format)}
        missing = [one.path for one in taken if one.checksum not in by_checksum]
        if missing or not taken:
            found = f"{len(taken) - len(missing)} of {len(taken)} committed files"
            raise RebuildRefused(
                f"source {site.source.name}: found {found} in {site.root} but wanted all ({', '.join(missing[:3]) or 'none is known'}). "
                "A replay without them would leave rows out. Bring them back, or rebuild from the source."
            )
        files = [(by_checksum[one.checksum], one) for one in taken]
        return files, {file.path: found_columns(site.root, file, site.landing.format) for file, _ in files}

    def _create(self, source: Object, archive: QName) -> None:
        """A table of the source's columns that forgets nothing; for a source that stores rows, of its engine and order too."""
        server = self.journal.server
        self.journal.prepare()
        window = "SETTINGS non_replicated_deduplication_window = 10000"
        if source.engine.endswith("MergeTree"):
            Executor(server, log=lambda _line: None, cluster=self.journal.cluster).create_like(archive, source.name)
            if source.ttl:
                server.command(f"ALTER TABLE {archive.sql} REMOVE TTL")
        else:
            server.command(
                f"CREATE TABLE {archive.sql} AS {source.name.sql} ENGINE = MergeTree ORDER BY tuple() {window}"
            )

    def _load(self, site: LoadSite, taken: Taken, columns: Columns, archive: QName) -> None:
        """One batch into the archive; a task that is tried again adds nothing (tokens)."""
        footers = read_footers(site, taken) if site.landing.format == "parquet" else ()
        if not footers or not can_go_direct(site, columns, taken, footers):
            frame = read_batch(site, taken, columns)
            good = frame.where(F.col(REASON).isNull()).drop(REASON, RAW, FILE)
            site.write(good, archive, taken.batch.id, hold=False)
            return
        job = plan_direct(site, taken, columns, footers, CHUNK_ROWS)
        if not job.chunks:
            return
        slices = [survey.slice for survey in survey_chunks(site.spark(), job, TASKS)]
        record = BatchRecord(
            batch=job.batch, source=archive, status="staged", version=0, slices=tuple(slices), rows=sum(s.rows for s in slices)
        )  # fmt: skip
        if record.rows:
            insert_chunks(site.spark(), site.connection, replace(job, source=archive), record, TASKS)

    def _require_complete(self, site: LoadSite, window: Window | None, archive: QName) -> None:
        """What the source still holds of the window must be in the archive: else somebody else writes it too."""
        source, event = site.source, site.policy.event_time
        column = source.column(event) if event else None
        if not source.engine.endswith("MergeTree") or window is None or column is None:
            return
        condition = window_predicate(
            quote_identifier(column.name), column.type, window, self.pipeline.settings.timezone
        )
        counts: Sequence[int] = [
            int(self.journal.server.rows(f"SELECT count() FROM {table.sql} WHERE {condition}")[0][0])
            for table in (source.name, archive)
        ]
        if counts[0] > counts[1]:
            raise RebuildRefused(
                f"source {source.name}: holds {counts[0]} rows of the window but its landing files only {counts[1]}, and wanted all. Somebody "
                "else writes it too, so a replay would leave rows out. Rebuild from the source."
            )

    def _count(self, archive: QName) -> int:
        return int(self.journal.server.rows(f"SELECT count() FROM {archive.sql}")[0][0])
