"""From committed rows to watermarks: counts per hour of event time, then one move per window of every target behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from chmv_assets.core.batches import ATTEMPT_COLUMN, TASK_COLUMN, BatchRecord, staging_name
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.landing import LATENESS_BUCKETS_SECONDS
from chmv_assets.core.model import Object, ViewClass
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.settings import ObjectPolicy
from chmv_assets.core.watermarks import BatchOutcome, advance, micros
from chmv_assets.core.windows import Window, next_period_start, period_start, scheme_zone
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.introspect import fetch_columns
from resources.journal import Journal
from resources.journal.store import Decide


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCount:
    """What one hour of event time received in one batch."""

    start: datetime
    rows: int
    late: int
    newest_event: datetime
    newest_arrival: datetime
    histogram: tuple[int, ...]  # rows per lateness bucket

    def __add__(self, other: HourCount) -> HourCount:
        """The same hour from two parts of a batch."""
        return HourCount(
            start=self.start,
            rows=self.rows + other.rows,
            late=self.late + other.late,
            newest_event=max(self.newest_event, other.newest_event),
            newest_arrival=max(self.newest_arrival, other.newest_arrival),
            histogram=tuple(mine + theirs for mine, theirs in zip(self.histogram, other.histogram, strict=True)),
        )


def count_hours(
    server: Server, source: Object, policy: ObjectPolicy, record: BatchRecord, arrived_at: datetime
) -> tuple[HourCount, ...]:
    """Count the staged winners of a batch by hour; nothing if the source has no event time."""
    if policy.event_time is None or not record.slices:
        return ()
    staged = {name for name, _, _ in fetch_columns(server, staging_name(source.name, record.batch))}
    event = f"toDateTime64({quote_identifier(policy.event_time)}, 6, 'UTC')"
    has_arrival = policy.arrival is not None and policy.arrival in staged
    arrival = (
        f"toDateTime64({quote_identifier(policy.arrival or '')}, 6, 'UTC')"
        if has_arrival
        else "fromUnixTimestamp64Micro({arrived:Int64}, 'UTC')"
    )
    borders = ", ".join(str(border) for border in LATENESS_BUCKETS_SECONDS)
    bucket = f"arrayCount(border -> lateness >= border, [{borders}])"
    buckets = ", ".join(f"countIf({bucket} = {at})" for at in range(len(LATENESS_BUCKETS_SECONDS) + 1))
    rows = server.rows(
        f"SELECT toUnixTimestamp64Micro(toDateTime64(toStartOfHour({event}), 6, 'UTC')) AS hour, count(), "
        "countIf(lateness > {tolerance:Int64}), max(toUnixTimestamp64Micro(event)), max(toUnixTimestamp64Micro(arrival)), "
        f"[{buckets}] FROM (SELECT {event} AS event, {arrival} AS arrival, dateDiff('second', event, arrival) AS lateness, * "
        f"FROM {staging_name(source.name, record.batch).sql} "
        f"WHERE ({TASK_COLUMN}, {ATTEMPT_COLUMN}) IN {{winners:Array(Tuple(UInt32, String))}}) GROUP BY hour ORDER BY hour",
        {
            "arrived": micros(arrived_at),
            "tolerance": policy.lateness_tolerance_seconds,
            "winners": [(one.task, one.attempt) for one in record.slices],
        },
    )
    return tuple(
        HourCount(
            start=_moment(hour), rows=int(count), late=int(late), newest_event=_moment(newest), newest_arrival=_moment(arrived),
            histogram=tuple(int(number) for number in histogram),
        )
        for hour, count, late, newest, arrived, histogram in rows
    )  # fmt: skip


def _moment(value: int) -> datetime:
    return datetime.fromtimestamp(int(value) / 1_000_000, timezone.utc)


def reached_targets(catalog: Catalog, source: QName) -> dict[QName, ViewClass]:
    """The source itself and every target that its inserts reach, chains included; behind an opaque view all is opaque."""
    reached: dict[QName, ViewClass] = {source: "append"}
    waiting = [source]
    while waiting:
        table = waiting.pop()
        for view in catalog.fired_by(table):
            if view.target is None:
                continue
            opaque = reached[table] == "opaque"
            found: ViewClass = "opaque" if opaque else catalog.facts[view.name].view_class
            if view.target not in reached or (found == "opaque" and reached[view.target] != "opaque"):
                reached[view.target] = found
                waiting.append(view.target)
    return reached


def move_watermarks(
    journal: Journal, pipeline: Pipeline, source: QName, batch: str, hours: Sequence[HourCount]
) -> None:
    """Advance the watermarks of the source itself and of every target that its inserts reach."""
    changes: dict[QName, dict[Window, Decide]] = {}
    for target, view_class in reached_targets(pipeline.catalog, source).items():
        outcomes = outcomes_by_window(pipeline, target, batch, hours)
        if outcomes:
            changes[target] = {window: _decide(outcome, view_class) for window, outcome in outcomes.items()}
    if changes:
        journal.move_watermarks(source, changes)


def outcomes_by_window(
    pipeline: Pipeline, target: QName, batch: str, hours: Sequence[HourCount]
) -> dict[Window, BatchOutcome]:
    """What a batch did to each window of a target; nothing for a target without a time partition key."""
    scheme = pipeline.catalog.schemes.get(target)
    if scheme is None:
        return {}
    zone = scheme_zone(scheme, pipeline.settings.timezone)
    found: dict[Window, list[HourCount]] = {}
    for hour in hours:
        start = period_start(hour.start, scheme.unit, zone, scheme.week_mode)
        found.setdefault(Window(start, next_period_start(start, scheme.unit, zone)), []).append(hour)
    return {
        window: BatchOutcome(
            batch_id=batch,
            succeeded=True,
            max_event_ts=max(hour.newest_event for hour in inside),
            max_arrival_ts=max(hour.newest_arrival for hour in inside),
            late_rows=sum(hour.late for hour in inside),
        )
        for window, inside in found.items()
    }


def _decide(outcome: BatchOutcome, view_class: ViewClass) -> Decide:
    return lambda mark, version: advance(mark, outcome, view_class, version)
