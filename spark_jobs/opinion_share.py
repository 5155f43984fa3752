"""The share of one view: its SELECT, translated column by column and put into the target's columns as an INSERT does it. Pure.

Invariant: a column that cannot be computed is in `reasons`, never in `values`; a key or a condition that cannot be makes it `CannotCompare`.
Of a source that merges rows only what its merges leave alone is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.select_reader import parse_query
from chmv_assets.core.select_text import prepare_select
from chmv_assets.core.windows import Window
from spark_jobs.aggregates import Output, aggregate
from spark_jobs.expression import Expression, Untranslatable, as_flag, as_integer, guarded
from spark_jobs.kinds import INTEGER, Kind, agrees, parse_kind
from spark_jobs.opinion_model import OpinionColumn, OpinionTarget, OpinionView, TableRead
from spark_jobs.opinion_window import bounds
from spark_jobs.translate import Translator

_CLAUSES = {
    "with_": "WITH", "distinct": "DISTINCT", "joins": "JOIN", "laterals": "a lateral join", "having": "HAVING", "limit": "LIMIT", "offset": "OFFSET",
    "qualify": "QUALIFY", "windows": "WINDOW", "settings": "SETTINGS", "sample": "SAMPLE", "connect": "CONNECT BY", "pivots": "PIVOT",
}  # fmt: skip
_READ = frozenset(
    ("expressions", "from_", "where", "prewhere", "group", "order", "kind", "hint", "operation_modifiers")
)


class Share:
    """One view, translated."""

    def __init__(self, view: OpinionView, server_zone: str) -> None:
        self.view = view
        self.server_zone = server_zone
        self.reasons: dict[str, str] = {}  # columns that cannot be computed
        self.values: dict[str, str] = {}  # columns, in the target's kind
        self.time: Expression | None = None
        self.names = [
            column.name for column in view.source_columns if column.default_kind not in ("ALIAS", "EPHEMERAL")
        ]
        self.used: set[str] = set()
        self.groups: list[Expression] = []
        self.grouped = False
        self.where = ""

    def place(self, target: OpinionTarget, wanted: Sequence[str], kinds: Mapping[str, Kind | None]) -> Share:
        """Translate, column by column."""
        select = self._select()
        translator = self._translator(select)
        try:
            self._conditions(select, translator)
            self._group(select, translator)
        except Untranslatable as error:
            raise CannotCompare(f"{self.view.name} has {error}, for which no equal in Spark is known") from error
        if not self.grouped and self.view.source_family != "plain":
            raise CannotCompare(f"{self.view.name} copies rows of {self.view.source}, which its merges put together")
        stored = {column.name: column for column in target.columns}
        projections = {projection.alias_or_name: projection for projection in select.expressions}
        for name in wanted:
            kind = kinds[name]
            assert kind is not None
            try:
                self.values[name] = self._value(name, kind, stored[name], projections, translator, target)
            except Untranslatable as error:
                self.reasons[name] = str(error)
        return self

    def _select(self) -> exp.Select:
        tree = parse_query(prepare_select(self.view.select).text)
        if not isinstance(tree, exp.Select):
            raise CannotCompare(f"{self.view.name} is no plain SELECT")
        for key, value in tree.args.items():
            if value and key not in _READ:
                raise CannotCompare(
                    f"{self.view.name} has {_CLAUSES.get(key, key.upper())}, which is not computed in Spark"
                )
        source = tree.args.get("from_")
        table = source.this if source is not None else None
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            raise CannotCompare(f"{self.view.name} does not read a table alone")
        if table.args.get("sample") or table.args.get("joins") or table.name != self.view.source.table:
            raise CannotCompare(f"{self.view.name} does not read all of {self.view.source}, and it alone")
        self.tables = [table.alias] if table.alias else [table.name]
        stars = (star for one in tree.expressions for star in one.find_all(exp.Star))
        if any(not isinstance(star.parent, exp.Count) for star in stars):
            raise CannotCompare(f"{self.view.name} has *, whose columns are not told by its text")
        return tree

    def _translator(self, select: exp.Select) -> Translator:
        types = {column.name: parse_kind(column.type, self.server_zone) for column in self.view.source_columns}
        columns = {
            name: (_column_sql(at, kind), kind)
            for at, name in enumerate(self.names)
            if (kind := types[name]) is not None
        }
        aliases = {one.alias: one.this for one in select.expressions if isinstance(one, exp.Alias)}
        if len(list(select.find_all(exp.Alias))) != len(aliases):
            raise CannotCompare(f"{self.view.name} gives names inside of expressions, or one name twice")
        return Translator(columns=columns, aliases=aliases, tables=self.tables)

    def _conditions(self, select: exp.Select, translator: Translator) -> None:
        conditions = []
        for key in ("prewhere", "where"):
            if (node := select.args.get(key)) is not None:
                found = as_flag(translator.translate(node.this))
                self._require_keys(found, "a condition")
                self.used |= found.columns
                conditions.append(found.sql)
        self.where = f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _group(self, select: exp.Select, translator: Translator) -> None:
        group = select.args.get("group")
        self.grouped = group is not None
        if group is None:
            if any(isinstance(node, exp.AggFunc) for one in select.expressions for node in one.find_all(exp.AggFunc)):
                raise Untranslatable("aggregates without GROUP BY")
            return
        if any(value for key, value in group.args.items() if key != "expressions") or not group.expressions:
            raise Untranslatable("a GROUP BY of more than expressions")
        for node in group.expressions:
            # An alias wins over a column of its name here.
            named = (
                translator.aliases.get(node.name) if isinstance(node, exp.Column) and not node.text("table") else None
            )
            if isinstance(node, exp.Literal):
                raise Untranslatable("a GROUP BY of positions")
            found = translator.translate(named if named is not None else node, node.name if named is not None else "")
            self._require_keys(found, "a GROUP BY")
            self.used |= found.columns
            self.groups.append(found)

    def _require_keys(self, found: Expression, what: str) -> None:
        """Of a table that merges rows only what is in its sorting key is as it was when the view saw it."""
        if self.view.source_family != "plain" and not found.columns <= set(self.view.source_keys):
            raise Untranslatable(f"{what} over columns that merges of {self.view.source} change")

    def _value(
        self, name: str, kind: Kind, stored: OpinionColumn, projections: Mapping[str, exp.Expr], translator: Translator,
        target: OpinionTarget,
    ) -> str:  # fmt: skip
        projection = projections.get(name)
        if projection is None:
            if name in self.view.outputs:
                raise Untranslatable("a name that its text does not show")
            if stored.default_kind or not kind.default or name in target.finalized:
                raise Untranslatable("a default")
            return kind.default
        node = projection.this if isinstance(projection, exp.Alias) else projection
        alias = name if isinstance(projection, exp.Alias) else ""
        output = self._output(node, alias, translator)
        described = self.view.outputs.get(name, "")
        if output.is_state != described.startswith("AggregateFunction("):
            raise Untranslatable(f"an expression that gives {described} to the server")
        if not output.is_state and not agrees(output.value.kind, parse_kind(described, self.server_zone)):
            raise Untranslatable(f"an expression of another type ({described}) to the server")
        if output.is_state and output.value.kind != kind:
            raise Untranslatable(f"a state of other values than {stored.type}")
        if name == target.time_column:
            self.time = output.value if not output.function else None
        self.used |= (output.argument or output.value).columns
        return place(self._from_group(output), kind)

    def _output(self, node: exp.Expr, alias: str, translator: Translator) -> Output:
        if isinstance(node, exp.AggFunc):
            if not self.grouped:
                raise Untranslatable("an aggregate without GROUP BY")
            return self._checked(aggregate(node, alias, translator))
        return Output(value=translator.translate(node, alias))

    def _checked(self, output: Output) -> Output:
        """An aggregate over rows that merges have put together counts only as far as merges leave it alone."""
        if self.view.source_family == "plain":
            return output
        bare = output.argument.bare if output.argument is not None else ""
        if output.function != "sum" or bare not in self.view.source_sums:
            raise Untranslatable(f"{output.function}() over rows that merges of {self.view.source} put together")
        return output

    def _from_group(self, output: Output) -> Expression:
        """The output as seen from outside of the grouping."""
        if output.function or not self.grouped:
            return output.value
        if any(one.sql == output.value.sql for one in self.groups) or not output.value.columns:
            return output.value
        raise Untranslatable("an expression that is not in its GROUP BY")

    def read(self, columns: Sequence[tuple[str, Kind]], window: Window | None, zone: str) -> tuple[TableRead, str]:
        """What is read of the source, and the share's SQL over it."""
        fields = ", ".join(f"{self.values[name]} AS t{at}" for at, (name, _) in enumerate(columns))
        group = f" GROUP BY {', '.join(one.sql for one in self.groups)}" if self.groups else ""
        sql = f"SELECT {fields} FROM {{source}}{self.where}{group}"
        used = [name for name in self.names if name in self.used] or self.names[:1]
        for at in sorted((self.names.index(name) for name in used), reverse=True):
            sql = re.sub(rf"`s{at}`", f"`c{used.index(self.names[at])}`", sql)
        return TableRead(table=self.view.source, columns=tuple(used), time=self._narrow(window, zone)), sql

    def _narrow(self, window: Window | None, zone: str) -> tuple[str, str, object, object] | None:
        """Which rows of the source may be skipped: far more is read than a rebuild reads, so that its errors are not repeated."""
        time = self.time
        if window is None or time is None or time.span_days is None or len(time.columns) != 1:
            return None
        column = next(iter(time.columns))
        kind = parse_kind(next(one.type for one in self.view.source_columns if one.name == column), self.server_zone)
        return bounds(column, kind, window, zone, time.span_days + 2)


def _column_sql(at: int, kind: Kind) -> str:
    return f"CAST(`s{at}` AS {INTEGER})" if kind.family == "int" else f"`s{at}`"


def place(value: Expression, wanted: Kind) -> str:
    """A value as an INSERT puts it into a column."""
    given = value.kind
    if given.family in ("flag", "bool") and wanted.family == "int":
        value = as_integer(value)
        given = value.kind
    sql = _converted(value.sql, given, wanted)
    if given.nullable and not wanted.nullable:
        if not wanted.default:
            raise Untranslatable("a NULL in a column without one")
        sql = f"coalesce({sql}, {wanted.default})"
    return sql


def _converted(sql: str, given: Kind, wanted: Kind) -> str:
    same = replace(given, nullable=False, zone="") == replace(wanted, nullable=False, zone="")
    pair = (given.family, wanted.family)
    if same or (pair == ("instant", "instant") and given.scale <= wanted.scale) or pair == ("flag", "bool"):
        return sql
    if pair == ("int", "int"):
        return guarded(sql, wanted, "a value")
    if pair == ("int", "decimal") or (pair == ("decimal", "decimal") and given.scale <= wanted.scale):
        return f"CAST({sql} AS {wanted.sql})"
    raise Untranslatable(f"a {given.family} that becomes another type in the target")
