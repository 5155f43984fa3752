"""Reading PARTITION BY clauses and output expressions."""

from __future__ import annotations

import pytest

from chmv_assets.core.cadence import (
    PartitionScheme,
    cadence_name,
    can_narrow,
    explain_scheme,
    narrows,
    parse_scheme,
    split_tuple,
)
from chmv_assets.core.model import Column
from chmv_assets.core.truncation import NotTruncationError, read_truncation

COLUMNS = tuple(
    Column(name=name, type=type_)
    for name, type_ in {
        "ts": "DateTime",
        "tb": "DateTime('Europe/Berlin')",
        "t64": "DateTime64(3)",
        "t64n": "DateTime64(6, 'America/New_York')",
        "d": "Date",
        "d32": "Date32",
        "nd": "Nullable(Date)",
        "nts": "Nullable(DateTime)",
        "ld": "LowCardinality(Date)",
        "agg": "SimpleAggregateFunction(max, DateTime)",
        "country": "LowCardinality(String)",
        "shard": "UInt8",
        "odd name": "DateTime",
        "text": "String",
    }.items()
)


@pytest.mark.parametrize(
    ("partition_by", "unit", "column", "value_type"),
    [
        ("toYYYYMM(ts)", "month", "ts", "yyyymm"),
        ("toYYYYMM(t64)", "month", "t64", "yyyymm"),
        ("toYYYYMM(toDate(ts))", "month", "ts", "yyyymm"),
        ("toStartOfMonth(ts)", "month", "ts", "date"),
        ("toStartOfMonth(nts)", "month", "nts", "date32"),
        ("date_trunc('month', ts)", "month", "ts", "date"),
        ("toStartOfInterval(ts, INTERVAL 1 MONTH)", "month", "ts", "date"),
        ("formatDateTime(ts, '%Y%m')", "month", "ts", "text"),
        ("intDiv(toYYYYMMDD(ts), 100)", "month", "ts", "yyyymm"),
        ("toUInt32(toYYYYMM(ts))", "month", "ts", "yyyymm"),
        ("toYYYYMMDD(ts)", "day", "ts", "yyyymmdd"),
        ("toDate(ts)", "day", "ts", "date"),
        ("toDate(agg)", "day", "agg", "date"),
        ("toDate(nts)", "day", "nts", "date32"),
        ("toDate32(t64)", "day", "t64", "date32"),
        ("DATE(ts)", "day", "ts", "date"),
        ("ts::Date", "day", "ts", "date"),
        ("CAST(ts, 'Date32')", "day", "ts", "date32"),
        ("d", "day", "d", "date"),
        ("(d)", "day", "d", "date"),
        ("tuple(d)", "day", "d", "date"),
        ("d32", "day", "d32", "date32"),
        ("nd", "day", "nd", "date32"),
        ("ld", "day", "ld", "date32"),
        ("toStartOfDay(ts)", "day", "ts", "datetime"),
        ("DATE_TRUNC('day', ts)", "day", "ts", "datetime"),
        ("toStartOfInterval(ts, INTERVAL 1 DAY)", "day", "ts", "datetime"),
        ("toStartOfInterval(ts, toIntervalDay(1))", "day", "ts", "datetime"),
        ("toDate(toStartOfHour(ts))", "day", "ts", "date"),
        ("toStartOfHour(ts)", "hour", "ts", "datetime"),
        ("toStartOfHour(t64)", "hour", "t64", "datetime"),
        ("dateTrunc('hour', ts)", "hour", "ts", "datetime"),
        ("toStartOfInterval(ts, INTERVAL 60 MINUTE)", "hour", "ts", "datetime"),
        ("toStartOfQuarter(ts)", "quarter", "ts", "date"),
        ("toStartOfInterval(ts, INTERVAL 3 MONTH)", "quarter", "ts", "date"),
        ("toYear(ts)", "year", "ts", "year"),
        ("YEAR(ts)", "year", "ts", "year"),
        ("toStartOfYear(d)", "year", "d", "date"),
        ("toDate(toStartOfMonth(ts))", "month", "ts", "date"),
        ("toYYYYMM(`odd name`)", "month", "odd name", "yyyymm"),
        ('toYYYYMM("odd name")', "month", "odd name", "yyyymm"),
    ],
)
def test_a_time_partition_key_gives_its_cadence(partition_by: str, unit: str, column: str, value_type: str) -> None:
    scheme = parse_scheme(partition_by, COLUMNS)
    assert scheme is not None
    assert (scheme.unit, scheme.column, scheme.value_type) == (unit, column, value_type)
    assert scheme.dimensions == ()


@pytest.mark.parametrize(
    ("partition_by", "week_mode"),
    [
        ("toMonday(ts)", "monday"),
        ("toStartOfWeek(ts)", "sunday"),
        ("toStartOfWeek(ts, 0)", "sunday"),
        ("toStartOfWeek(ts, 1)", "monday"),
        ("toStartOfWeek(ts, 3)", "monday"),
        ("toStartOfWeek(ts, 1, 'Asia/Kolkata')", "monday"),
        ("date_trunc('week', ts)", "monday"),
        ("toStartOfInterval(ts, INTERVAL 1 WEEK)", "monday"),
    ],
)
def test_a_week_knows_its_first_day(partition_by: str, week_mode: str) -> None:
    scheme = parse_scheme(partition_by, COLUMNS)
    assert scheme is not None
    assert (scheme.unit, scheme.week_mode) == ("week", week_mode)


@pytest.mark.parametrize(
    ("partition_by", "timezone"),
    [
        ("toYYYYMM(ts)", None),
        ("toYYYYMM(tb)", "Europe/Berlin"),
        ("toStartOfHour(t64n)", "America/New_York"),
        ("toYYYYMM(tb, 'Asia/Kolkata')", "Asia/Kolkata"),
        ("toStartOfMonth(ts, 'Asia/Kolkata')", "Asia/Kolkata"),
        ("toStartOfWeek(ts, 1, 'Asia/Kolkata')", "Asia/Kolkata"),
        ("toDate(toTimeZone(ts, 'Asia/Kolkata'))", "Asia/Kolkata"),
        ("toYYYYMM(toDateTime(t64, 'UTC'))", "UTC"),
        ("toYYYYMM(toDate(tb))", "Europe/Berlin"),
        ("d", None),
    ],
)
def test_the_explicit_zone_wins_over_the_type(partition_by: str, timezone: str | None) -> None:
    scheme = parse_scheme(partition_by, COLUMNS)
    assert scheme is not None
    assert scheme.timezone == timezone


def test_a_tuple_keeps_its_other_dimensions_as_written() -> None:
    assert parse_scheme("tuple(country, toYYYYMM(ts, 'UTC'), `shard`)", COLUMNS) == PartitionScheme(
        unit="month",
        column="ts",
        column_type="DateTime",
        expression="toYYYYMM(ts, 'UTC')",
        value_type="yyyymm",
        timezone="UTC",
        dimensions=("country", "`shard`"),
        position=1,
    )


def test_of_two_time_parts_the_finer_counts_when_it_determines_the_other() -> None:
    scheme = parse_scheme("(toYYYYMM(ts), toDate(ts))", COLUMNS)
    assert scheme is not None
    assert (scheme.unit, scheme.position, scheme.dimensions) == ("day", 1, ("toYYYYMM(ts)",))


@pytest.mark.parametrize(
    ("partition_by", "reason"),
    [
        ("", "no partition key"),
        ("tuple()", "no partition key"),
        ("country", "not a date or a time"),
        ("toYYYYMM(text)", "not a date or a time"),
        ("toYYYYMM(missing)", "not declared"),
        ("ts", "not a whole hour"),
        ("toStartOfInterval(ts, INTERVAL 6 HOUR)", "not a whole hour"),
        ("toStartOfFiveMinutes(ts)", "not a whole hour"),
        ("toStartOfInterval(ts, INTERVAL 2 DAY)", "no calendar unit"),
        ("toYYYYMM(ts) % 8", "not a truncation"),
        ("cityHash64(ts) % 8", "not a truncation"),
        ("toDate(ts) + 1", "not a truncation"),
        ("toHour(ts)", "not a truncation"),
        ("toStartOfMonth(toMonday(ts))", "not a whole period"),
        ("toYYYYMM(toStartOfHour(tb), 'Asia/Kolkata')", "truncated in zone"),
        ("(toYYYYMM(ts), toYYYYMM(d))", "does not determine"),
        ("(toMonday(ts), toYYYYMM(ts))", "does not determine"),
        ("toYYYYMM(((ts", "cannot read"),
        ("'unterminated", "cannot read"),
    ],
)
def test_what_cannot_be_read_exactly_gives_no_cadence_but_a_reason(partition_by: str, reason: str) -> None:
    assert parse_scheme(partition_by, COLUMNS) is None
    explained = explain_scheme(partition_by, COLUMNS)
    assert isinstance(explained, str)
    assert reason in explained


@pytest.mark.parametrize(
    "partition_by", ["date_trunc('day', t64)", "date_trunc('month', d32)", "formatDateTime(ts, '%Y%m')"]
)
def test_ids_that_only_the_server_knows_are_marked(partition_by: str) -> None:
    scheme = parse_scheme(partition_by, COLUMNS)
    assert scheme is not None
    assert not scheme.id_known


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("toYYYYMM(ts)", ("toYYYYMM(ts)",)),
        ("(a, f(b, c))", ("a", "f(b, c)")),
        ("tuple( a ,'x,)' )", ("a", "'x,)'")),
        ("(a) + (b)", ("(a) + (b)",)),
        ("  ", ()),
    ],
)
def test_a_key_is_split_at_its_own_commas(text: str, parts: tuple[str, ...]) -> None:
    assert split_tuple(text) == parts


def test_cadences_have_names() -> None:
    names = [cadence_name(unit) for unit in ("hour", "day", "week", "month", "quarter", "year")]
    assert names == ["hourly", "daily", "weekly", "monthly", "quarterly", "yearly"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("ts", ("ts", None)),
        ("e.ts AS at", ("ts", None)),
        ("toStartOfHour(ts)", ("ts", "hour")),
        ("toDate(e.ts)", ("ts", "day")),
        ("toDate(toStartOfHour(ts))", ("ts", "day")),
        ("toStartOfInterval(ts, toIntervalMinute(5))", ("ts", None)),
        ("toStartOfInterval(ts, INTERVAL 6 HOUR)", ("ts", "day")),
        ("toStartOfFifteenMinutes(ts)", ("ts", None)),
        ("toStartOfMinute(ts)", ("ts", None)),
        ("toMonday(ts)", ("ts", "week")),
        ("toDateTime(ts, 'UTC')", ("ts", None)),
        ("toStartOfInterval(ts, INTERVAL 7 MINUTE)", None),
        ("ts + INTERVAL 1 HOUR", None),
        ("max(ts)", None),
        ("now()", None),
        ("'2026-01-01'", None),
        ("if(x, ts, other)", None),
    ],
)
def test_the_output_expression_tells_column_and_truncation(expression: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(NotTruncationError):
            read_truncation(expression)
        return
    found = read_truncation(expression)
    assert (found.column, found.unit) == expected


def test_a_scan_is_narrowed_only_where_borders_agree() -> None:
    assert can_narrow(None, "hour")
    assert can_narrow("day", "month")
    assert not can_narrow("day", "hour")
    assert not can_narrow("week", "quarter")


@pytest.mark.parametrize(
    ("expression", "unit", "column_timezone", "expected"),
    [
        ("toDate(ts)", "day", "Etc/UTC", True),
        ("toDate(ts)", "day", "Europe/Berlin", False),
        ("toDate(ts, 'UTC')", "day", "Europe/Berlin", True),
        ("ts", "day", "Europe/Berlin", True),
        ("toStartOfWeek(ts)", "week", "UTC", False),
        ("toMonday(ts)", "week", "UTC", True),
        ("toStartOfMonth(ts)", "day", "UTC", False),
    ],
)
def test_narrowing_respects_zone_and_first_weekday(
    expression: str, unit: str, column_timezone: str, expected: bool
) -> None:
    truncation = read_truncation(expression)
    found = narrows(truncation, unit, window_timezone="UTC", column_timezone=column_timezone)  # type: ignore[arg-type]
    assert found is expected
