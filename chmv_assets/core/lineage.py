"""Column lineage of one SELECT: each output column → the upstream columns it is made of.

Follows subqueries, CTEs, stars (expanded from the catalog's columns), ARRAY JOIN operands, dictGet attributes and
ClickHouse's reuse of aliases inside one SELECT. What cannot be told (an unknown column of several unknown tables) is left
out rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from chmv_assets.core.model import ColumnSource
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.select_text import Prepared

ColumnsOf = Callable[[QName], "tuple[str, ...] | None"]
Sources = frozenset[ColumnSource]
_NOTHING: Sources = frozenset()


@dataclass(frozen=True, slots=True)
class Output:
    """One output column: its name, what it is made of, and its expression with inner names resolved."""

    name: str
    sources: Sources
    expression: exp.Expr


@dataclass
class _Relation:
    """One entry of a FROM: a physical table or the outputs of a subquery."""

    alias: str
    table: QName | None = None
    columns: tuple[str, ...] | None = None  # None: not known
    outputs: dict[str, Output] = field(default_factory=dict)

    def find(self, column: str) -> Output | None:
        if self.table is None:
            return self.outputs.get(column)
        if self.columns is not None and column not in self.columns:
            return None
        return Output(column, frozenset({ColumnSource(self.table, column)}), exp.column(column))


@dataclass
class _Scope:
    relations: list[_Relation]
    aliases: dict[str, exp.Expr]
    ctes: Mapping[str, exp.Expr]
    resolving: set[str] = field(default_factory=set)


class Lineage:
    """Resolves one query; `outputs` is None when a star cannot be expanded."""

    def __init__(self, prepared: Prepared, default_database: str, columns_of: ColumnsOf) -> None:
        self._prepared = prepared
        self._default_database = default_database
        self._columns_of = columns_of

    def outputs(self, query: exp.Expr, ctes: Mapping[str, exp.Expr] | None = None) -> list[Output] | None:
        """The output columns of a query in order."""
        ctes = ctes or {}
        with_ = query.args.get("with_")
        if with_ is not None:
            ctes = {**ctes, **{cte.alias: cte.this for cte in with_.expressions}}
        if isinstance(query, exp.SetOperation):
            return self.outputs(query.left, ctes)
        if isinstance(query, exp.Subquery):
            return self.outputs(query.this, ctes)
        if not isinstance(query, exp.Select):
            return None
        scope = self._scope(query, ctes)
        found: list[Output] = []
        for projection in query.expressions:
            expanded = self._projection(projection, scope)
            if expanded is None:
                return None
            found += expanded
        return found

    def _scope(self, query: exp.Select, ctes: Mapping[str, exp.Expr]) -> _Scope:
        aliases = {name: node for name, node in ctes.items() if not isinstance(node, exp.Query)}
        queries = {name: node for name, node in ctes.items() if isinstance(node, exp.Query)}
        scope = _Scope([], aliases, queries)
        source = query.args.get("from_")
        if source is not None:
            self._relation(source.this, scope)
        for join in query.args.get("joins") or ():
            if str(join.args.get("kind") or "").upper().endswith("ARRAY"):
                for operand in (join.this, *join.expressions):
                    if isinstance(operand, exp.Alias):
                        aliases[operand.alias] = operand.this
            else:
                self._relation(join.this, scope)
        for projection in query.expressions:
            if isinstance(projection, exp.Alias):
                aliases.setdefault(projection.alias, projection.this)
        return scope

    def _relation(self, node: exp.Expr, scope: _Scope) -> None:
        while isinstance(node, exp.Final | exp.TableSample | exp.Paren):
            node = node.this
        alias = node.alias_or_name
        for join in node.args.get("joins") or ():
            self._relation(join.this, scope)
        query: exp.Expr | None = None
        if isinstance(node, exp.Query):
            query = node
        elif isinstance(node, exp.Table) and not node.db and node.name in scope.ctes:
            query = scope.ctes[node.name]
        if query is not None:
            inner = {name: cte for name, cte in scope.ctes.items() if cte is not query}
            outputs = self.outputs(query, inner)
            scope.relations.append(_Relation(alias, outputs={output.name: output for output in outputs or ()}))
        elif isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            database = self._prepared.restore(node.db) or self._default_database
            name = QName(database, self._prepared.restore(node.name))
            scope.relations.append(_Relation(alias or node.name, table=name, columns=self._columns_of(name)))

    def _projection(self, node: exp.Expr, scope: _Scope) -> list[Output] | None:
        if isinstance(node, exp.Apply):
            return self._projection(node.this, scope)
        if isinstance(node, exp.Star):
            return self._star(scope.relations, node)
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            chosen = [relation for relation in scope.relations if relation.alias == node.table]
            return self._star(chosen, node.this)
        if isinstance(node, exp.Columns):
            pattern = re.compile(node.this.name) if isinstance(node.this, exp.Literal) else None
            every = self._star(scope.relations, exp.Star())
            return [output for output in every if pattern and pattern.search(output.name)] if every else None
        name = node.alias_or_name or node.sql(dialect="clickhouse")
        body = node.this if isinstance(node, exp.Alias) else node
        guard = {name} if isinstance(node, exp.Alias) else set()
        scope.resolving |= guard
        output = Output(name, self._sources(body, scope), self._resolved(body, scope))
        scope.resolving -= guard
        return [output]

    def _star(self, relations: list[_Relation], star: exp.Expr) -> list[Output] | None:
        excluded = {column.name for column in star.args.get("except_") or ()}
        found: list[Output] = []
        for relation in relations:
            names = relation.columns if relation.table is not None else tuple(relation.outputs)
            if names is None or (relation.table is None and not names):
                return None
            found += [out for name in names if name not in excluded and (out := relation.find(name)) is not None]
        return found

    def _find(self, column: exp.Column, scope: _Scope) -> Output | None:
        name, qualifier = self._prepared.restore(column.name), column.table
        if qualifier:
            for relation in scope.relations:
                if relation.alias == qualifier:
                    return relation.find(name)
            return self._find_plain(f"{qualifier}.{name}", scope) or self._find_plain(qualifier, scope)
        return self._find_plain(name, scope)

    def _find_plain(self, name: str, scope: _Scope) -> Output | None:
        if name in scope.aliases and name not in scope.resolving:
            scope.resolving.add(name)
            body = scope.aliases[name]
            output = Output(name, self._sources(body, scope), self._resolved(body, scope))
            scope.resolving.discard(name)
            return output
        known = [r for r in scope.relations if r.table is None or r.columns is not None]
        for relation in known:
            if (output_ := relation.find(name)) is not None:
                return output_
        unknown = [relation for relation in scope.relations if relation.table is not None and relation.columns is None]
        return unknown[0].find(name) if len(unknown) == 1 else None

    def _sources(self, node: exp.Expr, scope: _Scope) -> Sources:
        found: set[ColumnSource] = set()
        stack: list[exp.Expr] = [node]
        while stack:
            current = stack.pop()
            if isinstance(current, exp.Query):
                outer = {name: node for name, node in scope.aliases.items() if name not in scope.resolving}
                for output in self.outputs(current, {**outer, **scope.ctes}) or ():
                    found |= output.sources
                continue
            if isinstance(current, exp.Column) and not isinstance(current.this, exp.Star):
                output_ = self._find(current, scope)
                found |= output_.sources if output_ is not None else _NOTHING
                continue
            if isinstance(current, exp.Anonymous) and str(current.this).lower().startswith("dictget"):
                found |= self._dictionary(current)
            stack += [child for child in current.iter_expressions() if isinstance(child, exp.Expr)]
        return frozenset(found)

    def _dictionary(self, call: exp.Anonymous) -> Sources:
        arguments = call.expressions
        if len(arguments) < 2 or not all(isinstance(a, exp.Literal) and a.is_string for a in arguments[:2]):
            return _NOTHING
        try:
            name = parse_qname(self._prepared.restore(arguments[0].this), self._default_database)
        except ValueError:
            return _NOTHING
        return frozenset({ColumnSource(name, arguments[1].this)})

    def _resolved(self, node: exp.Expr, scope: _Scope) -> exp.Expr:
        """The expression with aliases and subquery columns replaced by what they stand for."""
        if isinstance(node, exp.Literal):
            return node

        def replace(inner: exp.Expr) -> exp.Expr:
            if isinstance(inner, exp.Column) and not isinstance(inner.this, exp.Star):
                output = self._find(inner, scope)
                return output.expression if output is not None else inner
            return inner

        if isinstance(node, exp.Column):
            return replace(node)
        if any(True for _ in node.find_all(exp.Query)):
            return node
        return node.copy().transform(replace)
