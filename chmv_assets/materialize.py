"""What materializing an asset does: the functions that Dagster runs.

Thin on purpose: windows in, one call into `resources` per window, numbers out as metadata; what a source's landing files do is
in `ingest_asset`, what a run asks of a rebuild in `rebuild_asset`. (No `from __future__ import annotations`: Dagster inspects
these signatures.)
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dagster as dg

from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from chmv_assets.failures import told_to_dagster
from chmv_assets.ingest_asset import ingest_landing, received_metadata, run_metadata, span_of
from chmv_assets.partitions import windows_of_run
from chmv_assets.pipeline import Pipeline
from chmv_assets.rebuild_asset import (
    WindowDone,
    WindowStep,
    build_scratch,
    origin_of,
    publish,
    read_done,
    read_tags,
    skipped,
    target_of,
    tries_of,
)
from chmv_assets.rebuilders import open_rebuilder
from chmv_assets.translator import NodeProps
from chmv_assets.watermark_metadata import read_table_watermarks, watermark_metadata
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.executor import Executor
from resources.observe import observe_windows
from resources.rebuild import Rebuilder
from resources.refresh import refresh_view
from resources.scratch_marks import window_key
from resources.spark import SparkResource

AssetEvent = dg.MaterializeResult | dg.AssetMaterialization  # type: ignore[type-arg]
Compute = Callable[..., dg.MaterializeResult | Iterator[AssetEvent]]  # type: ignore[type-arg]
Windows = list[tuple[str | None, Window | None]]  # partition keys and windows; a pair of Nones without partitions


def compute_of(pipeline: Pipeline, props: NodeProps) -> Compute | None:
    """The function that materializes a node, or None for what Dagster never writes."""
    compute = _compute_of(pipeline, props)
    if compute is not None:
        # Dagster asks for the signature 16 times per asset; there are only two, so none has to be worked out.
        compute.__signature__ = _SIGNATURES[has_landing(props)]  # type: ignore[attr-defined]
    return compute


def has_landing(props: NodeProps) -> bool:
    """Whether materializing a node ingests files."""
    return props.role == "source" and props.node.kind == "table" and props.policy.landing is not None


def _signature(**parameters: type) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = [inspect.Parameter(name, kind, annotation=annotation) for name, annotation in parameters.items()]
    return inspect.Signature(found, return_annotation=dg.MaterializeResult)


_SIGNATURES = {
    False: _signature(context=dg.AssetExecutionContext, clickhouse=ClickHouseResource),
    True: _signature(context=dg.AssetExecutionContext, clickhouse=ClickHouseResource, spark=SparkResource),
}


def _compute_of(pipeline: Pipeline, props: NodeProps) -> Compute | None:
    kind, role = props.node.kind, props.role
    if kind == "refreshable_view":
        return _refresh(props.node)
    if kind == "materialized_view":
        return _windows(pipeline, props.node, build_scratch)
    if role == "target" and kind in ("table", "inner_table"):
        views = pipeline.catalog.views_into(props.node.name)
        if any(view.kind == "refreshable_view" for view in views):
            return _observe(pipeline, props)
        return _windows(pipeline, props.node, publish, props.policy.protocol)
    if role == "source" and kind == "table":
        return _ingest(pipeline, props) if has_landing(props) else _observe(pipeline, props)
    return None


@contextmanager
def _connected(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource, node: Object) -> Iterator[Server]:
    """A connection of its own; errors of ours become failures with a sentence."""
    with (
        told_to_dagster(node),
        clickhouse.connect(run_id=context.run.run_id, asset=context.assets_def.key.to_user_string()) as server,
    ):
        yield server


def _windows(pipeline: Pipeline, node: Object, step: WindowStep, declared: Protocol = "auto") -> Compute:
    """A compute function that takes a run's windows one by one, newest first, with progress.

    Cut off half way, it reports the windows that are done; Dagster writes the events of all of them itself only if all went well.
    """

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> Iterator[AssetEvent]:
        windows: Windows = list(reversed(windows_of_run(context))) or [(None, None)]
        done: dict[str | None, WindowDone] = {}
        try:
            with _connected(context, clickhouse, node) as server:
                asked = read_tags(context.run.tags, declared)
                origin = origin_of(context.run.run_id, pipeline, target_of(pipeline, node))
                log, may_empty = context.log.info, asked.allow_empty
                with open_rebuilder(pipeline, server, log, origin, allow_empty=may_empty) as rebuilder:
                    take = partial(step, rebuilder, node, asked)
                    for key, result in _take(context, pipeline, rebuilder, node, windows, take):
                        done[key] = result
                _add_watermarks(context, server, node, windows)
        except BaseException:
            yield from _cut_off(context, done)
            raise
        for key, result in done.items():
            if key is not None:
                context.add_asset_metadata(result.metadata(), partition_key=key)
        yield dg.MaterializeResult(metadata=_totals(done))

    return compute


def _take(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    rebuilder: Rebuilder,
    node: Object,
    windows: Windows,
    take: Callable[[Window | None], WindowDone],
) -> Iterator[tuple[str | None, WindowDone]]:
    """Do a run's windows in turn, but for those that an earlier try of the run has published."""
    target = target_of(pipeline, node)
    tries = tries_of(context.instance, context.run)
    before = read_done(rebuilder, pipeline, target, [window for _, window in windows], tries)
    for number, (key, window) in enumerate(windows, start=1):
        by = before.get(window_key(window))
        result = skipped(rebuilder, target, window, by) if by else take(window)
        context.log.info(f"{node.name} {key or 'whole'} ({number} of {len(windows)}): {result.line}")
        yield key, result


def _cut_off(
    context: dg.AssetExecutionContext, done: Mapping[str | None, WindowDone]
) -> Iterator[dg.AssetMaterialization]:
    """Events of the partitions that were finished before a run failed or was cancelled."""
    if any(done):
        context.log.info(
            f"{len(done)} windows were finished before; they count, and a re-execution of this run does not repeat them"
        )
    for key, result in done.items():
        if key is not None:
            yield dg.AssetMaterialization(asset_key=context.asset_key, partition=key, metadata=result.metadata())


def _totals(done: Mapping[str | None, WindowDone]) -> dict[str, Any]:
    """What all windows of a run add up to; a single partition says it all by itself."""
    told: dict[str, Any] = {"chmv/windows": len(done)}
    if len(done) == 1 and None not in done:
        return told
    total: dict[str, float] = defaultdict(float)
    for result in done.values():
        for name, value in result.numbers.items():
            total[name] += value
    whole = done.get(None)
    words = {f"chmv/{name}": word for name, word in whole.words.items()} if whole is not None else {}
    return {**told, **words, **{f"chmv/total_{name}": _number(value) for name, value in total.items()}}


def _number(value: float) -> int | float:
    """Counts stay whole numbers; seconds keep three places."""
    return int(value) if value == int(value) else round(value, 3)


def _refresh(node: Object) -> Compute:
    """Refresh a view as a whole, and look whether it was."""

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> Iterator[AssetEvent]:
        with _connected(context, clickhouse, node) as server:
            done = refresh_view(Executor(server, log=context.log.info), node.name)
        context.log.info(f"{node.name}: refreshed, {done.rows} rows, {done.seconds:.2f} s")
        metadata: dict[str, Any] = {
            "chmv/rows_written": done.rows,
            "chmv/seconds": done.seconds,
            "chmv/refreshed_at": str(done.started),
        }
        yield dg.MaterializeResult(metadata={"chmv/refreshed": str(node.name), **metadata})

    return compute


def _observe(pipeline: Pipeline, props: NodeProps) -> Compute:
    """Look at each window of a table that others write: rows, bytes, parts, newest arrival."""

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with _connected(context, clickhouse, props.node) as server:
            return dg.MaterializeResult(metadata=_observed(pipeline, props, context, server))

    return compute


def _ingest(pipeline: Pipeline, props: NodeProps) -> Compute:
    """Load the landing files of the run's windows exactly once, then look at each window."""
    node = props.node

    def compute(
        context: dg.AssetExecutionContext, clickhouse: ClickHouseResource, spark: SparkResource
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        windows = windows_of_run(context)
        span = span_of([window for _, window in windows])
        with _connected(context, clickhouse, node) as server:
            done = ingest_landing(pipeline, node, server, lambda: spark.spark_session, span, context.log.info)
            elsewhere = sum(hour.rows for hour in done.hours)
            for key, window in windows:
                received = received_metadata(done.hours_of(window))
                elsewhere -= received["chmv/rows_loaded"]
                context.add_asset_metadata(received, partition_key=key)
            # Whole files are loaded: some of their rows may belong to partitions that this run did not name.
            other = {"chmv/rows_loaded_elsewhere": elsewhere} if windows else received_metadata(done.hours)
            return dg.MaterializeResult(
                metadata={**_observed(pipeline, props, context, server), **run_metadata(done), **other}
            )

    return compute


def _observed(
    pipeline: Pipeline, props: NodeProps, context: dg.AssetExecutionContext, server: Server
) -> Mapping[str, Any]:
    """Metadata of each partition as it is now, given to Dagster, and that of the whole, given back."""
    node, windows = props.node, windows_of_run(context)
    zone = pipeline.settings.timezone
    seen = observe_windows(server, pipeline.catalog, node, [w for _, w in windows], zone, props.policy)
    if not windows:
        return {"dagster/row_count": seen[0].rows, "chmv/bytes": seen[0].bytes_on_disk}
    for (key, _), state in zip(windows, seen, strict=True):
        context.add_asset_metadata(state.metadata(), partition_key=key)
    _add_watermarks(context, server, node, windows)
    rows = sum(state.rows for state in seen)
    context.log.info(f"{node.name}: {rows} rows in {len(windows)} windows observed")
    return {"chmv/windows": len(windows), "chmv/total_rows": rows}


def _add_watermarks(
    context: dg.AssetExecutionContext,
    server: Server,
    node: Object,
    windows: Sequence[tuple[str | None, Window | None]],
) -> None:
    """Show the journal's watermark on each partition of a table, with one query; views have none."""
    named = [(key, window) for key, window in windows if key is not None and window is not None]
    if not named or node.kind in VIEW_KINDS:
        return
    marks = read_table_watermarks(server, node.name, context.log.warning)
    for key, window in named:
        if found := watermark_metadata(marks, window):
            context.add_asset_metadata(found, partition_key=key)
