"""`freshness_sensor`: targets that are behind for longer than their SLA → readers to the snapshot, and back when they have caught up.

At most three queries; `freshness_verdict` decides, `recovery_sensor` asks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.freshness import Seen, period_seconds
from chmv_assets.core.names import QName
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.freshness import FreshnessReader
from resources.journal import cluster_from_environment
from sensors.freshness_verdict import Cursor, Reach, build_reach, decide, load_cursor
from sensors.recovery_sensor import Clock, build_recovery_sensor
from sensors.verdict import Verdict

NAME = "freshness_sensor"


def refresh_periods(pipeline: Pipeline) -> Mapping[QName, float]:
    """How often each declared refreshable view should be refreshed; without those whose schedule cannot be read."""
    declared = {
        name: period_seconds(made.refresh.schedule)
        for name, made in pipeline.catalog.objects.items()
        if made.kind == "refreshable_view" and made.refresh is not None
    }
    return {name: seconds for name, seconds in declared.items() if seconds is not None}


def build_freshness_sensor(pipeline: Pipeline, *, running: bool, now: Clock = time.time) -> dg.SensorDefinition:
    """The sensor over all targets of a pipeline."""

    @cache
    def graph() -> tuple[Reach, FreshnessReader]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        return build_reach(pipeline.catalog), FreshnessReader(refresh_periods(pipeline))

    def read(server: Server, _cursor: str | None, moment: float) -> Seen:
        _, reader = graph()
        try:
            return reader.read(server, int(moment * 1000), cluster_from_environment())
        except ChmvError:
            reader.forget()
            raise

    def judge(seen: Seen, context: dg.SensorEvaluationContext, moment: float) -> Verdict[Cursor]:
        cursor, policies = load_cursor(context.cursor), pipeline.settings.policy
        return decide(seen, cursor, reach=graph()[0], policies=policies, now_ms=int(moment * 1000))

    return build_recovery_sensor(
        pipeline,
        name=NAME,
        description="Behind for longer than the SLA → readers go to the snapshot; caught up → back to the primary.",
        running=running,
        now=now,
        read=read,
        judge=judge,
    )
