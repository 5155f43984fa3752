"""The metrics that chmv exports, as data: name, type, labels, meaning. Pure; `metrics_samples` fills them in.

Names follow Prometheus: base units, `_seconds`, `_total` for what only rises. Invariant: labels hold names of declared objects and words of closed
lists, never a partition, a window, a batch or a text that somebody wrote, so that the number of series follows the number of objects and
no secret can get in. `docs/metrics.md` lists the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram"]
BUCKETS: tuple[float, ...] = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric."""

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a gauge or a counter."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Spread:
    """One series of a histogram: how many were at most as long as each of `BUCKETS`, how many in all, their sum."""

    labels: tuple[str, ...]
    counts: tuple[float, ...]
    count: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric with its series."""

    spec: MetricSpec
    samples: tuple[Sample, ...] = ()
    spreads: tuple[Spread, ...] = ()


def _gauge(name: str, about: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="gauge", about=about, labels=labels)


def _counter(name: str, about: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="counter", about=about, labels=labels)


def _histogram(name: str, about: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="histogram", about=about, labels=labels)


METRICS: tuple[MetricSpec, ...] = (
    # the endpoint itself
    _gauge("chmv_up", "1 if the ClickHouse server answered, else 0."),
    _gauge("chmv_build_info", "Always 1; the versions are labels.", "version", "server_version"),
    _gauge("chmv_collected_timestamp_seconds", "When the numbers were read from the server; scrapes in between get the same ones."),
    _gauge("chmv_collection_duration_seconds", "How long reading them took."),
    _counter("chmv_collection_errors_total", "Reads that failed since this process began, by what was read.", "part"),
    # time
    _gauge("chmv_watermark_timestamp_seconds", "The latest event time that is known to be in the table; of several sources the one that is furthest behind.", "target"),
    _gauge("chmv_watermark_lag_seconds", "How far that event time lies behind the present.", "target"),
    _gauge("chmv_windows", "Watermarks of a table, one per window and source, by status; stale and reopened ones got late rows.", "target", "status"),
    _gauge("chmv_target_behind_seconds", "For how long something (an outage, a diversion, staged batches, stale windows, a refresh that is due) holds the target back; 0 if nothing does.", "target"),
    _gauge("chmv_target_sla_seconds", "For how long it may be held back before readers go to the snapshot.", "target"),
    # merges and inserts
    _gauge("chmv_partition_parts_max", "Active parts of the partition that has most of them.", "table"),
    _gauge("chmv_parts_to_delay_insert", "From how many parts of a partition on inserts are slowed down.", "table"),
    _gauge("chmv_parts_to_throw_insert", "From how many parts of a partition on inserts are refused.", "table"),
    _gauge("chmv_parts_delay_forecast_seconds", "When the fullest partition reaches the delay limit if it fills as fast as in the last half minute; 0: it has, +Inf: not by this trend.", "table"),
    _gauge("chmv_merge_pool_tasks", "Merges and mutations that run or wait in the pool."),
    _gauge("chmv_merge_pool_size", "How many the pool holds."),
    _gauge("chmv_oldest_merge_seconds", "How long the oldest running merge has been running."),
    _gauge("chmv_mutations_pending", "Mutations of the pipeline's databases that are not done."),
    _gauge("chmv_mutations_failing", "Those of them whose last try failed."),
    _gauge("chmv_inserts_delayed", "Inserts that wait at this moment because of too many parts."),
    _counter("chmv_inserts_delayed_total", "Blocks whose insert was slowed down, since the server began."),
    _counter("chmv_inserts_rejected_total", "Blocks whose insert was refused, since the server began."),
    _gauge("chmv_async_insert_queue", "Asynchronous inserts that wait to be written."),
    _gauge("chmv_distributed_files", "Files of Distributed tables that wait to be sent."),
    _gauge("chmv_replication_queue", "Tasks in the replication queues of the pipeline's databases, on this server."),
    _gauge("chmv_replication_delay_seconds", "The largest delay among the replicas of the pipeline's databases, on this server."),
    _gauge("chmv_replicas_readonly", "Replicated tables of the pipeline's databases that are read-only, on this server."),
    # objects, readers, outages
    _gauge("chmv_object_present", "1 if a declared view or table is on the server, else 0.", "object", "kind"),
    _gauge("chmv_route", "1 for where the readers of a target are sent, 0 for where they are not.", "target", "route"),
    _gauge("chmv_source_diverted", "1 if batches of a source wait in staging because of too many parts, else 0.", "source"),
    _gauge("chmv_outages", "Outages that are open, or isolated: the view was taken off.", "status"),
    _gauge("chmv_outage_age_seconds", "For how long an outage has been open; only while it is.", "object", "status"),
    # work
    _counter("chmv_rebuilds_total", "Rebuilds that have ended.", "protocol", "outcome"),
    _histogram("chmv_rebuild_duration_seconds", "From the beginning of a rebuild to its end.", "protocol", "outcome"),
    _gauge("chmv_rebuilds_open", "Rebuilds that run, or that were swapped in and never compared.", "status"),
    _counter("chmv_recovery_detections_total", "Damages that sensors have asked to be repaired.", "kind"),
    _histogram("chmv_recovery_duration_seconds", "From the beginning of a repair that went well to its end.", "kind"),
    _histogram("chmv_recovery_since_detection_seconds", "From the detection of a damage to the end of its repair.", "kind"),
    _gauge("chmv_recoveries", "Repairs that run, that have failed and were not done since, or that ended in isolation.", "kind", "status"),
    _counter("chmv_late_rows_total", "Late rows for which something had to be done, by what was done (late rows: rebuilt, reopen: compared again).", "object", "damage"),
    _counter("chmv_late_windows_total", "Windows for which something had to be done because of late rows.", "object", "damage"),
    _gauge("chmv_batches", "Batches of a source by status.", "source", "status"),
    _counter("chmv_batch_rows_total", "Rows of committed batches.", "source"),
    _gauge("chmv_quarantined_rows", "Bad rows in quarantine.", "source"),
    _gauge("chmv_deployments", "Deployments by status; running and failed ones are unfinished.", "status"),
    _gauge("chmv_locks_held", "Locks of the journal that somebody holds, by what they are for.", "lock"),
)  # fmt: skip
BY_NAME: Mapping[str, MetricSpec] = {one.name: one for one in METRICS}


def exposed_names(spec: MetricSpec) -> tuple[str, ...]:
    """The names of the series that a scrape shows.

    >>> exposed_names(MetricSpec(name="x_seconds", kind="histogram", about=""))
    ('x_seconds_bucket', 'x_seconds_count', 'x_seconds_sum')
    """
    if spec.kind == "histogram":
        return tuple(f"{spec.name}_{end}" for end in ("bucket", "count", "sum"))
    return (spec.name,)
