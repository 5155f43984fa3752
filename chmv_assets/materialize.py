"""What materializing an asset does: the functions that Dagster runs.

Thin on purpose: windows in, one call into `resources` per window, numbers out as metadata; what a source's landing files do is
in `ingest_asset`. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from chmv_assets.failures import told_to_dagster
from chmv_assets.ingest_asset import ingest_landing, received_metadata, run_metadata, span_of
from chmv_assets.partitions import windows_of_run
from chmv_assets.pipeline import Pipeline
from chmv_assets.rebuilders import make_rebuilder
from chmv_assets.translator import NodeProps
from chmv_assets.watermark_metadata import read_table_watermarks, watermark_metadata
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.observe import observe_windows
from resources.rebuild import Rebuilder
from resources.spark import SparkResource

Compute = Callable[..., dg.MaterializeResult]  # type: ignore[type-arg]
RebuildStep = Callable[[Rebuilder, Object, Window | None], Mapping[str, Any]]


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
        return _refresh(pipeline, props.node)
    if kind == "materialized_view":
        return _windows(pipeline, props.node, _build_scratch)
    if role == "target" and kind in ("table", "inner_table"):
        views = pipeline.catalog.views_into(props.node.name)
        if any(view.kind == "refreshable_view" for view in views):
            return _observe(pipeline, props)
        return _windows(pipeline, props.node, _publish(props.policy.protocol))
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


def _windows(pipeline: Pipeline, node: Object, step: RebuildStep) -> Compute:
    """A compute function that takes a run's windows one by one, newest first, with progress."""

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        windows: list[tuple[str | None, Window | None]] = list(reversed(windows_of_run(context))) or [(None, None)]
        total: dict[str, float] = defaultdict(float)
        with _connected(context, clickhouse, node) as server:
            rebuilder = make_rebuilder(pipeline, server, context.log.info)
            for done, (key, window) in enumerate(windows, start=1):
                numbers = step(rebuilder, node, window)
                context.log.info(f"{node.name} {key or 'whole'}: {_shown(numbers)} ({done} of {len(windows)} windows)")
                for name, value in numbers.items():
                    total[name] += value
                if key is not None:
                    context.add_asset_metadata({f"chmv/{n}": v for n, v in numbers.items()}, partition_key=key)
                    rows = numbers.get("rows_after", numbers.get("rows", 0))
                    context.add_asset_metadata({"dagster/partition_row_count": int(rows)}, partition_key=key)
            _add_watermarks(context, server, node, windows)
        totals = (
            {f"chmv/total_{n}": _number(v) for n, v in total.items()}
            if len(windows) > 1 or windows[0][0] is None
            else {}
        )
        return dg.MaterializeResult(metadata={"chmv/windows": len(windows), **totals})

    return compute


def _number(value: float) -> int | float:
    """Counts stay whole numbers; seconds keep three places."""
    return int(value) if value == int(value) else round(value, 3)


def _shown(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())


def _build_scratch(rebuilder: Rebuilder, node: Object, window: Window | None) -> Mapping[str, Any]:
    result = rebuilder.build_scratch(node, window)
    return {"rows": result.rows, "seconds": round(result.seconds, 3), "reused": int(result.reused)}


def _publish(protocol: Protocol) -> RebuildStep:
    """Publish by the protocol that the settings name; the run's log says which one was taken and why."""

    def publish(rebuilder: Rebuilder, node: Object, window: Window | None) -> Mapping[str, Any]:
        result = rebuilder.publish(node, window, protocol)
        return {
            "rows_before": result.rows_before,
            "rows_after": result.rows_after,
            "partitions": len(result.partitions),
            "tries": result.tries,
            "gate_seconds": round(result.gate_seconds, 3),
            "seconds": round(result.seconds, 3),
        }

    return publish


def _refresh(pipeline: Pipeline, node: Object) -> Compute:
    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with _connected(context, clickhouse, node) as server:
            make_rebuilder(pipeline, server, context.log.info).executor.refresh_view(node.name)
        return dg.MaterializeResult(metadata={"chmv/refreshed": str(node.name)})

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
