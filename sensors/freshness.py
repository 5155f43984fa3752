"""`freshness_sensor`: targets that are behind for longer than their SLA → readers to the snapshot, and back when they have caught up.

At most three queries; `freshness_verdict` decides, `recovery_sensor` asks.
"""

from __future__ import annotations

import time
from functools import cache

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.freshness import Seen
from chmv_assets.core.freshness_reach import Reach, build_reach, refresh_periods
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.freshness import FreshnessReader
from resources.journal import cluster_from_environment
from sensors.freshness_verdict import Cursor, decide, load_cursor
from sensors.recovery_sensor import Clock, build_recovery_sensor
from sensors.verdict import Verdict

NAME = "freshness_sensor"


def build_freshness_sensor(pipeline: Pipeline, *, running: bool, now: Clock = time.time) -> dg.SensorDefinition:
    """The sensor over all targets of a pipeline."""

    @cache
    def graph() -> tuple[Reach, FreshnessReader]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        return build_reach(pipeline.catalog), FreshnessReader(refresh_periods(pipeline.catalog))

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
        description="Sees targets that are behind for longer than their sla; sends readers of serving.<target> to the snapshot, and back when it has caught up.",
        running=running,
        now=now,
        read=read,
        judge=judge,
    )
