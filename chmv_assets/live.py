"""The live server read as a catalog, and where it disagrees with what was parsed.

The same reader reads `system.tables.create_table_query` and the DDL folder; the server's own hooks
(`dependencies_table`) are the second opinion on trigger edges, and its query tree on views that nobody else can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.compare import Comparison, Difference, compare_objects
from chmv_assets.core.ddl_reader import INNER_PREFIX
from chmv_assets.core.graph import build_edges
from chmv_assets.core.link import place_externals
from chmv_assets.core.model import VIEW_KINDS, Edge, Object, Reference
from chmv_assets.core.names import QName, parse_qname
from resources.clickhouse import Server
from resources.introspect import LiveObject, fetch_canonical_type, fetch_formatted, fetch_objects, fetch_query_tables

HIDDEN = (
    ".inner.",
    ".inner_id.",
    ".tmp.inner",
)  # tables of views without TO, and those that a refresh fills before it swaps them in


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
    declared = [live for live in objects if not live.name.table.startswith(HIDDEN)]
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
    """Declared against live for many objects, with one query for the formatting."""
    wanted = [catalog.objects[name] for name in names]
    by_name = {live.name: live for live in objects}
    present = [made for made in wanted if made.name in by_name and made.sql]
    formatted = fetch_formatted(server, [made.sql for made in present])
    verdicts: dict[QName, Comparison] = {
        made.name: Comparison("missing") for made in wanted if made.name not in by_name
    }
    for made, text in zip(present, formatted, strict=True):
        verdict = _compare(made, text, by_name[made.name], catalog.default_database)
        verdicts[made.name] = _without_aliases(verdict, server)
    return verdicts


def _without_aliases(verdict: Comparison, server: Server) -> Comparison:
    """Take out differences of types that are one type to the server; asked only where spellings differ."""
    kept = tuple(d for d in verdict.differences if not (d.is_type and _one_type(d, server)))
    if len(kept) == len(verdict.differences):
        return verdict
    return Comparison("changed" if kept else "equal", kept)


def _one_type(difference: Difference, server: Server) -> bool:
    declared = fetch_canonical_type(server, difference.declared)
    return declared is not None and declared == fetch_canonical_type(server, difference.live)


def _compare(made: Object, formatted: str | None, live: LiveObject, default_database: str) -> Comparison:
    if formatted is None:
        return Comparison("cannot tell")
    mine = build_catalog([SourceFile(path="declared", text=formatted)], default_database=default_database)
    theirs = build_catalog([SourceFile(path="live", text=live.sql)], default_database=default_database)
    if made.name not in mine.objects or made.name not in theirs.objects:
        return Comparison("cannot tell")
    if made.kind in VIEW_KINDS and made.reader == "none":
        return Comparison("cannot tell")
    return compare_objects(mine.objects[made.name], theirs.objects[made.name], default_database)
