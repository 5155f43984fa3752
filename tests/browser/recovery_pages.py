"""What a person sees of recovery: the sensors and what they say, a run that repaired a dropped view, and the status of its target.

The sensors are switched on as in the UI, a view of the demo is dropped, and nobody helps. Each test leaves a screenshot. They run as a part
of `test_ui`, in its demo.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import PATIENCE_MS, LiveDemo, Visit
from pages import ask, expect_sound, expect_texts, seen
from playwright.sync_api import expect

SENSORS = (
    "view_health_sensor",
    "merge_backlog_sensor",
    "late_data_sensor",
    "freshness_sensor",
    "reaper_sensor",
    "drift_sensor",
    "live_partitions_sensor",
)
REPAIR_SECONDS = 150
LOCATION = "chmv"  # in workspace.yaml
VIEW, TARGET = "shop.traffic_hourly_mv", "shop/traffic_hourly"


def selector(**more: str) -> str:
    place = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}
    return "{" + ",".join(f"{name}:{json.dumps(value)}" for name, value in {**place, **more}.items()) + "}"


def states(demo: LiveDemo) -> dict[str, Any]:
    query = (
        f"{{sensorsOrError(repositorySelector:{selector()}){{... on Sensors{{results{{name sensorState{{status "
        "ticks(limit:1){status skipReason runIds error{message}}}}}}}"
    )
    return {one["name"]: one["sensorState"] for one in ask(demo, query)["sensorsOrError"]["results"]}


def wait_until(what: str, found: Any, seconds: float = REPAIR_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


@pytest.fixture(scope="module")
def sensors(live_demo: LiveDemo) -> Iterator[tuple[str, ...]]:
    """All switched on, and each has ticked once."""
    for name in SENSORS:
        mutation = f"mutation{{startSensor(sensorSelector:{selector(sensorName=name)}){{__typename ... on PythonError{{message}}}}}}"
        assert ask(live_demo, mutation)["startSensor"]["__typename"] == "Sensor"
    wait_until("a tick of every sensor", lambda: all(states(live_demo)[name]["ticks"] for name in SENSORS))
    yield SENSORS


@pytest.fixture(scope="module")
def repair(live_demo: LiveDemo, sensors: tuple[str, ...]) -> str:
    """The run that repaired a dropped view, found and launched by the daemon."""
    wait_until("the views were seen to be right", lambda: "all right" in said(live_demo, "view_health_sensor"))
    live_demo.server.command(f"DROP TABLE {VIEW} SYNC")
    missed = "SELECT * REPLACE (now64(6) AS ingested_at) FROM shop.events ORDER BY ALL LIMIT 200"
    live_demo.server.command(f"INSERT INTO shop.events {missed}")
    tag = f'[{{key:"chmv/subject",value:"{VIEW}"}}]'  # the late data sensor sees these rows too
    query = (
        f'{{runsOrError(filter:{{pipelineName:"recovery_job",tags:{tag}}}){{... on Runs{{results{{runId status}}}}}}}}'
    )

    def done() -> str:
        runs = ask(live_demo, query)["runsOrError"]["results"]
        assert not [run for run in runs if run["status"] == "FAILURE"], runs
        return next((str(run["runId"]) for run in runs if run["status"] == "SUCCESS"), "")

    return str(wait_until(f"a repair of {VIEW}", done))


def said(demo: LiveDemo, sensor: str) -> str:
    ticks = states(demo)[sensor]["ticks"]
    return str(ticks[0]["skipReason"] or "") if ticks else ""


def test_every_recovery_sensor_is_listed_and_runs(live_demo: LiveDemo, sensors: tuple[str, ...], visit: Visit) -> None:
    page = visit.open("/automation")
    expect_texts(page, *sensors, "snapshot_schedule", "Standard sensor")
    switches = page.get_by_role("checkbox", checked=True)
    expect(switches, "wanted the switches of the sensors to be on").to_have_count(len(sensors))
    expect_sound(page)
    visit.keep()
    assert {states(live_demo)[name]["status"] for name in sensors} == {"RUNNING"}


def test_the_last_tick_says_what_was_seen_with_numbers(
    live_demo: LiveDemo, sensors: tuple[str, ...], visit: Visit
) -> None:
    page = visit.open(f"/locations/{LOCATION}/sensors/view_health_sensor")
    expect_texts(page, "View logs")
    page.get_by_text(re.compile("runs? requested")).locator("visible=true").last.click()  # the column "Result"
    expect(seen(page, re.compile(r"\d+ views and \d+ targets looked at"))).to_be_visible(timeout=PATIENCE_MS)
    expect_sound(page)
    visit.keep()
    for name in sensors:
        tick = states(live_demo)[name]["ticks"][0]
        assert tick["error"] is None and re.search(r"\d", tick["skipReason"] or "0"), (name, tick)


def test_a_repair_tells_its_story_on_the_page_of_its_run(
    live_demo: LiveDemo, repair: str, visit: Visit, picture: Callable[..., None]
) -> None:
    assert live_demo.server.rows(
        "SELECT count() FROM system.tables WHERE database = 'shop' AND name = 'traffic_hourly_mv'"
    ) == [(1,)]
    page = visit.open(f"/runs/{repair}")
    expect_texts(page, "Success", "recovery_job")
    expect_texts(page, "RUN_SUCCESS")
    visit.keep("run")
    page = visit.open(f"/runs/{repair}?logs=compared")
    expect(seen(page, re.compile(r"compared \d+ window"))).to_be_visible(timeout=PATIENCE_MS)
    page = visit.open(f"/runs/{repair}?logs=type%3ASTEP_OUTPUT")
    expect_texts(page, "chmv/damage", f"{VIEW}: dropped", "chmv/tier", "chmv/steps", "chmv/status", "repaired")
    visit.keep("story")
    page.get_by_text("View full message", exact=True).locator("visible=true").first.click()
    dialog = page.get_by_role("dialog")
    expect_texts(
        dialog, "chmv/evidence", "chmv/before_and_after", "chmv/windows_rebuilt", "chmv/seconds_from_detection"
    )
    visit.keep("all")
    dialog.get_by_text("[Show Markdown]").first.click()
    steps = page.get_by_role("dialog").last
    expect(seen(steps, re.compile(f"created {re.escape(VIEW)}|{re.escape(VIEW)} .*declared"))).to_be_visible(
        timeout=PATIENCE_MS
    )
    visit.keep("steps")
    picture("recovery")


def test_the_page_of_the_target_says_how_it_stands(live_demo: LiveDemo, repair: str, visit: Visit) -> None:
    page = visit.open(f"/assets/{TARGET}?view=events")
    expect_texts(page, "chmv/status", "ACTIVE", "chmv/route", "primary", f"{VIEW}: dropped, repaired")
    visit.keep()
