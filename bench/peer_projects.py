"""The same N views as a project of each tool: a source, a daily aggregate of it and its target, N times.

Each tool gets the smallest honest equivalent of what a person would write:
- chmv: the DDL itself, sources included.
- dbt-clickhouse: one model per view with `materialized='materialized_view'` and an implicit target, its default and called stable. dbt declares sources
  and does not make them: they are made before the clock starts.
- SQLMesh: has no materialized views on ClickHouse (bench.peer_limits tries it). The closest thing is a model of kind INCREMENTAL_BY_TIME_RANGE, which a
  scheduler fills and no insert does: measured, but another thing. Sources are made before the clock starts. Its state lives in DuckDB, because it refuses
  to keep it in ClickHouse.
dbt and SQLMesh get four threads, as their documentation's examples do.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from bench.environments import DBT, SQLMESH, attempt, clean_environment, install, run
from bench.schema_change import DBT_TARGET, DEDUPLICATE, OLD, query
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo

ROOT = Path(__file__).parents[1]
FIRST_DAY, DAYS = "2026-11-11", 5
THREADS = 4


def source_ddl(database: str, number: int) -> str:
    return (
        f"CREATE TABLE {database}.payments_{number:04d} (id UInt64, batch UInt64, ts DateTime('UTC'), amount UInt32)\n"
        f"ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS {DEDUPLICATE}"
    )


def target_ddl(database: str, number: int) -> str:
    return (
        f"CREATE TABLE {database}.totals_{number:04d} (day Date, batch UInt64, payments UInt64, paid UInt64, weighed UInt64)\n"
        f"ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, batch) SETTINGS {DEDUPLICATE}"
    )


def view_ddl(database: str, number: int, weighed: str = OLD) -> str:
    select = query(weighed, f"{database}.payments_{number:04d}")
    return f"CREATE MATERIALIZED VIEW {database}.totals_{number:04d}_mv TO {database}.totals_{number:04d} AS {select}"


class Project(Protocol):
    """What is measured of every tool; each call is what a person types."""

    name: str
    database: str

    def write(self, weighed: str = OLD) -> None: ...
    def prepare(self, server: Server) -> None: ...
    def deploy(self) -> str: ...
    def redeploy(self) -> str: ...
    def rebuild(self, number: int, day: str) -> str: ...


@dataclass
class Bare:
    """The statements alone, over one connection: what every tool has to do at least."""

    server: Server
    views: int
    name: str = "bare statements"
    database: str = "by_hand"

    def write(self, weighed: str = OLD) -> None:
        pass

    def prepare(self, server: Server) -> None:
        pass

    def deploy(self) -> str:
        for number in range(self.views):
            for make in (source_ddl, target_ddl, view_ddl):
                self.server.command(make(self.database, number))
        return ""

    def redeploy(self) -> str:
        return ""

    def rebuild(self, number: int, day: str) -> str:
        """The day's INSERT SELECT into an empty table: no swap, no promise."""
        table = f"{self.database}.totals_{number:04d}"
        self.server.command(f"CREATE TABLE {self.database}.bare AS {table}")
        select = query(OLD, f"{self.database}.payments_{number:04d}")
        select = select.replace(" GROUP BY", f" WHERE toDate(ts) = '{day}' GROUP BY")
        self.server.command(f"INSERT INTO {self.database}.bare {select}")
        self.server.command(
            f"ALTER TABLE {table} REPLACE PARTITION ID '{day.replace('-', '')}' FROM {self.database}.bare"
        )
        self.server.command(f"DROP TABLE {self.database}.bare SYNC")
        return ""


@dataclass
class Chmv:
    """A folder of DDL; `chmv plan` and `chmv apply`."""

    folder: Path
    views: int
    endpoint: Endpoint
    name: str = "chmv"
    database: str = "by_chmv"

    def write(self, weighed: str = OLD) -> None:
        ddl = self.folder / "ddl"
        ddl.mkdir(parents=True, exist_ok=True)
        for number in range(self.views):
            made = (
                source_ddl(self.database, number),
                target_ddl(self.database, number),
                view_ddl(self.database, number, weighed),
            )
            (ddl / f"totals_{number:04d}.sql").write_text(";\n".join(made) + ";\n", encoding="utf-8")

    def prepare(self, server: Server) -> None:
        pass

    def call(self, *words: str, wanted: tuple[int, ...] = (0,)) -> str:
        environment = os.environ | {
            "CHMV_CLICKHOUSE_URL": self.endpoint.url,
            "CHMV_CACHE_DIR": str(self.folder / "cache"),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-c", "from chmv_assets.cli.main import main; main()", *words]
        return run(command, environment, self.folder, wanted)

    def deploy(self) -> str:
        plan = str(self.folder / "plan.json")
        self.call("plan", "--ddl", str(self.folder / "ddl"), "--out", plan, wanted=(2,))
        return self.call("apply", plan, "--allow-rewrite", "--json")

    def redeploy(self) -> str:
        return self.call("plan", "--ddl", str(self.folder / "ddl"))  # exit code 0 says: nothing to apply

    def drift(self) -> list[str]:
        """The objects that a plan would change."""
        said = self.call("plan", "--ddl", str(self.folder / "ddl"), "--json", wanted=(0, 2))
        return [".".join(change["name"]) for change in json.loads(said)["changes"]]

    def rebuild(self, number: int, day: str) -> str:
        target = f"{self.database}.totals_{number:04d}"
        return self.call("rebuild", target, "--window", day, "--ddl", str(self.folder / "ddl"))


@dataclass
class Dbt:
    """A dbt project with implicit targets; `dbt run`."""

    folder: Path
    views: int
    info: EngineInfo
    name: str = "dbt-clickhouse"
    database: str = "by_dbt"

    def write(self, weighed: str = OLD) -> None:
        models = self.folder / "models"
        models.mkdir(parents=True, exist_ok=True)
        (self.folder / "dbt_project.yml").write_text(
            "name: bench\nversion: '1.0'\nprofile: bench\nmodel-paths: [models]\n", encoding="utf-8"
        )
        (self.folder / "profiles.yml").write_text(
            "bench:\n  target: bench\n  outputs:\n    bench:\n      type: clickhouse\n      driver: http\n      host: 127.0.0.1\n"
            f"      port: {self.info.http_port}\n      user: {self.info.user}\n      schema: {self.database}\n      threads: {THREADS}\n",
            encoding="utf-8",
        )
        names = "".join(f"      - name: payments_{number:04d}\n" for number in range(self.views))
        (models / "sources.yml").write_text(
            f"sources:\n  - name: raw\n    schema: {self.database}\n    tables:\n{names}", encoding="utf-8"
        )
        for number in range(self.views):
            select = query(weighed, f"{{{{ source('raw', 'payments_{number:04d}') }}}}")
            (models / f"totals_{number:04d}.sql").write_text(
                f"{{{{ config(materialized='materialized_view', {DBT_TARGET}) }}}}\n{select}\n", encoding="utf-8"
            )

    def prepare(self, server: Server) -> None:
        for number in range(self.views):
            server.command(source_ddl(self.database, number))

    def command(self, *words: str) -> list[str]:
        return [str(install(DBT, "dbt")), "--no-use-colors", *words, "--profiles-dir", "."]

    def deploy(self) -> str:
        return run(self.command("run"), clean_environment(), self.folder)

    redeploy = deploy

    def rebuild(self, number: int, day: str) -> str:
        """It has no rebuild of one partition of such a target: all of it, which is the least that makes the day right."""
        words = ("run", "--full-refresh", "--select", f"totals_{number:04d}")
        return run(self.command(*words), clean_environment(), self.folder)


@dataclass
class SqlMesh:
    """Incremental models; `sqlmesh plan --auto-apply`."""

    folder: Path
    views: int
    info: EngineInfo
    name: str = "SQLMesh (no views: incremental models)"
    database: str = "by_sqlmesh"
    state_in_duckdb: bool = True

    def write(self, weighed: str = OLD) -> None:
        self.write_config()
        models = self.folder / "models"
        models.mkdir(exist_ok=True)
        for number in range(self.views):
            self.write_model(f"totals_{number:04d}", f"{self.database}.payments_{number:04d}", weighed)

    def write_config(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = f"    state_connection:\n      type: duckdb\n      database: {self.folder / 'state.db'}\n"
        (self.folder / "config.yaml").write_text(
            "gateways:\n  bench:\n    connection:\n      type: clickhouse\n      host: 127.0.0.1\n"
            f"      port: {self.info.http_port}\n      username: {self.info.user}\n      concurrent_tasks: {THREADS}\n"
            f"{state if self.state_in_duckdb else ''}"
            f"default_gateway: bench\nmodel_defaults:\n  dialect: clickhouse\n  start: '{FIRST_DAY}'\n",
            encoding="utf-8",
        )

    def write_model(self, name: str, source: str, weighed: str) -> None:
        select = query(weighed, source).replace(" GROUP BY", " WHERE toDate(ts) BETWEEN @start_ds AND @end_ds GROUP BY")
        (self.folder / "models" / f"{name}.sql").write_text(
            f"MODEL (\n  name {self.database}.{name},\n  kind INCREMENTAL_BY_TIME_RANGE (time_column day),\n  cron '@daily',\n"
            "  partitioned_by toYYYYMMDD(day),\n  storage_format SummingMergeTree,\n"
            f"  physical_properties (order_by = (day, batch))\n);\n{select}\n",
            encoding="utf-8",
        )

    def prepare(self, server: Server) -> None:
        for number in range(self.views):
            server.command(source_ddl(self.database, number))

    def command(self, *words: str) -> list[str]:
        return [str(install(SQLMESH, "sqlmesh")), *words]

    def deploy(self) -> str:
        return run(self.command("plan", "--auto-apply", "--no-prompts"), clean_environment(), self.folder)

    redeploy = deploy

    def rebuild(self, number: int, day: str) -> str:
        words = ("plan", "--restate-model", f"{self.database}.totals_{number:04d}", "--start", day, "--end", day)
        return run(self.command(*words, "--auto-apply", "--no-prompts"), clean_environment(), self.folder)

    def fill(self) -> None:
        """All intervals again."""
        words = ("plan", "--restate-model", f"{self.database}.totals_0000", "--auto-apply", "--no-prompts")
        run(self.command(*words), clean_environment(), self.folder)

    def attempt(self, *words: str) -> str:
        """What it says, whatever comes of it."""
        done = attempt(self.command(*words), clean_environment(), self.folder)
        return f"{done.stdout}{done.stderr}"


def last_lines(said: str, count: int = 1) -> str:
    """The end of what a program said, on one line."""
    lines = [line.strip() for line in click.unstyle(said).splitlines() if line.strip()]
    return " ".join(lines[-count:])
