"""Tell Dagster of all live partitions at once, as the demo does; bit by bit is `sensors.live_partitions`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import dagster as dg

from chmv_assets.assets import build_props
from chmv_assets.live_partitions import LivePartitions, fetch_told, live_event, upstream_first
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.clickhouse import Server


def report_live_partitions(
    instance: dg.DagsterInstance,
    pipeline: Pipeline,
    server: Server,
    start: date,
    *,
    translator: AssetTranslator | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Report every partition that is new or changed; gives their number.

    Upstream first: Dagster calls a partition out of sync when what it was made of has the younger event.
    """
    translator = translator or AssetTranslator()
    live = LivePartitions(pipeline, tuple(build_props(pipeline, start)))
    found = upstream_first(pipeline, live.find(live.fetch(server), server.timezone))
    told = fetch_told(instance, {p.place for p in found}, translator)
    fresh = [p for p in found if p.place not in told or told[p.place].version not in (None, p.version)]
    for done, partition in enumerate(fresh, start=1):
        instance.report_runless_asset_event(live_event(partition, translator))
        if progress is not None:
            progress(done, len(fresh))
    return len(fresh)
