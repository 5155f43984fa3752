"""Linking: SELECT texts and engine clauses become references, references become nodes, trees become facts.

Works on all objects together, because only the whole catalog can tell a table from a column (`x IN name`), expand a star or
know what a chain stands on. sqlglot's trees live only here and while the catalog is built; they are never kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.classify import Shape, classify, read_shape
from chmv_assets.core.ddl_reader import view_of_inner
from chmv_assets.core.engine_references import (
    read_default_references,
    read_dictionary_source,
    read_engine_references,
)
from chmv_assets.core.lineage import Lineage, Output
from chmv_assets.core.migrations import Declared
from chmv_assets.core.model import VIEW_KINDS, Column, Object, Place, Reference, ViewFacts
from chmv_assets.core.names import QName
from chmv_assets.core.select_reader import FUNCTION_DATABASE, IN_NAME, Reading, read_select

_DICTIONARY_CALLS = ("dictget", "dicthas", "dictisin", "joinget", "dictionary()")


@dataclass(frozen=True, slots=True)
class Linked:
    """Objects with their references, and the readings of their SELECTs."""

    objects: dict[QName, Object]
    readings: dict[QName, Reading]


def link_objects(objects: Mapping[QName, Object], declared: Declared) -> Linked:
    """Read every SELECT, dictionary source and engine clause."""
    linked: dict[QName, Object] = {}
    readings: dict[QName, Reading] = {}
    for name, made in objects.items():
        created = declared.objects.get(name)
        database = created.default_database if created is not None else name.database
        if made.kind in (*VIEW_KINDS, "view"):
            reading = read_select(made.select, database, fires=made.kind == "materialized_view")
            readings[name] = reading
            linked[name] = replace(made, references=_view_references(made, reading, objects), reader=reading.reader)
        elif made.kind == "dictionary" and created is not None:
            linked[name] = replace(made, references=read_dictionary_source(created.dictionary_source, made))
        else:
            by_engine = read_engine_references(made, database, objects) if made.engine_args else ()
            references = (*by_engine, *read_default_references(made, database))
            linked[name] = replace(made, references=references) if references else made
    found = Linked(place_externals(linked), readings)
    for name, made in found.objects.items():
        if not made.columns and made.kind == "inner_table":
            found.objects[name] = replace(made, columns=_inferred_columns(view_of_inner(name), found))
        elif not made.columns and made.kind == "table" and made.select:
            readings[name] = read_select(made.select, declared.objects[name].default_database, fires=False)
            found.objects[name] = replace(made, columns=_inferred_columns(name, found))
            del readings[name]
    return found


def _inferred_columns(name: QName, linked: Linked) -> tuple[Column, ...]:
    """Columns of a table that is declared only by a SELECT; types as far as time partitions need them."""
    outputs = _outputs(name, linked) or ()
    return tuple(Column(name=output.name, type=_inferred_type(output, linked)) for output in outputs)


def _inferred_type(output: Output, linked: Linked) -> str:
    expression = output.expression.sql(dialect="clickhouse")
    if len(output.sources) != 1:
        return ""
    (source,) = output.sources
    column = linked.objects[source.table].column(source.column) if source.table in linked.objects else None
    if expression.strip("`") == source.column:
        return column.type if column is not None else ""
    called = re.match(r"(\w+)\(", expression)
    if called is None:
        return ""
    if called.group(1) in (
        "toDate",
        "toMonday",
        "toStartOfWeek",
        "toStartOfMonth",
        "toStartOfQuarter",
        "toStartOfYear",
    ):
        return "Date"
    if called.group(1).startswith(("toStartOf", "toDateTime")):
        return "DateTime"
    if called.group(1).lower() in ("datetrunc", "date_trunc"):
        return "DateTime" if re.search(r"'(HOUR|MINUTE|SECOND|DAY)'", expression, re.IGNORECASE) else "Date"
    return ""


def _view_references(made: Object, reading: Reading, objects: Mapping[QName, Object]) -> tuple[Reference, ...]:
    columns = {c.name for r in reading.references if r.name in objects for c in objects[r.name].columns}
    told = (_parameterized_view(r, reading.default_database, objects) for r in reading.references)
    kept = (r for r in told if r.via != IN_NAME or _is_table(r.name, reading, objects, columns))
    if made.kind == "view":
        return tuple(dict.fromkeys(replace(reference, kind="feeds") for reference in kept))
    return tuple(kept)


def _parameterized_view(reference: Reference, database: str, objects: Mapping[QName, Object]) -> Reference:
    """`FROM v(x = 1)` looks like a table function but calls a view, if there is one of that name."""
    if reference.name.database != FUNCTION_DATABASE:
        return reference
    name = QName(database, reference.name.table.split("(")[0])
    return replace(reference, name=name) if name in objects and objects[name].kind == "view" else reference


def _is_table(name: QName, reading: Reading, objects: Mapping[QName, Object], columns: set[str]) -> bool:
    """Decide what `x IN name` means the way the server does: an alias first, then a table, then a column."""
    if name.database == reading.default_database and name.table in reading.aliases:
        return False
    if name in objects:
        return True
    return name.table not in columns and name.database not in reading.table_aliases


def place_externals(objects: Mapping[QName, Object]) -> dict[QName, Object]:
    """Add a node for everything that is referred to but not declared."""
    placed = dict(objects)
    for made in objects.values():
        depends = made.refresh.depends_on if made.refresh is not None else ()
        wanted: Iterable[QName] = (
            *(r.name for r in made.references),
            *depends,
            *((made.target,) if made.target else ()),
        )
        for name in wanted:
            if name not in placed:
                placed[name] = _external(name, made.place)
    return placed


def _external(name: QName, place: Place) -> Object:
    if name.database == FUNCTION_DATABASE:
        return Object(name=name, kind="function", engine=name.table.split("(")[0], place=place, sql="")
    return Object(name=name, kind="external", engine="", place=place, sql="")


def build_facts(linked: Linked, schemes: Mapping[QName, PartitionScheme]) -> dict[QName, ViewFacts]:
    """Class, lineage and time column of every view."""
    outputs = {name: _outputs(name, linked) for name in linked.readings}
    shapes = {name: read_shape(r.tree) if r.tree is not None else None for name, r in linked.readings.items()}
    views = [made for made in linked.objects.values() if made.kind in VIEW_KINDS]
    partial = {made.target for made in views if (shape := shapes[made.name]) is not None and shape.grouped}
    return {
        made.name: _facts(made, linked, outputs[made.name], shapes[made.name], schemes, partial)
        for made in linked.objects.values()
        if made.name in linked.readings
    }


def _outputs(name: QName, linked: Linked) -> list[Output] | None:
    reading = linked.readings[name]
    if reading.tree is None:
        return None

    def columns_of(table: QName) -> tuple[str, ...] | None:
        made = linked.objects.get(table)
        names = tuple(c.name for c in made.columns if c.default_kind != "EPHEMERAL") if made is not None else ()
        return names or None

    try:
        return Lineage(reading.prepared, reading.default_database, columns_of).outputs(reading.tree)
    except RecursionError:
        return None


def _facts(
    made: Object,
    linked: Linked,
    outputs: list[Output] | None,
    shape: Shape | None,
    schemes: Mapping[QName, PartitionScheme],
    partial: set[QName | None],
) -> ViewFacts:
    target = linked.objects.get(made.target) if made.target is not None else None
    joins = [
        str(r.name) for r in made.references if r.kind == "lookup" and not r.via.lower().startswith(_DICTIONARY_CALLS)
    ]
    trigger = next((r.name for r in made.references if r.kind == "trigger"), None)
    view_class, why = classify(shape, made, target, joins, trigger in partial)
    scheme = schemes.get(made.target) if made.target is not None else None
    time = next((output for output in outputs or () if scheme is not None and output.name == scheme.column), None)
    return ViewFacts(
        view_class=view_class,
        why=why,
        lineage=tuple(
            (out.name, tuple(sorted(out.sources, key=lambda s: (s.table, s.column)))) for out in outputs or ()
        ),
        group_keys=shape.group_keys if shape is not None else (),
        aggregates=shape.aggregates if shape is not None else (),
        time_expression=time.expression.sql(dialect="clickhouse") if time is not None else "",
        time_source=next(iter(time.sources)) if time is not None and len(time.sources) == 1 else None,
    )
