"""`target_matches_source` in real Dagster runs, the seals that follow from it, and `chmv reconcile` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster_site import Site, open_site
from reconcile_bench import Bench

from chmv_assets.check_steps import Judgement
from chmv_assets.cli.main import main
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import BatchOutcome, Watermark, advance
from chmv_assets.core.windows import window_of_key
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal

DDL = """
CREATE TABLE {db}.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY page;
CREATE TABLE {db}.daily (day Date, page String, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, page);
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS SELECT toDate(at) AS day, page, count() AS hits FROM {db}.hits GROUP BY day, page;
CREATE TABLE {db}.monthly (day Date, hits SimpleAggregateFunction(sum, UInt64)) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
CREATE MATERIALIZED VIEW {db}.monthly_mv TO {db}.monthly AS SELECT day, sum(hits) AS hits FROM {db}.daily GROUP BY day;
CREATE TABLE {db}.totals (page String, hits UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.totals_mv TO {db}.totals AS SELECT page, count() AS hits FROM {db}.hits GROUP BY page;
"""
SETTINGS = 'version: 1\ndefault_database: {db}\nstart: "2026-10-01"\nsources:\n  {db}.hits: {event_time: at}\n'
CHECK = "target_matches_source"


@dataclass
class Place(Site):
    """A location whose tables are damaged through its bench."""

    bench: Bench = field(init=False)

    def check(self, table: str, **tags: str) -> tuple[bool, dg.AssetCheckEvaluation]:
        """Run the check alone."""
        selection = dg.AssetSelection.checks(dg.AssetCheckKey(self.key(table), CHECK))
        job = dg.define_asset_job("only", selection=selection).resolve(
            asset_graph=self.definitions.resolve_asset_graph()
        )
        result = job.execute_in_process(
            instance=self.instance, tags=tags, raise_on_error=False, resources=self.definitions.resources
        )
        return result.success, only(result, table)


def only(result: dg.ExecuteInProcessResult, table: str) -> dg.AssetCheckEvaluation:
    (found,) = [
        e for e in result.get_asset_check_evaluations() if e.check_name == CHECK and e.asset_key.path[-1] == table
    ]
    return found


@pytest.fixture
def place(
    configured: EngineInfo, clickhouse: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with open_site(Place, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        made.bench = Bench(clickhouse, server, made.pipeline.catalog, made.database)
        made.command(
            "INSERT INTO {db}.hits SELECT toDateTime('2026-10-01 00:00:00', 'UTC') + number * 8640, "
            "'p' || toString(number % 3) FROM numbers(50)"
        )
        yield made


def test_the_check_runs_after_its_target_for_the_partitions_of_the_run(place: Place) -> None:
    place.bench.run("INSERT INTO {db}.daily SELECT * FROM {db}.daily")
    result = place.run("daily", partition_key="2026-10-03")
    found = only(result, "daily")
    assert result.success and found.passed and found.blocking
    assert found.description == "1 window(s) equal, 3 keys."
    span = {"dagster/asset_partition_range_start": "2026-10-01", "dagster/asset_partition_range_end": "2026-10-02"}
    found = only(place.run("daily", tags=span), "daily")
    assert found.passed and found.metadata["chmv/windows"].value == 2


def test_a_difference_is_an_error_with_a_table_of_keys(place: Place) -> None:
    place.bench.add("daily", "VALUES ('2026-10-03', 'p1', 7)")
    success, found = place.check("daily", **{"dagster/partition": "2026-10-03"})
    assert not success and not found.passed and found.severity == dg.AssetCheckSeverity.ERROR
    assert "of 3 keys 1 larger; hits: 0 lacking, 7 too much" in str(found.description)
    (record,) = found.metadata["chmv/samples"].value.records  # type: ignore[union-attr]
    assert record.data["key"] == "day 2026-10-03, page p1"
    assert (record.data["expected"], record.data["in the target"]) == ("hits 3", "hits 10")
    assert found.metadata["chmv/excess_keys"].value == 1 and found.metadata["chmv/deficit_keys"].value == 0


@pytest.mark.parametrize("tables", [("daily",), ("daily_mv",)])
def test_the_check_knows_whether_its_target_was_materialized(
    place: Place, tables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def judge(*_: Any, was_materialized: bool) -> Judgement:
        told.append(was_materialized)
        return Judgement(passed=True, severity=dg.AssetCheckSeverity.WARN, description="", metadata={})

    monkeypatch.setattr("chmv_assets.asset_checks.judge_target", judge)
    place.run(*tables, partition_key="2026-10-03")
    place.check("daily", **{"dagster/partition": "2026-10-03"})
    assert told == ([True, False] if tables == ("daily",) else [False])


def test_without_partitions_the_newest_closed_window_is_taken_and_named(place: Place) -> None:
    yesterday = datetime.now(timezone.utc).date() - timedelta(days=1)
    place.bench.add("daily", "VALUES ('2026-10-03', 'p1', 7)")
    success, found = place.check("daily")
    assert success and found.passed
    assert str(found.description).startswith(f"The run names no partition: only [{yesterday} 00:00:00")
    _, found = place.check("totals")
    assert found.description == "1 window(s) equal, 3 keys."


def test_what_cannot_be_told_is_a_warning_and_blocks_nothing(place: Place) -> None:
    place.bench.run("DROP TABLE {db}.daily_mv SYNC")
    place.bench.run("DROP TABLE {db}.hits SYNC")
    success, found = place.check("daily", **{"dagster/partition": "2026-10-03"})
    assert success and not found.passed and found.severity == dg.AssetCheckSeverity.WARN
    assert "cannot tell: the server refused the comparison" in str(found.description)


def marks(place: Place) -> dict[tuple[str, str], str]:
    found = Journal(place.bench.server).read_watermarks(QName(place.database, "hits"))
    return {(mark.target_table.table, f"{mark.window_start:%m-%d}"): mark.status for mark in found}


def arrive(place: Place, batch: str) -> None:
    """A batch has brought rows into 3 October."""
    at = datetime(2026, 10, 3, 5, tzinfo=timezone.utc)
    outcome = BatchOutcome(batch_id=batch, succeeded=True, max_event_ts=at, max_arrival_ts=at)

    def decide(mark: Watermark, version: int) -> Watermark:
        return advance(mark, outcome, "additive", version)

    database = place.database
    Journal(place.bench.server).move_watermarks(
        QName(database, "hits"),
        {
            QName(database, "daily"): {window_of_key("2026-10-03", "day", "UTC"): decide},
            QName(database, "monthly"): {window_of_key("2026-10-01", "month", "UTC"): decide},
        },
    )


def test_equal_windows_are_sealed_a_chain_from_its_source_on(place: Place) -> None:
    arrive(place, "first")
    assert place.check("monthly", **{"dagster/partition": "2026-10-01"})[1].passed
    assert marks(place) == {("daily", "10-03"): "processed", ("monthly", "10-01"): "processed"}
    _, found = place.check("daily", **{"dagster/partition": "2026-10-03"})
    assert found.metadata["chmv/sealed_watermarks"].value == 1
    assert marks(place) == {("daily", "10-03"): "sealed", ("monthly", "10-01"): "processed"}
    place.check("monthly", **{"dagster/partition": "2026-10-01"})
    assert marks(place) == {("daily", "10-03"): "sealed", ("monthly", "10-01"): "sealed"}


def test_a_window_that_differs_is_not_sealed(place: Place) -> None:
    arrive(place, "first")
    place.bench.add("daily", "VALUES ('2026-10-03', 'p1', 7)")
    place.check("daily", **{"dagster/partition": "2026-10-03"})
    assert marks(place)["daily", "10-03"] == "processed"


def test_rows_that_arrive_during_the_comparison_keep_the_window_open(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(place, "first")
    from chmv_assets.reconcile_check import Reconciler

    compare = Reconciler.run

    def overtaken(self: Reconciler, *arguments: Any) -> Any:
        found = compare(self, *arguments)
        arrive(place, "second")
        return found

    monkeypatch.setattr(Reconciler, "run", overtaken)
    _, found = place.check("daily", **{"dagster/partition": "2026-10-03"})
    assert found.passed and found.metadata["chmv/sealed_watermarks"].value == 0
    assert marks(place)["daily", "10-03"] == "processed"


def reconcile(place: Place, *arguments: str) -> tuple[int, str]:
    command = ["reconcile", f"{place.database}.daily", "--ddl", str(place.folder), *arguments]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    return result.exit_code, result.stdout


def test_command_tells_equal_different_and_unknown_apart(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = reconcile(place)
    assert code == 0 and text.count("equal") == 5
    place.bench.drop_partitions("daily", "day = '2026-10-02'")
    place.bench.add("daily", "VALUES ('2026-10-04', 'p9', 1)")
    code, text = reconcile(place, "--json")
    document = json.loads(text)
    assert (code, document["status"]) == (1, "different")
    found = {one["window_start"][:10]: (one["deficit"]["keys"], one["excess"]["keys"]) for one in document["windows"]}
    assert found == {f"2026-10-0{day}": {2: (3, 0), 4: (0, 1)}.get(day, (0, 0)) for day in range(1, 6)}
    assert document["windows"][3]["samples"][0]["key"] == {"day": "2026-10-04", "page": "p9"}
    code, text = reconcile(place, "--window", "2026-10-03")
    assert code == 0 and "│ 2026-10-03 │" in text and "2026-10-02" not in text
    place.bench.run("DROP TABLE {db}.daily_mv SYNC")
    place.bench.run("DROP TABLE {db}.hits SYNC")
    code, text = reconcile(place, "--window", "2026-10-03")
    assert code == 3 and "cannot tell" in text
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    assert reconcile(place)[0] == 3
