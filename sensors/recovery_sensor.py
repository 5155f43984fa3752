"""How every sensor that repairs goes about a tick: read, decide, choose, ask for `recovery_job` runs. One builder for all of them.

Each sensor brings `read` (the only part that asks ClickHouse, at most three queries) and `judge` (its pure verdict over what was read, and
Dagster's own runs). A server that does not answer is told, decides nothing and leaves the cursor where it is. (No `from __future__
import annotations`: Dagster inspects these signatures.)
"""

from collections.abc import Callable
from typing import Any, TypeVar

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.jobs import RECOVERY_JOB
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from sensors.asking import choose, read_ask_attempts, result_of
from sensors.verdict import Verdict

S = TypeVar("S")
Clock = Callable[[], float]
Read = Callable[[Server, str | None, float], S]  # the server, the cursor's text, now
Judge = Callable[[S, dg.SensorEvaluationContext, float], Verdict[Any]]


def build_recovery_sensor(
    pipeline: Pipeline,
    *,
    name: str,
    description: str,
    running: bool,
    now: Clock,
    read: Read[S],
    judge: Judge[S],
    idle: Callable[[], str] = lambda: "",
) -> dg.SensorDefinition:
    """A sensor that asks for repairs; `idle` says why there is nothing to look at, if so."""
    limits = pipeline.settings.limits

    @dg.sensor(
        name=name,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=int(limits.sensor_every),
        default_status=status_of(running),
        description=description,
    )
    def evaluate(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        moment = now()
        if why := idle():
            return dg.SkipReason(why)
        try:
            with clickhouse.connect(sensor=name) as server:
                seen = read(server, context.cursor, moment)
        except ChmvError as error:
            return unasked(error)
        verdict = judge(seen, context, moment)
        context.log.info(verdict.told)
        chosen = choose(verdict.asks, read_ask_attempts(context.instance, verdict.asks), moment, limits)
        return result_of(chosen, name, verdict.told, verdict.cursor.dump())

    return evaluate


def status_of(running: bool) -> dg.DefaultSensorStatus:
    """Whether a sensor is on from the start."""
    return dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED


def unasked(error: ChmvError, what: str = "decided") -> dg.SkipReason:
    """What a tick says that got no answer from the server."""
    return dg.SkipReason(f"the server could not be asked, nothing is {what} and the next tick looks again: {error}")
