"""Assets: one per object of the graph, with its partitions, dependencies and pool.

Sources, views and targets are executable (`materialize` says what that does); everything else is a bare spec that Dagster
shows and never writes. How a node looks is `translator`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import dagster as dg

from chmv_assets.collector import collector_paused
from chmv_assets.core.groups import group_of
from chmv_assets.core.model import VIEW_KINDS, Edge, Object, ViewFacts
from chmv_assets.core.names import QName
from chmv_assets.ingest_asset import INGEST_POOL
from chmv_assets.materialize import compute_of, has_landing
from chmv_assets.partitions import backfill_policy, partitions_definition
from chmv_assets.pipeline import Pipeline
from chmv_assets.steps import build_op
from chmv_assets.translator import AssetTranslator, NodeProps, Upstream

_OUTPUT = "table"
_OUTPUTS = {_OUTPUT: dg.Out(dg.Nothing)}


@dataclass(frozen=True, slots=True)
class Built:
    """The assets of a location and the props they were made of."""

    assets: tuple[dg.AssetsDefinition | dg.AssetSpec, ...]
    props: tuple[NodeProps, ...]


def build_assets(pipeline: Pipeline, start: date, translator: AssetTranslator | None = None) -> Built:
    """Make the assets of a whole pipeline."""
    translator = translator or AssetTranslator()
    with collector_paused():
        props = tuple(build_props(pipeline, start))
        return Built(tuple(_asset(pipeline, one, translator) for one in props), props)


def build_props(pipeline: Pipeline, start: date) -> Iterator[NodeProps]:
    """Flat properties of every node, in order of names."""
    catalog = pipeline.catalog
    roles = catalog.roles()
    definitions = {name: _partitions(pipeline, name, start) for name in catalog.objects}
    for name in sorted(catalog.objects):
        yield NodeProps(
            node=catalog.objects[name],
            role=roles[name],
            policy=replace(pipeline.settings.policy(name), group=group_of(catalog, pipeline.settings, name)),
            cadence=catalog.cadence(name),
            partitions_def=definitions[name],
            upstreams=_upstreams(catalog.edges_into(name), definitions),
            facts=catalog.facts.get(name),
            written=_written(pipeline, catalog.objects[name]),
            writers=_writers(pipeline, name),
            refreshed=any(view.kind == "refreshable_view" for view in catalog.views_into(name)),
            ddl_dir=pipeline.ddl_dir,
        )


def _written(pipeline: Pipeline, node: Object) -> Object | None:
    return pipeline.catalog.objects.get(node.target) if node.target is not None else None


def _writers(pipeline: Pipeline, name: QName) -> tuple[tuple[QName, ViewFacts], ...]:
    """The views that fill a target, each with its facts."""
    catalog = pipeline.catalog
    return tuple((v.name, catalog.facts[v.name]) for v in catalog.views_into(name) if v.name in catalog.facts)


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
    calendar = pipeline.calendar(name)
    if calendar is None:
        return None
    begin = pipeline.settings.policy(name).start or start
    return partitions_definition(calendar.unit, begin, calendar.zone, calendar.week_mode)


def _asset(pipeline: Pipeline, props: NodeProps, translator: AssetTranslator) -> dg.AssetsDefinition | dg.AssetSpec:
    spec = translator.get_asset_spec(props)
    compute = compute_of(pipeline, props)
    if compute is None:
        return spec
    calendar = pipeline.calendar(props.node.name)
    inputs = {f"upstream_{at}": dep.asset_key for at, dep in enumerate(spec.deps)}
    op = build_op(_op_name(props.node.name), compute, inputs=inputs, outputs=_OUTPUTS, pool=_pool(props))
    # By hand, because decorators derive names of inputs and outputs from keys, and a table may be called anything.
    return dg.AssetsDefinition(
        node_def=op,
        specs=[spec],
        keys_by_input_name=inputs,
        keys_by_output_name={_OUTPUT: spec.key},
        backfill_policy=backfill_policy(calendar.unit if calendar is not None else None),
    )


def _op_name(name: QName) -> str:
    plain = f"{name.database}__{name.table}"
    safe = re.sub(r"[^A-Za-z0-9_]", "_", plain)
    return safe if safe == plain else f"{safe}_{hash_text(plain):08x}"


def hash_text(text: str) -> int:
    """A small stable hash, for names that lose characters."""
    value = 2166136261
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 16777619 % 2**32
    return value


def _pool(props: NodeProps) -> str | None:
    """Writers of one target stand in one queue, ingests in another."""
    owner = props.node.target if props.node.kind in VIEW_KINDS else props.node.name
    if has_landing(props):
        return INGEST_POOL
    if owner is None or props.role == "source":
        return None
    return "chmv_" + re.sub(r"[^A-Za-z0-9_]", "_", f"{owner.database}_{owner.table}")
