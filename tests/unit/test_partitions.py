"""Dagster's partitions agree with the pure windows, and runs see their windows.

No postponed annotations here: Dagster compares the annotation of `context` with the class itself.
"""

from datetime import date, datetime, timezone
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from chmv_assets.core.cadence import UNITS, Unit, WeekMode
from chmv_assets.core.windows import Window, keys, window_of_key
from chmv_assets.partitions import (
    backfill_policy,
    mapping_between,
    max_partitions_per_run,
    partitions_definition,
    windows_of_run,
)

UTC = timezone.utc
NOW = datetime(2027, 4, 2, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Africa/Cairo"])
@pytest.mark.parametrize(
    ("unit", "week_mode", "start", "now"),
    [
        ("hour", None, date(2026, 3, 1), datetime(2026, 5, 2, 10, 30, tzinfo=UTC)),
        ("hour", None, date(2026, 10, 20), datetime(2026, 11, 5, 10, 30, tzinfo=UTC)),
        ("day", None, date(2026, 3, 1), NOW),
        ("week", "monday", date(2026, 3, 1), NOW),
        ("week", "sunday", date(2026, 3, 1), NOW),
        ("month", None, date(2026, 3, 1), NOW),
        ("quarter", None, date(2026, 3, 1), NOW),
    ],
)
def test_keys_and_windows_are_the_same_with_and_without_dagster(
    unit: Unit, week_mode: WeekMode | None, start: date, now: datetime, zone: str
) -> None:
    definition = partitions_definition(unit, start, zone, week_mode)
    listed = definition.get_partition_keys(current_time=now)
    windows = [definition.time_window_for_partition_key(key) for key in listed]
    span = Window(windows[0].start, windows[-1].end)
    assert tuple(listed) == keys(span, unit, zone, week_mode)
    assert [window_of_key(key, unit, zone, week_mode) for key in listed] == [
        Window(window.start, window.end) for window in windows
    ]
    assert span.start <= datetime(start.year, start.month, start.day, tzinfo=ZoneInfo(zone)) < now < span.end


def test_the_open_partition_is_included_and_no_later_one() -> None:
    definition = partitions_definition("year", date(2024, 5, 5))
    assert definition.get_partition_keys(current_time=NOW) == ["2024-01-01", "2025-01-01", "2026-01-01", "2027-01-01"]


def test_one_object_per_cadence() -> None:
    first = partitions_definition("month", date(2026, 7, 1))
    assert partitions_definition("month", datetime(2026, 7, 15, tzinfo=UTC)) is first
    assert partitions_definition("month", datetime(2026, 7, 15)) is first  # noqa: DTZ001 - local to the zone
    assert partitions_definition("month", date(2026, 7, 1), week_mode="sunday") is first
    assert partitions_definition("month", date(2026, 8, 1)) is not first


def test_mapping_between_cadences() -> None:
    hourly = partitions_definition("hour", date(2026, 7, 1))
    monthly = partitions_definition("month", date(2026, 7, 1))
    berlin = partitions_definition("day", date(2026, 7, 1), "Europe/Berlin")
    overlap = mapping_between(hourly, monthly)
    assert isinstance(overlap, dg.TimeWindowPartitionMapping)
    assert overlap.allow_nonexistent_upstream_partitions
    assert mapping_between(hourly, hourly) is None
    assert mapping_between(None, hourly) is None
    assert mapping_between(hourly, None) is None
    assert isinstance(mapping_between(hourly, monthly, lookup=True), dg.AllPartitionMapping)
    assert isinstance(mapping_between(hourly, hourly, lookup=True), dg.AllPartitionMapping)
    assert isinstance(mapping_between(hourly, berlin), dg.AllPartitionMapping)


def test_backfills_are_bounded_per_cadence() -> None:
    assert [max_partitions_per_run(unit) for unit in UNITS] == [168, 92, 52, 12, 8, 5]
    policy = backfill_policy("day")
    assert policy is not None
    assert policy.max_partitions_per_run == 92
    assert backfill_policy("day") is policy
    assert backfill_policy(None) is None


def _asset_that_records(
    seen: list[tuple[str, Window]], partitions_def: dg.PartitionsDefinition[str] | None, unit: Unit | None
) -> dg.AssetsDefinition:
    @dg.asset(name="t", partitions_def=partitions_def, backfill_policy=backfill_policy(unit))
    def t(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        seen.extend(windows_of_run(context))
        return dg.MaterializeResult()

    return t


DAY = [Window(datetime(2026, 7, d, tzinfo=UTC), datetime(2026, 7, d + 1, tzinfo=UTC)) for d in (1, 2, 3)]


def test_a_single_partition_run_sees_its_window() -> None:
    seen: list[tuple[str, Window]] = []
    asset = _asset_that_records(seen, partitions_definition("day", date(2026, 7, 1)), "day")
    assert dg.materialize([asset], partition_key="2026-07-02").success
    assert seen == [("2026-07-02", DAY[1])]


@pytest.mark.parametrize("last", [1, 3])
def test_a_range_run_sees_all_its_windows(last: int) -> None:
    seen: list[tuple[str, Window]] = []
    asset = _asset_that_records(seen, partitions_definition("day", date(2026, 7, 1)), "day")
    tags = {
        "dagster/asset_partition_range_start": "2026-07-01",
        "dagster/asset_partition_range_end": f"2026-07-0{last}",
    }
    assert dg.materialize([asset], tags=tags).success
    assert seen == [(f"2026-07-0{d + 1}", DAY[d]) for d in range(last)]


def test_an_unpartitioned_run_has_no_windows() -> None:
    seen: list[tuple[str, Window]] = []
    assert dg.materialize([_asset_that_records(seen, None, None)]).success
    assert seen == []


def test_a_connected_graph_of_cadences_loads() -> None:
    hourly, monthly = (partitions_definition(unit, date(2026, 7, 1)) for unit in ("hour", "month"))
    source = dg.AssetSpec("source", partitions_def=hourly)
    target = dg.AssetSpec(
        "target",
        partitions_def=monthly,
        deps=[dg.AssetDep("source", partition_mapping=mapping_between(hourly, monthly))],
    )
    dg.Definitions.validate_loadable(dg.Definitions(assets=[source, target]))
