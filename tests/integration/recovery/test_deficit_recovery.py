"""A comparison that failed is repaired by the sensor, its check turns green, and the target's page says how it stands meanwhile."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from view_scene import Scene, open_scene

from chmv_assets.core.deficits import CHECK
from chmv_assets.snapshot_job import SNAPSHOT_JOB
from resources.clickhouse import Server
from resources.engine import EngineInfo

DAY, PARTITION = "2026-11-15", "20261115"


def compare(scene: Scene) -> dg.AssetCheckEvaluation:
    """Run the check of one partition, as the UI does it."""
    key = dg.AssetKey([scene.site.database, "daily"])
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(key, CHECK))
    graph = scene.definitions.resolve_asset_graph()
    job = dg.define_asset_job("only", selection=selection).resolve(asset_graph=graph)
    result = job.execute_in_process(
        instance=scene.instance, tags={"dagster/partition": DAY}, raise_on_error=False, resources=scene.definitions.resources
    )  # fmt: skip
    (found,) = result.get_asset_check_evaluations()
    return found


def statuses(scene: Scene, table: str) -> list[tuple[object, object]]:
    """What the page of a target says, the oldest first."""
    records = scene.instance.fetch_observations(dg.AssetKey([scene.site.database, table]), limit=50).records
    told = [record.asset_observation.metadata for record in reversed(records) if record.asset_observation is not None]
    return [(one["chmv/status"].value, one["chmv/route"].value) for one in told]


def snapshots(scene: Scene) -> int:
    done = scene.definitions.resolve_job_def(SNAPSHOT_JOB).execute_in_process(instance=scene.instance)
    (output,) = [one for one in done.all_events if one.event_type == dg.DagsterEventType.STEP_OUTPUT]
    return int(str(output.step_output_data.metadata["chmv/statuses_changed"].value))


def test_a_comparison_that_failed_is_repaired_once_and_turns_green(scene: Scene) -> None:
    right = scene.evaluate(None)
    assert compare(scene).passed
    scene.site.run(f"ALTER TABLE {{db}}.daily DROP PARTITION ID '{PARTITION}'")
    assert not compare(scene).passed
    asked = scene.evaluate(right.cursor)
    (request,) = asked.run_requests
    assert (request.tags["chmv/subject"], request.tags["chmv/damage"]) == (f"{scene.site.database}.daily", "deficit")
    assert "evaluation" in request.tags["chmv/evidence"]
    again = scene.evaluate(asked.cursor)  # nothing new in the log: it is remembered
    assert [one.run_key for one in again.run_requests] == [request.run_key]

    done = scene.run(request.run_config["ops"]["recover"]["config"]["ask"], dict(request.tags))
    assert done.success
    assert scene.site.differences() == []
    (output,) = [one for one in done.all_events if one.event_type == dg.DagsterEventType.STEP_OUTPUT]
    assert output.step_output_data.metadata["chmv/windows_rebuilt"].value == 2, (
        "the day, and the month that is made of it"
    )
    after = scene.evaluate(asked.cursor)
    assert not after.run_requests and "deficit" not in after.skip_message, "the repair has said that they are equal"
    check = dg.AssetCheckKey(dg.AssetKey([scene.site.database, "daily"]), CHECK)
    latest = scene.instance.event_log_storage.get_latest_asset_check_execution_by_key([check])[check]
    assert latest.status.value == "SUCCEEDED"


def test_a_deficit_of_a_target_whose_recovery_is_off_is_only_told(
    engine: EngineInfo, server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = f"targets: {{{database}.daily: {{recovery: 'off'}}}}\n"
    with open_scene(engine, server, database, tmp_path, monkeypatch, settings) as scene:
        right = scene.evaluate(None)
        scene.site.run(f"ALTER TABLE {{db}}.daily DROP PARTITION ID '{PARTITION}'")
        assert not compare(scene).passed
        told = scene.evaluate(right.cursor)
        assert not told.run_requests
        assert "daily: deficit (1 window(s) differ from the views), but its recovery is off" in told.skip_message


def test_the_page_of_a_target_tells_changes_of_its_status_and_nothing_else(scene: Scene) -> None:
    assert snapshots(scene) == 5
    assert snapshots(scene) == 0, "nothing has changed since"
    right = scene.evaluate(None)
    scene.site.run("DROP TABLE {db}.daily_mv SYNC")
    (request,) = scene.evaluate(right.cursor).run_requests
    assert scene.run(request.run_config["ops"]["recover"]["config"]["ask"], dict(request.tags)).success
    active, degraded = ("ACTIVE", "primary"), ("DEGRADED", "primary")
    assert statuses(scene, "daily") == [active, degraded, active]
    assert statuses(scene, "latest") == [active], "it has nothing to do with it"
    assert snapshots(scene) == 0
