"""Assets in real runs: what Dagster executes does to the server what the asset's page says, and reports it.

No postponed annotations needed here; everything goes through `build_definitions`, as in the code location.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import RANGE, Site, open_site

from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.definitions import build_definitions
from chmv_assets.pipeline import DEMO_DDL, load_pipeline
from resources.engine import EngineInfo

DDL = """
CREATE TABLE {db}.hits (at DateTime('UTC'), page String, ms UInt32, arrived DateTime('UTC') DEFAULT now())
ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY page;
CREATE TABLE {db}.daily (day Date, page String, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, page);
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS SELECT toDate(at) AS day, page, count() AS hits FROM {db}.hits GROUP BY day, page;
CREATE TABLE {db}.monthly (day Date, hits SimpleAggregateFunction(sum, UInt64)) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
CREATE MATERIALIZED VIEW {db}.monthly_mv TO {db}.monthly AS SELECT day, sum(hits) AS hits FROM {db}.daily GROUP BY day;
CREATE TABLE {db}.top (page String, hits UInt64) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.top_mv REFRESH EVERY 1 DAY TO {db}.top AS SELECT page, sum(hits) AS hits FROM {db}.daily GROUP BY page;
CREATE TABLE {db}.pages (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits GROUP BY page;
"""
SETTINGS = """
version: 1
default_database: {db}
start: "2026-10-01"
sources:
  {db}.hits: {event_time: at, arrival: arrived}
"""


class HitsSite(Site):
    """A location over a small pipeline with rows on 1 to 5 October 2026, ten per day, and some today."""

    def metadata(self, result: dg.ExecuteInProcessResult, table: str) -> dict[str | None, Mapping[str, Any]]:
        """Metadata of each materialization, by partition."""
        events = result.asset_materializations_for_node(f"{self.database}__{table}")
        return {e.partition: {k: v.value for k, v in e.metadata.items()} for e in events}


@pytest.fixture
def site(
    configured: EngineInfo, clickhouse: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HitsSite]:
    with open_site(HitsSite, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        made.command(
            "INSERT INTO {db}.hits SELECT toDateTime('2026-10-01 00:00:00', 'UTC') + number * 8640, "
            "'p' || toString(number % 3), 5, '2026-10-07 00:00:00' FROM numbers(50)"
        )
        for verb in ("REFRESH", "WAIT"):  # else its target shows the empty table of its creation
            made.command(f"SYSTEM {verb} VIEW {{db}}.top_mv")
        yield made


def test_target_partition_is_rebuilt(site: HitsSite) -> None:
    site.command("ALTER TABLE {db}.daily DROP PARTITION ID '20261003'")
    result = site.run("daily", partition_key="2026-10-03")
    assert result.success
    assert site.rows("SELECT day, sum(hits) FROM {db}.daily GROUP BY day ORDER BY day") == site.rows(
        "SELECT toDate(at) AS day, count() FROM {db}.hits GROUP BY day ORDER BY day"
    )
    (found,) = site.metadata(result, "daily").items()
    assert found[0] == "2026-10-03"
    numbers = {
        k: found[1][k] for k in ("chmv/rows_before", "chmv/rows_after", "chmv/tries", "dagster/partition_row_count")
    }
    assert numbers == {
        "chmv/rows_before": 0, "chmv/rows_after": 3, "chmv/tries": 1, "dagster/partition_row_count": 3
    }  # fmt: skip


def test_view_then_target_use_one_scratch(site: HitsSite) -> None:
    result = site.run("daily_mv", "daily", partition_key="2026-10-02")
    assert result.success
    assert site.metadata(result, "daily_mv")["2026-10-02"]["chmv/rows"] == 3
    assert site.metadata(result, "daily_mv")["2026-10-02"]["chmv/reused"] == 0
    left = site.rows("SELECT count() FROM system.tables WHERE database = 'chmv' AND name LIKE 'scratch.{db}%'")
    assert left == [(0,)]
    assert site.run("daily_mv", partition_key="2026-10-02").success
    again = site.run("daily_mv", partition_key="2026-10-02")
    assert site.metadata(again, "daily_mv")["2026-10-02"]["chmv/reused"] == 1


@pytest.mark.parametrize("last", ["2026-10-02", "2026-10-04"])
def test_range_run_has_metadata_of_its_own_per_partition(site: HitsSite, last: str) -> None:
    site.command("INSERT INTO {db}.daily SELECT * FROM {db}.daily")
    result = site.run("daily", tags={RANGE + "start": "2026-10-02", RANGE + "end": last})
    assert result.success
    wanted = [f"2026-10-0{day}" for day in range(2, int(last[-1]) + 1)]
    found = site.metadata(result, "daily")
    assert sorted(found, key=str) == wanted
    assert [found[key]["dagster/partition_row_count"] for key in wanted] == [3] * len(wanted)
    assert {found[key]["chmv/windows"] for key in wanted} == {len(wanted)}
    doubled = site.rows(
        "SELECT toDayOfMonth(day), sum(hits) FROM {db}.daily GROUP BY 1 HAVING sum(hits) = 20 ORDER BY 1"
    )
    assert [day for day, _ in doubled] == [day for day in range(1, 6) if f"2026-10-0{day}" not in wanted]


def test_source_is_observed_and_not_touched(site: HitsSite) -> None:
    before = site.rows("SELECT sum(cityHash64(*)) FROM {db}.hits")
    result = site.run("hits", tags={RANGE + "start": "2026-10-05", RANGE + "end": "2026-10-06"})
    assert result.success
    found = site.metadata(result, "hits")
    assert {key: one["dagster/partition_row_count"] for key, one in found.items()} == {
        "2026-10-05": 10,
        "2026-10-06": 0,
    }
    assert found["2026-10-05"]["chmv/newest_event"].startswith("2026-10-05T21:36:00")
    assert found["2026-10-05"]["chmv/newest_arrival"].startswith("2026-10-07T00:00:00")
    assert "chmv/newest_event" not in found["2026-10-06"]
    assert site.rows("SELECT sum(cityHash64(*)) FROM {db}.hits") == before


def test_open_month_can_be_launched(site: HitsSite) -> None:
    now = datetime.now(timezone.utc)
    site.command("INSERT INTO {db}.hits (at, page, ms) VALUES (now(), 'p9', 1)")
    site.command("INSERT INTO {db}.monthly VALUES (today(), 5)")
    result = site.run("monthly_mv", "monthly", partition_key=f"{now:%Y-%m}-01")
    assert result.success
    assert site.rows("SELECT sum(hits) FROM {db}.monthly WHERE toYYYYMM(day) = toYYYYMM(today())") == [(1,)]


def test_refreshable_view_is_refreshed_and_its_target_observed(site: HitsSite) -> None:
    site.command("TRUNCATE TABLE {db}.top")
    result = site.run("top_mv", "top")
    assert result.success
    assert site.rows("SELECT sum(hits) FROM {db}.top") == [(50,)]
    assert site.metadata(result, "top")[None]["dagster/row_count"] == 3


def told_of(result: dg.ExecuteInProcessResult) -> str:
    """The sentence that a run failed with."""
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    return str(data.description)


def test_refresh_that_fails_or_does_nothing_is_no_success(site: HitsSite) -> None:
    site.command("DROP TABLE {db}.top_mv SYNC")
    site.command(
        "CREATE MATERIALIZED VIEW {db}.top_mv REFRESH EVERY 1 DAY TO {db}.top AS "
        "SELECT page, sum(hits) + throwIf(count() > 0, 'no such luck') AS hits FROM {db}.daily GROUP BY page"
    )
    failed = told_of(site.run("top_mv"))
    assert "view site_" in failed and "no such luck" in failed and "wanted a refresh that succeeded" in failed
    assert "Stack trace" not in failed and "\n" not in failed
    site.command("DROP TABLE {db}.top_mv SYNC")
    site.command(
        "CREATE MATERIALIZED VIEW {db}.top_mv REFRESH EVERY 1 DAY TO {db}.top AS SELECT page, sum(hits) AS hits FROM {db}.daily GROUP BY page"
    )
    site.command("SYSTEM WAIT VIEW {db}.top_mv")
    site.command("SYSTEM STOP VIEW {db}.top_mv")
    time.sleep(1.1)  # the server keeps whole seconds
    stopped = told_of(site.run("top_mv"))  # the server itself says nothing: waiting for a stopped view returns at once
    assert "status Disabled" in stopped and "SYSTEM START VIEW" in stopped
    site.command("SYSTEM START VIEW {db}.top_mv")
    done = site.run("top_mv")
    assert done.success
    assert site.metadata(done, "top_mv")[None]["chmv/rows_written"] == 3


def test_tags_of_a_run_choose_protocol_and_feed(site: HitsSite) -> None:
    options: dict[str, Any] = {"partition_key": "2026-10-03"}
    gated = site.run("daily", tags={"chmv/protocol": "gated"}, **options)
    found = site.metadata(gated, "daily")["2026-10-03"]
    assert (found["chmv/protocol"], found["chmv/why"]) == ("gated", "asked for")
    assert found["chmv/gate_seconds"] > 0
    assert "wanted a landing archive" in told_of(site.run("daily", tags={"chmv/feed": "replay"}, **options))
    unknown = told_of(site.run("daily", tags={"chmv/protocol": "gently"}, **options))
    assert unknown.startswith("run tag chmv/protocol: found 'gently' but wanted one of settings, auto, closed, gated")
    site.command("TRUNCATE TABLE {db}.hits")
    assert "--allow-empty" in told_of(site.run("daily", **options))
    assert site.run("daily", tags={"chmv/allow_empty": "true"}, **options).success
    assert site.rows("SELECT count() FROM {db}.daily WHERE day = '2026-10-03'") == [(0,)]


def test_unpartitioned_target_is_rebuilt_as_a_whole(site: HitsSite) -> None:
    site.command("INSERT INTO {db}.pages VALUES ('p0', 1000)")
    result = site.run("pages")
    assert result.success
    assert site.rows("SELECT sum(total) FROM {db}.pages") == [(50,)]
    assert site.metadata(result, "pages")[None]["chmv/total_rows_after"] == 3


def test_refused_rebuild_fails_with_our_sentence(site: HitsSite) -> None:
    site.command("TRUNCATE TABLE {db}.hits")
    result = site.run("daily", partition_key="2026-10-03")
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    assert data.description is not None
    assert re.search(r"daily: holds rows for this window but its views give none from \w+\.hits", data.description)
    assert {k: v.value for k, v in data.metadata.items()}["error"] == "RebuildRefused"
    assert site.rows("SELECT sum(hits) FROM {db}.daily WHERE day = '2026-10-03'") == [(10,)]


def test_server_that_is_not_there_fails_with_our_sentence(site: HitsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    for table, options in {
        "daily": {"partition_key": "2026-10-03"},
        "hits": {"partition_key": "2026-10-03"},
        "top_mv": {},
    }.items():
        result = site.run(table, **options)
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        assert failure.step_failure_data.user_failure_data is not None, table
        assert "server http://127.0.0.1:9: no usable answer" in str(
            failure.step_failure_data.user_failure_data.description
        )


Checks = Callable[[], dict[tuple[str, str], dg.AssetCheckEvaluation]]


@pytest.fixture
def checks(site: HitsSite) -> Checks:
    def run() -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
        job = site.definitions.resolve_job_def("checks_job")
        result = job.execute_in_process(instance=site.instance)
        assert result.success
        return {(e.asset_key.path[-1], e.check_name): e for e in result.get_asset_check_evaluations()}

    return run


def test_checks_are_green_on_a_fresh_server(site: HitsSite, checks: Checks) -> None:
    found = checks()
    assert {pair: e.description for pair, e in found.items() if not e.passed} == {}
    views = {"daily_mv", "monthly_mv", "pages_mv"}
    every = {*views, "hits", "daily", "monthly", "top", "top_mv", "pages"}
    assert set(found) >= {(v, "view_is_hooked") for v in views} | {(t, "live_ddl_equals_declared") for t in every}


def test_checks_name_what_drifted(site: HitsSite, checks: Checks) -> None:
    for statement in (
        "ALTER TABLE {db}.daily ADD COLUMN extra UInt8",
        "DROP TABLE {db}.monthly_mv SYNC",
        "DROP TABLE {db}.pages_mv SYNC",
        "CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.daily GROUP BY page",
    ):
        site.command(statement)
    red = {pair: str(e.description) for pair, e in checks().items() if not e.passed}
    assert set(red) == {
        ("daily", "live_ddl_equals_declared"),
        ("monthly_mv", "live_ddl_equals_declared"),
        ("monthly_mv", "view_is_hooked"),
        ("pages_mv", "live_ddl_equals_declared"),
        ("pages_mv", "view_is_hooked"),
    }
    assert "column extra" in red["daily", "live_ddl_equals_declared"]
    assert "is not on the server" in red["monthly_mv", "view_is_hooked"]
    assert "the server has no such hook" in red["pages_mv", "view_is_hooked"]


@pytest.mark.thorough
def test_demo_runs_from_end_to_end(configured: EngineInfo, clickhouse: Client, tmp_path: Path) -> None:
    definitions = build_definitions(load_pipeline(DEMO_DDL, cache=tmp_path))
    clickhouse.command("DROP DATABASE IF EXISTS shop SYNC")
    for file in sorted(DEMO_DDL.glob("*.sql")):
        for statement in split_statements(SourceFile(path="x", text=file.read_text()))[0]:
            clickhouse.command(statement.text)
    clickhouse.command(
        "INSERT INTO shop.events (event_id, event_time, session_id, user_id, event_type, device, quantity) "
        "SELECT number, toDateTime64('2026-10-05 00:00:00', 3, 'UTC') + number * 60, number % 7, number % 5, 'page_view', 'mobile', 2 "
        "FROM numbers(1440)"
    )
    for table in ("traffic_hourly", "traffic_daily", "visitors_daily"):
        clickhouse.command(f"INSERT INTO shop.{table} SELECT * FROM shop.{table}")
    job = definitions.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        for tables, options in (
            (["events", "events_enriched_mv", "events_enriched"], {"partition_key": "2026-10-05"}),
            (["traffic_hourly"], {"tags": {RANGE + "start": "2026-10-05-00:00", RANGE + "end": "2026-10-05-23:00"}}),
            (["traffic_daily_mv", "traffic_daily"], {"partition_key": "2026-10-01"}),
            (["visitors_daily"], {"partition_key": "2026-10-05"}),
            (["customer_value_mv", "customer_value"], {}),
        ):
            selection = [dg.AssetKey(["shop", table]) for table in tables]
            assert job.execute_in_process(instance=instance, asset_selection=selection, **options).success  # type: ignore[arg-type]
    assert clickhouse.query("SELECT sum(events), sum(items) FROM shop.traffic_daily").result_rows == [(1440, 2880)]
    assert clickhouse.query("SELECT uniqMerge(users), sum(revenue) FROM shop.visitors_daily").result_rows[0][0] == 5
    clickhouse.command("DROP DATABASE shop SYNC")
