"""`ingest_job`: load all new landing files of one source, and tell Dagster which of its partitions received rows.

What the landing sensor launches; people launch it too, from the UI's Launchpad or with `dagster job execute`. Unlike the source's
asset it needs no partition: the files say which ones they touch. (No `from __future__ import annotations`: Dagster
inspects these signatures.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import dagster as dg
from pydantic import Field

from chmv_assets.core.windows import Window
from chmv_assets.failures import told_to_dagster
from chmv_assets.ingest_asset import (
    INGEST_POOL,
    Ingested,
    declared_landing,
    ingest_landing,
    received_metadata,
    run_metadata,
)
from chmv_assets.jobs import INGEST_JOB, INGEST_OP
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator, NodeProps
from chmv_assets.watermark_metadata import read_table_watermarks, watermark_metadata
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.observe import observe_windows
from resources.spark import SparkResource

# What passes by itself (`core.retry`) may be tried again; a landing that was refused waits for a person.
_RETRIES = dg.RetryPolicy(max_retries=3, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.FULL)


class IngestConfig(dg.Config):
    """What to ingest."""

    source: str = Field(description="The source, as database.table; it has a `landing` in chmv.yaml.")


def build_ingest_job(
    pipeline: Pipeline, props: Sequence[NodeProps], translator: AssetTranslator | None = None
) -> dg.JobDefinition:
    """The job over the sources of a pipeline."""
    by_name = {one.node.name: one for one in props}
    keys = translator or AssetTranslator()

    @dg.op(name=INGEST_OP, pool=INGEST_POOL, retry_policy=_RETRIES, out=dg.Out(dg.Nothing))
    def ingest(
        context: dg.OpExecutionContext, config: IngestConfig, clickhouse: ClickHouseResource, spark: SparkResource
    ) -> None:
        with told_to_dagster():
            node = pipeline.catalog.get(config.source)
            declared_landing(pipeline, node)  # a wrong name is not worth a connection
        with (
            told_to_dagster(node),
            clickhouse.connect(run_id=context.run.run_id, asset=str(node.name)) as server,
        ):
            done = ingest_landing(pipeline, node, server, lambda: spark.spark_session, None, context.log.info)
            events = materializations(pipeline, by_name[node.name], keys, server, done, context.log.warning)
            for event in events:
                context.log_event(event)
        context.add_output_metadata(run_metadata(done))

    @dg.job(
        name=INGEST_JOB,
        description="Load all new landing files of one source, each row exactly once. landing_sensor asks for it; `chmv ingest` does the same.",
        executor_def=dg.in_process_executor,
    )
    def ingest_job() -> None:
        ingest()

    return ingest_job


def partitions_of(definition: dg.TimeWindowPartitionsDefinition, moments: Iterable[datetime]) -> dict[str, Window]:
    """The partitions that hold some moments, oldest first; moments before the first or after the open one have none."""
    found: dict[str, Window] = {}
    latest: Window | None = None
    for moment in sorted(set(moments)):
        if latest is not None and latest.start <= moment < latest.end:
            continue
        key = definition.get_partition_key_for_timestamp(moment.timestamp())
        if definition.has_partition_key(key):
            span = definition.time_window_for_partition_key(key)
            found[key] = latest = Window(span.start, span.end)
    return found


def materializations(
    pipeline: Pipeline,
    props: NodeProps,
    translator: AssetTranslator,
    server: Server,
    done: Ingested,
    log: Callable[[str], None],
) -> Iterator[dg.AssetMaterialization]:
    """One event per partition of the source that received rows, with what it received and how it stands now."""
    rows = done.report.summary.rows_loaded if done.report is not None else 0
    if not rows:
        return
    node, definition = props.node, props.partitions_def
    received = partitions_of(definition, (hour.start for hour in done.hours)) if definition is not None else {}
    zone = pipeline.settings.timezone
    seen = observe_windows(server, pipeline.catalog, node, list(received.values()), zone, props.policy)
    key = translator.get_asset_key(node.name)
    if definition is None:
        now: dict[str, Any] = {"dagster/row_count": seen[0].rows, "chmv/bytes": seen[0].bytes_on_disk}
        yield dg.AssetMaterialization(key, metadata={**now, "chmv/rows_loaded": rows, **run_metadata(done)})
        return
    marks = read_table_watermarks(server, node.name, log)
    told = 0
    for (partition, window), state in zip(received.items(), seen, strict=False):  # none received: the whole is seen
        here = received_metadata(done.hours_of(window))
        told += here["chmv/rows_loaded"]
        metadata = {**state.metadata(), **here, **watermark_metadata(marks, window), "chmv/landing": done.root}
        yield dg.AssetMaterialization(key, partition=partition, metadata=metadata)
    if told < rows:
        log(f"{node.name}: {rows - told} of {rows} rows have no partition in Dagster, or their time is not known")
