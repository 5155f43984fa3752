"""Repairs of a merge backlog: merge one partition, let a source's batches wait in staging, and bring them in when it is calm again.

Invariants: never more than one partition is merged, and none whose parts a rebuild of ours holds; a diverted batch is committed exactly
once, by the journal's own path (`resources.journal.recovery`); readers go back to the primary only after the windows that were
drained into are compared. Every step looks first, so a repair that died half way is simply done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.chunks import is_direct
from chmv_assets.core.errors import ChmvError, RecoveryFailed
from chmv_assets.core.manifest import TakenFile
from chmv_assets.core.names import QName
from chmv_assets.core.pressure import judge_pressure
from chmv_assets.core.rebuild_journal import COMMIT_LOCK_WAIT_SECONDS, commit_lock
from chmv_assets.core.recovery import Ask, Outcome
from chmv_assets.core.serving_journal import Route
from chmv_assets.core.versions import split_version
from chmv_assets.core.windows import Window
from chmv_assets.recovery.routes import open_router
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.recovery.windows import verify_windows
from chmv_assets.watermark_moves import HourCount, count_hours, move_watermarks, outcomes_by_window, reached_targets
from resources.backlog import count_parts, measure_partition, read_fullest
from resources.journal.diversions import note_diversion, read_diversion
from resources.journal.lease import keep_lease
from resources.journal.manifest import read_taken_files
from resources.journal.recovery import finish_batch
from resources.pressure import read_pressure
from resources.rebuild.recovery import recover_rebuilds

WHOLE_BYTES = 8 * 2**30  # merged whole within minutes; of a larger partition the server chooses parts that are worth it
REASON = "merge backlog"  # of routes that are ours to take back
Touched = set[tuple[QName, Window | None]]


def recover(site: RecoverySite, ask: Ask) -> Outcome:
    """Carry out what the merge backlog sensor asked for."""
    if ask.damage == "optimize":
        return _optimize(site, ask)
    if ask.damage == "divert":
        return _divert(site, ask)
    if ask.damage == "drain":
        return _drain(site, ask)
    raise RecoveryFailed(
        f"repair {ask.subject}: found the damage {ask.damage!r} but wanted optimize, divert or drain. Nothing was done. "
        "Restart the daemon and the location with the same version of chmv."
    )


# --- one partition -------------------------------------------------------------------------------------------------


def partition_of(ask: Ask) -> str:
    """The partition that an `optimize` is about; the rest of the evidence counts the repairs.

    >>> partition_of(Ask(kind="backlog", subject=QName("d", "t"), damage="optimize", evidence="20260705 #7"))
    '20260705'
    """
    return ask.evidence.rpartition(" #")[0]


def _optimize(site: RecoverySite, ask: Ask) -> Outcome:
    table, partition = ask.subject, partition_of(ask)
    before, size = measure_partition(site.server, table, partition)
    recover_rebuilds(site.executor, site.journal)  # merges that a dead rebuild stopped
    if holder := holds_merges(site, table):
        site.did(f"left {table} alone: {holder} keeps its parts as they are and lets it merge again when it ends")
        return _merged(site, before, before)
    if before <= 1:
        site.did(f"{table} partition {partition} has {before} part(s) by now, there is nothing to merge")
        return _merged(site, before, before)
    site.executor.start_merges(table)
    site.did(f"let {table} merge, in case somebody had stopped it")
    site.executor.optimize_partition(table, partition, final=size <= WHOLE_BYTES)
    after = count_parts(site.server, table, partition)
    site.did(f"merged {table} partition {partition}: {before} → {after} parts")
    if after >= before:
        raise RecoveryFailed(
            f"repair {table} partition {partition}: found {after} parts after the merge and {before} before but wanted fewer. Inserts came "
            "faster than they are merged, or merges were stopped again. It is tried again by itself; writers should send larger batches."
        )
    return _merged(site, before, after)


def _merged(site: RecoverySite, before: int, after: int) -> Outcome:
    return Outcome(tier=1, steps=tuple(site.steps), before={"parts": str(before)}, after={"parts": str(after)})


def holds_merges(site: RecoverySite, table: QName) -> str:
    """Which running rebuild of ours has stopped the merges of a table; nothing if none has."""
    for record in site.journal.read_rebuilds(statuses=("running",)):
        begun = record.steps[: record.step + 1]
        if any(step.kind == "hold merges" and step.name == table for step in begun):
            return f"the rebuild {record.rebuild_id} of {record.target}"
    return ""


# --- into staging and back -----------------------------------------------------------------------------------------


def _divert(site: RecoverySite, ask: Ask) -> Outcome:
    source = ask.subject
    present = read_diversion(site.journal, source)
    before = _parts(site, source)
    if present is not None and present.holds:
        site.did(f"{source} is {present.status} already")
    else:
        seen = ask.seen.get("fullest") or ask.evidence
        note_diversion(site.journal, source, "diverted", f"{REASON}: {seen}", since_ms=site.now_ms())
        site.did(f"batches of {source} wait in staging from now on: {seen}")
        if site.pipeline.settings.policy(source).landing is None:
            site.did(f"{source} declares no landing: whoever else writes into it is not held back")
    _route(site, _targets(site, source), "snapshot", ask)
    return Outcome(tier=3, steps=tuple(site.steps), before=before, after=_parts(site, source))


def _drain(site: RecoverySite, ask: Ask) -> Outcome:
    source = ask.subject
    present = read_diversion(site.journal, source)
    before = {**_parts(site, source), "batches in staging": str(len(_staged(site, source)))}
    if present is None or not present.holds:
        site.did(f"{source} is not diverted any more")
        return Outcome(tier=1, steps=tuple(site.steps), before=before, after=before)
    note_diversion(site.journal, source, "draining", present.reason)
    touched = _commit_all(site, source)
    equal = verify_windows(site, sorted(touched, key=str)) if touched else 0
    _route(site, _targets(site, source), "primary", ask)
    note_diversion(site.journal, source, "clear", present.reason)
    site.did(f"batches of {source} are committed again as they come")
    _finish_direct(site, source)
    late = _commit_all(site, source)  # staged by an ingest that saw the diversion while we ended it
    equal += verify_windows(site, sorted(late, key=str)) if late else 0
    after = {**_parts(site, source), "batches in staging": str(len(_staged(site, source)))}
    return Outcome(tier=3, steps=tuple(site.steps), before=before, after=after, reconciled=equal)


def _staged(site: RecoverySite, source: QName) -> list[tuple[BatchRecord, datetime]]:
    """Batches of landing files that are staged, oldest first, with their arrival.

    A frame that somebody saved with `hold` is theirs to commit; a direct batch waits in its files (`_finish_direct`).
    """
    files: dict[str, list[TakenFile]] = {}
    for one in read_taken_files(site.journal, source):
        files.setdefault(one.batch, []).append(one)
    found = [
        record
        for record in site.journal.read_batches(source=source, status="staged")
        if record.batch in files and not is_direct(record)
    ]
    return [(record, _arrived(files[record.batch])) for record in reversed(found)]


def _finish_direct(site: RecoverySite, source: QName) -> None:
    """Batches that an ingest had begun to insert from their files when it died, before the diversion: an ingest finishes them, with Spark."""
    waiting = [record for record in site.journal.read_batches(source=source, status="staged") if is_direct(record)]
    if not waiting:
        return
    from chmv_assets.ingest_asset import ingest_landing
    from resources.spark_session import LazySession, options_from_environment

    session = LazySession(options_from_environment())
    try:
        ingest_landing(
            site.pipeline, site.pipeline.catalog.objects[source], site.server, session.session, None, site.log
        )
    finally:
        session.stop()
    site.did(f"ingested what waited in the landing files of {source}: {len(waiting)} batch(es)")


def _arrived(files: Sequence[TakenFile]) -> datetime:
    """When a batch was taken: the arrival of its rows, the same in every attempt."""
    version = min(one.version for one in files)
    return datetime.fromtimestamp(split_version(version).milliseconds / 1000, timezone.utc)


def _commit_all(site: RecoverySite, source: QName) -> Touched:
    """Commit what is staged; gives the windows to compare. Stops before the server does: what is left is drained by the next try."""
    touched: Touched = set()
    for record, arrived in _staged(site, source):
        _require_room(site, source)
        hours = _commit(site, source, record, arrived)
        touched |= _windows(site, source, record.batch, hours)
        site.did(f"committed batch {record.batch} of {source}: {record.rows} rows")
    return touched


def _commit(site: RecoverySite, source: QName, record: BatchRecord, arrived: datetime) -> tuple[HourCount, ...]:
    node = site.pipeline.catalog.objects[source]
    policy = site.pipeline.settings.policy(source)
    with keep_lease(site.journal, commit_lock(source), wait_seconds=COMMIT_LOCK_WAIT_SECONDS, log=site.log):
        present = site.journal.read_batch(source, record.batch)
        if present is None or present.status != "staged":
            return ()  # an ingest was faster
        hours = count_hours(site.server, node, policy, record, arrived)
        finish_batch(
            site.journal,
            source,
            record.batch,
            before_mark=lambda: move_watermarks(site.journal, site.pipeline, source, record.batch, hours),
        )
    return hours


def _require_room(site: RecoverySite, source: QName) -> None:
    pressure = read_pressure(site.server, reached_targets(site.pipeline.catalog, source))
    level, reason = judge_pressure(pressure, site.pipeline.settings.limits)
    if level == "stop":
        raise RecoveryFailed(
            f"drain of {source}: found {reason} but wanted room for a batch. More inserts would be refused. What is left stays in staging "
            "and is drained by itself when parts are merged."
        )


def _windows(site: RecoverySite, source: QName, batch: str, hours: Sequence[HourCount]) -> Touched:
    """The windows that a batch went into, of targets that are right by themselves; opaque ones are the late data sensor's."""
    found: Touched = set()
    for target, view_class in reached_targets(site.pipeline.catalog, source).items():
        if target != source and view_class != "opaque":
            found |= {(target, window) for window in outcomes_by_window(site.pipeline, target, batch, hours)}
    return found


def _targets(site: RecoverySite, source: QName) -> list[QName]:
    return [name for name in reached_targets(site.pipeline.catalog, source) if name != source]


def _route(site: RecoverySite, targets: Sequence[QName], route: Route, ask: Ask) -> None:
    """Send readers to the snapshots, or those back that we have sent there; a target without a usable snapshot stays where it is."""
    router = open_router(site)
    present = router.read_routes()
    for target in targets:
        found = present.get(target)
        ours = found is not None and found.route == "snapshot" and found.reason.startswith(REASON)
        if ours == (route == "snapshot"):
            continue
        try:
            router.switch(target, route, f"{REASON}: {ask.subject} {ask.damage}", ask.evidence)
        except ChmvError as error:
            if route == "primary":
                raise
            site.did(f"readers of {target} stay with the primary: {error}")
        else:
            site.did(f"readers of {target} read the {route}")


def _parts(site: RecoverySite, source: QName) -> dict[str, str]:
    """The most parts of one partition, over all that the source's inserts reach."""
    found = read_fullest(site.server, reached_targets(site.pipeline.catalog, source)).values()
    worst = max(found, key=lambda one: (one.parts, one.table), default=None)
    return {"parts": str(worst.parts) if worst else "0", "fullest": f"{worst.table}" if worst else ""}
