"""`tuner_sensor`: five minutes of numbers → at most one order for `tuner_job`. Three queries per tick; `core.tuner` decides.

Off unless chmv.yaml says `tuner: on`; with `tuner: dry_run` it looks, decides and only tells. (No `from __future__ import annotations`: Dagster
inspects these signatures.)
"""

import hashlib
import time
from functools import cache

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.tuner import Decision, Tunable, decide
from chmv_assets.core.tuner_order import dump_order, order_of
from chmv_assets.jobs import TUNER_JOB, tuner_run_config
from chmv_assets.pipeline import Pipeline
from chmv_assets.tunables import own_tunings, tunables_of
from resources.clickhouse_resource import ClickHouseResource
from resources.journal import cluster_from_environment
from resources.tuning_reads import fetch_tunings, read_sample
from sensors.recovery_sensor import Clock, status_of, unasked
from sensors.tuner_cursor import load_cursor, remember

NAME = "tuner_sensor"
OFF = "chmv.yaml says `tuner: off` (the default): nothing is looked at and nothing is changed. Begin with `tuner: dry_run`."
_TICKS = 4  # in a watch: three low readings and a run fit into its length, so that what has settled goes back in time as well
_TOLD = 12  # sentences of a tick: Dagster keeps them, twice a minute
_KEY_SECONDS = 60.0  # an order that failed is given again after a minute, not at every tick


def build_tuner_sensor(pipeline: Pipeline, *, running: bool, now: Clock = time.time) -> dg.SensorDefinition:
    """The sensor over all MergeTree tables of a pipeline."""
    settings = pipeline.settings
    mode, limits = settings.tuner, settings.limits

    @cache
    def tunables() -> tuple[Tunable, ...]:
        """Worked out by the first tick: a run process that loads the location never needs it."""
        return tunables_of(pipeline)

    @dg.sensor(
        name=NAME,
        job_name=TUNER_JOB,
        minimum_interval_seconds=max(1, int(min(limits.sensor_every, limits.tuner_watch / _TICKS))),
        default_status=status_of(running and mode != "off"),
        description="Sees insert storms; slows writers step by step before the server refuses them, and lets them go again. Off unless `tuner` in chmv.yaml says otherwise.",
    )
    def tuner_sensor(
        context: dg.SensorEvaluationContext, clickhouse: ClickHouseResource
    ) -> dg.SensorResult | dg.SkipReason:
        if mode == "off":
            return dg.SkipReason(OFF)
        moment = now()
        tables = [one.table for one in tunables()]
        try:
            with clickhouse.connect(sensor=NAME) as server:
                sample = read_sample(server, tables, moment)
                tunings = own_tunings(pipeline, fetch_tunings(server, cluster_from_environment(), moment))
        except ChmvError as error:
            return unasked(error)
        cursor = load_cursor(context.cursor)
        samples = (*cursor.samples, sample)
        decision = decide(samples, tunings, tunables(), now=moment, limits=limits)
        kept = remember(samples, moment, limits, (one.subject for one in tunings if one.is_active)).dump()
        told = f"{cursor.note} {told_of(decision, dry=mode == 'dry_run')}".strip()
        context.log.info(told)
        if decision.is_empty or mode == "dry_run":
            return dg.SensorResult(skip_reason=dg.SkipReason(told), cursor=kept)
        return dg.SensorResult(run_requests=[request_of(decision, moment)], cursor=kept)

    return tuner_sensor


def told_of(decision: Decision, *, dry: bool) -> str:
    """What a tick says: orders first, then the numbers."""
    words = [f"would do: {one}" if dry else one for one in decision.orders] + list(decision.told)
    return "; ".join([*words[:_TOLD], f"and {len(words) - _TOLD} more"] if len(words) > _TOLD else words)


def request_of(decision: Decision, moment: float) -> dg.RunRequest:
    """The run that carries a decision out; the same decision within a minute is the same run."""
    order = dump_order(order_of(decision))
    what = [f"{one.subject}:{one.setting}:{one.expected}:{one.value}" for one in decision.actions]
    what += [f"{one.tuning.tuning}:{one.settle}" for one in decision.backs]
    digest = hashlib.sha256("\0".join([*what, str(int(moment // _KEY_SECONDS))]).encode()).hexdigest()[:20]
    return dg.RunRequest(
        run_key=f"tune:{digest}",
        job_name=TUNER_JOB,
        run_config=tuner_run_config(order),
        tags={
            "chmv/sensor": NAME,
            "chmv/steps": str(len(decision.actions)),
            "chmv/taken_back": str(len(decision.backs)),
        },
    )
