"""A small pipeline as a Dagster location: its objects on the real server, its definitions, and an instance for its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from declared import declared_folder

from chmv_assets.definitions import build_definitions
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse_resource import ClickHouseResource

RANGE = "dagster/asset_partition_range_"


@dataclass
class Site:
    """One location. Statements and queries name its database `{db}`."""

    client: Client
    database: str
    pipeline: Pipeline
    definitions: dg.Definitions
    instance: dg.DagsterInstance

    @property
    def folder(self) -> Path:
        return self.pipeline.ddl_dir

    def key(self, table: str) -> dg.AssetKey:
        return dg.AssetKey([self.database, table])

    def run(self, *tables: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialize some assets in one run, which may fail."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = [self.key(table) for table in tables]
        return job.execute_in_process(
            instance=self.instance, asset_selection=keys, **{"raise_on_error": False, **options}
        )

    def evaluate(self, sensor: dg.SensorDefinition, cursor: str | None = None) -> Any:
        """One tick of a sensor; its events are noted, as the daemon does."""
        resources = {"clickhouse": ClickHouseResource()}
        definitions = dg.Definitions(sensors=[sensor], resources=resources)
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, definitions=definitions, resources=resources
        ) as context:
            data = definitions.resolve_sensor_def(sensor.name).evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return data

    def command(self, sql: str) -> None:
        self.client.command(sql.replace("{db}", self.database))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(sql.replace("{db}", self.database)).result_rows]


S = TypeVar("S", bound=Site)


@contextmanager
def open_site(
    kind: type[S], client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch, ddl: str, settings: str
) -> Iterator[S]:
    """A location of a DDL text and a settings text in a database of a random name, for the length of a block."""
    monkeypatch.setenv("CHMV_CACHE_DIR", str(folder / "cache"))
    with declared_folder(client.command, folder, "site", ddl, settings) as (declared, database):
        pipeline = load_pipeline(declared)
        with dg.DagsterInstance.ephemeral() as instance:
            yield kind(client, database, pipeline, build_definitions(pipeline), instance)
