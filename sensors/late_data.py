"""`late_data_sensor`: rows came in late → the windows that cannot take them by themselves are rebuilt.

Three queries, whatever the number of sources; `late_data_verdict` decides, `recovery_sensor` asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import cache

import dagster as dg

from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from chmv_assets.watermark_moves import reached_targets
from resources.clickhouse import Server
from resources.journal import cluster_from_environment
from resources.late_rows import LateSeen, LateSource, read_late_rows
from sensors.asking import read_done
from sensors.late_data_cursor import Cursor, load_cursor
from sensors.late_data_verdict import Reached, asked_of, decide, with_root
from sensors.recovery_sensor import Clock, build_recovery_sensor
from sensors.verdict import Verdict

NAME = "late_data_sensor"
_NO_SOURCE = "No source names both `event_time` and `arrival` in chmv.yaml, so late rows cannot be told from others."


def late_sources(pipeline: Pipeline) -> tuple[LateSource, ...]:
    """The tables that no view writes into and whose settings name an event time and an arrival time."""
    found: list[LateSource] = []
    for name, node in sorted(pipeline.catalog.objects.items()):
        policy = pipeline.settings.policy(name)
        if not family(node.engine) or pipeline.catalog.views_into(name) or not policy.event_time or not policy.arrival:
            continue
        found.append(
            LateSource(
                source=name,
                event_time=policy.event_time,
                arrival=policy.arrival,
                tolerance_seconds=policy.lateness_tolerance_seconds,
            )
        )
    return tuple(found)


def reached_of(pipeline: Pipeline, source: QName) -> tuple[Reached, ...]:
    """What the inserts of a source reach, with the periods that a repair is cut into."""
    catalog = pipeline.catalog
    classes = reached_targets(catalog, source)
    in_front = _in_front(pipeline, classes)
    return with_root(
        [
            Reached(
                source=source,
                target=target,
                view_class=view_class,
                root=False,
                auto=pipeline.settings.policy(target).recovery == "auto",
                upstream=in_front[target],
                periods=_periods_of(pipeline, target),
            )
            for target, view_class in classes.items()
        ]
    )


def _in_front(pipeline: Pipeline, tables: Collection[QName]) -> dict[QName, frozenset[QName]]:
    """Of each table those of the others whose rows it is made of, directly or not."""
    catalog = pipeline.catalog
    direct = {
        table: {trigger for view in catalog.views_into(table) if (trigger := catalog.trigger_of(view.name)) in tables}
        for table in tables
    }
    found: dict[QName, frozenset[QName]] = {}
    for table in tables:
        seen: set[QName] = set()
        waiting = [table]
        while waiting:
            fresh = {name for name in direct[waiting.pop()] if name is not None} - seen
            seen |= fresh
            waiting += fresh
        found[table] = frozenset(seen - {table})
    return found


def _periods_of(pipeline: Pipeline, target: QName) -> Callable[[Window], Sequence[Window]]:
    calendar = pipeline.rebuild_calendar(target)
    if calendar is None:  # the whole is rebuilt, whichever hour it was
        return lambda window: (window,)
    return lambda window: tuple(calendar.periods(window))


def build_late_data_sensor(pipeline: Pipeline, *, running: bool, now: Clock = time.time) -> dg.SensorDefinition:
    """The sensor over all sources that say when a row happened and when it arrived."""

    @cache
    def graph() -> tuple[tuple[LateSource, ...], tuple[Reached, ...]]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        sources = late_sources(pipeline)
        return sources, tuple(one for source in sources for one in reached_of(pipeline, source.source))

    def idle() -> str:
        return "" if graph()[0] else _NO_SOURCE

    def read(server: Server, cursor: str | None, _moment: float) -> LateSeen:
        known, overlap = load_cursor(cursor), pipeline.settings.limits.late_overlap
        cluster = cluster_from_environment()
        return read_late_rows(server, graph()[0], known.fence_us, overlap, cluster, behind=known.behind)

    def judge(seen: LateSeen, context: dg.SensorEvaluationContext, moment: float) -> Verdict[Cursor]:
        cursor = load_cursor(context.cursor)
        done = read_done(context.instance, asked_of(cursor))
        return decide(seen, graph()[1], cursor, now=moment, limits=pipeline.settings.limits, done=done)

    return build_recovery_sensor(
        pipeline,
        name=NAME,
        description="Sees rows that arrive later than lateness_tolerance; asks recovery_job to rebuild the windows of targets that cannot take them by themselves (opaque views), newest first.",
        running=running,
        now=now,
        read=read,
        judge=judge,
        idle=idle,
    )
