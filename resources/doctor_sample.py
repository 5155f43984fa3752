"""Try views on recent rows of their sources: how many partitions of the target does one insert make?

The rows are the newest part of as many source partitions as an insert has touched (part_log), so that they are what one insert
brings. All views are tried in one statement for every hundred of them, bounded in rows and time; if it fails, each is tried alone so
that one view that throws costs only itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.doctor.facts import LiveTable, Sample
from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.fence import NARROWED
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName, quote_string
from resources.clickhouse import Server

MOST_VIEWS = 500  # those with most partitions in their targets first
_VIEWS_PER_STATEMENT = 100
_MOST_PARTS = 200
_SETTINGS = {
    "max_execution_time": 20,
    "max_query_size": 64 * 2**20,
    "max_ast_elements": 1_000_000,
    "max_expanded_ast_elements": 2_000_000,
}
# Inserts of one block only: of a longer one the partitions of all blocks are in the log, and each block is judged by itself.
_TOUCHED = """
SELECT database, table, max(partitions) FROM
(
    SELECT database, table, query_id, uniqExact(partition_id) AS partitions FROM system.part_log
    WHERE event_type = 'NewPart' AND event_date >= yesterday() AND event_time > now() - 86400 AND (database, table) IN {tables:Array(Tuple(String, String))}
      AND query_id != '' AND error = 0
    GROUP BY database, table, query_id HAVING sum(rows) <= {block:UInt64}
)
GROUP BY database, table
"""
_REFUSED = """
SELECT view_name, count() FROM system.query_views_log
WHERE event_date >= yesterday() AND event_time > now() - 86400 AND exception_code = 252 AND position(exception, 'Too many partitions') > 0 GROUP BY view_name
"""
_NEWEST = """
SELECT database, table, partition_id, argMax(name, (modification_time, min_block_number)), argMax(rows, (modification_time, min_block_number)) FROM system.parts
WHERE active AND rows > 0 AND (database, table) IN {tables:Array(Tuple(String, String))}
GROUP BY database, table, partition_id ORDER BY database, table, max(modification_time) DESC, partition_id DESC
LIMIT {most:UInt32} BY database, table
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One view's SELECT over the sample, as a SELECT of one number."""

    sample: Sample
    database: str
    sql: str


def read_samples(
    server: Server,
    catalog: Catalog,
    views: Sequence[Object],
    tables: Mapping[QName, LiveTable],
    rows: int,
    block_rows: int,
    unread: list[tuple[str, str]],
    untried: list[tuple[QName, str]],
) -> tuple[Sample, ...]:
    """What each view makes of recent rows; views that cannot be tried with certainty are left out and noted."""
    pairs = _pairs(catalog, views, tables)
    sources = sorted({source for _, source, _ in pairs})
    if not sources:
        return ()
    named = [(name.database, name.table) for name in sources]
    both = sorted({*named, *((target.name.database, target.name.table) for _, _, target in pairs)})
    try:
        newest = server.rows(_NEWEST, {"tables": named, "most": _MOST_PARTS})
        logged = server.rows_if_there(_TOUCHED, {"tables": both, "block": block_rows})
        refused = {str(view): int(number) for view, number in server.rows_if_there(_REFUSED)}
    except ServerError as error:
        unread.append(("recent parts of the sources", str(error).splitlines()[0][:200]))
        return ()
    touched = {QName(str(database), str(table)): int(number) for database, table, number in logged}
    parts: dict[QName, list[tuple[str, int]]] = {}
    for database, table, _, part, held in newest:
        parts.setdefault(QName(str(database), str(table)), []).append((str(part), int(held)))
    trials = [
        trial
        for view, source, target in pairs
        if source in parts
        and (
            trial := _trial(
                catalog, view, source, target, parts[source][: max(touched.get(source, 1), 1)], rows, untried
            )
        )
    ]
    return tuple(
        replace(one, seen=touched.get(one.target), refused=refused.get(f"{one.view.database}.{one.view.table}", 0))
        for one in _run(server, trials, untried)
    )


def _pairs(
    catalog: Catalog, views: Sequence[Object], tables: Mapping[QName, LiveTable]
) -> list[tuple[Object, QName, Object]]:
    found: list[tuple[Object, QName, Object]] = []
    for view in views:
        source = catalog.trigger_of(view.name)
        target = catalog.objects.get(view.target) if view.target is not None else None
        if source is None or target is None or not target.partition_by or source not in tables:
            continue
        if family(tables[source].engine) and catalog.facts[view.name].lineage:
            found.append((view, source, target))
    found.sort(key=lambda pair: -tables[pair[2].name].partitions if pair[2].name in tables else 0)
    return found[:MOST_VIEWS]


def _trial(
    catalog: Catalog,
    view: Object,
    source: QName,
    target: Object,
    parts: Sequence[tuple[str, int]],
    rows: int,
    untried: list[tuple[QName, str]],
) -> _Trial | None:
    from chmv_assets.core.retarget import narrow  # brings sqlglot; loading the location does without

    each = max(rows // len(parts), 1)
    listed = ", ".join(quote_string(part) for part, _ in parts)
    columns = [(column.name, column.default_kind) for column in catalog.objects[source].columns]
    condition = f"{NARROWED}._part IN ({listed}) AND {NARROWED}._part_offset < {each}"
    try:
        select = narrow(view, source, columns, condition)
    except RebuildRefused as error:
        untried.append((view.name, str(error)))
        return None
    sample = Sample(
        view=view.name, source=source, target=target.name, part=parts[0][0], rows=sum(min(held, each) for _, held in parts),
        partitions=0, touched=len(parts),
    )  # fmt: skip
    return _Trial(
        sample=sample,
        database=view.session_database,
        sql=f"SELECT uniqExact(tuple({target.partition_by})) AS found FROM ({select})",
    )


def _run(server: Server, trials: Sequence[_Trial], untried: list[tuple[QName, str]]) -> tuple[Sample, ...]:
    found: list[Sample] = []
    for database in dict.fromkeys(trial.database for trial in trials):
        of = [trial for trial in trials if trial.database == database]
        for first in range(0, len(of), _VIEWS_PER_STATEMENT):
            some = of[first : first + _VIEWS_PER_STATEMENT]
            try:
                found += _ask(server, some)
            except ServerError:
                found += _one_by_one(server, some, untried)
    return tuple(found)


def _ask(server: Server, trials: Sequence[_Trial]) -> list[Sample]:
    sql = " UNION ALL ".join(f"SELECT {at} AS at, found FROM ({trial.sql})" for at, trial in enumerate(trials))
    settings = {**_SETTINGS, **({"database": trials[0].database} if trials[0].database else {})}
    rows = server.rows(sql, settings=settings)
    return [replace(trials[int(at)].sample, partitions=int(number)) for at, number in sorted(rows)]


def _one_by_one(server: Server, trials: Sequence[_Trial], untried: list[tuple[QName, str]]) -> list[Sample]:
    found: list[Sample] = []
    for trial in trials:
        try:
            found += _ask(server, [trial])
        except ServerError as error:
            untried.append((trial.sample.view, str(error).splitlines()[0][:300]))
    return found
