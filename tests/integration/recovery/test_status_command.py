"""`chmv status` and `chmv thresholds` against a real server, and the job that refreshes snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client

from chmv_assets.cli.main import main
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.pipeline import Pipeline, load_pipeline
from chmv_assets.recovery.routes import recover
from chmv_assets.recovery.site import RecoverySite
from chmv_assets.snapshot_job import build_snapshot_job, build_snapshot_schedule
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.engine import EngineInfo
from resources.journal import Journal

DDL = """
CREATE TABLE {db}.events (id UInt64, ts DateTime('UTC')) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
CREATE TABLE {db}.status_daily (day Date, events UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day;
CREATE MATERIALIZED VIEW {db}.status_daily_mv TO {db}.status_daily AS SELECT toDate(ts) AS day, count() AS events FROM {db}.events GROUP BY day;
"""


@pytest.fixture
def pipeline(tmp_path: Path, clickhouse: Client, database: str) -> Pipeline:
    text = DDL.format(db=database)
    (tmp_path / "ddl.sql").write_text(text)
    (tmp_path / "chmv.yaml").write_text("version: 1\nthresholds:\n  snapshot_every: 600\n")
    for statement in text.split(";\n"):
        if statement.strip():
            clickhouse.command(
                statement.strip()
                .replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
                .replace("VIEW ", "VIEW IF NOT EXISTS ")
            )
    return load_pipeline(tmp_path, cache=tmp_path / "cache").require_sound()


def ask_status(pipeline: Pipeline) -> Any:
    result = CliRunner().invoke(main, ["status", "--ddl", str(pipeline.ddl_dir), "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output)["targets"]
    return found


def test_the_story_of_a_target_by_its_status(
    pipeline: Pipeline, configured: EngineInfo, clickhouse: Client, server: Server, database: str
) -> None:
    target = QName(database, "status_daily")
    clickhouse.command(
        f"INSERT INTO {database}.events SELECT number, now('UTC') - 86400 * (number % 3) FROM numbers(300)"
    )
    before = ask_status(pipeline)
    assert (before["status"], before["route"], before["snapshot_age_seconds"]) == ("ACTIVE", "primary", None)

    done = build_snapshot_job(pipeline).execute_in_process(resources={"clickhouse": ClickHouseResource()})
    (handled,) = [one for one in done.all_events if one.event_type == dg.DagsterEventType.STEP_OUTPUT]
    assert handled.step_output_data.metadata["chmv/partitions_copied"].value == 3
    assert ask_status(pipeline)["snapshot_age_seconds"] < 60

    lost = str(clickhouse.command(f"SELECT min(_partition_id) FROM {target.sql}"))
    clickhouse.command(f"ALTER TABLE {target.sql} DROP PARTITION ID '{lost}'")
    found = ask_status(pipeline)
    assert (found["status"], found["lost_partitions"]) == ("DEGRADED", [lost])
    assert clickhouse.command("SELECT sum(events) FROM serving.status_daily") == 300

    site = RecoverySite(pipeline, server, Journal(server), lambda _: None)
    outcome = recover(site, Ask(kind="route", subject=target, damage="to snapshot", evidence="a test"))
    assert (outcome.before, outcome.after) == ({"route": "primary"}, {"route": "snapshot"})
    found = ask_status(pipeline)
    assert (found["status"], found["route"], found["route_reason"]) == ("STALE", "snapshot", "to snapshot: a test")
    assert clickhouse.command("SELECT sum(events) FROM serving.status_daily") == 300

    clickhouse.command(
        f"INSERT INTO {target.sql} SELECT toDate(ts), count() FROM {database}.events WHERE toYYYYMMDD(ts) = {lost} GROUP BY 1"
    )
    back = recover(site, Ask(kind="route", subject=target, damage="to primary", evidence="repaired"))
    assert (back.after, back.reconciled) == ({"route": "primary"}, 1)
    assert "primary" in CliRunner().invoke(main, ["status", "--ddl", str(pipeline.ddl_dir)]).output


def test_thresholds_show_what_the_settings_say(pipeline: Pipeline) -> None:
    result = CliRunner().invoke(main, ["thresholds", "--ddl", str(pipeline.ddl_dir), "--json"])
    found = {one["name"]: one for one in json.loads(result.output)["thresholds"]}
    assert (found["snapshot_every"]["value"], found["snapshot_every"]["default"]) == (600, 300)
    assert found["parts_warn"]["unit"] == "parts" and found["parts_warn"]["reason"]
    assert "snapshot_every" in CliRunner().invoke(main, ["thresholds", "--ddl", str(pipeline.ddl_dir)]).output


def test_the_schedule_follows_the_settings(pipeline: Pipeline) -> None:
    schedule = build_snapshot_schedule(pipeline, running=True)
    assert (schedule.cron_schedule, schedule.default_status) == ("*/10 * * * *", dg.DefaultScheduleStatus.RUNNING)
