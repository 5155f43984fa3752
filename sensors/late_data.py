"""`late_data_sensor`: rows came in late → the windows that cannot take them by themselves are rebuilt.

Read (three queries, whatever the number of sources, and Dagster's own runs), decide (`late_data_verdict`, pure), ask. A server that
does not answer is told, not raised, and the cursor stays where it is. (No `from __future__ import annotations`: Dagster inspects
these signatures.)
"""

import time
from collections.abc import Callable, Collection, Sequence
from functools import cache

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window, periods
from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline
from chmv_assets.watermark_moves import reached_targets
from resources.clickhouse_resource import ClickHouseResource
from resources.journal import cluster_from_environment
from resources.late_rows import LateSource, read_late_rows
from sensors.asking import ask_digest, choose, read_ask_attempts, result_of
from sensors.late_data_verdict import Reached, asked_of, decide, load_cursor, with_root

NAME = "late_data_sensor"


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
    scheme = pipeline.catalog.schemes.get(target)
    if scheme is None:  # the whole is rebuilt, whichever hour it was
        return lambda window: (window,)
    unit, zone = pipeline.settings.policy(target).cadence or scheme.unit, pipeline.settings.timezone
    return lambda window: tuple(periods(window, unit, zone, scheme.week_mode))


def build_late_data_sensor(
    pipeline: Pipeline, *, running: bool, now: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """The sensor over all sources that say when a row happened and when it arrived."""

    @cache
    def graph() -> tuple[tuple[LateSource, ...], tuple[Reached, ...]]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        sources = late_sources(pipeline)
        return sources, tuple(one for source in sources for one in reached_of(pipeline, source.source))

    @dg.sensor(
        name=NAME,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=int(pipeline.settings.limits.sensor_every),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Late rows → the touched windows of targets that cannot take them by themselves are rebuilt, newest first.",
    )
    def late_data_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        sources, reached = graph()
        if not sources:
            return dg.SkipReason(
                "No source names both `event_time` and `arrival` in chmv.yaml, so late rows cannot be told from others."
            )
        moment, limits = now(), pipeline.settings.limits
        cursor = load_cursor(context.cursor)
        try:
            with clickhouse.connect(sensor=NAME) as server:
                seen = read_late_rows(
                    server, sources, cursor.fence_us, limits.late_overlap, cluster_from_environment(), behind=cursor.behind
                )  # fmt: skip
        except ChmvError as error:
            return dg.SkipReason(f"The server could not be asked, the next tick reads from the same moment: {error}")
        earlier = asked_of(cursor)
        runs = read_ask_attempts(context.instance, earlier)
        done = {ask.key for ask in earlier if (run := runs.get(ask_digest(ask))) is not None and run.latest == "done"}
        verdict = decide(seen, reached, cursor, now=moment, limits=limits, done=done)
        chosen = choose(verdict.asks, read_ask_attempts(context.instance, verdict.asks), moment, limits)
        context.log.info(verdict.told)
        return result_of(chosen, NAME, verdict.told, verdict.cursor.dump())

    return late_data_sensor
