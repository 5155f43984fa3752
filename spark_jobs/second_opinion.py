"""The second opinion on a window: what Spark makes of the source's rows against what the target holds, as Spark SQL. Planning is pure.

Expected are the views' SELECTs, translated (`translate`) and put into the target's columns as an INSERT does it; actual are the target's rows as they
are stored. Spark itself merges both by the rules of the engine; nothing of the server's views, FINAL or -Merge is used. Invariant: a column is
compared only if all of it is translated and the server's type of it is the one inferred here; else it is left out by name, and a key or a
condition that cannot be translated makes it `CannotCompare`. Running a plan is in `opinion_run`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from sqlglot import exp

from chmv_assets.core.measures import LeftOut, is_summable, read_simple_type, read_state_type
from chmv_assets.core.names import QName
from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.select_reader import parse_query
from chmv_assets.core.select_text import prepare_select
from chmv_assets.core.windows import Window
from spark_jobs.kinds import INTEGER, Kind, agrees, integer, parse_kind
from spark_jobs.translate import Expression, Translator, Untranslatable, as_flag, as_integer, guarded

How = Literal["sum", "min", "max", "rows", "version", "latest"]
_CLAUSES = {
    "with_": "WITH", "distinct": "DISTINCT", "joins": "JOIN", "laterals": "a lateral join", "having": "HAVING", "limit": "LIMIT", "offset": "OFFSET",
    "qualify": "QUALIFY", "windows": "WINDOW", "settings": "SETTINGS", "sample": "SAMPLE", "connect": "CONNECT BY", "pivots": "PIVOT",
}  # fmt: skip
_READ = frozenset(
    ("expressions", "from_", "where", "prewhere", "group", "order", "kind", "hint", "operation_modifiers")
)
_AGGREGATE = re.compile(r"(count|sum|min|max)((?:If)?)((?:State|SimpleState)?)((?:If)?)\Z")
_MERGED_BY: Mapping[str, How] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_NESTED = "its type has no equal in Spark that could be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionColumn:
    """A column as the server has it."""

    name: str
    type: str
    default_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionView:
    """One view into the target, and the table whose inserts fire it."""

    name: QName
    select: str
    outputs: Mapping[str, str]  # what the server says that the SELECT gives
    source: QName
    source_columns: Sequence[OpinionColumn]
    source_family: str
    source_keys: Sequence[str]  # of its ORDER BY
    source_sums: Sequence[str] = ()  # columns that its merges add up


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionTarget:
    """The table that is judged."""

    name: QName
    family: str
    columns: Sequence[OpinionColumn]
    keys: Sequence[str]  # of its ORDER BY, columns only
    arguments: Sequence[str] = ()  # of its engine
    partition_words: Sequence[str] = ()
    finalized: Mapping[str, str]  # columns of states: the type of their values
    one_partition: bool = False  # the window is one partition of it
    time_column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """What is read of a table; column number `n` is `c<n>` afterwards."""

    table: QName
    columns: tuple[str, ...]
    time: tuple[str, str, object, object] | None = None  # column, family, from, before: rows outside may be skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMeasure:
    """One compared value per key."""

    label: str
    how: How
    kind: Kind

    @property
    def direction(self) -> Literal["up", "down", "none"]:
        return "down" if self.how == "min" else "none" if self.how == "latest" else "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionPlan:
    """Two sides with the same columns `t0`, `t1`, …; `{source}` in a share's SQL stands for the rows that it reads."""

    columns: tuple[tuple[str, Kind], ...]
    keys: tuple[str, ...]
    measures: tuple[SparkMeasure, ...]
    target: TableRead
    shares: tuple[tuple[TableRead, str], ...]
    condition: str  # selects the window, on either side
    drops_zeros: bool
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    def at(self, column: str) -> str:
        return f"t{[name for name, _ in self.columns].index(column)}"


def plan_opinion(
    target: OpinionTarget, views: Sequence[OpinionView], window: Window | None, zone: str, server_zone: str
) -> OpinionPlan:
    """Plan the comparison of one window. Raises CannotCompare."""
    kinds = {column.name: _kind(target, column, server_zone) for column in target.columns}
    keys, measures, left_out = _form(target, kinds)
    wanted = list(
        dict.fromkeys(
            (*keys, *(m.label for m in measures if m.how != "rows"), *([target.time_column] if window else []))
        )
    )
    if window is not None and (not target.time_column or kinds.get(target.time_column) is None):
        raise CannotCompare(f"{target.name} has no column of time that Spark could select the window by")
    placed = [_Share(view, server_zone).place(target, wanted, kinds) for view in views]
    dropped = dict(_dropped(target, views, placed, wanted))
    if lost := [name for name in (*keys, target.time_column if window else "") if name in dropped]:
        if target.family != "plain" or target.time_column in lost:
            raise CannotCompare(f"{lost[0]}: {dropped[lost[0]]}")
        keys = tuple(name for name in keys if name not in dropped)
    measures = tuple(measure for measure in measures if measure.label not in dropped)
    columns = tuple((name, kind) for name in wanted if name not in dropped and (kind := kinds[name]) is not None)
    if not keys and not measures:
        raise CannotCompare("none of its columns can be computed in Spark")
    if target.family == "replacing" and not any(m.how == "version" for m in measures):
        measures = ()
    sums = [measure for measure in measures if measure.how == "sum"]
    from_sums = any(view.source_family == "summing" for view in views)
    reads = [share.read(columns, kinds, target, window, zone) for share in placed]
    return OpinionPlan(
        columns=columns, keys=keys, measures=measures, shares=tuple(reads),
        target=TableRead(
            table=target.name, columns=tuple(name for name, _ in columns),
            time=_bounds(target.time_column, kinds[target.time_column], window, zone, 0) if window else None,
        ),
        condition=_window_sql(columns, target.time_column, window, zone),
        drops_zeros=bool(sums) and (target.family == "summing" or from_sums),
        left_out=(*left_out, *(LeftOut(name, why) for name, why in dropped.items())),
        notes=tuple(_notes(target, sums, from_sums)),
    )  # fmt: skip


def _notes(target: OpinionTarget, sums: Sequence[SparkMeasure], from_sums: bool) -> Iterator[str]:
    if sums and (target.family == "summing" or from_sums):
        yield "keys whose sums are all zero count as absent, since merges remove them"
    if target.family == "replacing":
        yield "of several rows with the newest version any may win: there only key and version are compared"


def _kind(target: OpinionTarget, column: OpinionColumn, server_zone: str) -> Kind | None:
    return parse_kind(target.finalized.get(column.name, column.type), server_zone)


def _dropped(
    target: OpinionTarget, views: Sequence[OpinionView], placed: Sequence[_Share], wanted: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for name in wanted:
        for view, share in zip(views, placed, strict=True):
            if name in share.reasons:
                yield name, f"{view.name} makes it with {share.reasons[name]}, for which no equal in Spark is known"
                break


# --- the form of the target ----------------------------------------------------------------------------------------


def _form(
    target: OpinionTarget, kinds: Mapping[str, Kind | None]
) -> tuple[tuple[str, ...], tuple[SparkMeasure, ...], list[LeftOut]]:
    """Keys, measures, and columns that are not compared."""
    left_out: list[LeftOut] = []
    usable: list[OpinionColumn] = []
    for column in target.columns:
        if column.default_kind in ("ALIAS", "EPHEMERAL", "MATERIALIZED"):
            left_out.append(LeftOut(column.name, f"it is {column.default_kind}, computed by the server"))
        elif kinds[column.name] is None:
            left_out.append(LeftOut(column.name, _NESTED))
        else:
            usable.append(column)
    names = [column.name for column in usable]
    if target.family == "plain":
        rows = SparkMeasure(label="rows", how="rows", kind=integer(64, signed=False))
        return tuple(names), (rows,), left_out
    if target.family not in ("summing", "aggregating", "replacing"):
        raise CannotCompare(f"Spark does not know how {target.family or 'this engine'} merges rows")
    if not target.keys or any(key not in names for key in target.keys):
        raise CannotCompare(f"the sorting key of {target.name} is not made of columns that Spark could group by")
    measures: list[SparkMeasure] = []
    for column in usable:
        if column.name not in target.keys:
            found = _measure(target, column, kinds[column.name])
            measures += [found] if isinstance(found, SparkMeasure) else []
            left_out += [found] if isinstance(found, LeftOut) else []
    measures.sort(key=lambda measure: measure.how != "version")
    return tuple(target.keys), tuple(measures), left_out


def _measure(target: OpinionTarget, column: OpinionColumn, kind: Kind | None) -> SparkMeasure | LeftOut:
    assert kind is not None
    name = column.name
    if target.family == "replacing":
        return _replaced(target, name, kind)
    state, simple = read_state_type(column.type), read_simple_type(column.type)
    if state is not None:
        match = _AGGREGATE.match(state.function)
        if match is None or match.group(3) or (match.group(2) and match.group(1) in ("min", "max")):
            return LeftOut(name, f"states of {state.function} are known to ClickHouse only")
        how: How | None = _MERGED_BY[match.group(1)]
    elif simple is not None:
        how = {"sum": "sum", "min": "min", "max": "max"}.get(simple.function)  # type: ignore[assignment]
    elif target.family == "summing" and is_summable(column.type) and name not in target.partition_words:
        how = "sum" if not target.arguments or name in target.arguments else None
    else:
        how = None
    if how is None:
        return LeftOut(name, "merges keep any one of a key's values, or merge them as Spark does not")
    if kind.nullable or kind.family not in (
        ("int", "decimal") if how == "sum" else ("int", "decimal", "date", "instant", "text")
    ):
        return LeftOut(name, f"{how} of {column.type} is not known to be the same in Spark")
    return SparkMeasure(label=name, how=how, kind=kind)


def _replaced(target: OpinionTarget, name: str, kind: Kind) -> SparkMeasure | LeftOut:
    if len(target.arguments) > 1:
        raise CannotCompare("Spark does not know which rows of a key an is_deleted column hides")
    if not target.one_partition and target.partition_words:
        raise CannotCompare("rows are replaced within a partition only, and the window is not one partition")
    if not target.arguments:
        return LeftOut(name, "the engine has no version, so the last insert wins")
    if name == target.arguments[0]:
        if kind.family not in ("int", "date", "instant") or kind.nullable:
            raise CannotCompare(f"its version {name} is not a number or a time")
        return SparkMeasure(label=name, how="version", kind=kind)
    return SparkMeasure(label=name, how="latest", kind=kind)


# --- the share of a view -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """A projection: over a row, over a group, or the key of one."""

    value: Expression
    is_state: bool = False
    function: str = ""  # of an aggregate
    argument: Expression | None = None


class _Share:
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

    def place(self, target: OpinionTarget, wanted: Sequence[str], kinds: Mapping[str, Kind | None]) -> _Share:
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

    def _output(self, node: exp.Expr, alias: str, translator: Translator) -> _Output:
        if isinstance(node, exp.AggFunc):
            if not self.grouped:
                raise Untranslatable("an aggregate without GROUP BY")
            return self._checked(aggregate(node, alias, translator))
        return _Output(value=translator.translate(node, alias))

    def _checked(self, output: _Output) -> _Output:
        """An aggregate over rows that merges have put together counts only as far as merges leave it alone."""
        if self.view.source_family == "plain":
            return output
        bare = output.argument.bare if output.argument is not None else ""
        if output.function != "sum" or bare not in self.view.source_sums:
            raise Untranslatable(f"{output.function}() over rows that merges of {self.view.source} put together")
        return output

    def _from_group(self, output: _Output) -> Expression:
        """The output as seen from outside of the grouping."""
        if output.function or not self.grouped:
            return output.value
        if any(one.sql == output.value.sql for one in self.groups) or not output.value.columns:
            return output.value
        raise Untranslatable("an expression that is not in its GROUP BY")

    def read(
        self, columns: Sequence[tuple[str, Kind]], kinds: Mapping[str, Kind | None], target: OpinionTarget,
        window: Window | None, zone: str,
    ) -> tuple[TableRead, str]:  # fmt: skip
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
        return _bounds(column, kind, window, zone, time.span_days + 2)


def _column_sql(at: int, kind: Kind) -> str:
    return f"CAST(`s{at}` AS {INTEGER})" if kind.family == "int" else f"`s{at}`"


def _bounds(
    column: str, kind: Kind | None, window: Window, zone: str, days: int
) -> tuple[str, str, object, object] | None:
    if kind is None or kind.family not in ("date", "instant"):
        return None
    start, end = window.start - timedelta(days=days), window.end + timedelta(days=days)
    if kind.family == "date":
        return column, "date", first_day(start, zone), first_day(end, zone)
    return column, "instant", start, end


def first_day(instant: datetime, zone: str) -> date:
    """The first day that begins at or after an instant: a day belongs to the window that holds its first instant."""
    place_ = ZoneInfo(zone)
    day = instant.astimezone(place_).date()
    begins = datetime(day.year, day.month, day.day, tzinfo=place_)
    return day if begins >= instant else day + timedelta(days=1)


def _window_sql(columns: Sequence[tuple[str, Kind]], time: str, window: Window | None, zone: str) -> str:
    if window is None:
        return ""
    at, kind = next((at, kind) for at, (name, kind) in enumerate(columns) if name == time)
    if kind.family == "date":
        start, end = (f"DATE'{first_day(moment, zone)}'" for moment in (window.start, window.end))
    elif kind.family == "instant":
        start, end = (f"timestamp_micros({_micros(moment)})" for moment in (window.start, window.end))
    else:
        raise CannotCompare(f"{time} is no column of time to Spark")
    return f"t{at} >= {start} AND t{at} < {end}"


def _micros(moment: datetime) -> int:
    return round(moment.timestamp()) * 1_000_000 + moment.microsecond


def aggregate(node: exp.Expr, alias: str, translator: Translator) -> _Output:
    """Translate an aggregate function."""
    name, args = _function(node)
    match = _AGGREGATE.match(name)
    if match is None or (match.group(2) and match.group(4)):
        raise Untranslatable(f"{name}()")
    function, has_condition = match.group(1), bool(match.group(2) or match.group(4))
    values = [translator.translate(one, alias) for one in args]
    condition = as_flag(values.pop()) if has_condition and values else None
    if len(values) > 1 or (function != "count" and not values) or (has_condition and condition is None):
        raise Untranslatable(f"{name}() of {len(args)} arguments")
    argument = values[0] if values else None
    made = _count(argument, condition) if function == "count" else _fold(function, values[0], condition)
    used = frozenset().union(*(one.columns for one in (argument, condition) if one is not None))
    seen = (
        replace(argument or made, columns=used)
        if condition is None
        else replace(argument or made, columns=used, bare="")
    )
    return _Output(value=made, is_state=match.group(3) == "State", function=function, argument=seen)


def _function(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    known: dict[type[exp.Expr], str] = {
        exp.Count: "count",
        exp.Sum: "sum",
        exp.Min: "min",
        exp.Max: "max",
        exp.CountIf: "countIf",
    }
    if type(node) in known:
        args = [one for one in (node.args.get("this"),) if one is not None and not isinstance(one, exp.Star)]
        return known[type(node)], [*args, *node.expressions]
    if isinstance(node, exp.CombinedAggFunc):
        return str(node.this), list(node.expressions)
    return node.sql(dialect="clickhouse").split("(")[0], []


def _count(argument: Expression | None, condition: Expression | None) -> Expression:
    if argument is not None and condition is not None:
        raise Untranslatable("countIf() of two arguments")
    what = (
        f"CASE WHEN {condition.sql} THEN 1 END"
        if condition is not None
        else argument.sql
        if argument is not None
        else "1"
    )
    return Expression(sql=f"CAST(count({what}) AS {INTEGER})", kind=integer(64, signed=False))


def _fold(function: str, argument: Expression, condition: Expression | None) -> Expression:
    value = as_integer(argument) if argument.kind.family == "flag" or function == "sum" else argument
    family = value.kind.family
    if function != "sum":
        if condition is not None or family not in ("int", "bool", "decimal", "date", "instant", "text"):
            raise Untranslatable(f"{function}() with a condition, or of a {family}")
        return Expression(sql=f"{function}({value.sql})", kind=value.kind)
    if family not in ("int", "decimal") or (condition is not None and value.kind.nullable):
        raise Untranslatable(f"sum() of a {'Nullable with a condition' if family in ('int', 'decimal') else family}")
    what = value.sql if condition is None else f"CASE WHEN {condition.sql} THEN {value.sql} ELSE 0 END"
    if family == "decimal":
        kind = Kind(family="decimal", precision=38, scale=value.kind.scale, nullable=value.kind.nullable)
        return Expression(sql=f"CAST(sum(CAST({what} AS {kind.sql})) AS {kind.sql})", kind=kind)
    kind = integer(64, signed=value.kind.signed, nullable=value.kind.nullable)
    return Expression(sql=guarded(f"sum({what})", kind, "a sum"), kind=kind)


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
