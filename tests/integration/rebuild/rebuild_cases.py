"""Pipelines to damage and to rebuild: one source, and per case the views and the target of one shape.

Data only; what is done with them is in `rebuild_oracle` and in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chmv_assets.core.windows import Window, window_of_key

SOURCE = """
CREATE TABLE {db}.{case}_source (id UInt64, ts DateTime('UTC'), country String, amount UInt32, version UInt32)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
"""


BERLIN = SOURCE.replace("DateTime('UTC')", "DateTime('Europe/Berlin')")


# 40 days from 20 June; every id has one ts, some ids come with several versions.
ROWS = """
INSERT INTO {db}.{case}_source
SELECT number % 700 AS id, toDateTime('2026-06-20 00:00:00', 'UTC') + (id * 49999) % (40 * 86400) AS ts,
    ['DE', 'FR', 'it\\'s, (x)'][id % 3 + 1], intHash32(number) % 1000, number
FROM numbers({first}, {count})
"""


DEFAULT_WINDOW = window_of_key("2026-07-05", "day", "UTC")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline: `ddl` after the source; the target is `<case>_target` unless said otherwise."""

    ddl: str
    window: Window | None = DEFAULT_WINDOW
    view_class: str = "additive"
    source: str = SOURCE
    prepare: Sequence[str] = ()
    timezone: str = "UTC"


DAILY_SUM = """
CREATE TABLE {db}.{case}_target (day Date, country String, events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country);
CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM {db}.{case}_source GROUP BY day, country;
"""


def rowwise(
    partition_by: str, columns: str = "id UInt64, ts DateTime('UTC'), amount UInt32", engine: str = "MergeTree"
) -> str:
    names = ", ".join(part.split()[0] for part in re.split(r", (?=\w+ [A-Z])", columns))
    return (
        f"CREATE TABLE {{db}}.{{case}}_target ({columns}) ENGINE = {engine} PARTITION BY {partition_by} ORDER BY id;\n"
        f"CREATE MATERIALIZED VIEW {{db}}.{{case}}_mv TO {{db}}.{{case}}_target AS SELECT {names} FROM {{db}}.{{case}}_source;"
    )


CASES = {
    "append": Case(ddl=rowwise("toYYYYMMDD(ts)"), view_class="append"),
    "additive": Case(ddl=DAILY_SUM),
    "states": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (hour DateTime('UTC'), users AggregateFunction(uniqExact, UInt64),
            biggest SimpleAggregateFunction(max, UInt32))
        ENGINE = AggregatingMergeTree PARTITION BY toYYYYMMDD(hour) ORDER BY hour;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toStartOfHour(ts) AS hour, uniqExactState(id) AS users, max(amount) AS biggest
        FROM {db}.{case}_source GROUP BY hour;
        """
    ),
    "replacing": Case(
        ddl=rowwise("toYYYYMM(ts)", "id UInt64, ts DateTime('UTC'), amount UInt32, version UInt32", "ReplacingMergeTree(version)"),
        window=window_of_key("2026-07-01", "month", "UTC"),
        view_class="replacing",
    ),
    "opaque": Case(
        ddl="""
        CREATE TABLE {db}.{case}_names (country String, name String) ENGINE = MergeTree ORDER BY country;
        CREATE TABLE {db}.{case}_target (ts DateTime('UTC'), id UInt64, name String)
        ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT s.ts AS ts, s.id AS id, n.name AS name FROM {db}.{case}_source AS s
        LEFT ANY JOIN {db}.{case}_names AS n ON n.country = s.country;
        """,
        prepare=["INSERT INTO {db}.{case}_names VALUES ('DE', 'Germany'), ('FR', 'France')"],
        view_class="opaque",
    ),
    "two_views": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, events UInt64, german UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate(ts) AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_other_mv TO {db}.{case}_target AS
        SELECT toDate(ts) AS day, sum(amount) AS german FROM {db}.{case}_source WHERE country = 'DE' GROUP BY day;
        """
    ),
    "chained": Case(
        ddl="""
        CREATE TABLE {db}.{case}_hours (hour DateTime('UTC'), events UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(hour) ORDER BY hour;
        CREATE MATERIALIZED VIEW {db}.{case}_hours_mv TO {db}.{case}_hours AS
        SELECT toStartOfHour(ts) AS hour, count() AS events FROM {db}.{case}_source GROUP BY hour
        SETTINGS max_threads = 1;
        CREATE TABLE {db}.{case}_target (day Date, events SimpleAggregateFunction(sum, UInt64))
        ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate(hour) AS day, sum(events) AS events FROM {db}.{case}_hours GROUP BY day;
        """,
        window=window_of_key("2026-07-01", "month", "UTC"),
    ),
    "weekly": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (week Date, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY toMonday(week) ORDER BY week;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toMonday(ts) AS week, count() AS events FROM {db}.{case}_source GROUP BY week;
        """,
        window=window_of_key("2026-06-29", "week", "UTC"),
    ),
    "monthly": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate(ts) AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        """,
        window=window_of_key("2026-07-01", "month", "UTC"),
    ),
    "dimensions": Case(
        ddl=DAILY_SUM.replace("toYYYYMMDD(day)", "(toYYYYMM(day), country)"),
        window=window_of_key("2026-07-01", "month", "UTC"),
    ),
    "date32": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date32, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY day ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate32(ts) AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        """
    ),
    "datetime64": Case(
        ddl=rowwise("toStartOfDay(ts)", "id UInt64, ts DateTime64(3, 'UTC'), amount UInt32"),
        source=SOURCE.replace("DateTime('UTC')", "DateTime64(3, 'UTC')"),
        view_class="append",
    ),
    "berlin": Case(
        ddl=rowwise("toYYYYMMDD(ts)", "id UInt64, ts DateTime('Europe/Berlin'), amount UInt32"),
        source=BERLIN,
        view_class="append",
    ),
    "berlin_days": Case(ddl=DAILY_SUM, source=BERLIN),
    "berlin_instants_as_days": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, id UInt64) ENGINE = MergeTree PARTITION BY day ORDER BY id;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS SELECT ts AS day, id FROM {db}.{case}_source;
        """,
        source=BERLIN,
        view_class="append",
    ),
    "days_as_instants": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (at DateTime('UTC'), id UInt64)
        ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY id;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS SELECT ts AS at, id FROM {db}.{case}_source;
        """,
        source=SOURCE.replace("DateTime('UTC')", "Date"),
        window=window_of_key("2026-07-05", "day", "Europe/Berlin"),
        view_class="append",
        timezone="Europe/Berlin",
    ),
    "texts_as_days": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY day ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT formatDateTime(ts, '%Y-%m-%d') AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        """
    ),
    "unpartitioned": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (country String, events UInt64) ENGINE = SummingMergeTree ORDER BY country;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT country, count() AS events FROM {db}.{case}_source GROUP BY country;
        """,
        window=None,
    ),
    "subquery": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, big UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        WITH 500 AS limit_ SELECT day, count() AS big
        FROM (SELECT toDate(ts) AS day, amount FROM {db}.{case}_source) WHERE amount > limit_ GROUP BY day;
        """
    ),
}  # fmt: skip


ODD = Case(
    source="""
    CREATE TABLE {db}.`{case}_sour.ce ``x``` (id UInt64, `ts'é` DateTime('UTC')) ENGINE = MergeTree PARTITION BY toYYYYMMDD(`ts'é`) ORDER BY id;
    """,
    ddl="""
    CREATE TABLE {db}.`{case}_target` (`d``ay` Date, `n \\"n` UInt64) ENGINE = SummingMergeTree PARTITION BY `d``ay` ORDER BY `d``ay`;
    CREATE MATERIALIZED VIEW {db}.`{case}_m'v` TO {db}.`{case}_target` AS
    SELECT toDate(`ts'é`) AS `d``ay`, count() AS `n \\"n` FROM {db}.`{case}_sour.ce ``x``` GROUP BY `d``ay`;
    """,
)  # fmt: skip
