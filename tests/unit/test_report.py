"""What is told to Dagster of partitions that ClickHouse filled by itself: each once, again when it changed, few questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from chmv_assets import live_partitions as module
from chmv_assets.assets import build_props
from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from chmv_assets.core.windows import ch_partitions
from chmv_assets.live_partitions import LivePartition, LivePartitions, windows_of
from chmv_assets.pipeline import Pipeline
from chmv_assets.report import report_live_partitions
from resources.introspect import PartitionState, select_states

START = date(2026, 6, 1)
DDL = """
CREATE TABLE d.source (ts DateTime('UTC'), country String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY ts;
CREATE TABLE d.months (ts DateTime('UTC'), country String)
ENGINE = MergeTree PARTITION BY (country, toYYYYMM(ts)) ORDER BY ts;
CREATE MATERIALIZED VIEW d.months_mv TO d.months AS SELECT ts, country FROM d.source;
CREATE TABLE d.total (country String, n UInt64) ENGINE = SummingMergeTree ORDER BY country;
CREATE MATERIALIZED VIEW d.total_mv TO d.total AS SELECT country, count() AS n FROM d.source GROUP BY country;
"""
PARTITIONS = {
    "source": {f"202607{day:02}": f"202607{day:02}" for day in range(1, 29)} | {"20260630": "20260630"},
    "months": {"a1": "('DE',202607)", "b2": "('it\\'s, (x)',202607)", "c3": "('DE',202606)"},
    "total": {"all": "tuple()"},
}


class FakeServer:
    """Answers what `fetch_partitions` asks; every partition holds ten rows."""

    timezone = "UTC"

    def __init__(self) -> None:
        self.blocks: Counter[tuple[str, str]] = Counter()

    def rows(self, sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [
            ("d", table, partition_id, text, 10, 100, 1, 1 + self.blocks[table, partition_id], 0)
            for table in sorted(PARTITIONS)
            for partition_id, text in sorted(PARTITIONS[table].items())
        ]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    catalog = build_catalog([SourceFile(path="ddl.sql", text=DDL)]).require_sound()
    return Pipeline(catalog=catalog, settings=Settings(), ddl_dir=Path(), fingerprint="")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def server() -> Any:
    return FakeServer()


def live_partitions(pipeline: Pipeline, server: Any) -> list[LivePartition]:
    live = LivePartitions(pipeline, tuple(build_props(pipeline, START)))
    return list(live.find(live.fetch(server), server.timezone))


def test_partitions_are_found_by_id_and_by_printed_value(pipeline: Pipeline, server: Any) -> None:
    found = {(one.name.table, one.key): one.rows for one in live_partitions(pipeline, server)}
    days = {f"2026-07-{day:02}": 10 for day in range(1, 29)} | {"2026-06-30": 10}
    expected = {("source", day): rows for day, rows in days.items()}
    for table in ("months", "months_mv"):
        expected |= {(table, "2026-06-01"): 10, (table, "2026-07-01"): 20}
    assert found == expected | {("total", None): 10, ("total_mv", None): 10}


def test_the_index_finds_what_a_walk_over_all_states_finds(pipeline: Pipeline, server: Any) -> None:
    windows = dict(windows_of(dg.DailyPartitionsDefinition("2026-06-01", end_date="2026-08-01")))
    for table in ("source", "months"):
        scheme = pipeline.catalog.schemes[QName("d", table)]
        states = [
            PartitionState(
                partition_id=i, partition=text, rows=1, bytes_on_disk=1, parts=1, max_block=1, data_version=0
            )
            for i, text in reversed(PARTITIONS[table].items())
        ]
        places = module._StatePlaces.of(states, scheme)
        for window in windows.values():
            wanted = ch_partitions(window, scheme, "UTC")
            assert tuple(states[at] for at in places.select(wanted)) == select_states(states, scheme, wanted)


def test_a_partition_is_told_once_and_again_when_it_changed(
    pipeline: Pipeline, server: Any, instance: dg.DagsterInstance
) -> None:
    assert report_live_partitions(instance, pipeline, server, START) == 29 + 2 * 2 + 2
    assert report_live_partitions(instance, pipeline, server, START) == 0
    server.blocks["months", "b2"] += 1
    assert report_live_partitions(instance, pipeline, server, START) == 2, "the target and its view"
    server.blocks["total", "all"] += 1
    server.blocks["source", "20260705"] += 1
    assert report_live_partitions(instance, pipeline, server, START) == 3
    assert report_live_partitions(instance, pipeline, server, START) == 0


def test_storage_is_asked_once_per_partitioned_asset_and_once_for_the_others(
    pipeline: Pipeline, server: Any, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_live_partitions(instance, pipeline, server, START)
    asked: Counter[str] = Counter()
    storage = type(instance.event_log_storage)
    for name in (
        "get_latest_tags_by_partition",
        "get_latest_storage_id_by_partition",
        "get_asset_records",
        "get_latest_materialization_events",
    ):
        real = getattr(storage, name)

        def count(self: Any, *args: Any, real: Any = real, name: str = name, **options: Any) -> Any:
            asked[name] += 1
            return real(self, *args, **options)

        monkeypatch.setattr(storage, name, count)
    assert report_live_partitions(instance, pipeline, server, START) == 0
    assert asked == {"get_latest_tags_by_partition": 3, "get_latest_storage_id_by_partition": 3, "get_asset_records": 1}


def test_what_a_run_told_is_not_told_over(pipeline: Pipeline, server: Any, instance: dg.DagsterInstance) -> None:
    for event in (
        dg.AssetMaterialization(["d", "source"], partition="2026-07-05", tags={"dagster/data_version": "of a run"}),
        dg.AssetMaterialization(["d", "source"], partition="2026-07-06"),
        dg.AssetMaterialization(["d", "total"]),
    ):
        instance.report_runless_asset_event(event)
    assert report_live_partitions(instance, pipeline, server, START) == 29 + 2 * 2 + 2 - 3
