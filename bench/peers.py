"""dbt-clickhouse, SQLMesh and chmv side by side on one engine: deploy, deploy again, rebuild one partition, change a view under live writers.

    python -m bench.peers                       50 and 500 views
    python -m bench.peers --views 50
    python -m bench.peers --quick               10 views, to see that it works

One run each: every figure is the wall time of what a person types, start of the process included. bench.peer_projects says what each tool gets. SQLMesh
makes no materialized views on ClickHouse, so its figures are of another thing and stand apart; the last table tells what was tried and what came of it.
After a rebuild of one partition it is counted how many partitions were written anew, after a deployment that has nothing to do how many statements that
change something the server got. The change under live writers is bench.schema_change, by dbt's both documented ways and by chmv; SQLMesh's incremental
model gets the same change and the same writers, and what its next `sqlmesh run` brings is given to it. A rebuild is right if the day equals its query.
The exit code tells only whether chmv's rows are right.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/peers.py` works as well

from bench import schema_change
from bench.environments import DBT, SQLMESH, install
from bench.peer_limits import Limit, try_limits
from bench.peer_projects import DAYS, FIRST_DAY, Bare, Chmv, Dbt, Project, SqlMesh
from bench.peer_writers import change_sqlmesh
from bench.record import Record, json_option
from bench.schema_change import OLD, query
from resources.clickhouse import Server, endpoint_of
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

DAY = "2026-11-13"  # the one that is rebuilt
HEADINGS = (
    "views",
    "tool",
    "deploy s",
    "deploy again s",
    "statements again",
    "rebuild s",
    "partitions rewritten",
    "right",
)


LATE = "SQLMesh, rows into a computed day"
LATE_NOTE = (
    "SQLMesh's incremental model is filled by its scheduler, not by inserts: rows lost are those that came into a day that was computed already and that "
    "the next `sqlmesh run` left out. Rows of a day that is not over wait until it is, restating the day brings them, and so does `lookback` at a later tick."
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One tool at one size."""

    views: int
    tool: str
    deploy: float
    again: float
    statements_again: int
    rebuild: float
    rewritten: int
    right: bool

    def cells(self) -> tuple[str, ...]:
        seconds = (f"{self.deploy:.1f}", f"{self.again:.1f}", str(self.statements_again), f"{self.rebuild:.1f}")
        if self.tool == Bare.name:
            seconds = (seconds[0], "–", "–", seconds[3])  # nothing is typed
        return (str(self.views), self.tool, *seconds, f"{self.rewritten} of {DAYS}", "yes" if self.right else "no")


def measure(server: Server, project: Project, views: int, rows: int) -> Measured:
    """Deploy, deploy again, load, damage a day, rebuild it."""
    server.command(f"CREATE DATABASE {project.database}")
    project.write()
    project.prepare(server)
    deploy = timed(project.deploy)
    before = changing_statements(server)
    again = timed(project.redeploy)
    statements = changing_statements(server) - before
    table = physical(server, f"{project.database}.totals_0000")
    load(server, f"{project.database}.payments_0000", rows)
    if isinstance(project, SqlMesh):
        project.fill()  # no insert fills an incremental model: its intervals are done, so all of them again, not counted
    damage(server, table)
    before_parts = partitions(server, table)
    rebuild = timed(lambda: project.rebuild(0, DAY))
    after_parts = partitions(server, physical(server, f"{project.database}.totals_0000"))
    rewritten = sum(after_parts.get(one) != parts for one, parts in before_parts.items())
    right = differences(server, project.database) == 0
    server.command(f"DROP DATABASE {project.database} SYNC")
    server.command(f"DROP DATABASE IF EXISTS sqlmesh__{project.database} SYNC")
    return Measured(views, project.name, deploy, again, statements, rebuild, rewritten, right)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def changing_statements(server: Server) -> int:
    """Statements so far that made, altered, dropped, renamed or filled something outside the system and chmv's journal."""
    server.command("SYSTEM FLUSH LOGS query_log")
    found = server.rows(
        "SELECT count() FROM system.query_log WHERE type = 'QueryFinish' AND is_initial_query AND query_kind IN "
        "('Create', 'Drop', 'Alter', 'Rename', 'Insert', 'Exchange') AND NOT hasAny(databases, ['system', 'chmv'])"
    )
    return int(found[0][0])


def load(server: Server, table: str, rows: int) -> None:
    """The same number of rows in every day."""
    server.command(
        f"INSERT INTO {table} (id, batch, ts, amount) SELECT number, intHash64(number) % 5000, "
        f"toDateTime('{FIRST_DAY} 00:00:00', 'UTC') + intHash32(number) % {DAYS * 86_400}, number % 997 + 1 FROM numbers({rows})"
    )


def physical(server: Server, table: str) -> str:
    """The table behind SQLMesh's view, or the table itself."""
    found = server.rows(
        "SELECT engine, as_select FROM system.tables WHERE concat(database, '.', name) = {table:String}",
        {"table": table},
    )
    engine, select = found[0]
    return str(select).rpartition(" FROM ")[2].split()[0] if engine == "View" else table


def damage(server: Server, table: str) -> None:
    """Double the day and let the table rest, so that only a rebuild writes parts."""
    server.command(f"INSERT INTO {table} SELECT * FROM {table} WHERE day = '{DAY}'", settings={"insert_deduplicate": 0})
    server.command(f"OPTIMIZE TABLE {table} FINAL")


def partitions(server: Server, table: str) -> dict[str, tuple[str, ...]]:
    """What each partition consists of: id of the table, parts and when they were written."""
    found = server.rows(
        "SELECT p.partition_id, toString(any(t.uuid)), arrayStringConcat(arraySort(groupArray(concat(p.name, ' ', "
        "toString(p.modification_time)))), ',') FROM system.parts AS p INNER JOIN system.tables AS t ON t.database = p.database AND t.name = p.table "
        "WHERE p.active AND concat(p.database, '.', p.table) = {table:String} GROUP BY p.partition_id",
        {"table": table.replace("`", "")},
    )
    return {str(one): (str(uuid), str(parts)) for one, uuid, parts in found}


def differences(server: Server, database: str) -> int:
    """Groups of the rebuilt day that are not what the query gives."""
    wanted = f"SELECT * FROM ({query(OLD, f'{database}.payments_0000')}) WHERE day = '{DAY}'"
    found = f"SELECT day, batch, sum(payments), sum(paid), sum(weighed) FROM {database}.totals_0000 WHERE day = '{DAY}' GROUP BY day, batch"
    either = (f"{wanted} EXCEPT {found}", f"{found} EXCEPT {wanted}")
    return sum(int(server.rows(f"SELECT count() FROM ({one})")[0][0]) for one in either)


def projects(server: Server, info: EngineInfo, folder: Path, views: int) -> list[Project]:
    return [
        Bare(server, views),
        Chmv(folder / "chmv", views, endpoint_of(info)),
        Dbt(folder / "dbt", views, info),
        SqlMesh(folder / "sqlmesh", views, info),
    ]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--views", "sizes", type=click.IntRange(min=2), multiple=True, default=(50, 500), show_default=True)
@click.option("--rows", type=click.IntRange(min=1000), default=2_000_000, show_default=True, help="Rows of history.")
@click.option("--quick", is_flag=True, help="10 views, 100,000 rows.")
@click.option("--skip-writers", is_flag=True, help="Without the change under live writers.")
@json_option
def main(sizes: tuple[int, ...], rows: int, quick: bool, skip_writers: bool, json_file: Path | None) -> None:
    if quick:
        sizes, rows = (10,), 100_000
    record = Record("peers", "chmv, dbt-clickhouse and SQLMesh side by side", quick)
    for packages, program in ((DBT, "dbt"), (SQLMESH, "sqlmesh")):
        install(packages, program)
        record.machine["versions"] |= dict(one.replace("[clickhouse]", "").split("==") for one in packages)
    measured: list[Measured] = []
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="chmv-bench-", dir=fast, ignore_cleanup_errors=True) as name:
        info = start_engine(EngineOptions(data_dir=Path(name) / "engine"))
        try:
            record.machine["versions"]["clickhouse"] = info.version
            with Server(endpoint_of(info)) as server:
                for views in sizes:
                    for project in projects(server, info, Path(name) / str(views), views):
                        click.echo(f"{views} views: {project.name}", err=True)
                        measured.append(measure(server, project, views, rows))
                click.echo("what each cannot do", err=True)
                limits = try_limits(server, info, Path(name) / "limits")
                if not skip_writers:
                    sqlmesh = change_sqlmesh(server, info, Path(name) / "writers", rows, 0.5 if quick else 2.0)
        finally:
            stop_engine(info.data_dir)
    limits += partition_limits(measured)
    outcomes: dict[str, schema_change.Outcome] = {}
    if not skip_writers:
        outcomes, version = schema_change.measure_all(rows, 0.5 if quick else 2.0)
        outcomes[LATE] = sqlmesh
        limits += writer_limits(outcomes)
    report(measured, limits, record)
    if outcomes:
        schema_change.report(outcomes, rows, version, record)
        record.notes.append(LATE_NOTE)
    record.write(json_file)
    if outcomes:
        schema_change.tell_whether_exact(outcomes["chmv"])
    if not all(one.right for one in measured if one.tool == "chmv"):
        Console().print("chmv: a rebuilt day differs from its query", style="red")
        sys.exit(1)


def partition_limits(measured: list[Measured]) -> list[Limit]:
    """What the rebuilds have shown."""
    what = "rebuilds one partition of a target and no other"
    return [
        Limit(
            what,
            one.tool,
            "yes" if one.rewritten == 1 and one.right else "no",
            f"tried among {one.views} views: {one.rewritten} of {DAYS} partitions rewritten, the day is {'right' if one.right else 'wrong'}",
        )
        for one in measured
        if one.tool != Bare.name
    ]


def writer_limits(outcomes: dict[str, schema_change.Outcome]) -> list[Limit]:
    """What the changes under writers have shown."""
    what = "changes a view exactly while writers write"
    return [
        Limit(
            what,
            side,
            "yes" if one.exact else "no",
            f"tried: {one.lost:,} rows lost, {one.doubled:,} doubled of {one.sent:,} sent meanwhile",
        )
        for side, one in outcomes.items()
    ]


def report(measured: list[Measured], limits: list[Limit], record: Record) -> None:
    """Print ratios, the table and what each cannot do; keep them."""
    console = Console(width=max(140, Console().width))
    for one in measured:
        if one.tool in ("chmv", Bare.name):
            continue
        ours = next(other for other in measured if other.views == one.views and other.tool == "chmv")
        tool = one.tool.split(" (")[0]
        note = "another thing: no views" if tool == "SQLMesh" else ""
        rebuilt = note or f"all {one.rewritten} partitions"
        record.ratio(f"deploy {one.views} views, {tool} ÷ chmv", one.deploy / ours.deploy, note=note)
        record.ratio(f"deploy again, {one.views} views, {tool} ÷ chmv", one.again / ours.again, note=note)
        record.ratio(
            f"rebuild a partition among {one.views} views, {tool} ÷ chmv", one.rebuild / ours.rebuild, note=rebuilt
        )
    rows = [one.cells() for one in measured]
    record.table(f"seconds of what a person types; one day of {DAYS} rebuilt", HEADINGS, rows)
    cannot = [(one.what, one.tool, one.can, one.evidence) for one in limits]
    record.table("what each can and cannot do", ("", "tool", "can", "evidence"), cannot)
    for figures in record.tables:
        table = Table(title=figures.title)
        for heading in figures.headings:
            table.add_column(heading)
        for row in figures.rows:
            table.add_row(*row)
        console.print(table)
    for ratio in record.ratios:
        value = "cannot" if ratio.value is None else f"{ratio.value:.2f}"
        console.print(f"{ratio.what}: {value}{f' ({ratio.note})' if ratio.note else ''}", markup=False)


if __name__ == "__main__":
    main()
