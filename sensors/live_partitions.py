"""`live_partitions_sensor`: what ClickHouse writes by itself is told to Dagster, so that its partitions are not shown as missing.

Three queries at most; `live_partitions_verdict` decides. The server says which tables moved since the last tick, only those are looked at in detail,
and only of what is due Dagster's event log is asked. It asks for no runs. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import time
from collections.abc import Sequence

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.live_partitions import LivePartition, LivePartitions, fetch_told, live_event, upstream_first
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator, NodeProps
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from sensors.live_partitions_verdict import TOLD_PER_TICK, Memory, to_ask
from sensors.recovery_sensor import Clock, status_of, unasked

NAME = "live_partitions_sensor"


def build_live_partitions_sensor(
    pipeline: Pipeline, props: Sequence[NodeProps], *, running: bool, now: Clock = time.time
) -> dg.SensorDefinition:
    """The sensor over all sources, views and targets of a pipeline."""
    live, memory, translator = LivePartitions(pipeline, props), Memory(), AssetTranslator()
    limits = pipeline.settings.limits

    @dg.sensor(
        name=NAME,
        minimum_interval_seconds=int(limits.sensor_every),
        default_status=status_of(running),
        description="Tells Dagster which partitions ClickHouse has written by itself, with their rows, so that the UI does not call them missing. Launches nothing.",
    )
    def live_partitions_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            with clickhouse.connect(sensor=NAME) as server:
                seen = look(live, memory, server)
        except ChmvError as error:
            return unasked(error, "told")
        moment = now()
        due = to_ask(memory.due(moment, limits.report_every))
        memory.learn(fetch_told(context.instance, {one.place for one in due}, translator), moment)
        chosen = upstream_first(pipeline, memory.choose(due, moment, limits.report_every))
        return dg.SensorResult(
            asset_events=[live_event(one, translator) for one in chosen],
            skip_reason=dg.SkipReason(_sentence(seen, chosen, len(memory.changed) - len(chosen))),
        )

    return live_partitions_sensor


def look(live: LivePartitions, memory: Memory, server: Server) -> int:
    """Read, and take in what moved since the last tick; gives the number of tables."""
    memory.marks, moved = live.fetch_moved(server, memory.marks)
    memory.see(moved)
    return len(memory.marks)


def _sentence(tables: int, told: Sequence[LivePartition], waiting: int) -> str:
    """
    >>> _sentence(3, [], 0), _sentence(3, [], 2)
    ('3 tables: nothing new', '3 tables: nothing new; 2 partitions that are written now are told when they rest')
    """
    said = f"{tables} tables: told Dagster of {len(told)} partitions" if told else f"{tables} tables: nothing new"
    if not waiting:
        return said
    if len(told) == TOLD_PER_TICK:
        return f"{said}; {waiting} more wait for the next ticks"
    return f"{said}; {waiting} partitions that are written now are told when they rest"
