"""Windows, keys, partitions and predicates around the awkward days."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from chmv_assets.core.cadence import PartitionScheme, parse_scheme
from chmv_assets.core.model import Column
from chmv_assets.core.windows import (
    ChPartition,
    PartitionKeyError,
    TimeColumnError,
    Window,
    ch_partitions,
    key_of,
    keys,
    partition_matches,
    window_of_key,
    window_predicate,
)

UTC = timezone.utc


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def scheme_of(partition_by: str, **types: str) -> PartitionScheme:
    columns = {"ts": "DateTime", "d": "Date", "country": "String", "shard": "Int32"} | types
    scheme = parse_scheme(partition_by, tuple(Column(name=name, type=type_) for name, type_ in columns.items()))
    assert scheme is not None
    return scheme


def values(window: Window, scheme: PartitionScheme, location: str = "UTC") -> list[str]:
    return [partition.value for partition in ch_partitions(window, scheme, location)]


def test_a_window_is_kept_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    window = Window(datetime(2026, 7, 1, tzinfo=east), datetime(2026, 7, 2, tzinfo=east))
    assert window == Window(at(2026, 6, 30, 22), at(2026, 7, 1, 22))
    assert str(window) == "[2026-06-30 22:00:00, 2026-07-01 22:00:00) UTC"
    assert window.seconds == 86400


def test_an_empty_or_naive_window_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Window(at(2026, 7, 1), at(2026, 7, 1))
    with pytest.raises(ValueError, match="zone"):
        Window(datetime(2026, 7, 1), at(2026, 7, 2))  # noqa: DTZ001 - the point of the test


@pytest.mark.parametrize(
    ("key", "unit", "zone", "start", "end"),
    [
        ("2026-07-01-05:00", "hour", "UTC", at(2026, 7, 1, 5), at(2026, 7, 1, 6)),
        ("2026-07-01-05:00", "hour", "Asia/Kolkata", at(2026, 6, 30, 23, 30), at(2026, 7, 1, 0, 30)),
        ("2026-10-25-02:00", "hour", "Europe/Berlin", at(2026, 10, 25, 0), at(2026, 10, 25, 1)),
        ("2026-10-25-02:00+0100", "hour", "Europe/Berlin", at(2026, 10, 25, 1), at(2026, 10, 25, 2)),
        ("2026-03-29", "day", "Europe/Berlin", at(2026, 3, 28, 23), at(2026, 3, 29, 22)),
        ("2026-10-25", "day", "Europe/Berlin", at(2026, 10, 24, 22), at(2026, 10, 25, 23)),
        ("2026-04-24", "day", "Africa/Cairo", at(2026, 4, 23, 22), at(2026, 4, 24, 21)),
        ("2026-06-29", "week", "UTC", at(2026, 6, 29), at(2026, 7, 6)),
        ("2026-02-01", "month", "UTC", at(2026, 2, 1), at(2026, 3, 1)),
        ("2026-10-01", "quarter", "UTC", at(2026, 10, 1), at(2027, 1, 1)),
        ("2026-01-01", "year", "America/New_York", at(2026, 1, 1, 5), at(2027, 1, 1, 5)),
    ],
)
def test_a_key_names_its_window_and_back(key: str, unit: str, zone: str, start: datetime, end: datetime) -> None:
    window = window_of_key(key, unit, zone)  # type: ignore[arg-type]
    assert window == Window(start, end)
    assert keys(window, unit, zone) == (key,)  # type: ignore[arg-type]
    assert key_of(end - timedelta(microseconds=1), unit, zone) == key  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "unit", "week_mode"),
    [
        ("2026-07-02", "month", None),
        ("2026-07-01", "week", "monday"),
        ("2026-07-01-00:30", "hour", None),
        ("202607", "month", None),
        ("", "day", None),
    ],
)
def test_a_key_that_starts_no_period_is_refused(key: str, unit: str, week_mode: str | None) -> None:
    with pytest.raises(PartitionKeyError, match=f"wanted the start of a {unit}"):
        window_of_key(key, unit, "UTC", week_mode)  # type: ignore[arg-type]


def test_a_week_touches_two_months() -> None:
    week = window_of_key("2026-06-29", "week", "UTC")
    assert ch_partitions(week, scheme_of("toYYYYMM(ts)"), "UTC") == (
        ChPartition(start=at(2026, 6, 1), end=at(2026, 7, 1), value="202606", partition_id="202606"),
        ChPartition(start=at(2026, 7, 1), end=at(2026, 8, 1), value="202607", partition_id="202607"),
    )


def test_a_day_of_the_location_touches_two_days_of_a_column_elsewhere() -> None:
    day = window_of_key("2026-07-01", "day", "UTC")
    assert values(day, scheme_of("toDate(ts, 'Asia/Kolkata')")) == ["2026-07-01", "2026-07-02"]
    assert values(day, scheme_of("toDate(ts)", ts="DateTime('America/New_York')")) == ["2026-06-30", "2026-07-01"]


def test_a_date_column_follows_the_location() -> None:
    day = window_of_key("2026-07-01", "day", "Asia/Kolkata")
    assert values(day, scheme_of("d"), "Asia/Kolkata") == ["2026-07-01"]
    assert values(day, scheme_of("toDate(ts)"), "Asia/Kolkata") == ["2026-07-01"]
    partitions = ch_partitions(day, scheme_of("toDate(ts)"), "Asia/Kolkata", server_timezone="UTC")
    assert [partition.value for partition in partitions] == ["2026-06-30", "2026-07-01"]


@pytest.mark.parametrize(("key", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)])
def test_days_of_a_dst_change_have_their_real_hours(key: str, hours: int) -> None:
    day = window_of_key(key, "day", "Europe/Berlin")
    partitions = ch_partitions(day, scheme_of("toStartOfHour(ts)", ts="DateTime('Europe/Berlin')"), "Europe/Berlin")
    assert len(partitions) == hours
    assert len({partition.partition_id for partition in partitions}) == hours


@pytest.mark.parametrize(
    ("partition_by", "value", "partition_id"),
    [
        ("toYYYYMM(ts)", "202607", "202607"),
        ("toYYYYMMDD(ts)", "20260701", "20260701"),
        ("toYear(ts)", "2026", "2026"),
        ("d", "2026-07-01", "20260701"),
        ("d32", "2026-07-01", "20635"),
        ("nd", "2026-07-01", "20635"),
        ("toStartOfHour(ts)", "2026-07-01 00:00:00", "1782864000"),
        ("toMonday(ts)", "2026-06-29", "20260629"),
        ("toStartOfWeek(ts)", "2026-06-28", "20260628"),
        ("formatDateTime(ts, '%Y-%m')", "2026-07", None),
        ("date_trunc('day', t64)", "2026-07-01 00:00:00", None),
        ("(shard, toYYYYMM(ts))", "202607", None),
    ],
)
def test_values_and_ids_are_printed_as_the_server_does(partition_by: str, value: str, partition_id: str | None) -> None:
    scheme = scheme_of(partition_by, d32="Date32", nd="Nullable(Date)", t64="DateTime64(3)")
    (partition,) = ch_partitions(Window(at(2026, 7, 1), at(2026, 7, 1, 0, 1)), scheme, "UTC")
    assert (partition.value, partition.partition_id) == (value, partition_id)


@pytest.mark.parametrize(
    ("partition_by", "text", "expected"),
    [
        ("toYYYYMM(ts)", "202607", True),
        ("toYYYYMM(ts)", "202608", False),
        ("(country, toYYYYMM(ts))", "('DE',202607)", True),
        ("(country, toYYYYMM(ts))", "('D,E\\')',202607)", True),
        ("(country, toYYYYMM(ts))", "('202607',202606)", False),
        ("(toYYYYMMDD(ts), country)", "(20260701,'x')", True),
        ("(toYYYYMMDD(ts), country)", "(20260701,'')", True),
        ("(country, toDate(ts), shard)", "('DE','2026-07-01',-5)", True),
        ("(country, toDate(ts), shard)", "('DE','2026-07-02',-5)", False),
        ("(country, toYYYYMM(ts))", "202607", False),
        ("d", "2026-07-01", True),
        ("d", "ᴺᵁᴸᴸ", False),
    ],
)
def test_a_partition_text_is_matched_by_its_time_part(partition_by: str, text: str, expected: bool) -> None:
    scheme = scheme_of(partition_by)
    (partition,) = ch_partitions(Window(at(2026, 7, 1), at(2026, 7, 1, 0, 1)), scheme, "UTC")
    assert partition_matches(scheme, text, partition) is expected


JULY = Window(at(2026, 7, 1), at(2026, 8, 1))


@pytest.mark.parametrize(
    ("column_type", "expected"),
    [
        ("Date", "(c >= toDate('2026-07-01') AND c < toDate('2026-08-01'))"),
        ("Nullable(Date32)", "(c >= toDate32('2026-07-01') AND c < toDate32('2026-08-01'))"),
        (
            "LowCardinality(Nullable(DateTime('Europe/Berlin')))",
            "(c >= toDateTime('2026-07-01 00:00:00', 'UTC') AND c < toDateTime('2026-08-01 00:00:00', 'UTC'))",
        ),
        (
            "DateTime64(3)",
            "(c >= toDateTime64('2026-07-01 00:00:00', 3, 'UTC')"
            " AND c < toDateTime64('2026-08-01 00:00:00', 3, 'UTC'))",
        ),
    ],
)
def test_the_predicate_is_half_open_and_typed(column_type: str, expected: str) -> None:
    assert window_predicate("c", column_type, JULY) == expected


def test_a_date_belongs_to_the_window_that_holds_its_first_instant() -> None:
    berlin = window_of_key("2026-07-01", "day", "Europe/Berlin")
    assert window_predicate("c", "Date", berlin, "Europe/Berlin") == (
        "(c >= toDate('2026-07-01') AND c < toDate('2026-07-02'))"
    )
    assert window_predicate("c", "Date", window_of_key("2026-07-01-05:00", "hour", "UTC")) == (
        "(c >= toDate('2026-07-02') AND c < toDate('2026-07-02'))"
    )


def test_fractions_of_a_second_are_kept() -> None:
    window = Window(at(2026, 7, 1, 0, 0, 0, 250000), at(2026, 7, 1, 1))
    assert "toDateTime64('2026-07-01 00:00:00.250000', 6, 'UTC')" in window_predicate("c", "DateTime", window)


def test_a_column_without_time_is_refused() -> None:
    with pytest.raises(TimeColumnError, match="found type String but wanted Date"):
        window_predicate("c", "String", JULY)
