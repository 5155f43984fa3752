"""Catalog ⇄ plain JSON, for the cache that every run process reads.

Written by hand as nested lists, because 2,000 objects must come back in a fraction of a second and a cache that anyone can
write must not be able to run code (so no pickle). Invariant: `decode(encode(c)) == c`. Bump `VERSION` with any change here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Column, ColumnSource, Edge, Finding, Object, Place, Reference, Refresh, ViewFacts
from chmv_assets.core.names import QName

VERSION = 5
_SCHEME_FIELDS = tuple(field.name for field in fields(PartitionScheme))
_TEXT_FIELDS = (
    "kind", "engine", "sql", "engine_args", "partition_by", "order_by", "primary_key", "ttl", "comment", "cluster",
    "select", "populate", "or_replace", "reader", "digest", "code_version", "session_database", "sample_by", "security",
)  # fmt: skip
_PAIR_FIELDS = ("settings", "indexes", "projections", "constraints", "dictionary")
_COLUMN_FIELDS = tuple(field.name for field in fields(Column))


class _Names:
    """Names are written once and referred to by number."""

    def __init__(self) -> None:
        self.numbers: dict[QName, int] = {}

    def __call__(self, name: QName | None) -> int:
        return -1 if name is None else self.numbers.setdefault(name, len(self.numbers))


def encode(catalog: Catalog) -> dict[str, Any]:
    """The catalog as JSON-ready lists."""
    number = _Names()
    document: dict[str, Any] = {
        "version": VERSION,
        "default_database": catalog.default_database,
        "objects": [_encode_object(made, number) for made in catalog.objects.values()],
        "edges": [[number(edge.source), number(edge.dest), edge.kind] for edge in catalog.edges],
        "findings": [_encode_finding(finding) for finding in catalog.findings],
        "facts": [[number(name), _encode_facts(facts, number)] for name, facts in catalog.facts.items()],
        "schemes": [
            [number(name), [getattr(scheme, field) for field in _SCHEME_FIELDS]]
            for name, scheme in catalog.schemes.items()
        ],
    }
    document["names"] = [[name.database, name.table] for name in number.numbers]
    return document


def decode(document: dict[str, Any]) -> Catalog:
    """The catalog back from its lists; raises ValueError for another version."""
    if document.get("version") != VERSION:
        raise ValueError(f"catalog document: version {document.get('version')} but wanted {VERSION}")
    names = [QName(database, table) for database, table in document["names"]]
    objects = [_decode_object(row, names) for row in document["objects"]]
    return Catalog(
        objects={made.name: made for made in objects},
        edges=tuple(Edge(names[source], names[dest], kind) for source, dest, kind in document["edges"]),
        findings=tuple(_decode_finding(row) for row in document["findings"]),
        facts={names[name]: _decode_facts(row, names) for name, row in document["facts"]},
        schemes={names[name]: _decode_scheme(row) for name, row in document["schemes"]},
        default_database=document["default_database"],
    )


def _encode_object(made: Object, number: _Names) -> list[Any]:
    refresh = made.refresh
    return [
        number(made.name),
        [getattr(made, field) for field in _TEXT_FIELDS],
        [made.place.file, made.place.line],
        [_encode_column(column) for column in made.columns],
        [[list(pair) for pair in getattr(made, field)] for field in _PAIR_FIELDS],
        number(made.target),
        [refresh.schedule, [number(n) for n in refresh.depends_on], refresh.append, [list(p) for p in refresh.settings]]
        if refresh
        else None,
        [[number(r.name), r.kind, r.via] for r in made.references],
    ]


def _encode_column(column: Column) -> list[str]:
    """Its fields in order, without the empty ones at the end: most columns have a name and a type only."""
    values = [getattr(column, field) for field in _COLUMN_FIELDS]
    while values and not values[-1]:
        values.pop()
    return values


def _decode_column(values: Sequence[str]) -> Column:
    if len(values) < 2:
        return Column(name=values[0] if values else "", type="")
    return Column(**dict(zip(_COLUMN_FIELDS, values, strict=False)))


def _decode_object(row: Sequence[Any], names: Sequence[QName]) -> Object:
    name, texts, place, columns, pairs, target, refresh, references = row
    return Object(
        name=names[name],
        place=Place(place[0], place[1]),
        columns=tuple(map(_decode_column, columns)),
        target=names[target] if target >= 0 else None,
        refresh=_decode_refresh(refresh, names) if refresh else None,
        references=tuple(Reference(name=names[n], kind=kind, via=via) for n, kind, via in references),
        **_decode_fields(texts, pairs),
    )


def _decode_fields(texts: Sequence[Any], pairs: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(_TEXT_FIELDS, texts, strict=True))
    for field, listed in zip(_PAIR_FIELDS, pairs, strict=True):
        found[field] = tuple((key, value) for key, value in listed)
    return found


def _decode_refresh(row: Sequence[Any], names: Sequence[QName]) -> Refresh:
    schedule, depends_on, append, settings = row
    return Refresh(
        schedule=schedule,
        depends_on=tuple(names[at] for at in depends_on),
        append=append,
        settings=tuple((key, value) for key, value in settings),
    )


def _encode_facts(facts: ViewFacts, number: _Names) -> list[Any]:
    time = facts.time_source
    return [
        facts.view_class,
        facts.why,
        [[name, [[number(s.table), s.column] for s in sources]] for name, sources in facts.lineage],
        list(facts.group_keys),
        [list(pair) for pair in facts.aggregates],
        facts.time_expression,
        [number(time.table), time.column] if time else None,
    ]


def _decode_facts(row: Sequence[Any], names: Sequence[QName]) -> ViewFacts:
    view_class, why, lineage, group_keys, aggregates, time_expression, time = row
    return ViewFacts(
        view_class=view_class,
        why=why,
        lineage=tuple(
            (name, tuple(ColumnSource(names[table], column) for table, column in sources)) for name, sources in lineage
        ),
        group_keys=tuple(group_keys),
        aggregates=tuple((column, function) for column, function in aggregates),
        time_expression=time_expression,
        time_source=ColumnSource(names[time[0]], time[1]) if time else None,
    )


def _decode_scheme(row: Sequence[Any]) -> PartitionScheme:
    values = dict(zip(_SCHEME_FIELDS, row, strict=True))
    values["dimensions"] = tuple(values["dimensions"])
    return PartitionScheme(**values)


def _encode_finding(finding: Finding) -> list[Any]:
    place = [finding.place.file, finding.place.line] if finding.place else None
    return [finding.code, finding.severity, finding.message, place, finding.subject]


def _decode_finding(row: Sequence[Any]) -> Finding:
    code, severity, message, place, subject = row
    where = Place(place[0], place[1]) if place else None
    return Finding(code=code, severity=severity, message=message, place=where, subject=subject)
