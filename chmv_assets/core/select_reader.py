"""A SELECT text → the objects it reads, by sqlglot's AST.

Invariant: exactly one reference of an incremental view is the trigger (the left-most table of the first branch, looked
up through subqueries and CTEs); everything else is a lookup. Names of CTEs, aliases, lambda arguments and ARRAY JOIN
operands never become tables. What sqlglot cannot read goes to `tolerant_reader`; `Reading.reader` says who answered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from chmv_assets.core.model import EdgeKind, Reader, Reference
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.secrets import mask_secrets
from chmv_assets.core.select_text import RENAMED_CALLS, Prepared, prepare_select
from chmv_assets.core.tolerant_reader import read_references

FUNCTION_DATABASE = "_table_function"
# Table functions that make their own rows: they are no dependency of anything.
_SELF_MADE = frozenset(
    [
        "numbers",
        "numbers_mt",
        "zeros",
        "zeros_mt",
        "generaterandom",
        "generateseries",
        "generate_series",
        "values",
        "null",
        "input",
        "loop",
        "one",
        "fuzzquery",
        "fuzzjson",
        "mergetreeindex",
        "mergetreeprojection",
        "format",
    ]
)
_CLUSTER_FUNCTIONS = frozenset(("cluster", "clusterallreplicas"))
_IN_FUNCTIONS = frozenset((RENAMED_CALLS["in"], "notin", "globalin", "globalnotin"))
MAX_PARSED_CHARS = 200_000
MAX_PARSED_DEPTH = 200
IN_NAME = "in-name"  # `x IN name`: a table or a column, decided when the catalog is linked


@dataclass(frozen=True, slots=True)
class Reading:
    """What one SELECT refers to, and its AST if sqlglot could read it."""

    references: tuple[Reference, ...]
    reader: Reader
    tree: exp.Query | None
    prepared: Prepared
    default_database: str
    aliases: frozenset[str] = frozenset()  # every alias of an expression in the text
    table_aliases: frozenset[str] = frozenset()
    repeats_trigger: bool = False  # the trigger table is read a second time, where only the inserted block is seen


def read_select(text: str, default_database: str, *, fires: bool) -> Reading:
    """Read a view's SELECT; with `fires` its left-most table is the trigger, else it is a lookup like the rest."""
    prepared = prepare_select(text)
    tree = None if _is_monstrous(prepared) else parse_query(prepared.text)
    if tree is None:
        return _read_by_tokens(prepared, default_database, fires)
    collector = _Collector(default_database, prepared, fires)
    try:
        collector.query(tree, {}, main=True, via="from")
    except RecursionError:  # thousands of ANDs; the tokens still tell
        return _read_by_tokens(prepared, default_database, fires)
    triggers = {reference.name for reference in collector.found if reference.kind == "trigger"}
    repeats = any(reference.kind != "trigger" and reference.name in triggers for reference in collector.found)
    aliases = frozenset(node.alias for node in tree.find_all(exp.Alias) if node.alias)
    aliases |= {cte.alias for cte in tree.find_all(exp.CTE) if _is_scalar(cte)}
    tables = frozenset(node.alias for node in tree.find_all(exp.Table, exp.Subquery) if node.alias)
    return Reading(tuple(collector.unique()), "full", tree, prepared, default_database, aliases, tables, repeats)


def _read_by_tokens(prepared: Prepared, default_database: str, fires: bool) -> Reading:
    try:
        references = read_references(prepared, default_database, fires=fires)
    except RecursionError:
        references = None
    reader: Reader = "none" if references is None else "tolerant"
    return Reading(references or (), reader, None, prepared, default_database)


def _is_monstrous(prepared: Prepared) -> bool:
    """Texts on which sqlglot would spend minutes or its whole stack; tokens must do."""
    if len(prepared.text) > MAX_PARSED_CHARS:
        return True
    depth = deepest = 0
    for token in prepared.tokens:
        depth += token.is_op("(", "[") - token.is_op(")", "]")
        deepest = max(deepest, depth)
    return deepest > MAX_PARSED_DEPTH


def parse_query(text: str) -> exp.Query | None:
    """Parse with sqlglot; None whenever the result is not a plain query (it raises, warns or gives a Command)."""
    logger = logging.getLogger("sqlglot")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        parsed = sqlglot.parse(text, dialect="clickhouse")
    except Exception:  # sqlglot raises TypeError and RecursionError too (docs/adr/0002)
        return None
    finally:
        logger.setLevel(level)
    tree = parsed[0] if len(parsed) == 1 else None
    while isinstance(tree, exp.Paren | exp.Subquery) and isinstance(tree.this, exp.Query):
        tree = tree.this
    return tree if isinstance(tree, exp.Query) else None


_Ctes = Mapping[str, exp.Expr]


class _Collector:
    """Walks a query with its CTE scopes and collects references in order of appearance."""

    def __init__(self, default_database: str, prepared: Prepared, fires: bool) -> None:
        self.default_database = default_database
        self.prepared = prepared
        self.fires = fires
        self.found: list[Reference] = []
        self._open: set[int] = set()
        self._recursive: set[str] = set()

    def unique(self) -> Iterator[Reference]:
        """Each (name, kind) once; a trigger hides lookups of the same table."""
        triggers = {reference.name for reference in self.found if reference.kind == "trigger"}
        seen: set[tuple[QName, EdgeKind]] = set()
        for reference in self.found:
            key = (reference.name, reference.kind)
            if key in seen or (reference.kind == "lookup" and reference.name in triggers):
                continue
            seen.add(key)
            yield reference

    def query(self, node: exp.Expr, ctes: _Ctes, *, main: bool, via: str) -> None:
        if id(node) in self._open:  # a recursive CTE
            return
        self._open.add(id(node))
        scope = {**ctes, **_ctes_of(node)}
        if (with_ := node.args.get("with_")) is not None and with_.args.get("recursive"):
            self._recursive |= {cte.alias for cte in with_.expressions}
        if isinstance(node, exp.SetOperation):
            self.query(node.left, scope, main=main, via=via)
            self.query(node.right, scope, main=False, via="union")
            self._children(node, scope, skip=("this", "expression", "with_"))
        elif isinstance(node, exp.Subquery):
            self.query(node.this, scope, main=main, via=via)
            for join in node.args.get("joins") or ():
                self._join(join, scope)
        elif isinstance(node, exp.Select):
            self._select(node, scope, main, via)
        else:
            self._expression(node, scope)
        self._open.discard(id(node))

    def _select(self, node: exp.Select, ctes: _Ctes, main: bool, via: str) -> None:
        source = node.args.get("from_")
        if source is not None:
            self._relation(source.this, ctes, main=main, via=via)
        for join in node.args.get("joins") or ():
            self._join(join, ctes)
        self._children(node, ctes, skip=("from_", "joins", "with_"))
        for cte in (node.args.get("with_") or exp.With()).expressions:
            if _is_scalar(cte):
                self._expression(cte.this, ctes)

    def _join(self, join: exp.Expr, ctes: _Ctes) -> None:
        if str(join.args.get("kind") or "").upper().endswith("ARRAY"):
            self._children(join, ctes)
            return
        self._relation(join.this, ctes, main=False, via="join")
        self._children(join, ctes, skip=("this",))

    def _relation(self, node: exp.Expr, ctes: _Ctes, *, main: bool, via: str) -> None:
        while isinstance(node, exp.Final | exp.TableSample | exp.Paren | exp.Alias):
            node = node.this
        if isinstance(node, exp.Query):
            self.query(node, ctes, main=main, via=via)
            return
        if not isinstance(node, exp.Table):
            self._expression(node, ctes)
            return
        for join in node.args.get("joins") or ():
            self._join(join, ctes)
        if isinstance(node.this, exp.Func) and not node.db:
            self._table_function(node.this, ctes, main, via)
        elif isinstance(node.this, exp.Func):  # a parameterized view: db.view(x = 1)
            self._add(QName(self.prepared.restore(node.db), _function_name(node.this)), main, via)
        elif not node.db and node.name in ctes:
            # A recursive CTE sees itself (`query` stops there); any other sees what its name meant before.
            recursive = node.name in self._recursive
            inner = ctes if recursive else {k: v for k, v in ctes.items() if k != node.name}
            self.query(ctes[node.name], inner, main=main, via=via)
        else:
            database = self.prepared.restore(node.db) or self.default_database
            self._add(QName(database, self.prepared.restore(node.name)), main, via)

    def _table_function(self, node: exp.Func, ctes: _Ctes, main: bool, via: str) -> None:
        name = _function_name(node)
        arguments = _arguments(node)
        if "." in name and (view := self._name_of_text(name)) is not None:  # `db.view`(x = 1), as the server prints it
            self._add(view, main, via)
            return
        if name.lower() == "view" and arguments and isinstance(arguments[0], exp.Query):
            self.query(arguments[0], ctes, main=main, via=via)
            return
        if name.lower() == "viewifpermitted" or name.lower() in _SELF_MADE:
            self._children(node, ctes)
            return
        if name == RENAMED_CALLS["dictionary"] and arguments:
            self._add(self._name_of_argument(arguments[0]), main, "dictionary()")
            return
        if name.lower() in _CLUSTER_FUNCTIONS and len(arguments) >= 2:
            self._add(self._cluster_table(arguments[1:]), main, f"{name}()")
            return
        literal = next((a.this for a in arguments if isinstance(a, exp.Literal) and a.is_string), None)
        shown = f"{name}('{self.prepared.restore(literal)}')" if literal is not None else name
        shown = mask_secrets(shown)  # it is the name of a node: everybody sees it
        self._add(QName(FUNCTION_DATABASE, shown), main, f"{name}()")

    def _cluster_table(self, arguments: list[exp.Expr]) -> QName | None:
        if len(arguments) >= 2 and not (isinstance(arguments[0], exp.Column) and arguments[0].table):
            first, second = self._word(arguments[0]), self._word(arguments[1])
            if first and second:
                return QName(first, second)
        return self._name_of_argument(arguments[0])

    def _children(self, node: exp.Expr, ctes: _Ctes, skip: tuple[str, ...] = ()) -> None:
        for key, value in node.args.items():
            if key in skip:
                continue
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, exp.Expr):
                    self._expression(child, ctes)

    def _expression(self, node: exp.Expr, ctes: _Ctes) -> None:
        if isinstance(node, exp.Query):
            self.query(node, ctes, main=False, via="subquery")
            return
        if isinstance(node, exp.Table):
            self._relation(node, ctes, main=False, via="subquery")
            return
        if isinstance(node, exp.In):
            self._in(node, ctes)
        elif isinstance(node, exp.Func):
            name = _function_name(node)
            arguments = _arguments(node)
            if _names_an_object(name) and arguments:
                self._add(self._name_of_argument(arguments[0]), False, name)
            elif name.lower() in _IN_FUNCTIONS and len(arguments) == 2 and isinstance(arguments[1], exp.Column):
                self._add(self._name_of_argument(arguments[1]), False, IN_NAME)
        self._children(node, ctes)

    def _in(self, node: exp.In, ctes: _Ctes) -> None:
        operand = node.args.get("field")
        if operand is None and len(node.expressions) == 1:
            operand = node.expressions[0]
        if isinstance(operand, exp.Paren):
            operand = operand.this
        if not isinstance(operand, exp.Column) or isinstance(operand.this, exp.Star):
            return
        if not operand.table and operand.name in ctes:
            self.query(ctes[operand.name], ctes, main=False, via="in")
            return
        self._add(self._name_of_argument(operand), False, IN_NAME)

    def _add(self, name: QName | None, main: bool, via: str) -> None:
        if name is not None:
            fires = main and self.fires and name.database != FUNCTION_DATABASE  # a function has no INSERT
            kind: EdgeKind = "trigger" if fires else "lookup"
            self.found.append(Reference(name=name, kind=kind, via=via))

    def _word(self, node: exp.Expr) -> str | None:
        if isinstance(node, exp.Literal | exp.Column | exp.Identifier | exp.Var):
            return self.prepared.restore(node.name)
        if isinstance(node, exp.Func) and _function_name(node).lower() in ("currentdatabase", "database"):
            return self.default_database
        return None

    def _name_of_argument(self, node: exp.Expr) -> QName | None:
        if isinstance(node, exp.Literal) and node.is_string:
            return self._name_of_text(node.this)
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            database = self.prepared.restore(node.table) or self.default_database
            return QName(database, self.prepared.restore(node.name))
        if isinstance(node, exp.Identifier | exp.Var):
            return QName(self.default_database, self.prepared.restore(node.name))
        return None

    def _name_of_text(self, text: str) -> QName | None:
        try:
            return parse_qname(self.prepared.restore(text), self.default_database)
        except ValueError:
            database, _, table = text.partition(".")
            return QName(database, table) if table else None


def _ctes_of(node: exp.Expr) -> dict[str, exp.Expr]:
    with_ = node.args.get("with_")
    if with_ is None:
        return {}
    return {cte.alias: cte.this for cte in with_.expressions if not _is_scalar(cte)}


def _is_scalar(cte: exp.Expr) -> bool:
    """`WITH <expression> AS name`, as against `WITH name AS (query)`."""
    return bool(cte.args.get("scalar")) or not isinstance(cte.this, exp.Query)


def _function_name(node: exp.Func) -> str:
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return node.this.name if isinstance(node.this, exp.Identifier) else str(node.this)
    return node.sql_name()


def _arguments(node: exp.Func) -> list[exp.Expr]:
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return list(node.expressions)
    values = (value if isinstance(value, list) else [value] for value in node.args.values())
    return [child for group in values for child in group if isinstance(child, exp.Expr)]


def _names_an_object(function: str) -> bool:
    lowered = function.lower()
    return lowered.startswith(("dictget", "dicthas", "dictisin", "joinget"))
