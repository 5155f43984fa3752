"""What a person sees of the demo in the real Dagster UI, and does with the mouse.

Tests wait for what should appear, never for time. The `visit` fixture fails a test whose page logged an error or asked for
another host. Each test leaves a screenshot in `screenshots/`, which git ignores.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import quote

import pytest
from conftest import LiveDemo, Visit
from pages import ask, expect_sound, expect_texts, seen
from playwright.sync_api import expect

TARGET = "/assets/shop/traffic_hourly"
RUN_SECONDS = 120

pytestmark = pytest.mark.timeout(300)


def stands_for(shown: str, name: str) -> bool:
    """Whether a node's label is a name, or the name with its middle left out."""
    return any(re.fullmatch(re.escape(line).replace("…", ".*"), name) for line in shown.split())


def graph_path(demo: LiveDemo, selection: str = "") -> str:
    """The global graph with every group open, limited to a selection."""
    groups = {node["groupName"] for node in ask(demo, "{assetNodes{groupName}}")["assetNodes"]}
    opened = ",".join(f"global@global:{group}" for group in sorted(groups))
    return f"/asset-groups~{quote(selection, safe='')}?expanded={quote(opened, safe='')}"


def test_first_load_of_the_graph_shows_every_group_and_how_they_connect(live_demo: LiveDemo, visit: Visit) -> None:
    page = visit.open("/asset-groups")
    groups = {node["groupName"] for node in ask(live_demo, "{assetNodes{groupName}}")["assetNodes"]}
    nodes = page.locator("foreignObject.group")
    expect(nodes).to_have_count(len(groups))
    for group in groups:
        expect(nodes.filter(has=page.get_by_text(group, exact=True)).first).to_be_visible()
    expect(page.locator("svg path[marker-end]").nth(2), "wanted three edges or more").to_be_attached()
    expect(page.get_by_text("fetching statuses")).to_have_count(0)
    expect(page.get_by_role("dialog")).to_have_count(0)  # nothing covers it
    visit.keep()


def test_graph_shows_sources_views_and_targets_with_their_edges(
    live_demo: LiveDemo, visit: Visit, picture: Callable[..., None]
) -> None:
    names = ["events", "traffic_hourly_mv", "traffic_hourly", "traffic_daily_mv", "traffic_daily", "daily_overview"]
    names += ["order_changes", "payments", "revenue_orders_mv", "revenue_payments_mv", "revenue_daily"]
    page = visit.page
    page.set_viewport_size({"width": 1800, "height": 1100})
    visit.open(graph_path(live_demo, '+key:"shop/daily_overview"'))
    nodes = page.locator("[class*=AssetNode_assetName]")
    expect(nodes).to_have_count(len(names))
    shown = nodes.all_inner_texts()
    missing = [name for name in names if not any(stands_for(text, name) for text in shown)]
    assert not missing, f"nodes: found {shown} but no {missing}"
    expect(page.locator("svg path[marker-end]")).to_have_count(10)
    for name in ("events", "revenue_daily", "traffic_daily"):  # all partitions filled
        box = page.locator("[class*=AssetNode_minimalAssetNodeBox]", has=page.get_by_text(name, exact=True))
        expect(box, f"wanted {name} green").to_have_attribute("style", re.compile("accent-green"))
    visit.keep()
    picture("asset_graph", around=page.locator("foreignObject.group"))


def test_target_page_tells_description_kinds_columns_and_ddl(visit: Visit, picture: Callable[..., None]) -> None:
    page = visit.open(TARGET)
    expect_texts(page, "Traffic per hour, event type and device", "ClickHouse", "Table", "shop.traffic_hourly")
    expect(page.get_by_text("and swap it in, while inserts go on")).to_be_visible()
    columns = page.locator("table", has=page.get_by_text("Column name", exact=True)).first
    for name, column_type, comment in (
        ("hour", "DateTime('UTC')", ""),
        ("device", "LowCardinality(String)", ""),
        ("items", "UInt64", "Products put into carts or bought"),
        ("load_ms", "UInt64", "Sum over the events, divide by events for the mean"),
    ):
        row = columns.locator("tr", has=page.get_by_text(name, exact=True))
        expect(row).to_contain_text(column_type)
        expect(row).to_contain_text(comment)
    expect_texts(page, "clickhouse/ddl", "SummingMergeTree", "View in graph")
    expect(page.get_by_text("CREATE TABLE IF NOT EXISTS shop.traffic_hourly")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^40_traffic\.sql:\d+$")).locator("visible=true").first).to_be_visible()
    expect_sound(page)
    visit.keep()
    picture("asset_page")


def test_partitions_bar_counts_what_clickhouse_holds(live_demo: LiveDemo, visit: Visit) -> None:
    live = live_demo.server.rows("SELECT uniqExact(hour) FROM shop.traffic_hourly")[0][0]
    page = visit.open(f"{TARGET}?view=partitions")
    expect_texts(page, f"Materialized ({live})", "Failed (0)")
    first = live_demo.window.start.strftime("%Y-%m-%d-%H:00")
    expect_texts(page, first)
    page = visit.open(f"{TARGET}?view=partitions&partition={first}")
    expect_texts(page, "Materialized", "dagster/partition_row_count")
    expect(page.get_by_text("Unsynced", exact=False)).to_have_count(0)  # told upstream first
    visit.keep()


def test_column_lineage_of_a_view_names_the_columns_of_its_source(live_demo: LiveDemo, visit: Visit) -> None:
    """The graph of columns is a Dagster+ page; the open-source UI shows the lineage as it is, in the graph's side bar."""
    path, _, opened = graph_path(live_demo).partition("?")
    page = visit.open(f"{path}~/{quote('shop/traffic_hourly_mv', safe='')}?{opened}".replace("~~", "~"))
    row = page.locator("tr", has=page.get_by_text("dagster/column_lineage", exact=True))
    row.get_by_text("[Show JSON]").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text('"quantity"', exact=False).first).to_be_visible()
    visit.keep()
    text = dialog.inner_text()
    entries = json.loads(text[text.index("[") : text.rindex("]") + 1])
    lineage = {
        entry["columnName"]: [".".join([*dep["assetKey"]["path"], dep["columnName"]]) for dep in entry["columnDeps"]]
        for entry in entries
    }
    assert lineage == {
        "hour": ["shop.events.event_time"],
        "event_type": ["shop.events.event_type"],
        "device": ["shop.events.device"],
        "events": [],
        "items": ["shop.events.quantity"],
        "load_ms": ["shop.events.load_ms"],
    }


def test_columns_of_a_page_name_their_types_and_origins(visit: Visit) -> None:
    page = visit.open("/assets/shop/traffic_hourly_mv")
    row = page.locator("tr", has=page.get_by_text("items", exact=True))
    expect(row).to_contain_text("UInt64")
    expect(row).to_contain_text("← shop.events.quantity")
    visit.keep("view")
    page = visit.open("/assets/shop/revenue_daily")  # of two views, each column names its own
    for name, view in (("orders", "revenue_orders_mv"), ("captured", "revenue_payments_mv")):
        expect(page.locator("tr", has=page.get_by_text(name, exact=True))).to_contain_text(f"← shop.{view}.{name}")
    visit.keep("target")


def test_lineage_tab_of_a_view_shows_its_source_and_its_target(visit: Visit) -> None:
    page = visit.open("/assets/shop/traffic_hourly_mv?view=lineage")
    expect_texts(page, "events", "traffic_hourly_mv", "traffic_hourly")
    expect(page.locator("svg path[marker-end]")).to_have_count(2)
    visit.keep()


def test_checks_of_a_view_are_green(visit: Visit) -> None:
    page = visit.open("/assets/shop/traffic_hourly_mv?view=checks")
    expect_texts(page, "Checks (2)", "live_ddl_equals_declared", "view_is_hooked")
    expect(page.get_by_text("Succeeded", exact=True).locator("visible=true")).not_to_have_count(0)
    seen(page, "view_is_hooked").click()
    expect_texts(page, "The server fires this view on inserts into the table that the DDL says, and no other.")
    expect_texts(page, "hooked as declared")
    expect(page.get_by_text("Failed", exact=True)).to_have_count(0)
    visit.keep()


def test_materializing_a_partition_by_mouse_rebuilds_it_and_shows_its_numbers(
    live_demo: LiveDemo, visit: Visit
) -> None:
    day = (live_demo.window.start + timedelta(days=1)).date().isoformat()
    query = (
        f"SELECT sum(orders), sum(ordered), sum(payments), sum(captured) FROM shop.revenue_daily WHERE day = '{day}'"
    )
    before = live_demo.server.rows(query)
    known = run_ids(live_demo)
    page = visit.open(f"/assets/shop/revenue_daily?view=partitions&partition={day}")
    expect_texts(page, "Materialized (4)")
    page.get_by_role("button", name="Materialize…").first.click()
    dialog = page.get_by_role("dialog")
    expect_texts(dialog, "1 partition")
    expect(dialog.locator("input").first).to_have_value(day)
    visit.keep("dialog")
    dialog.get_by_role("button", name="Launch 1 run").click()
    expect(page.get_by_text("Launched run", exact=False).first).to_be_visible()

    run = wait_for_run(live_demo, known)
    page = visit.open("/runs")
    row = page.locator("tr", has=page.get_by_text(run[:8], exact=True))
    expect(row.or_(page.locator("div[class*=row]", has=page.get_by_text(run[:8], exact=True))).first).to_contain_text(
        "Success"
    )
    visit.keep("runs")
    page = visit.open(f"/assets/shop/revenue_daily?view=partitions&partition={day}")
    expect_texts(page, run[:8], "chmv/rows_after", "chmv/protocol", "chmv/why", "dagster/partition_row_count")
    visit.keep("partition")
    page = visit.open(f"/runs/{run}")
    line = re.compile(rf"shop\.revenue_daily {day} \(1 of 1\): rows \d+ → \d+, .*(closed|gated): ")
    expect(page.get_by_text(line)).to_be_visible()
    visit.keep("log")
    assert live_demo.server.rows(query) == before


def run_ids(demo: LiveDemo) -> set[str]:
    found = ask(demo, "{runsOrError{... on Runs{results{runId}}}}")
    return {run["runId"] for run in found["runsOrError"]["results"]}


def wait_for_run(demo: LiveDemo, known: set[str]) -> str:
    """The one new run, once it has succeeded."""
    deadline = time.monotonic() + RUN_SECONDS
    status = "none"
    while time.monotonic() < deadline:
        found = ask(demo, "{runsOrError{... on Runs{results{runId status}}}}")["runsOrError"]["results"]
        new = [run for run in found if run["runId"] not in known]
        status = ", ".join(run["status"] for run in new) or "none"
        if len(new) == 1 and new[0]["status"] == "SUCCESS":
            return str(new[0]["runId"])
        assert "FAILURE" not in status, f"the run that the UI launched failed: {new}"
        time.sleep(0.5)
    raise AssertionError(f"runs after the click: found {status} but wanted one SUCCESS within {RUN_SECONDS} s")


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/assets", "customer_value"),
        ("/overview", "Timeline"),
        ("/jobs", "checks_job"),
        ("/deployment/locations", "Loaded"),
        ("/deployment/daemons", "Running"),
    ],
)
def test_page_loads_without_errors(visit: Visit, path: str, sign: str) -> None:
    page = visit.open(path)
    expect(seen(page, sign, exact=False), f"wanted {sign!r} on {path}").to_be_visible()
    expect(page.get_by_text(re.compile("^Loading")).locator("visible=true")).to_have_count(0)
    expect_sound(page)
    visit.keep()


# They come last, since they break the demo, and stand in this module, since each has a demo of its own.
from recovery_pages import (  # noqa: E402
    repair,  # noqa: F401
    sensors,  # noqa: F401
    test_a_repair_tells_its_story_on_the_page_of_its_run,  # noqa: F401
    test_every_recovery_sensor_is_listed_and_runs,  # noqa: F401
    test_the_last_tick_says_what_was_seen_with_numbers,  # noqa: F401
    test_the_page_of_the_target_says_how_it_stands,  # noqa: F401
)
