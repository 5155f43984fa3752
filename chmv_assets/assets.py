"""Assets: one per object of the graph, and what materializing each one does.

source → observe its partitions; view → build its scratch; target → publish; refreshable view → refresh. Everything else is
a bare spec: Dagster shows it and never writes it. Decisions live in `core`, statements in `resources`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import dagster as dg

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import VIEW_KINDS, Edge, Object, Role
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window
from chmv_assets.partitions import backfill_policy, partitions_definition, windows_of_run
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator, NodeProps, Upstream, node_facts
from resources.clickhouse import ClickHouseResource
from resources.executor import Executor
from resources.observe import observe_windows
from resources.rebuild import Published, Rebuilder

RebuildStep = Callable[[Rebuilder, Object, "Window | None"], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Built:
    """The assets of a location and the props they were made of."""

    assets: tuple[dg.AssetsDefinition | dg.AssetSpec, ...]
    props: tuple[NodeProps, ...]


def build_assets(pipeline: Pipeline, start: date, translator: AssetTranslator | None = None) -> Built:
    """Make the assets of a whole pipeline."""
    translator = translator or AssetTranslator()
    props = tuple(build_props(pipeline, start))
    return Built(tuple(_asset(pipeline, one, translator) for one in props), props)


def build_props(pipeline: Pipeline, start: date) -> Iterator[NodeProps]:
    """Flat properties of every node, in order of names."""
    catalog, settings = pipeline.catalog, pipeline.settings
    roles = catalog.roles()
    definitions = {name: _partitions(pipeline, name, start) for name in catalog.objects}
    incoming: dict[QName, list[Edge]] = defaultdict(list)
    for edge in catalog.edges:
        incoming[edge.dest].append(edge)
    for name in sorted(catalog.objects):
        yield NodeProps(
            node=catalog.objects[name],
            role=roles[name],
            policy=settings.policy(name),
            cadence=catalog.cadence(name),
            partitions_def=definitions[name],
            upstreams=_upstreams(incoming[name], definitions),
            facts=node_facts(catalog, name, roles[name]),
            ddl_dir=pipeline.ddl_dir,
        )


def _upstreams(
    edges: Sequence[Edge], definitions: Mapping[QName, dg.TimeWindowPartitionsDefinition | None]
) -> tuple[Upstream, ...]:
    """One dependency per upstream object; of two edges between the same pair the stronger one counts."""
    strength = ("trigger", "writes", "feeds", "lookup", "after")
    best: dict[QName, Edge] = {}
    for edge in sorted(edges, key=lambda edge: strength.index(edge.kind)):
        best.setdefault(edge.source, edge)
    return tuple(
        Upstream(name=edge.source, kind=edge.kind, partitions_def=definitions[edge.source]) for edge in best.values()
    )


def _partitions(pipeline: Pipeline, name: QName, start: date) -> dg.TimeWindowPartitionsDefinition | None:
    catalog, settings = pipeline.catalog, pipeline.settings
    scheme = catalog.scheme(name)
    policy = settings.policy(name)
    unit = policy.cadence or (scheme.unit if scheme is not None else None)
    if unit is None:
        return None
    week_mode = scheme.week_mode if scheme is not None else None
    return partitions_definition(unit, policy.start or start, settings.timezone, week_mode)


def _asset(pipeline: Pipeline, props: NodeProps, translator: AssetTranslator) -> dg.AssetsDefinition | dg.AssetSpec:
    spec = translator.get_asset_spec(props)
    compute = _compute(pipeline, props)
    if compute is None:
        return spec
    scheme = pipeline.catalog.scheme(props.node.name)
    unit = props.policy.cadence or (scheme.unit if scheme is not None else None)
    return dg.multi_asset(
        name=_op_name(props.node.name),
        specs=[spec],
        backfill_policy=backfill_policy(unit),
        pool=_pool(props),
    )(compute)


def _op_name(name: QName) -> str:
    plain = f"{name.database}__{name.table}"
    safe = re.sub(r"[^A-Za-z0-9_]", "_", plain)
    return safe if safe == plain else f"{safe}_{abs(hash_text(plain)):08x}"


def hash_text(text: str) -> int:
    """A small stable hash, for names that lose characters."""
    value = 2166136261
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 16777619 % 2**32
    return value


def _pool(props: NodeProps) -> str | None:
    """Writers of one target stand in one queue."""
    owner = props.node.target if props.node.kind in VIEW_KINDS else props.node.name
    if owner is None or props.role == "source":
        return None
    return "chmv_" + re.sub(r"[^A-Za-z0-9_]", "_", f"{owner.database}_{owner.table}")


Compute = Callable[..., dg.MaterializeResult]  # type: ignore[type-arg]


def _compute(pipeline: Pipeline, props: NodeProps) -> Compute | None:
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
    if role == "source" and kind in ("table", "distributed", "buffer"):
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


def _rebuilder(pipeline: Pipeline, context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> Rebuilder:
    server = clickhouse.connect(run_id=context.run_id, asset=context.assets_def.key.to_user_string())
    executor = Executor(server, log=context.log.info)
    return Rebuilder(executor, pipeline.catalog, pipeline.settings.timezone, _now)


def _windows(pipeline: Pipeline, node: Object, step: RebuildStep) -> Compute:
    """A compute function that takes a run's windows one by one, newest first, with progress."""

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        windows: list[tuple[str | None, Window | None]] = list(reversed(windows_of_run(context))) or [(None, None)]
        total: dict[str, float] = defaultdict(float)
        try:
            rebuilder = _rebuilder(pipeline, context, clickhouse)
            for done, (key, window) in enumerate(windows, start=1):
                numbers = step(rebuilder, node, window)
                context.log.info(f"{node.name} {key or 'whole'}: {_shown(numbers)} ({done} of {len(windows)} windows)")
                for name, value in numbers.items():
                    total[name] += value
                if key is not None:
                    context.add_asset_metadata({f"chmv/{n}": v for n, v in numbers.items()}, partition_key=key)
                    rows = numbers.get("rows_after", numbers.get("rows", 0))
                    context.add_asset_metadata({"dagster/partition_row_count": int(rows)}, partition_key=key)
        except ChmvError as error:
            raise _failure(error, node) from error
        return dg.MaterializeResult(
            metadata={"chmv/windows": len(windows), **{f"chmv/total_{n}": v for n, v in total.items()}}
        )

    return compute


def _shown(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())


def _build_scratch(rebuilder: Rebuilder, node: Object, window: Window | None) -> Mapping[str, Any]:
    result = rebuilder.build_scratch(node, window)
    return {"rows": result.rows, "seconds": round(result.seconds, 3), "reused": int(result.reused)}


def _publish(rebuilder: Rebuilder, node: Object, window: Window | None) -> Mapping[str, Any]:
    result: Published = rebuilder.publish(node, window)
    return {
        "rows_before": result.rows_before,
        "rows_after": result.rows_after,
        "partitions": len(result.partitions),
        "tries": result.tries,
        "seconds": round(result.seconds, 3),
    }


def _refresh(pipeline: Pipeline, node: Object) -> Compute:
    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        try:
            rebuilder = _rebuilder(pipeline, context, clickhouse)
            rebuilder.executor.refresh_view(node.name)
        except ChmvError as error:
            raise _failure(error, node) from error
        return dg.MaterializeResult(metadata={"chmv/refreshed": str(node.name)})

    return compute


def _observe(pipeline: Pipeline, props: NodeProps) -> Compute:
    """Look at each window of a table that others write: rows, bytes, parts, newest arrival."""
    node = props.node

    def compute(context: dg.AssetExecutionContext, clickhouse: ClickHouseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        windows = windows_of_run(context)
        try:
            with clickhouse.connect(run_id=context.run_id, asset=context.assets_def.key.to_user_string()) as server:
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


__all__ = ["Built", "Role", "build_assets", "build_props"]
