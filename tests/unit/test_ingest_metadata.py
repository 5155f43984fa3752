"""An ingest and the journal's watermarks as metadata: numbers in, what the asset's page shows out."""

from __future__ import annotations

import doctest
from datetime import datetime, timedelta, timezone

import dagster as dg
import pytest

from chmv_assets import ingest_asset
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import Watermark, WatermarkStatus
from chmv_assets.core.windows import Window
from chmv_assets.ingest_asset import Ingested, lateness_histogram, received_metadata, run_metadata, span_of
from chmv_assets.ingest_job import partitions_of
from chmv_assets.partitions import partitions_definition
from chmv_assets.watermark_metadata import watermark_metadata
from chmv_assets.watermark_moves import HourCount

DAY = datetime(2026, 11, 10, tzinfo=timezone.utc)
TODAY = Window(DAY, DAY + timedelta(days=1))
TARGET = QName("shop", "daily")


def hour(at: int, rows: int, late: int = 0, histogram: tuple[int, ...] = (0,) * 7) -> HourCount:
    start = DAY + timedelta(hours=at)
    return HourCount(start=start, rows=rows, late=late, newest_event=start, newest_arrival=start, histogram=histogram)


def mark(
    source: str, status: WatermarkStatus, hours: float | None, version: int = 1, start: datetime = DAY
) -> Watermark:
    moment = None if hours is None else DAY + timedelta(hours=hours)
    return Watermark(
        source_id=QName("shop", source),
        target_table=TARGET,
        window_start=start,
        window_end=start + timedelta(days=1),
        last_processed_ts=moment,
        last_arrival_ts=moment,
        batch_id=f"batch-{version}",
        status=status,
        version=version,
    )


def test_doctests() -> None:
    assert doctest.testmod(ingest_asset).failed == 0


def test_span_of_several_windows() -> None:
    later = Window(TODAY.start + timedelta(days=3), TODAY.end + timedelta(days=3))
    assert span_of([later, TODAY]) == Window(TODAY.start, later.end)


def test_rows_of_a_window_are_those_of_its_hours() -> None:
    class Report:
        hours = (hour(-1, 3), hour(0, 5, 1), hour(0, 2), hour(23, 1), hour(24, 7))

    done = Ingested(root="/landing", report=Report())  # type: ignore[arg-type]
    assert received_metadata(done.hours_of(TODAY))["chmv/rows_loaded"] == 8
    assert received_metadata(done.hours_of(TODAY))["chmv/rows_loaded_late"] == 1


def test_histograms_of_batches_add_up() -> None:
    found = lateness_histogram([hour(0, 3, 0, (1, 0, 2, 0, 0, 0, 0)), hour(1, 5, 1, (4, 0, 0, 0, 0, 0, 1))])
    assert found == {
        "< 1m": 5, "1m – 5m": 0, "5m – 15m": 2, "15m – 1h": 0, "1h – 6h": 0, "6h – 1d": 0, "≥ 1d": 1
    }  # fmt: skip
    assert isinstance(received_metadata([hour(0, 3)])["chmv/lateness"], dg.TableMetadataValue)
    assert received_metadata([]) == {"chmv/rows_loaded": 0, "chmv/rows_loaded_late": 0}


def test_missing_folder_says_so() -> None:
    assert run_metadata(Ingested(root="/nowhere", report=None)) == {
        "chmv/landing": "/nowhere",
        "chmv/ingest": "no new files: there is no such folder",
    }


def test_partitions_of_moments() -> None:
    daily = partitions_definition("day", datetime(2026, 11, 9, tzinfo=timezone.utc))
    moments = [DAY + timedelta(hours=hours) for hours in (3, 5, -1, -25 - 24)]
    assert list(partitions_of(daily, moments)) == ["2026-11-09", "2026-11-10"]
    assert partitions_of(daily, moments)["2026-11-10"] == TODAY
    assert partitions_of(daily, [datetime(2126, 1, 1, tzinfo=timezone.utc)]) == {}


def test_watermark_of_one_source() -> None:
    found = watermark_metadata(
        [mark("events", "sealed", 5), mark("events", "open", None, start=DAY - timedelta(days=1))], TODAY
    )
    table = found.pop("chmv/watermarks")
    assert found == {
        "chmv/watermark_status": "sealed",
        "chmv/watermark_batch": "batch-1",
        "chmv/last_processed_ts": "2026-11-10T05:00:00+00:00",
        "chmv/last_arrival_ts": "2026-11-10T05:00:00+00:00",
    }
    assert [record.data["source"] for record in table.records] == ["shop.events"]


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [(("sealed", "processed"), "processed"), (("processed", "stale"), "stale"), (("reopened", "open"), "reopened")],
)
def test_the_worst_status_of_all_sources_counts(statuses: tuple[WatermarkStatus, ...], worst: str) -> None:
    marks = [mark(f"s{at}", status, 1, at) for at, status in enumerate(statuses, start=1)]
    assert watermark_metadata(marks, TODAY)["chmv/watermark_status"] == worst


def test_a_partition_is_as_far_as_its_slowest_source() -> None:
    found = watermark_metadata([mark("a", "processed", 9, 2), mark("b", "processed", 4, 1)], TODAY)
    assert found["chmv/last_processed_ts"] == "2026-11-10T04:00:00+00:00"
    assert found["chmv/last_arrival_ts"] == "2026-11-10T09:00:00+00:00"
    assert found["chmv/watermark_batch"] == "batch-2"
    assert "chmv/last_processed_ts" not in watermark_metadata(
        [mark("a", "processed", 9), mark("b", "open", None)], TODAY
    )


def test_no_watermark_adds_nothing() -> None:
    assert watermark_metadata([mark("a", "sealed", 1, start=DAY + timedelta(days=1))], TODAY) == {}
