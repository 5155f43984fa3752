"""What materializing an asset does: the functions that Dagster runs.

Thin on purpose: windows in, one call into `resources` per window, numbers out as metadata. Errors of ours become
`dagster.Failure` here and nowhere deeper. (No `from __future__ import annotations`: Dagster inspects these signatures.)
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Object
from chmv_assets.core.windows import Window
from chmv_assets.partitions import windows_of_run
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import NodeProps
from resources.clickhouse_resource import ClickHouseResource
from resources.executor import Executor
from resources.observe import observe_windows
from resources.rebuild import Rebuilder

Compute = Callable[..., dg.MaterializeResult]  # type: ignore[type-arg]
RebuildStep = Callable[[Rebuilder, Object, Window | None], Mapping[str, Any]]


def compute_of(pipeline: Pipeline, props: NodeProps) -> Compute | None:
    """The function that materializes a node, or None for what Dagster never writes."""
    compute = _compute_of(pipeline, props)
    if compute is not None:
        # Dagster asks for the signature 16 times per asset; all are alike, so none has to be worked out.
        compute.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
    return compute


def _parameter(name: str, annotation: type) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


_SIGNATURE = inspect.Signature(
    [_parameter("context", dg.AssetExecutionContext), _parameter("clickhouse", ClickHouseResource)],
    return_annotation=dg.MaterializeResult,
)


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
        return _windows(pipeline, props.node, _publish)
    if role == "source" and kind == "table":
        return _observe(pipeline, props)
    return None


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _failure(error: ChmvError, node: Object) -> dg.Failure:
    return dg.Failure(
        description=str(error),
        metadata={"object": str(node.name), "error": type(error).__name__, "declared at": str(node.place)},
        allow_retries=False,
    )


@contextmanager
def _rebuilder(
    pipeline: Pipeline, context: dg.AssetExecutionContext, clickhouse: ClickHouseResource, node: Object
) -> Iterator[Rebuilder]:
    """A rebuilder with a connection of its own; errors of ours become failures with a sentence."""
    try:
        with clickhouse.connect(run_id=context.run.run_id, asset=context.assets_def.key.to_user_string()) as server:
            executor = Executor(server, log=context.log.info)
            yield Rebuilder(executor, pipeline.catalog, pipeline.settings.timezone, _now)
    except ChmvError as error:
        raise _failure(error, node) from error


def _windows(pipeline: Pipeline, node: Object, step: RebuildStep) -> Compute:
    """A compute function that takes a run's windows one by one, newest first, with progress."""

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        windows: list[tuple[str | None, Window | None]] = list(reversed(windows_of_run(context))) or [(None, None)]
        total: dict[str, float] = defaultdict(float)
        with _rebuilder(pipeline, context, clickhouse, node) as rebuilder:
            for done, (key, window) in enumerate(windows, start=1):
                numbers = step(rebuilder, node, window)
                context.log.info(f"{node.name} {key or 'whole'}: {_shown(numbers)} ({done} of {len(windows)} windows)")
                for name, value in numbers.items():
                    total[name] += value
                if key is not None:
                    context.add_asset_metadata({f"chmv/{n}": v for n, v in numbers.items()}, partition_key=key)
                    rows = numbers.get("rows_after", numbers.get("rows", 0))
                    context.add_asset_metadata({"dagster/partition_row_count": int(rows)}, partition_key=key)
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


def _publish(rebuilder: Rebuilder, node: Object, window: Window | None) -> Mapping[str, Any]:
    result = rebuilder.publish(node, window)
    return {
        "rows_before": result.rows_before,
        "rows_after": result.rows_after,
        "partitions": len(result.partitions),
        "tries": result.tries,
        "seconds": round(result.seconds, 3),
    }


def _refresh(pipeline: Pipeline, node: Object) -> Compute:
    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with _rebuilder(pipeline, context, clickhouse, node) as rebuilder:
            rebuilder.executor.refresh_view(node.name)
        return dg.MaterializeResult(metadata={"chmv/refreshed": str(node.name)})

    return compute


def _observe(pipeline: Pipeline, props: NodeProps) -> Compute:
    """Look at each window of a table that others write: rows, bytes, parts, newest arrival."""
    node = props.node

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        windows = windows_of_run(context)
        try:
            with clickhouse.connect(run_id=context.run.run_id, asset=context.assets_def.key.to_user_string()) as server:
                seen = observe_windows(
                    server, pipeline.catalog, node, [w for _, w in windows], pipeline.settings.timezone, props.policy
                )
        except ChmvError as error:
            raise _failure(error, node) from error
        if not windows:
            return dg.MaterializeResult(
                metadata={"dagster/row_count": seen[0].rows, "chmv/bytes": seen[0].bytes_on_disk}
            )
        for (key, _), state in zip(windows, seen, strict=True):
            context.add_asset_metadata(state.metadata(), partition_key=key)
        rows = sum(state.rows for state in seen)
        context.log.info(f"{node.name}: {rows} rows in {len(windows)} windows observed")
        return dg.MaterializeResult(metadata={"chmv/windows": len(windows), "chmv/total_rows": rows})

    return compute
