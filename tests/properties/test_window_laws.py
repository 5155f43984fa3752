"""Laws of windows: time is covered once, in every zone and cadence."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.cadence import UNITS, PartitionScheme, Unit, WeekMode, nests
from chmv_assets.core.truncation import ValueType
from chmv_assets.core.window_text import parse_window, render_window
from chmv_assets.core.windows import (
    Window,
    begins_before,
    ch_partitions,
    key_of,
    keys,
    period_start,
    periods,
    window_of_key,
)

UTC = timezone.utc
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Africa/Cairo", "America/Havana"]

zones = st.sampled_from(ZONES)
units = st.sampled_from(UNITS)
week_modes: st.SearchStrategy[WeekMode] = st.sampled_from(["monday", "sunday"])
instants = st.datetimes(datetime(2015, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
windows = st.builds(
    lambda start, seconds: Window(start, start + timedelta(seconds=seconds)), instants, st.integers(1, 20 * 86400)
)


@given(windows, units, zones, week_modes)
def test_periods_cover_a_window_once_without_overlap(
    window: Window, unit: Unit, zone: str, week_mode: WeekMode
) -> None:
    found = list(periods(window, unit, zone, week_mode))
    assert found[0].start <= window.start < found[0].end
    assert found[-1].start < window.end <= found[-1].end
    assert all(left.end == right.start for left, right in pairwise(found))


@given(instants, units, zones, week_modes)
def test_every_instant_has_one_key_whose_window_holds_it(
    instant: datetime, unit: Unit, zone: str, week_mode: WeekMode
) -> None:
    window = window_of_key(key_of(instant, unit, zone, week_mode), unit, zone, week_mode)
    assert window.start <= instant < window.end
    assert keys(window, unit, zone, week_mode) == (key_of(instant, unit, zone, week_mode),)


@given(instants, units, zones, week_modes)
def test_a_window_is_read_back_as_it_is_written(instant: datetime, unit: Unit, zone: str, week_mode: WeekMode) -> None:
    """Only an hour that is there twice cannot be written as people write hours."""
    window = window_of_key(key_of(instant, unit, zone, week_mode), unit, zone, week_mode)
    text = render_window(window, zone)
    if text == str(window):
        assert unit == "hour" and len({moment.astimezone(ZoneInfo(zone)).utcoffset() for moment in around(window)}) > 1
    else:
        assert parse_window(text, zone) == window


def around(window: Window) -> list[datetime]:
    return [window.start + timedelta(hours=hours) for hours in (-2, -1, 0, 1, 2)]


@given(windows, units, zones)
def test_keys_of_a_window_are_distinct(window: Window, unit: Unit, zone: str) -> None:
    found = keys(window, unit, zone)
    assert len(set(found)) == len(found)


@given(instants, units, zones, week_modes)
def test_the_start_of_a_period_is_its_own_start(instant: datetime, unit: Unit, zone: str, week_mode: WeekMode) -> None:
    start = period_start(instant, unit, zone, week_mode)
    assert period_start(start, unit, zone, week_mode) == start <= instant


@given(instants, units, units, zones, week_modes)
def test_nested_units_share_their_borders(
    instant: datetime, finer: Unit, coarser: Unit, zone: str, week_mode: WeekMode
) -> None:
    if nests(finer, coarser):
        border = period_start(instant, coarser, zone, week_mode)
        assert period_start(border, finer, zone, week_mode) == border


@given(windows, units, zones, zones)
def test_the_partitions_of_a_window_are_those_that_overlap_it(
    window: Window, unit: Unit, column_zone: str, location: str
) -> None:
    scheme = PartitionScheme(
        unit=unit,
        column="ts",
        column_type=f"DateTime('{column_zone}')",
        expression="e",
        value_type="datetime",
        timezone=column_zone,
        week_mode="monday" if unit == "week" else None,
    )
    found = ch_partitions(window, scheme, location)
    assert found[0].start <= window.start < found[0].end
    assert found[-1].start < window.end <= found[-1].end
    assert all(left.end == right.start for left, right in pairwise(found))
    assert len({partition.partition_id for partition in found}) == len(found)


VALUES: dict[Unit, list[ValueType]] = {
    "hour": ["datetime"],
    "day": ["datetime", "date", "yyyymmdd"],
    "month": ["datetime", "date", "yyyymm"],
}


@given(instants, st.data(), zones, st.integers(-40 * 86400, 40 * 86400))
def test_a_partition_begins_before_a_moment_as_its_text_says(
    instant: datetime, data: st.DataObject, zone: str, seconds: int
) -> None:
    """Only of two local hours that are written alike the text says that of the first."""
    unit = data.draw(st.sampled_from(sorted(VALUES)))
    kind = data.draw(st.sampled_from(VALUES[unit]))
    dimensions = data.draw(st.sampled_from([(), ("country",)]))
    scheme = PartitionScheme(
        unit=unit, column="ts", column_type=f"DateTime('{zone}')", expression="e", value_type=kind, timezone=zone, dimensions=dimensions, position=len(dimensions),
    )  # fmt: skip
    (partition,) = ch_partitions(Window(instant, instant + timedelta(microseconds=1)), scheme, "UTC")
    moments = [
        instant + timedelta(seconds=seconds),
        partition.start,
        partition.end,
        partition.start + timedelta(hours=1),
    ]
    text = f"('DE','{partition.value}')" if dimensions else partition.value
    twin = ch_partitions(Window(partition.start - timedelta(hours=1), partition.start), scheme, "UTC")[-1]
    start = twin.start if twin.value == partition.value else partition.start
    for moment in moments:
        assert begins_before(scheme, text, moment, "UTC") == (start < moment)
    assert begins_before(scheme, "(1,2,3)", instant, "UTC") is None
