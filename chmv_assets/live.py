"""The live server read as a catalog, and where it disagrees with what was parsed.

The same reader reads `system.tables.create_table_query` and the DDL folder; the server's own hooks
(`dependencies_table`) are the second opinion on trigger edges, and its query tree on views that nobody else can read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.compare import Comparison, Difference
from chmv_assets.core.ddl_reader import INNER_PREFIX
from chmv_assets.core.graph import build_edges
from chmv_assets.core.link import place_externals
from chmv_assets.core.model import Edge, Object, Reference
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.tunings import TABLE_SETTINGS, split_tuned
from chmv_assets.live_compare import Judge
from resources.clickhouse import Server
from resources.introspect import LiveObject, fetch_objects, fetch_query_tables
from resources.journal import cluster_from_environment
from resources.tuning_reads import fetch_tunings
from resources.vocabulary import fetch_replica_objects


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A trigger edge that only one side knows."""

    edge: Edge
    known_to: str  # `server` or `parser`

    def __str__(self) -> str:
        other = "the DDL does not say so" if self.known_to == "server" else "the server has no such hook"
        return f"{self.edge.source} → {self.edge.dest}: {other}"


def build_live_catalog(server: Server, databases: Sequence[str] = ()) -> tuple[Catalog, tuple[LiveObject, ...]]:
    """Read the server's objects into a catalog; files are named after the objects."""
    objects = tuple(fetch_objects(server, databases))
    declared = [live for live in objects if not live.is_hidden]
    files = [SourceFile(path=str(live.name), text=live.sql) for live in declared if live.sql]
    catalog = build_catalog(files, default_database="default")
    return _ask_server(catalog, declared, server), objects


def _ask_server(catalog: Catalog, objects: Iterable[LiveObject], server: Server) -> Catalog:
    """Views that the parser could not read in full: take the server's word for their tables."""
    by_name = {live.name: live for live in objects}
    changed: dict[QName, Object] = {}
    for made in catalog.objects.values():
        live = by_name.get(made.name)
        if made.reader == "full" or live is None or not live.select:
            continue
        tables = fetch_query_tables(server, live.select)
        if tables is None:
            continue
        hooked = {source for source, other in by_name.items() if made.name in other.hooked_views}
        changed[made.name] = replace(made, reader="server", references=_references(made, tables, hooked))
    if not changed:
        return catalog
    linked = place_externals({**catalog.objects, **changed})
    return replace(catalog, objects=linked, edges=build_edges(linked))


def _references(made: Object, tables: Sequence[str], hooked: set[QName]) -> tuple[Reference, ...]:
    names = [parse_qname(table, made.name.database) for table in tables]
    kinds = ["feeds" if made.kind == "view" else "trigger" if name in hooked else "lookup" for name in names]
    return tuple(Reference(name=n, kind=k, via="server") for n, k in zip(names, kinds, strict=True))  # type: ignore[arg-type]


def find_disagreements(catalog: Catalog, objects: Iterable[LiveObject]) -> tuple[Disagreement, ...]:
    """Trigger edges of incremental views: parsed against the server's hooks, both ways."""
    live = list(objects)
    there = {item.name for item in live}
    fires = {made.name for made in catalog.objects.values() if made.kind == "materialized_view" and made.name in there}
    inner = {QName(name.database, INNER_PREFIX + name.table): name for name in fires}
    parsed = {edge for edge in catalog.edges if edge.kind == "trigger" and edge.dest in fires}
    hooks = {Edge(item.name, view, "trigger") for item in live for view in item.hooked_views if view in fires}
    parsed = {replace(edge, source=inner.get(edge.source, edge.source)) for edge in parsed}
    hooks = {replace(edge, source=inner.get(edge.source, edge.source)) for edge in hooks}
    missing = [Disagreement(edge, "parser") for edge in sorted(parsed - hooks)]
    return tuple(missing + [Disagreement(edge, "server") for edge in sorted(hooks - parsed)])


def compare_with_live(
    catalog: Catalog, objects: Sequence[LiveObject], server: Server, names: Iterable[QName]
) -> Mapping[QName, Comparison]:
    """Declared against live for many objects; as many queries for one as for all, if they are equal."""
    wanted = tuple(names)
    verdicts = Judge(server, catalog, wanted).compare({live.name: live for live in objects})
    return _with_hooks(_without_tuned(verdicts, server), catalog, objects)


def compare_replicas(
    server: Server, catalog: Catalog, names: Iterable[QName], cluster: str
) -> Mapping[str, Mapping[QName, Comparison]]:
    """Declared against live on every replica of a cluster, by host; nothing can be told of one that does not answer."""
    wanted = tuple(names)
    judge = Judge(server, catalog, wanted)
    triggers = {edge.source for edge in catalog.edges if edge.kind == "trigger" and edge.dest in wanted}
    verdicts: dict[str, Mapping[QName, Comparison]] = {}
    for replica in fetch_replica_objects(server, {*wanted, *triggers}, cluster):
        if replica.objects is None:
            verdicts[replica.host] = dict.fromkeys(wanted, Comparison("cannot tell"))
        else:
            found = _without_tuned(judge.compare({live.name: live for live in replica.objects}), server)
            verdicts[replica.host] = _with_hooks(found, catalog, replica.objects)
    return verdicts


def _without_tuned(verdicts: Mapping[QName, Comparison], server: Server) -> Mapping[QName, Comparison]:
    """What our tuner has set for a while is no difference; one query, and only if a setting differs that it tunes."""
    ours = {f"setting {setting}" for setting in TABLE_SETTINGS}
    suspects = [name for name, one in verdicts.items() if any(found.what in ours for found in one.differences)]
    if not suspects:
        return verdicts
    tunings = fetch_tunings(server, cluster_from_environment(), time.time(), suspects)
    by_table = {name: [one for one in tunings if one.subject == name] for name in suspects}
    return {**verdicts, **{name: split_tuned(verdicts[name], own) for name, own in by_table.items()}}


def _with_hooks(
    verdicts: Mapping[QName, Comparison], catalog: Catalog, objects: Sequence[LiveObject]
) -> Mapping[QName, Comparison]:
    """Add `hook` where the server does not fire a view on the table that it should; a table that was not read says nothing."""
    there = {live.name for live in objects}
    found = dict(verdicts)
    for missing in find_disagreements(catalog, objects):
        source, view = missing.edge.source, missing.edge.dest
        verdict = found.get(view)
        if missing.known_to != "parser" or source not in there or verdict is None or verdict.state == "cannot tell":
            continue
        hook = Difference("hook", f"fires on {source}", "")
        found[view] = replace(verdict, state="changed", differences=(*verdict.differences, hook))
    return found
