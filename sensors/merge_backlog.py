"""`merge_backlog_sensor`: parts pile up → merge one partition, or let batches wait in staging until it is calm.

Read (three queries, whatever the number of tables, and Dagster's own runs), decide (`merge_backlog_verdict`, pure), ask. A server
that does not answer is told, not raised. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import time
from collections.abc import Callable
from functools import cache

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline
from chmv_assets.watermark_moves import reached_targets
from resources.backlog import read_backlog
from resources.clickhouse_resource import ClickHouseResource
from resources.journal import cluster_from_environment
from sensors.asking import ask_digest, choose, read_ask_attempts, result_of
from sensors.merge_backlog_verdict import Watched, asked_of, decide, load_cursor

NAME = "merge_backlog_sensor"


def watched_sources(pipeline: Pipeline) -> tuple[Watched, ...]:
    """Every MergeTree table that no view writes into, with all that its inserts reach."""
    catalog = pipeline.catalog
    found: list[Watched] = []
    for name, node in sorted(catalog.objects.items()):
        if not family(node.engine) or catalog.views_into(name):
            continue
        reached = [table for table in sorted(reached_targets(catalog, name)) if family(catalog.objects[table].engine)]
        off = frozenset(table for table in reached if pipeline.settings.policy(table).recovery == "off")
        found.append(Watched(source=name, tables=tuple(reached), off=off))
    return tuple(found)


def build_merge_backlog_sensor(
    pipeline: Pipeline, *, running: bool, now: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """The sensor over all sources of a pipeline and what their inserts reach."""

    @cache
    def graph() -> tuple[tuple[Watched, ...], frozenset[QName]]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        watched = watched_sources(pipeline)
        return watched, frozenset(table for one in watched for table in one.tables)

    @dg.sensor(
        name=NAME,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=int(pipeline.settings.limits.sensor_every),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Merges lag behind inserts → one partition is merged, or batches wait in staging and readers read the snapshot.",
    )
    def merge_backlog_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        moment, limits = now(), pipeline.settings.limits
        watched, tables = graph()
        try:
            with clickhouse.connect(sensor=NAME) as server:
                seen = read_backlog(server, tables, cluster_from_environment())
        except ChmvError as error:
            return dg.SkipReason(f"The server could not be asked, the next tick tries again: {error}")
        cursor = load_cursor(context.cursor)
        earlier = asked_of(cursor)
        runs = read_ask_attempts(context.instance, earlier)
        done = {ask.key for ask in earlier if (run := runs.get(ask_digest(ask))) is not None and run.latest == "done"}
        verdict = decide(seen, watched, cursor, now=moment, limits=limits, zone=pipeline.settings.timezone, done=done)
        chosen = choose(verdict.asks, read_ask_attempts(context.instance, verdict.asks), moment, limits)
        context.log.info(verdict.told)
        return result_of(chosen, NAME, verdict.told, verdict.cursor.dump())

    return merge_backlog_sensor
