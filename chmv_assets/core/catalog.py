"""Files → catalog: the one entrance to the core.

`build_catalog` never raises for bad input: everything that is wrong is in `Catalog.findings`, with file and line, all at
once. Errors there make the catalog unusable for Dagster (`Catalog.require_sound`), the rest is advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

from chmv_assets.core.cadence import PartitionScheme, cadence_name, parse_scheme
from chmv_assets.core.clause_reader import read_name
from chmv_assets.core.code_version import seal
from chmv_assets.core.ddl_reader import INNER_PREFIX, Created, read_create, statement_words
from chmv_assets.core.errors import CatalogDefects, UnknownObject
from chmv_assets.core.graph import build_edges, build_layers, build_roles, find_cycle
from chmv_assets.core.migrations import Declared, apply_statement
from chmv_assets.core.model import VIEW_KINDS, Edge, Finding, Object, Place, Role, ViewFacts
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.statements import SourceFile, Statement, decode_source, split_statements
from chmv_assets.core.tokens import Cursor

__all__ = ["Catalog", "SourceFile", "build_catalog", "decode_source"]

_PASSED_OVER = (
    "INSERT", "SET", "GRANT", "REVOKE", "OPTIMIZE", "SYSTEM", "SELECT", "WITH", "TRUNCATE", "DETACH", "CHECK", "EXPLAIN",
    "SHOW", "DESCRIBE", "DESC", "KILL", "BACKUP", "RESTORE", "WATCH", "EXISTS", "DELETE", "UPDATE", "BEGIN", "COMMIT",
    "MOVE", "UNDROP",
)  # fmt: skip
_NOT_DECLARED = ("inner_table", "external", "function")


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything declared, linked and judged."""

    objects: Mapping[QName, Object]  # declared, inner tables, external nodes and functions
    edges: tuple[Edge, ...]
    findings: tuple[Finding, ...]
    facts: Mapping[QName, ViewFacts] = field(default_factory=dict)  # of every view
    schemes: Mapping[QName, PartitionScheme] = field(default_factory=dict)  # of tables with a time partition key
    default_database: str = "default"

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def require_sound(self) -> Catalog:
        """Give the catalog back, or raise all its errors at once."""
        if self.errors:
            raise CatalogDefects(self.errors)
        return self

    def get(self, name: str) -> Object:
        """The object of that name as a person writes it; an unknown name lists the nearest."""
        try:
            wanted = parse_qname(name, self.default_database)
        except ValueError:
            wanted = QName(self.default_database, name)
        if wanted not in self.objects:
            raise UnknownObject(name, (str(known) for known in self.objects))
        return self.objects[wanted]

    def scheme(self, name: QName) -> PartitionScheme | None:
        """How the object is cut in time; a view is cut like its target."""
        made = self.objects[name]
        owner = made.target if made.kind in VIEW_KINDS and made.target else name
        return self.schemes.get(owner)

    def cadence(self, name: QName) -> str | None:
        """`hourly`, `daily`, … or None."""
        scheme = self.scheme(name)
        return cadence_name(scheme.unit) if scheme is not None else None

    def declared(self) -> dict[QName, Object]:
        """What the folder has a statement of its own for: no inner tables, nothing that is only mentioned."""
        return {name: made for name, made in self.objects.items() if made.sql and made.kind not in _NOT_DECLARED}

    def views_into(self, target: QName) -> tuple[Object, ...]:
        """All views that write into a table, in order of their names."""
        return tuple(self.objects[edge.source] for edge in self.edges_into(target) if edge.kind == "writes")

    def fired_by(self, table: QName) -> tuple[Object, ...]:
        """All views that inserts into a table fire, in order of their names."""
        return tuple(self.objects[edge.dest] for edge in self.edges_from(table) if edge.kind == "trigger")

    def trigger_of(self, view: QName) -> QName | None:
        """The table whose inserts fire a view."""
        return next((edge.source for edge in self.edges_into(view) if edge.kind == "trigger"), None)

    def edges_into(self, name: QName) -> Sequence[Edge]:
        """The edges that end at an object, in order of their sources."""
        return self._incoming.get(name, ())

    def edges_from(self, name: QName) -> Sequence[Edge]:
        """The edges that begin at an object, in order of their ends."""
        return self._outgoing.get(name, ())

    @cached_property
    def _incoming(self) -> Mapping[QName, Sequence[Edge]]:
        return self._edges_by(attrgetter("dest"))

    @cached_property
    def _outgoing(self) -> Mapping[QName, Sequence[Edge]]:
        return self._edges_by(attrgetter("source"))

    def _edges_by(self, end: Callable[[Edge], QName]) -> Mapping[QName, Sequence[Edge]]:
        """Edges by one of their ends: every look-up over all edges would be quadratic in a large catalog."""
        found: dict[QName, list[Edge]] = {}
        for edge in self.edges:
            found.setdefault(end(edge), []).append(edge)
        return found

    def roles(self) -> dict[QName, Role]:
        return build_roles(self.objects, self.edges)

    def layers(self) -> tuple[tuple[QName, ...], ...]:
        """Topological layers of a sound catalog."""
        return self._layers

    @cached_property
    def _layers(self) -> tuple[tuple[QName, ...], ...]:
        return build_layers(self.objects, self.edges)

    @cached_property
    def flow_order(self) -> Mapping[QName, int]:
        """The place of every object in the order in which rows flow."""
        return {name: at for at, name in enumerate(name for layer in self.layers() for name in layer)}


def natural_key(path: str) -> tuple[object, ...]:
    """Sort key for file names: `2_b.sql` comes before `10_a.sql`.

    >>> sorted(["10_a.sql", "2_b.sql"], key=natural_key)
    ['2_b.sql', '10_a.sql']
    """
    return tuple(
        (0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in re.split(r"(\d+)", path) if piece
    )


def build_catalog(
    files: Iterable[SourceFile],
    *,
    default_database: str = "default",
    findings: Sequence[Finding] = (),
) -> Catalog:
    """Read, link and judge a DDL folder; `findings` are defects found earlier (files that are not text, settings)."""
    declared = Declared(findings=list(findings))
    for file in sorted(files, key=lambda file: natural_key(file.path)):
        _read_file(file, declared, default_database)
    return link_catalog(declared, default_database)


def link_catalog(declared: Declared, default_database: str) -> Catalog:
    """Turn declared objects into a catalog: references, inner and external nodes, edges, facts, lints."""
    from chmv_assets.core.link import (
        build_facts,
        link_objects,
    )  # bring sqlglot: 0.4 s that a cached catalog need not pay
    from chmv_assets.core.lint import lint_catalog

    linked = link_objects(_complete(declared), declared)
    objects = linked.objects
    edges = build_edges(objects)
    findings = list(declared.findings)
    schemes = {
        name: scheme for name, made in objects.items()
        if made.partition_by and (scheme := parse_scheme(made.partition_by, made.columns)) is not None
    }  # fmt: skip
    cycle = find_cycle(edges)
    if cycle is not None:
        findings.append(_cycle_finding(cycle, objects))
    facts = build_facts(linked, schemes)
    catalog = Catalog(
        objects=seal(objects, facts),
        edges=edges,
        findings=(),
        facts=facts,
        schemes=schemes,
        default_database=default_database,
    )
    repeated = {name for name, reading in linked.readings.items() if reading.repeats_trigger}
    findings += lint_catalog(catalog, repeated)
    ordered = sorted(
        findings, key=lambda f: (natural_key(f.place.file) if f.place else (), f.place.line if f.place else 0)
    )
    return replace(catalog, findings=tuple(ordered))


def _read_file(file: SourceFile, declared: Declared, database: str) -> None:
    statements, findings = split_statements(file)
    declared.findings += findings
    for statement in statements:
        if statement.tokens[0].is_word("USE"):
            cursor = Cursor(statement.text, statement.tokens)
            cursor.next()
            name = read_name(cursor, "")
            database = name.table if name is not None else database
        else:
            _read_statement(statement, declared, database)


def _read_statement(statement: Statement, declared: Declared, database: str) -> None:
    words = statement_words(statement)
    if words[0] in ("CREATE", "ATTACH", "REPLACE"):
        _read_created(statement, declared, database, words)
    elif words[0] in _PASSED_OVER:
        declared.note(statement, "ignored-statement", f"{words[0]} declares nothing and is not part of the graph.")
    elif not apply_statement(statement, declared, database):
        shown = " ".join(statement.text.split())[:60]
        _unreadable(statement, declared, f"found `{shown}` but wanted a ClickHouse statement.")


def _unreadable(statement: Statement, declared: Declared, what: str) -> None:
    message = f"statement: {what} Nothing is dropped silently, so the folder is refused. Fix or remove it."
    declared.findings.append(
        Finding(code="unreadable-statement", severity="error", message=message, place=statement.place)
    )


_OTHER_CREATES = (
    "DATABASE", "FUNCTION", "USER", "ROLE", "ROW", "POLICY", "QUOTA", "SETTINGS", "PROFILE", "NAMED", "RESOURCE",
    "WORKLOAD", "MASKING", "AGGREGATE", "TEMPORARY", "INDEX", "TYPE",
)  # fmt: skip


def _read_created(statement: Statement, declared: Declared, database: str, words: Sequence[str]) -> None:
    created = read_create(statement, database)
    if (second := _second_create(statement)) is not None:
        _unreadable(statement, declared, f"a second `{second}` begins inside it but wanted a semicolon before.")
        return
    if created is None:
        rest = [word for word in words[1:] if word not in ("OR", "REPLACE")]
        if rest and rest[0] in _OTHER_CREATES:
            declared.note(statement, "ignored-statement", f"{words[0]} {rest[0]} is not part of the graph.")
        else:
            _unreadable(statement, declared, "a CREATE without a readable kind and name.")
        return
    made = created.object
    if created.temporary:
        declared.note(statement, "ignored-statement", f"temporary table {made.name} lives in one session only.")
        return
    bare = not (made.engine or made.columns or made.select or created.like)
    if words[0] == "ATTACH" and bare:
        declared.note(statement, "ignored-statement", f"ATTACH of {made.name} without a definition declares nothing.")
        return
    if made.kind == "table" and bare:
        _unreadable(statement, declared, f"CREATE TABLE {made.name} has neither columns nor an engine.")
        return
    if made.kind in (*VIEW_KINDS, "view") and not made.select:
        _unreadable(statement, declared, f"view {made.name} has no SELECT.")
        return
    before = declared.objects.get(made.name)
    if before is not None and not made.or_replace:
        message = (
            f"object {made.name}: declared at {before.object.place} and again here but wanted once. "
            "The server would keep only one of them. Remove one, or DROP it in between."
        )
        declared.findings.append(
            Finding(
                code="duplicate-object", severity="error", message=message, place=made.place, subject=str(made.name)
            )
        )
        return
    declared.objects[made.name] = created


def _second_create(statement: Statement) -> str | None:
    """A CREATE in the middle of a statement: its semicolon is missing, and the object would be swallowed."""
    depth = 0
    for token, after in zip(statement.tokens[1:], statement.tokens[2:], strict=False):
        depth += token.is_op("(", "[") - token.is_op(")", "]")
        if (
            depth == 0
            and token.is_word("CREATE")
            and after.is_word("TABLE", "MATERIALIZED", "VIEW", "DICTIONARY", "OR")
        ):
            return f"{token.text} {after.text}"
    return None


def _complete(declared: Declared) -> dict[QName, Object]:
    """Finish what one statement alone could not say: CREATE … AS other, and inner tables."""
    objects: dict[QName, Object] = {}
    for name, created in declared.objects.items():
        made = _like(created, declared)
        objects[name] = made
        if made.kind in VIEW_KINDS and made.target == QName(name.database, INNER_PREFIX + name.table):
            engine, _, arguments = made.engine_args.partition("(")
            if made.target not in declared.objects:
                objects[made.target] = replace(
                    made, name=made.target, kind="inner_table", engine=engine, engine_args=arguments[:-1], select="",
                    target=None, refresh=None, populate=False, or_replace=False,
                )  # fmt: skip
            objects[name] = replace(
                made, partition_by="", order_by="", primary_key="", sample_by="", ttl="", engine_args="", settings=(),
                indexes=(), projections=(), constraints=(),
            )  # fmt: skip
    return objects


def _like(created: Created, declared: Declared) -> Object:
    made = created.object
    origin = declared.objects.get(created.like) if created.like else None
    if origin is None:
        return made
    old = origin.object
    made = replace(made, code_version=f"{made.code_version} like {old.code_version}")
    if not made.columns:
        made = replace(
            made, columns=old.columns, indexes=old.indexes, projections=old.projections, constraints=old.constraints
        )
    if not made.engine:
        made = replace(
            made, kind=old.kind, engine=old.engine, engine_args=old.engine_args, settings=old.settings, ttl=old.ttl
        )
    if not made.engine.endswith("MergeTree"):
        return made
    return replace(  # the server copies each key that the new table does not declare itself
        made,
        partition_by=made.partition_by or old.partition_by,
        order_by=made.order_by or old.order_by,
        primary_key=made.primary_key or old.primary_key,
        sample_by=made.sample_by or old.sample_by,
    )


def _cycle_finding(cycle: tuple[QName, ...], objects: Mapping[QName, Object]) -> Finding:
    place: Place | None = next((objects[name].place for name in cycle if name in objects), None)
    path = " → ".join(str(name) for name in cycle)
    message = (
        f"graph: found the cycle {path} but wanted none. An INSERT would fire itself for ever. Cut one of its views."
    )
    return Finding(code="cycle", severity="error", message=message, place=place, subject=str(cycle[0]))
