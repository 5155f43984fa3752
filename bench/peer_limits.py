"""What each tool can and cannot do, tried on the engine with two views each: every line has what was seen; nothing here is from memory.

What the other measurements tell (partitions rewritten, rows lost and doubled) is added by bench.peers from their figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.environments import attempt, clean_environment
from bench.peer_projects import Chmv, Dbt, Project, SqlMesh, last_lines
from resources.clickhouse import Server, endpoint_of
from resources.engine import EngineInfo

_WIDTH = 220  # letters of what a program said


@dataclass(frozen=True, slots=True)
class Limit:
    """One line: can it, and how do we know."""

    what: str
    tool: str
    can: str
    evidence: str


def try_limits(server: Server, info: EngineInfo, folder: Path) -> list[Limit]:
    """Everything, tool by tool, sorted by what was asked."""
    chmv = Chmv(folder / "chmv", 2, endpoint_of(info), database="limits_chmv")
    dbt = Dbt(folder / "dbt", 2, info, database="limits_dbt")
    sqlmesh = SqlMesh(folder / "sqlmesh", 2, info, database="limits_sqlmesh")
    tools: tuple[Project, ...] = (chmv, dbt, sqlmesh)
    found = [
        *try_sources(server, dbt, sqlmesh),
        *try_views(server, tools),
        *try_sqlmesh_view(server, info, folder / "view"),
        *try_drift(server, chmv, dbt, sqlmesh),
        *try_state(server, info, dbt, folder / "state"),
    ]
    for database in (
        *(one.database for one in tools),
        "sqlmesh__limits_sqlmesh",
        "limits_view",
        "sqlmesh__limits_view",
    ):
        server.command(f"DROP DATABASE IF EXISTS {database} SYNC")
    order = list(dict.fromkeys(one.what for one in found))
    return sorted(found, key=lambda one: order.index(one.what))


def try_sources(server: Server, dbt: Dbt, sqlmesh: SqlMesh) -> list[Limit]:
    """Deploy without the source tables being there."""
    what = "makes the source tables too"
    found = []
    for project, words in ((dbt, ("run",)), (sqlmesh, ("plan", "--auto-apply", "--no-prompts"))):
        server.command(f"CREATE DATABASE {project.database}")
        project.write()
        done = attempt(project.command(*words), clean_environment(), project.folder)
        said = next(
            (
                line
                for line in f"{done.stdout}{done.stderr}".splitlines()
                if "UNKNOWN_TABLE" in line or "Unknown table" in line
            ),
            "",
        )
        said = said.strip() or last_lines(f"{done.stdout}{done.stderr}", 2)
        tables = server.rows(
            f"SELECT count() FROM system.tables WHERE database = '{project.database}' AND name LIKE 'payments%'"
        )[0][0]
        can = "yes" if tables else "no"
        found.append(
            Limit(
                what, project.name, can, f"tried: exit code {done.returncode}, {tables} of 2 sources; “{said[:_WIDTH]}”"
            )
        )
        project.prepare(server)
    return found


def try_views(server: Server, tools: tuple[Project, ...]) -> list[Limit]:
    """Deploy for real and look at what is on the server."""
    found = []
    for project in tools:
        if isinstance(project, Chmv):
            server.command(f"CREATE DATABASE {project.database}")
            project.write()
        project.deploy()
        kinds = server.rows(
            f"SELECT engine, count() FROM system.tables WHERE database IN ('{project.database}', 'sqlmesh__{project.database}') GROUP BY engine ORDER BY engine"
        )
        seen = ", ".join(f"{count} {engine}" for engine, count in kinds)
        views = dict(kinds).get("MaterializedView", 0)
        if isinstance(project, Chmv):
            found.append(Limit("makes the source tables too", project.name, "yes", f"tried: {seen}"))
        can = "yes" if views == 2 else "no"
        found.append(
            Limit("makes materialized views that inserts fill", project.name, can, f"tried: {seen} on the server")
        )
    return found


def try_sqlmesh_view(server: Server, info: EngineInfo, folder: Path) -> list[Limit]:
    """The kind that SQLMesh documents for materialized views: VIEW (materialized true)."""
    project = SqlMesh(folder, 1, info, database="limits_view")
    server.command(f"CREATE DATABASE {project.database}")
    project.prepare(server)
    project.write()
    model = project.folder / "models" / "totals_0000.sql"
    model.write_text(
        f"MODEL (name {project.database}.totals_0000, kind VIEW (materialized true));\n"
        f"SELECT toDate(ts) AS day, count() AS payments FROM {project.database}.payments_0000 GROUP BY day\n",
        encoding="utf-8",
    )
    said = last_lines(project.attempt("plan", "--auto-apply", "--no-prompts"))
    kinds = server.rows(
        "SELECT database, engine FROM system.tables WHERE database LIKE '%limits_view' AND name LIKE '%totals%' ORDER BY 1"
    )
    seen = ", ".join(f"{engine} in {database}" for database, engine in kinds)
    evidence = (
        f"tried `kind VIEW (materialized true)`: {seen or 'nothing was made'}; it said “{said[:_WIDTH]}”. In its code ClickHouse's adapter leaves "
        "SUPPORTS_MATERIALIZED_VIEWS at False; github.com/SQLMesh/sqlmesh/issues/4453 asks for refreshable ones and was open when this was written"
    )
    materialized = any(engine == "MaterializedView" for _, engine in kinds)
    return [
        Limit("makes materialized views that inserts fill", project.name, "yes" if materialized else "no", evidence)
    ]


def try_drift(server: Server, chmv: Chmv, dbt: Dbt, sqlmesh: SqlMesh) -> list[Limit]:
    """Take one object away by hand, then ask each tool what it would do, before it does it."""
    what = "tells before it acts that somebody dropped an object by hand"
    server.command(f"DROP VIEW {chmv.database}.totals_0001_mv SYNC")
    told = chmv.drift()
    found = [
        Limit(
            what,
            chmv.name,
            "yes" if told == [f"{chmv.database}.totals_0001_mv"] else "no",
            f"tried: `chmv plan` names {', '.join(told) or 'nothing'}",
        )
    ]
    server.command(f"DROP VIEW {dbt.database}.totals_0001_mv SYNC")
    said = attempt(dbt.command("compile"), clean_environment(), dbt.folder)
    told_dbt = "totals_0001_mv" in said.stdout
    repaired = attempt(dbt.command("run"), clean_environment(), dbt.folder)
    back = server.rows(
        f"SELECT count() FROM system.tables WHERE database = '{dbt.database}' AND name = 'totals_0001_mv'"
    )[0][0]
    evidence = (
        f"tried: `dbt compile` prints SQL and does not look (“{last_lines(said.stdout)[:80]}”); the next `dbt run` (exit code {repaired.returncode}) "
        f"{'made the view again' if back else 'did not make the view again'}"
    )
    found.append(Limit(what, dbt.name, "yes" if told_dbt else "no", evidence))
    table = server.rows(
        f"SELECT name FROM system.tables WHERE database = 'sqlmesh__{sqlmesh.database}' AND name LIKE '%totals_0001%'"
    )[0][0]
    server.command(f"DROP TABLE sqlmesh__{sqlmesh.database}.`{table}` SYNC")
    said_mesh = sqlmesh.attempt("plan", "--no-prompts", "--auto-apply")
    back = server.rows(
        f"SELECT count() FROM system.tables WHERE database = 'sqlmesh__{sqlmesh.database}' AND name = '{table}'"
    )[0][0]
    quiet = "No changes to plan" in said_mesh
    evidence = f"tried: `sqlmesh plan` said “{last_lines(said_mesh)[:_WIDTH]}”, the table {'came back' if back else 'stayed away'}"
    found.append(Limit(what, sqlmesh.name, "no" if quiet else "yes", evidence))
    return found


def try_state(server: Server, info: EngineInfo, dbt: Dbt, folder: Path) -> list[Limit]:
    """Where each tool remembers what it did; SQLMesh with nothing but the ClickHouse it works on."""
    journal = [
        str(name) for (name,) in server.rows("SELECT name FROM system.tables WHERE database = 'chmv' ORDER BY name")
    ]
    manifest = (dbt.folder / "target" / "manifest.json").exists()
    project = SqlMesh(folder, 1, info, database="limits_sqlmesh", state_in_duckdb=False)
    project.write()
    said = last_lines(project.attempt("plan", "--auto-apply", "--no-prompts"), 3)
    what = "keeps its state in the same ClickHouse"
    refused = "state" in said.lower() and "clickhouse" in said.lower()
    return [
        Limit(
            what,
            "chmv",
            "yes" if journal else "no",
            f"tried: {len(journal)} tables in the database chmv after a deployment",
        ),
        Limit(
            what,
            dbt.name,
            "no" if manifest else "not seen",
            f"tried: target/manifest.json {'was' if manifest else 'was not'} written beside the project",
        ),
        Limit(what, project.name, "no" if refused else "yes", f"tried without state_connection: “{said[:_WIDTH]}”"),
    ]
