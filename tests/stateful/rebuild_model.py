"""The pipeline that the state machine plays with, and what each of its tables must hold, computed in Python from the rows that were sent.

Invariant: nothing here asks the server what is right. Six targets of five shapes hang on two sources: a sum, a sum of two sources, a
chain of two, the newest version of each id, and a join whose result depends on more than its rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any

from chmv_assets.core.windows import Window

UTC = timezone.utc
OLD_DAY = date(2026, 6, 20)
DAYS = (date(2026, 6, 30), date(2026, 7, 1), date(2026, 7, 2))  # two months: the chain's end is partitioned by month
COUNTRIES = {"DE": "Germany", "FR": "France", "it's": ""}  # the last has no name to join
SOURCES = ("s", "s2")
TARGETS = ("daily", "both", "hours", "monthly", "latest", "named")
BROKEN = "break"  # an insert with this log_comment fails in a view, after its source was written

_WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
_SOURCE = (
    "CREATE TABLE {db}.%s (id UInt64, ts DateTime('UTC'), country String, amount UInt32, version UInt32, "
    f"arrived DateTime64(6) DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id {_WINDOW};\n"
)
DDL = (
    _SOURCE % "s" + _SOURCE % "s2" + f"""
CREATE TABLE {{db}}.names (country String, name String) ENGINE = MergeTree ORDER BY country;
CREATE TABLE {{db}}.daily (day Date, country String, events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country) {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.daily_mv TO {{db}}.daily AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM {{db}}.s GROUP BY day, country;
CREATE TABLE {{db}}.both (day Date, events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.both_mv TO {{db}}.both AS
SELECT toDate(ts) AS day, count() AS events FROM {{db}}.s GROUP BY day;
CREATE MATERIALIZED VIEW {{db}}.both_s2_mv TO {{db}}.both AS
SELECT toDate(ts) AS day, sum(amount) AS amount FROM {{db}}.s2 GROUP BY day;
CREATE TABLE {{db}}.hours (hour DateTime('UTC'), events UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(hour) ORDER BY hour {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.hours_mv TO {{db}}.hours AS
SELECT toStartOfHour(ts) AS hour, count() AS events FROM {{db}}.s GROUP BY hour;
CREATE TABLE {{db}}.monthly (day Date, events SimpleAggregateFunction(sum, UInt64))
ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.monthly_mv TO {{db}}.monthly AS
SELECT toDate(hour) AS day, sum(events) AS events FROM {{db}}.hours GROUP BY day;
CREATE TABLE {{db}}.latest (id UInt64, ts DateTime('UTC'), amount UInt32, version UInt32)
ENGINE = ReplacingMergeTree(version) PARTITION BY toYYYYMMDD(ts) ORDER BY id {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.latest_mv TO {{db}}.latest AS SELECT id, ts, amount, version FROM {{db}}.s;
CREATE TABLE {{db}}.named (ts DateTime('UTC'), id UInt64, name String)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.named_mv TO {{db}}.named AS
SELECT s.ts AS ts, s.id AS id, n.name AS name FROM {{db}}.s AS s LEFT ANY JOIN {{db}}.names AS n ON n.country = s.country;
"""
)  # fmt: skip
# Not declared to chmv: it stands for whatever makes inserts fail half way.
TRAP = f"""
CREATE TABLE {{db}}.trapped (id UInt64, x UInt8) ENGINE = MergeTree ORDER BY id {_WINDOW};
CREATE MATERIALIZED VIEW {{db}}.zz_trap TO {{db}}.trapped AS
SELECT id, throwIf(amount > 0 AND getSetting('log_comment') = '{BROKEN}') AS x FROM {{db}}.s;
"""
# How a target is read: its partition, then what must be equal; sums, so that merges make no difference.
READS = {
    "daily": "SELECT _partition_id, day, country, sum(events), sum(amount) FROM {t} GROUP BY ALL",
    "both": "SELECT _partition_id, day, sum(events), sum(amount) FROM {t} GROUP BY ALL",
    "hours": "SELECT _partition_id, toUnixTimestamp(hour), sum(events) FROM {t} GROUP BY ALL",
    "monthly": "SELECT _partition_id, day, sum(events) FROM {t} GROUP BY ALL",
    "latest": "SELECT _partition_id, id, toUnixTimestamp(ts), amount, version FROM {t} FINAL "
    "SETTINGS do_not_merge_across_partitions_select_final = 1",
    "named": "SELECT _partition_id, toUnixTimestamp(ts), id, name FROM {t}",
}
Rows = dict[str, list[tuple[Any, ...]]]  # partition → its rows, sorted


@dataclass(frozen=True, order=True)
class Row:
    """A row of a source."""

    id: int
    ts: int
    country: str
    amount: int
    version: int

    @property
    def day(self) -> date:
        return datetime.fromtimestamp(self.ts, UTC).date()

    @property
    def sql(self) -> str:
        country = self.country.replace("'", "\\'")
        return f"({self.id}, {self.ts}, '{country}', {self.amount}, {self.version})"


@dataclass(frozen=True)
class Insert:
    """What a writer sends, again and again with the same token until it is in."""

    source: str
    token: str
    rows: tuple[Row, ...]

    @property
    def days(self) -> set[date]:
        return {row.day for row in self.rows}

    def sql(self, database: str) -> str:
        return f"INSERT INTO {database}.{self.source} (id, ts, country, amount, version) VALUES " + ", ".join(
            row.sql for row in self.rows
        )


@dataclass
class Model:
    """What is in the sources, and so what the targets must hold."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {source: [] for source in SOURCES})

    def add(self, insert: Insert) -> None:
        self.rows[insert.source] += insert.rows

    def expected(self, target: str) -> Rows:
        s, s2 = self.rows["s"], self.rows["s2"]
        match target:
            case "daily":
                return _sums((row.day, row.country, 1, row.amount) for row in s)
            case "both":
                return _sums([*((row.day, 1, 0) for row in s), *((row.day, 0, row.amount) for row in s2)], keys=1)
            case "hours":
                return _by_partition(
                    (_day(hour), (hour, n)) for hour, n in Counter(r.ts // 3600 * 3600 for r in s).items()
                )
            case "monthly":
                return _by_partition((f"{day:%Y%m}", (day, n)) for day, n in Counter(row.day for row in s).items())
            case "latest":
                newest = {(row.day, row.id): row for row in sorted(s, key=lambda row: row.version)}
                return _by_partition((_day(r.ts), (r.id, r.ts, r.amount, r.version)) for r in newest.values())
            case _:
                return _by_partition((_day(row.ts), (row.ts, row.id, COUNTRIES[row.country])) for row in s)


def _day(ts: int) -> str:
    return f"{datetime.fromtimestamp(ts, UTC):%Y%m%d}"


def _sums(rows: Iterable[tuple[Any, ...]], keys: int = 2) -> Rows:
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        total = sums[row[:keys]]
        total[0], total[1] = total[0] + row[keys], total[1] + row[keys + 1]
    return _by_partition((f"{key[0]:%Y%m%d}", (*key, *total)) for key, total in sums.items())


def _by_partition(rows: Iterable[tuple[str, tuple[Any, ...]]]) -> Rows:
    found: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for partition, row in rows:
        found[partition].append(row)
    return {partition: sorted(rows) for partition, rows in found.items()}


def sort_rows(rows: Iterable[tuple[Any, ...]]) -> Rows:
    """What a query of `READS` gave, in the form of `Model.expected`."""
    return _by_partition((str(partition), tuple(row)) for partition, *row in rows)


def partition_of(target: str, day: date) -> str:
    return f"{day:%Y%m}" if target == "monthly" else f"{day:%Y%m%d}"


def window_of(target: str, day: date, days: int) -> Window:
    """The window of a target that begins with a day; the chain's end knows only months."""
    start = datetime(day.year, day.month, 1 if target == "monthly" else day.day, tzinfo=UTC)
    if target == "monthly":
        return Window(start, datetime(day.year, day.month + 1, 1, tzinfo=UTC))
    return Window(start, start + timedelta(days=days))


def partitions_of(target: str, window: Window) -> set[str]:
    count = (window.end - window.start).days
    return {partition_of(target, (window.start + timedelta(days=at)).date()) for at in range(count)}
