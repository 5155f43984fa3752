"""The pure mapping against the real server: ids and texts in `system.parts`, and rows selected by predicates."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from chmv_assets.core.cadence import PartitionScheme, Unit, explain_scheme, narrows
from chmv_assets.core.model import Column
from chmv_assets.core.names import quote_identifier
from chmv_assets.core.truncation import parse_time_type, read_truncation
from chmv_assets.core.windows import Window, ch_partitions, partition_matches, window_of_key, window_predicate

UTC = timezone.utc
COLUMNS = {
    "i": "Int64",
    "ts": "DateTime",
    "tu": "DateTime('UTC')",
    "tb": "DateTime('Europe/Berlin')",
    "tk": "DateTime('Asia/Kolkata')",
    "tn": "DateTime('America/New_York')",
    "t64": "DateTime64(3)",
    "t64b": "DateTime64(6, 'Europe/Berlin')",
    "nts": "Nullable(DateTime('Europe/Berlin'))",
    "d": "Date",
    "d32": "Date32",
    "nd": "Nullable(Date)",
    "ld": "LowCardinality(Date)",
    "country": "LowCardinality(String)",
    "shard": "Int32",
}
ROW = """
SELECT n, toDateTime(n), toDateTime(n), toDateTime(n), toDateTime(n), toDateTime(n), toDateTime64(n, 3),
    toDateTime64(n, 6), toDateTime(n), toDate(toDateTime(n, 'UTC')), toDate32(toDateTime(n, 'UTC')),
    toDate(toDateTime(n, 'UTC')), toDate(toDateTime(n, 'UTC')), ['DE', 'it\\'s, (x)', ''][n % 3 + 1], n % 2 - 1
FROM (SELECT arrayJoin({instants:Array(Int64)}) AS n)
"""
# The borders that matter: DST changes of Berlin and New York, midnights of all four zones, ends of months and years.
BORDERS = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2026, 12, 31, 23, tzinfo=UTC),
    datetime(2027, 1, 1, 5, tzinfo=UTC),
    datetime(2026, 6, 28, 18, 30, tzinfo=UTC),
    datetime(2026, 6, 30, 22, tzinfo=UTC),
]
INSTANTS = sorted(
    {int(border.timestamp()) + step for border in BORDERS for step in range(-5 * 3600, 5 * 3600, 1800)}
    | {int(border.timestamp()) - 1 for border in BORDERS}
)
TIME_COLUMNS = ["ts", "tu", "tb", "tk", "tn", "t64", "t64b", "nts"]
FUNCTIONS = [
    "toYYYYMM({})",
    "toYYYYMMDD({})",
    "toDate({})",
    "toDate32({})",
    "toStartOfHour({})",
    "toStartOfDay({})",
    "toMonday({})",
    "toStartOfWeek({})",
    "toStartOfWeek({}, 1)",
    "toStartOfMonth({})",
    "toStartOfQuarter({})",
    "toYear({})",
    "toStartOfYear({})",
    "date_trunc('day', {})",
    "date_trunc('month', {})",
    "toStartOfInterval({}, INTERVAL 1 HOUR)",
    "toStartOfInterval({}, INTERVAL 1 WEEK)",
]
OTHERS = [
    "d",
    "d32",
    "nd",
    "ld",
    "toYYYYMM(d)",
    "toMonday(d32)",
    "toStartOfMonth(d32)",
    "toStartOfDay(d)",
    "toYYYYMM(toDate(tb))",
    "toDate(toStartOfMonth(tn))",
    "toYYYYMM(ts, 'Asia/Kolkata')",
    "toStartOfHour(ts, 'Asia/Kolkata')",
    "toStartOfWeek(tb, 1, 'America/New_York')",
    "toDate(toTimeZone(ts, 'America/New_York'))",
    "formatDateTime(ts, '%Y%m', 'Europe/Berlin')",
    "intDiv(toYYYYMMDD(ts), 100)",
    "CAST(tb, 'Date')",
    "tuple(toYYYYMM(ts))",
    "(shard, toYYYYMM(ts))",
    "(toYYYYMMDD(tb), shard)",
    "(country, toYYYYMM(tn))",
    "(country, toStartOfHour(ts), shard)",
    "(toYYYYMM(ts), toDate(ts))",
    "(d, country)",
]
WINDOWS: list[tuple[str, Unit]] = [
    ("2026-03-29", "day"),
    ("2026-10-25", "day"),
    ("2026-11-01", "day"),
    ("2026-06-01", "month"),
    ("2026-06-29", "week"),
    ("2026-10-25-02:00", "hour"),
    ("2027-01-01", "year"),
]
SCHEMES = [function.format(column) for column in TIME_COLUMNS for function in FUNCTIONS] + OTHERS


def _create(clickhouse: Any, database: str, table: str, partition_by: str) -> str:
    name = f"{quote_identifier(database)}.{quote_identifier(table)}"
    columns = ", ".join(f"{column} {type_}" for column, type_ in COLUMNS.items())
    clickhouse.command(
        f"CREATE OR REPLACE TABLE {name} ({columns}) ENGINE = MergeTree PARTITION BY {partition_by} ORDER BY i "
        "SETTINGS allow_nullable_key = 1",
        settings={"allow_suspicious_low_cardinality_types": 1},
    )
    clickhouse.command(
        f"INSERT INTO {name} {ROW}", parameters={"instants": INSTANTS}, settings={"max_partitions_per_insert_block": 0}
    )
    return name


def _scheme(partition_by: str) -> PartitionScheme:
    scheme = explain_scheme(partition_by, tuple(Column(name=name, type=type_) for name, type_ in COLUMNS.items()))
    assert isinstance(scheme, PartitionScheme), scheme
    return scheme


@pytest.mark.parametrize("partition_by", SCHEMES)
def test_every_row_lies_in_the_partition_that_the_mapping_names(
    clickhouse: Any, database: str, partition_by: str
) -> None:
    scheme = _scheme(partition_by)
    name = _create(clickhouse, database, "partitioned", partition_by)
    server_timezone = str(clickhouse.command("SELECT timezone()"))
    texts: dict[str, str] = dict(
        clickhouse.query(
            "SELECT DISTINCT partition_id, partition FROM system.parts "
            "WHERE database = {database:String} AND table = 'partitioned' AND active",
            parameters={"database": database},
        ).result_rows
    )
    rows = clickhouse.query(f"SELECT i, _partition_id FROM {name}").result_rows
    assert len(rows) == len(INSTANTS)
    for second, partition_id in rows:
        start = datetime.fromtimestamp(second, tz=UTC)
        window = Window(start, start + timedelta(seconds=1))
        (found,) = ch_partitions(window, scheme, "UTC", server_timezone=server_timezone)
        assert partition_matches(scheme, texts[partition_id], found), (start, texts[partition_id], found)
        assert found.partition_id in (None, partition_id), (start, texts[partition_id], found)
        assert (found.partition_id is None) == (bool(scheme.dimensions) or not scheme.id_known)
    clickhouse.command(f"DROP TABLE {name} SYNC")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"])
def test_predicates_select_exactly_the_rows_of_the_window(clickhouse: Any, database: str, zone: str) -> None:
    name = _create(clickhouse, database, f"selected_{zone}", "tuple()")
    for key, unit in WINDOWS:
        window = window_of_key(key, unit, zone)
        expected = [second for second in INSTANTS if window.start.timestamp() <= second < window.end.timestamp()]
        for column in TIME_COLUMNS:
            predicate = window_predicate(quote_identifier(column), COLUMNS[column], window, zone)
            rows = clickhouse.query(f"SELECT i FROM {name} WHERE {predicate} ORDER BY i").result_rows
            assert [second for (second,) in rows] == expected, (key, column)
    clickhouse.command(f"DROP TABLE {name} SYNC")


@pytest.mark.parametrize("column", ["d", "d32", "nd", "ld"])
def test_predicates_on_dates_take_whole_days(clickhouse: Any, database: str, column: str) -> None:
    name = _create(clickhouse, database, "dated", "tuple()")
    for zone in ("UTC", "Asia/Kolkata"):  # a date has no zone: the same rows, whatever the location's
        predicate = window_predicate(column, COLUMNS[column], window_of_key("2026-06-28", "day", zone), zone)
        rows = clickhouse.query(f"SELECT DISTINCT toString({column}) FROM {name} WHERE {predicate}").result_rows
        assert rows == [("2026-06-28",)]
    clickhouse.command(f"DROP TABLE {name} SYNC")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata"])
@pytest.mark.parametrize(
    "output",
    [
        "{}",
        "toStartOfInterval({}, INTERVAL 5 MINUTE)",
        "toStartOfFifteenMinutes({})",
        "toStartOfHour({})",
        "toStartOfInterval({}, INTERVAL 6 HOUR)",
        "toStartOfDay({})",
        "toDate({})",
        "toDate(toStartOfHour({}))",
        "toMonday({})",
        "toStartOfMonth({})",
        "toDate({}, 'Asia/Kolkata')",
    ],
)
def test_a_narrowed_scan_reads_exactly_the_rows_whose_output_falls_into_the_window(
    clickhouse: Any, database: str, output: str, zone: str
) -> None:
    name = _create(clickhouse, database, f"narrowed_{zone}", "tuple()")
    server_timezone = str(clickhouse.command("SELECT timezone()"))
    narrowed = 0
    for column in ("ts", "tb", "tk", "t64b"):
        expression = output.format(column)
        truncation = read_truncation(expression, COLUMNS)
        time_type = parse_time_type(COLUMNS[column])
        assert time_type is not None
        ((output_type,),) = clickhouse.query(f"SELECT toTypeName({expression}) FROM {name} LIMIT 1").result_rows
        for key, unit in WINDOWS:
            column_zone = time_type.timezone or server_timezone
            if not narrows(truncation, unit, window_timezone=zone, column_timezone=column_zone):
                continue
            narrowed += 1
            window = window_of_key(key, unit, zone)
            source = window_predicate(column, COLUMNS[column], window, zone)
            target = window_predicate(f"({expression})", output_type, window, zone)
            differing = clickhouse.command(f"SELECT countIf({source} != {target}) FROM {name}")
            assert differing == 0, (expression, key, unit)
    assert narrowed or "Asia/Kolkata" in output or zone == "UTC" != server_timezone
    clickhouse.command(f"DROP TABLE {name} SYNC")
