"""The pipeline of `view_site` as a Dagster location, with an instance on disk whose runs a test executes itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from view_site import ViewSite, insert, make_site

from chmv_assets.definitions import build_definitions, load_declared
from chmv_assets.jobs import RECOVERY_JOB, recovery_run_config
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.engine import EngineInfo
from sensors.view_health import NAME

OVERRIDES = {
    "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"},  # the test executes them
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
    "telemetry": {"enabled": False},
}
TARGETS = ("daily", "monthly", "latest", "both", "risky")


@dataclass
class Scene:
    """The pipeline, its definitions, and an instance with a home on disk."""

    site: ViewSite
    folder: Path
    definitions: dg.Definitions
    instance: dg.DagsterInstance

    def evaluate(self, cursor: str | None) -> Any:
        """A tick, as a daemon's code server evaluates it."""
        resources = {"clickhouse": ClickHouseResource()}
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, definitions=self.definitions, resources=resources
        ) as context:
            return self.definitions.resolve_sensor_def(NAME).evaluate_tick(context)

    def run(self, ask: str, tags: dict[str, str] | None = None) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_job_def(RECOVERY_JOB)
        return job.execute_in_process(run_config=recovery_run_config(ask), instance=self.instance, tags=tags)

    def runs(self) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(job_name=RECOVERY_JOB)))

    def parts(self) -> list[tuple[object, ...]]:
        """What a rebuild would change."""
        names = ", ".join(repr(name) for name in TARGETS)
        return self.site.rows(
            "SELECT table, partition_id, sum(rows), min(min_block_number), max(max_block_number) FROM system.parts WHERE active "
            f"AND database = '{{db}}' AND table IN ({names}) GROUP BY ALL ORDER BY ALL"
        )

    def repairs(self) -> list[tuple[object, ...]]:
        return self.site.rows(
            "SELECT subject, damage, status, version FROM chmv.recoveries FINAL WHERE startsWith(subject, '{db}.') ORDER BY ALL"
        )


@contextmanager
def open_scene(
    engine: EngineInfo,
    server: Server,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str = "",
) -> Iterator[Scene]:
    """Everything is made anew, in the module's database."""
    declared = tmp_path / "ddl"
    declared.mkdir()
    for name in (*TARGETS, "events", "strictness"):
        server.command(f"DROP TABLE IF EXISTS {database}.{name}_mv SYNC")
        server.command(f"DROP TABLE IF EXISTS {database}.{name} SYNC")
    for name in ("both_a_mv", "both_b_mv"):
        server.command(f"DROP TABLE IF EXISTS {database}.{name} SYNC")
    site = make_site(server, database, declared)
    with (declared / "chmv.yaml").open("a") as file:
        file.write(f"thresholds: {{sensor_every: 5}}\n{settings}")
    for name, value in (
        ("CHMV_CLICKHOUSE_URL", engine.url), ("CHMV_DDL_DIR", str(declared)), ("CHMV_CACHE_DIR", str(tmp_path / "cache")),
        ("CHMV_START", "2026-11-01"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CHMV_SENSORS", raising=False)
    insert(server, database, 1, [])
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.instance_for_test(overrides=OVERRIDES, temp_dir=str(home)) as instance:
        yield Scene(site, tmp_path, build_definitions(load_declared()), instance)
    server.command("TRUNCATE TABLE chmv.outages")
    server.command("TRUNCATE TABLE chmv.recoveries")
