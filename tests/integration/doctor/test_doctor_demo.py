"""`chmv doctor` and its checks on the demo: no false alarm, whatever was loaded; and as many queries for many tables as for few."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client

from chmv_assets.cli.main import main
from chmv_assets.core.doctor import RULES, examine
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.core.thresholds import THRESHOLDS
from chmv_assets.definitions import build_definitions
from chmv_assets.fitness_check import FIT, LIMITS_FIT
from chmv_assets.pipeline import DEMO_DDL, load_pipeline
from resources.clickhouse import Server
from resources.demo_data import load_demo
from resources.doctor import read_facts
from resources.engine import EngineInfo


@pytest.fixture(scope="module")
def shop(clickhouse: Client) -> Iterator[Client]:
    clickhouse.command("DROP DATABASE IF EXISTS shop SYNC")
    for file in sorted(DEMO_DDL.glob("*.sql")):
        for statement in split_statements(SourceFile(path=file.name, text=file.read_text()))[0]:
            clickhouse.command(statement.text)
    start, end = datetime(2026, 10, 25, tzinfo=timezone.utc), datetime(2026, 11, 5, tzinfo=timezone.utc)
    load_demo(clickhouse, rows=20_000, seed=7, start=start, end=end)
    clickhouse.command("SYSTEM FLUSH LOGS")
    yield clickhouse
    clickhouse.command("DROP DATABASE IF EXISTS shop SYNC")


def test_the_demo_gives_no_error_and_no_warning(shop: Client, configured: EngineInfo) -> None:
    result = CliRunner().invoke(main, ["doctor", "--ddl", str(DEMO_DDL), "--json", "--strict"])
    document = json.loads(result.output)
    assert [one for one in document["findings"] if one["severity"] != "advice"] == []
    assert result.exit_code == 0 and document["rules"] == len(RULES) and document["objects"] > 30
    text = CliRunner().invoke(main, ["doctor", "--ddl", str(DEMO_DDL)])
    assert text.exit_code == 0 and f"{len(RULES)} rules looked at {document['objects']} objects" in text.output


def test_every_view_over_a_loaded_source_was_tried(shop: Client, server: Server) -> None:
    pipeline = load_pipeline(DEMO_DDL).require_sound()
    facts = read_facts(server, pipeline.catalog, pipeline.settings)
    assert facts.unread == ()
    assert {sample.view.table: sample.partitions > 0 for sample in facts.samples} == {
        made.name.table: True
        for made in pipeline.catalog.objects.values()
        if made.kind == "materialized_view" and made.target and pipeline.catalog.objects[made.target].partition_by
    }
    (hourly,) = [sample for sample in facts.samples if sample.view.table == "traffic_hourly_mv"]
    assert 72 <= hourly.per_insert <= 80, "the loader puts three days into one insert"


def test_the_checks_are_green_and_show_the_thresholds_in_effect(
    shop: Client, configured: EngineInfo, tmp_path: Path
) -> None:
    definitions = build_definitions(load_pipeline(DEMO_DDL, cache=tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        wanted = [key for key in definitions.resolve_all_asset_keys() if key.path[0] == "shop"]
        job = dg.define_asset_job("fit", selection=dg.AssetSelection.checks_for_assets(*wanted) & _named(definitions))
        made = dg.Definitions(
            assets=definitions.assets, asset_checks=definitions.asset_checks, jobs=[job], resources=definitions.resources, executor=dg.in_process_executor
        )  # fmt: skip
        result = made.resolve_job_def("fit").execute_in_process(instance=instance)
    found = {(one.asset_key.path[-1], one.check_name): one for one in result.get_asset_check_evaluations()}
    assert {pair: one.description for pair, one in found.items() if not one.passed} == {}
    assert {table for table, check in found if check == FIT} == {"events", "order_changes", "payments"}
    assert len([1 for _, check in found if check == LIMITS_FIT]) >= 10
    shown = found["events", FIT].metadata["thresholds"].records  # type: ignore[union-attr]
    assert {str(one.data["name"]) for one in shown} == {one.name for one in THRESHOLDS}
    assert found["traffic_hourly", LIMITS_FIT].metadata["partitions_per_insert"].value == pytest.approx(76, abs=4)


def _named(definitions: dg.Definitions) -> dg.AssetSelection:
    keys = [
        key for checks in definitions.asset_checks or () for key in checks.check_keys if key.name in (FIT, LIMITS_FIT)  # type: ignore[union-attr]
    ]  # fmt: skip
    return dg.AssetSelection.checks(*keys)


class Counting(Server):
    """Counts the queries that go to the server."""

    asked = 0

    def rows(self, *words: object, **more: object) -> list[tuple[object, ...]]:  # type: ignore[override]
        self.asked += 1
        return super().rows(*words, **more)  # type: ignore[arg-type]


def test_the_number_of_queries_does_not_grow_with_the_tables(
    server: Server, clickhouse: Client, database: str, tmp_path: Path
) -> None:
    asked = {}
    for views in (1, 30):
        folder = tmp_path / str(views)
        folder.mkdir()
        text = f"CREATE TABLE IF NOT EXISTS {database}.s (ts DateTime('UTC'), x UInt8) ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY ts;\n"
        for at in range(views):
            text += f"CREATE TABLE IF NOT EXISTS {database}.t{at} (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;\n"
            text += f"CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.v{at} TO {database}.t{at} AS SELECT toDate(ts) AS day, count() AS n FROM {database}.s GROUP BY day;\n"
        (folder / "ddl.sql").write_text(text)
        for statement in split_statements(SourceFile(path="ddl.sql", text=text))[0]:
            clickhouse.command(statement.text)
        clickhouse.command(f"INSERT INTO {database}.s SELECT now() - number, 1 FROM numbers(10)")
        pipeline = load_pipeline(folder, cache=tmp_path / "cache").require_sound()
        with Counting(server.endpoint) as counting:
            facts = read_facts(counting, pipeline.catalog, pipeline.settings)
            asked[views] = counting.asked
        assert len(facts.samples) == views
        assert {one.rule for one in examine(facts)} <= {
            "dedup-window",
            "inserts-held-back",
            "merge-pool-size",
            "merge-pool-busy",
        }
    assert asked[1] == asked[30] <= 26, asked


def test_a_view_that_cannot_be_tried_costs_only_itself(
    server: Server, clickhouse: Client, database: str, tmp_path: Path
) -> None:
    made = "(day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;\n"
    text = (
        f"CREATE TABLE {database}.a (ts DateTime('UTC'), x UInt8) ENGINE = MergeTree ORDER BY ts;\n"
        f"CREATE TABLE {database}.good {made}CREATE TABLE {database}.bad {made}CREATE TABLE {database}.twice {made}"
        f"CREATE MATERIALIZED VIEW {database}.good_mv TO {database}.good AS SELECT toDate(ts) AS day, count() AS n FROM {database}.a GROUP BY day;\n"
        f"CREATE MATERIALIZED VIEW {database}.bad_mv TO {database}.bad AS SELECT toDate(ts) AS day, count() AS n FROM {database}.a WHERE throwIf(x = 1) = 0 GROUP BY day;\n"
        f"CREATE MATERIALIZED VIEW {database}.twice_mv TO {database}.twice AS SELECT toDate(ts) AS day, count() AS n FROM {database}.a "
        f"WHERE x IN (SELECT x FROM {database}.a) GROUP BY day;\n"
    )
    (tmp_path / "ddl.sql").write_text(text)
    table, *rest = (one.text for one in split_statements(SourceFile(path="ddl.sql", text=text))[0])
    clickhouse.command(table)
    clickhouse.command(
        f"INSERT INTO {database}.a SELECT toDateTime('2026-10-01', 'UTC') + number * 86400, 1 FROM numbers(40)"
    )
    for statement in rest:
        clickhouse.command(statement)
    pipeline = load_pipeline(tmp_path, cache=tmp_path / "cache").require_sound()
    facts = read_facts(server, pipeline.catalog, pipeline.settings)
    assert [(one.view.table, one.partitions) for one in facts.samples] == [("good_mv", 2)]
    assert {view.table: why.split(":")[0] for view, why in facts.untried}.keys() == {"bad_mv", "twice_mv"}
    assert facts.unread == ()
    assert {one.subject for one in examine(facts) if one.rule == "view-not-tried"} == {
        f"{database}.bad_mv",
        f"{database}.twice_mv",
    }
