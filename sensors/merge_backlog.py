"""`merge_backlog_sensor`: parts pile up → merge one partition, or let batches wait in staging until it is calm.

Three queries, whatever the number of tables; `merge_backlog_verdict` decides, `recovery_sensor` asks.
"""

from __future__ import annotations

import time
from functools import cache

import dagster as dg

from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.pipeline import Pipeline
from chmv_assets.watermark_moves import reached_targets
from resources.backlog import Backlog, read_backlog
from resources.clickhouse import Server
from resources.journal import cluster_from_environment
from sensors.asking import read_done
from sensors.merge_backlog_verdict import Cursor, Watched, asked_of, decide, load_cursor
from sensors.recovery_sensor import Clock, build_recovery_sensor
from sensors.verdict import Verdict

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


def build_merge_backlog_sensor(pipeline: Pipeline, *, running: bool, now: Clock = time.time) -> dg.SensorDefinition:
    """The sensor over all sources of a pipeline and what their inserts reach."""

    @cache
    def graph() -> tuple[tuple[Watched, ...], frozenset[QName]]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        watched = watched_sources(pipeline)
        return watched, frozenset(table for one in watched for table in one.tables)

    def read(server: Server, _cursor: str | None, _moment: float) -> Backlog:
        return read_backlog(server, graph()[1], cluster_from_environment())

    def judge(seen: Backlog, context: dg.SensorEvaluationContext, moment: float) -> Verdict[Cursor]:
        cursor, settings = load_cursor(context.cursor), pipeline.settings
        done = read_done(context.instance, asked_of(cursor))
        return decide(seen, graph()[0], cursor, now=moment, limits=settings.limits, zone=settings.timezone, done=done)

    return build_recovery_sensor(
        pipeline,
        name=NAME,
        description="Sees partitions with too many parts, before the server delays inserts; slows our ingest, merges that one partition, or lets new batches wait in staging.",
        running=running,
        now=now,
        read=read,
        judge=judge,
    )
