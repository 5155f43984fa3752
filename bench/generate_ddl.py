"""Synthetic DDL: a folder of exactly N objects with the mix of a real pipeline.

One family is a source of 20 columns, an append view and its target, an hourly rollup and a monthly chain behind it; every
fifth one brings a dimension with its dictionary, every seventh a plain view. The text depends on N alone, so two runs measure
the same folder. Nothing here is meant to be run on a server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

FAMILIES_PER_DATABASE = 20
_MEASURES = ("amount", "fee", "tax", "weight", "duration_ms", "items")
_LABELS = ("country", "device", "channel", "status", "campaign", "currency")


def write_folder(folder: Path, objects: int) -> None:
    """Write `objects` declarations and the settings file into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = 0
    for number in range(objects):
        statements = list(_family(number))
        if made + len(statements) > objects:
            break
        (folder / f"{number:04d}_family.sql").write_text(";\n\n".join(statements) + ";\n", encoding="utf-8")
        made += len(statements)
    rest = [_source("spare", f"table_{number}") for number in range(objects - made)]
    if rest:
        (folder / "9999_spare.sql").write_text(";\n\n".join(rest) + ";\n", encoding="utf-8")
    settings = 'version: 1\ndefault_database: db_000\ntimezone: UTC\nstart: "2026-10-01"\n'
    (folder / "chmv.yaml").write_text(settings, encoding="utf-8")


def _family(number: int) -> Iterator[str]:
    database, stem = f"db_{number // FAMILIES_PER_DATABASE:03d}", f"orders_{number:04d}"
    with_dimension = number % 5 == 0
    yield _source(database, stem)
    if with_dimension:
        yield from _dimension(database, stem)
    yield from _enriched(database, stem, with_dimension)
    yield from _hourly(database, stem)
    yield from _monthly(database, stem)
    if number % 7 == 0:
        yield f"CREATE VIEW {database}.{stem}_report AS SELECT month, country, amount FROM {database}.{stem}_monthly"


def _source(database: str, stem: str) -> str:
    columns = [
        "event_id UInt64 COMMENT 'Unique per event, given by the collector'",
        "event_time DateTime64(3, 'UTC') COMMENT 'When it happened'",
        "ingested_at DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When the row arrived in ClickHouse'",
        "user_id UInt64",
        "product_id UInt32",
        *(f"{name} LowCardinality(String)" for name in _LABELS),
        *(f"{name} Decimal(18, 2)" for name in _MEASURES),
        "note Nullable(String)",
        "version UInt32",
        "attributes Map(LowCardinality(String), String)",
    ]
    return _table(database, stem, columns, "MergeTree", "toYYYYMMDD(event_time)", "(country, user_id, event_time)")


def _dimension(database: str, stem: str) -> Iterator[str]:
    columns = ["user_id UInt64", "segment LowCardinality(String)", "region String", "updated_at DateTime('UTC')"]
    yield _table(database, f"{stem}_users", columns, "ReplacingMergeTree(updated_at)", "", "user_id")
    yield (
        f"CREATE DICTIONARY {database}.{stem}_users_dict (user_id UInt64, segment String DEFAULT 'unknown')\n"
        f"PRIMARY KEY user_id SOURCE(CLICKHOUSE(DB '{database}' TABLE '{stem}_users'))\n"
        "LAYOUT(HASHED()) LIFETIME(MIN 300 MAX 600)"
    )


def _enriched(database: str, stem: str, with_dimension: bool) -> Iterator[str]:
    columns = [
        "event_id UInt64",
        "event_time DateTime64(3, 'UTC')",
        "user_id UInt64",
        "segment LowCardinality(String)",
        *(f"{name} LowCardinality(String)" for name in _LABELS),
        "net Decimal(18, 2) COMMENT 'Amount without fee and tax'",
        "big UInt8",
    ]
    segment = f"dictGet('{database}.{stem}_users_dict', 'segment', user_id)" if with_dimension else "lower(channel)"
    yield _table(database, f"{stem}_enriched", columns, "MergeTree", "toYYYYMMDD(event_time)", "(country, event_time)")
    yield (
        f"CREATE MATERIALIZED VIEW {database}.{stem}_enriched_mv TO {database}.{stem}_enriched AS\n"
        f"SELECT event_id, event_time, user_id, {segment} AS segment, {', '.join(_LABELS)},\n"
        f"       amount - fee - tax AS net, amount > 1000 AS big\nFROM {database}.{stem}\nWHERE status != 'test'"
    )


def _hourly(database: str, stem: str) -> Iterator[str]:
    columns = [
        "hour DateTime('UTC')",
        "country LowCardinality(String)",
        "device LowCardinality(String)",
        "events UInt64",
    ]
    columns += [f"{name} Decimal(38, 2)" for name in _MEASURES]
    sums = ", ".join(f"sum({name}) AS {name}" for name in _MEASURES)
    yield _table(
        database, f"{stem}_hourly", columns, "SummingMergeTree", "toStartOfHour(hour)", "(hour, country, device)"
    )
    yield (
        f"CREATE MATERIALIZED VIEW {database}.{stem}_hourly_mv TO {database}.{stem}_hourly AS\n"
        f"SELECT toStartOfHour(event_time) AS hour, country, device, count() AS events, {sums}\n"
        f"FROM {database}.{stem}\nGROUP BY hour, country, device"
    )


def _monthly(database: str, stem: str) -> Iterator[str]:
    columns = ["month Date", "country LowCardinality(String)", "events SimpleAggregateFunction(sum, UInt64)"]
    columns += [f"{name} SimpleAggregateFunction(sum, Decimal(38, 2))" for name in _MEASURES]
    sums = ", ".join(f"sum({name}) AS {name}" for name in ("events", *_MEASURES))
    yield _table(database, f"{stem}_monthly", columns, "AggregatingMergeTree", "toYYYYMM(month)", "(month, country)")
    yield (
        f"CREATE MATERIALIZED VIEW {database}.{stem}_monthly_mv TO {database}.{stem}_monthly AS\n"
        f"SELECT toStartOfMonth(hour) AS month, country, {sums}\nFROM {database}.{stem}_hourly\nGROUP BY month, country"
    )


def _table(database: str, name: str, columns: list[str], engine: str, partition_by: str, order_by: str) -> str:
    body = ",\n    ".join(columns)
    partition = f"PARTITION BY {partition_by}\n" if partition_by else ""
    return (
        f"CREATE TABLE {database}.{name}\n(\n    {body}\n)\nENGINE = {engine}\n{partition}ORDER BY {order_by}\n"
        f"SETTINGS non_replicated_deduplication_window = 10000\nCOMMENT 'Synthetic table {name}'"
    )


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), int(sys.argv[2]))
