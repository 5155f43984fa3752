"""Graph node → AssetSpec: the one place that says how an object looks in Dagster.

Override `AssetTranslator.get_asset_spec` to change groups, descriptions or metadata in a location of your own, and give yours to
`build_definitions`. Asset keys stay `[database, table]` as spelled on the server: sensors read names back from them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from chmv_assets.core.model import VIEW_KINDS, EdgeKind, Object, Role, ViewFacts
from chmv_assets.core.names import QName
from chmv_assets.core.picture.link import GRAPH_VARIABLE, graph_link
from chmv_assets.core.secrets import mask_secrets
from chmv_assets.core.settings import ObjectPolicy
from chmv_assets.partitions import mapping_between

_MAX_DDL_CHARS = 20_000
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.\-]{1,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One dependency of a node."""

    name: QName
    kind: EdgeKind
    partitions_def: dg.TimeWindowPartitionsDefinition | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProps:
    """All that is known of one node, flat."""

    node: Object
    role: Role
    policy: ObjectPolicy
    cadence: str | None
    partitions_def: dg.TimeWindowPartitionsDefinition | None
    upstreams: Sequence[Upstream]
    facts: ViewFacts | None  # of a view, materialized or plain
    ddl_dir: Path
    written: Object | None = None  # the target of a view
    writers: Sequence[tuple[QName, ViewFacts]] = ()  # the views of a target
    refreshed: bool = False  # a target that a refreshable view computes as a whole


class AssetTranslator:
    """Makes asset keys and specs."""

    def get_asset_key(self, name: QName) -> dg.AssetKey:
        return dg.AssetKey([name.database, name.table])

    def get_asset_spec(self, props: NodeProps) -> dg.AssetSpec:
        """The whole spec of one node."""
        node = props.node
        return dg.AssetSpec(
            key=self.get_asset_key(node.name),
            deps=[self._dep(props, upstream) for upstream in props.upstreams],
            description=props.policy.description or describe(props),
            metadata=self.get_metadata(props),
            group_name=_group(props.policy.group or node.name.database),
            owners=list(props.policy.owners) or None,
            kinds={"clickhouse", _kind(node)},
            tags=_tags(props),
            code_version=node.code_version or None,
            partitions_def=props.partitions_def,
        )

    def get_metadata(self, props: NodeProps) -> dict[str, Any]:
        """Column schema, lineage, DDL, and where it stands in git."""
        node = props.node
        metadata: dict[str, Any] = {
            "dagster/table_name": f"{node.name.database}.{node.name.table}",
            "dagster/storage_kind": "clickhouse",
            "chmv/role": props.role,
        }
        if node.engine:
            metadata["chmv/engine"] = node.engine
        if props.facts is not None and props.role == "view":
            metadata["chmv/class"] = f"{props.facts.view_class}: {props.facts.why}"
        lineage = self._lineage(props)
        if lineage is not None:
            metadata["dagster/column_lineage"] = lineage
        if node.columns and node.kind not in VIEW_KINDS:
            metadata["dagster/column_schema"] = _column_schema(node, lineage)
        elif props.facts is not None and lineage is not None:
            metadata["dagster/column_schema"] = _view_schema(props.facts, props.written, lineage)
        if node.sql:
            metadata["clickhouse/ddl"] = dg.MetadataValue.md(f"```sql\n{mask_secrets(node.sql)[:_MAX_DDL_CHARS]}\n```")
            metadata["dagster/code_references"] = _code_reference(props)
        if published := os.environ.get(GRAPH_VARIABLE):
            metadata["chmv/graph"] = _graph_value(graph_link(published, node.name))
        return metadata

    def _dep(self, props: NodeProps, upstream: Upstream) -> dg.AssetDep:
        whole = upstream.kind in ("lookup", "after")
        mapping = mapping_between(upstream.partitions_def, props.partitions_def, lookup=whole)
        return dg.AssetDep(self.get_asset_key(upstream.name), partition_mapping=mapping)

    def _lineage(self, props: NodeProps) -> dg.TableColumnLineage | None:
        if props.writers:  # a target's column is what its views call so
            held = {column.name for column in props.node.columns}
            filled: dict[str, list[dg.TableColumnDep]] = {}
            for view, facts in props.writers:
                for name in (name for name, _ in facts.lineage if name in held):
                    filled.setdefault(name, []).append(
                        dg.TableColumnDep(asset_key=self.get_asset_key(view), column_name=name)
                    )
            return dg.TableColumnLineage(filled) if filled else None
        if props.facts is None:
            return None
        known = {upstream.name for upstream in props.upstreams}
        deps = {
            name: [
                dg.TableColumnDep(asset_key=self.get_asset_key(source.table), column_name=source.column)
                for source in sources
                if source.table in known
            ]
            for name, sources in props.facts.lineage
        }
        return dg.TableColumnLineage(deps) if deps else None


def _graph_value(link: str) -> dg.MetadataValue[Any]:
    """A link, or a path to copy where it is a file: browsers do not follow links from a web page to one."""
    return dg.MetadataValue.url(link) if link.startswith(("http://", "https://")) else dg.MetadataValue.path(link)


def describe(props: NodeProps) -> str:
    """A paragraph or two for the asset's page: the table's own comment, then its place in the pipeline and what *Materialize* does."""
    return "\n\n".join(text for text in (props.node.comment, _place(props)) if text)


def _place(props: NodeProps) -> str:
    node, role = props.node, props.role
    if node.kind == "refreshable_view":
        schedule = node.refresh.schedule if node.refresh is not None else ""
        return f"Refreshable view ({schedule}): computes all of {node.target or 'its target'} anew. Materialize: refresh it now and wait."
    if node.kind == "external":
        return "External: referred to by the DDL but not declared in it."
    if node.kind == "view":
        return "Plain view: computed whenever it is read, nothing is stored."
    if role == "view":
        return _view_sentence(props)
    if node.kind in ("distributed", "buffer"):
        return "Hands rows on to the table behind it; not materialized."
    if role == "source":
        return _source_sentence(props)
    if role == "target":
        views = ", ".join(str(view) for view, _ in props.writers) or "views"
        if node.kind not in ("table", "inner_table"):
            return f"Target: written by {views}. It keeps no rows of its own, so there is nothing to materialize."
        if props.refreshed:
            return f"Target: computed as a whole by {views}. Materialize: only look at it; to compute it anew, materialize the view."
        what = "the partition" if props.partitions_def is not None else "all of it"
        return f"Target: written by {views}. Materialize: compute {what} anew from the views' own queries and swap it in, while inserts go on."
    if role == "lookup":
        return (
            "Lookup: views read it, but inserts here do not fire them. A change counts for rows that arrive afterwards."
        )
    return "No view reads or writes it; shown because the folder declares it."


def _source_sentence(props: NodeProps) -> str:
    fires = "Source: every insert here fires views"
    if props.node.kind != "table":  # Null, queues: what Dagster could look at is gone when the views have fired
        return f"{fires}; it keeps no rows, so it cannot be materialized or rebuilt from."
    what = "the partition" if props.partitions_def is not None else "it"
    if props.policy.landing is None:
        return f"{fires}. Materialize: only look at {what}: rows, parts, newest event."
    which = "that have rows in the partition, " if props.partitions_def is not None else ""
    return f"{fires}. Materialize: load the new landing files {which}then look at it."


_CLASSES = {
    "append": "append: one row makes one row",
    "additive": "additive: partial results add up, also those of late rows",
    "replacing": "replacing: the newest version of a key wins, also among late rows",
    "opaque": "opaque: a result depends on more than the rows of one insert, so late rows need a rebuild",
}


def _view_sentence(props: NodeProps) -> str:
    trigger = next((str(upstream.name) for upstream in props.upstreams if upstream.kind == "trigger"), "nothing")
    kind = props.facts.view_class if props.facts is not None else "opaque"
    what = "its share of the partition" if props.partitions_def is not None else "all of its share"
    return (
        f"Materialized view: every insert into {trigger} makes rows in {props.node.target} ({_CLASSES[kind]}). "
        f"Materialize: compute {what} beside the target, to look at; readers see nothing of it. To repair, materialize the target."
    )


def _kind(node: Object) -> str:
    return {
        "materialized_view": "materialized_view",
        "refreshable_view": "materialized_view",
        "inner_table": "table",
    }.get(node.kind, node.kind)


def _group(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text) or "default"


def _tags(props: NodeProps) -> Mapping[str, str]:
    tags = {"chmv/role": props.role, "chmv/cadence": props.cadence or "none", **dict(props.policy.tags)}
    if props.facts is not None and props.role == "view":
        tags["chmv/class"] = props.facts.view_class
    return {key: value for key, value in tags.items() if _TAG_VALUE.match(value)}


def _origins(lineage: dg.TableColumnLineage | None, column: str) -> str:
    """Where a column comes from, for people: the graph of columns is a page of Dagster+ only.

    >>> _origins(dg.TableColumnLineage({"items": [dg.TableColumnDep(dg.AssetKey(["shop", "events"]), "quantity")]}), "items")
    '← shop.events.quantity'
    """
    deps = lineage.deps_by_column.get(column, ()) if lineage is not None else ()
    names = [".".join((*dep.asset_key.path, dep.column_name)) for dep in deps]
    return f"← {', '.join(names)}" if names else ""


def _column_schema(node: Object, lineage: dg.TableColumnLineage | None) -> dg.TableSchema:
    other = [f"{word} {text}" for word, text in _keys(node) if text]
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=column.type or "?",
                description="\n\n".join(filter(None, (column.comment, _origins(lineage, column.name)))) or None,
            )
            for column in node.columns
        ],
        constraints=dg.TableConstraints(other=other) if other else None,
    )


def _keys(node: Object) -> tuple[tuple[str, str], ...]:
    return (
        ("PARTITION BY", node.partition_by),
        ("ORDER BY", node.order_by),
        ("PRIMARY KEY", node.primary_key),
        ("TTL", node.ttl),
    )


def _view_schema(facts: ViewFacts, written: Object | None, lineage: dg.TableColumnLineage) -> dg.TableSchema:
    """A view's columns have the types of the target columns that they fill."""
    types = {column.name: column.type for column in written.columns} if written is not None else {}
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name=name, type=types.get(name) or "?", description=_origins(lineage, name) or None)
            for name, _ in facts.lineage
        ]
    )


def _code_reference(props: NodeProps) -> dg.CodeReferencesMetadataValue:
    place = props.node.place
    return dg.CodeReferencesMetadataValue(
        code_references=[
            dg.LocalFileCodeReference(
                file_path=str(props.ddl_dir / place.file), line_number=place.line, label=str(place)
            )
        ]
    )
