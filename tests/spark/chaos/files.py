"""Small landing files of the demo's three sources, by seed, and the book of what was written into them.

Invariant: every id is used once in a whole test, so what arrives can be compared as a multiset of rows, not only counted. Bad rows
carry an id of twelve digits that begins with 77, by which quarantine is searched.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=timezone.utc)
BAD_ID = re.compile(r"77\d{10}")
SOURCES = ("shop.events", "shop.order_changes", "shop.payments")
USERS, PRODUCTS = 100, 50  # as many as are loaded; a few rows name a user or product that is not there
_LATE_HOURS = (1, 3, 26, 50)
_EVENTS = pa.schema(
    {
        "event_id": pa.int64(),
        "event_time": pa.timestamp("us", "UTC"),
        "session_id": pa.int64(),
        "user_id": pa.int64(),
        "event_type": pa.string(),
        "page": pa.string(),
        "device": pa.string(),
        "product_id": pa.int64(),
        "order_id": pa.int64(),
        "quantity": pa.int64(),
        "price": pa.decimal128(18, 2),
        "load_ms": pa.int64(),
        "attributes": pa.map_(pa.string(), pa.string()),
    }
)
Row = dict[str, Any]
Key = tuple[int, int, int, int, int]  # id, version, user, milliseconds since 1970, cents


@dataclass
class Book:
    """What the files written so far hold, per source."""

    good: dict[str, Counter[Key]] = field(default_factory=lambda: {source: Counter() for source in SOURCES})
    bad: dict[str, Counter[str]] = field(default_factory=lambda: {source: Counter() for source in SOURCES})
    files: int = 0


class Lander:
    """Writes files; the same seed and calls give the same files."""

    def __init__(self, chance: random.Random) -> None:
        self.book = Book()
        self._chance = chance
        self._ids = itertools.count(1)
        self._bad_ids = itertools.count(770_000_000_001)

    def write(self, source: str, folder: Path, *, rows: int, bad: int = 0, arrival: bool = False) -> Path:
        """One file with that many good and bad rows; `arrival`: it brings its own arrival times, which is another shape."""
        folder.mkdir(parents=True, exist_ok=True)
        make, save = _MAKERS[source]
        lines = [make(self._chance, next(self._ids)) for _ in range(rows)]
        spoiled = [(next(self._bad_ids), self._chance.randrange(3)) for _ in range(bad)]
        if arrival:
            for line in lines:
                line["ingested_at"] = NOW
        self.book.good[source].update(_key(source, line) for line in lines)
        self.book.bad[source].update(str(number) for number, _ in spoiled)
        self.book.files += 1
        path = folder / f"{self.book.files:05d}.{_ENDINGS[source]}"
        unfinished = path.with_name(f".{path.name}.tmp")
        save(self._chance, unfinished, lines, spoiled)
        unfinished.rename(path)
        return path


def _moment(chance: random.Random) -> datetime:
    """Mostly within the last ten minutes; one row in ten is late by hours or days."""
    back = timedelta(milliseconds=chance.randrange(1, 600_000))
    return NOW - back - (timedelta(hours=chance.choice(_LATE_HOURS)) if chance.random() < 0.1 else timedelta())


def _someone(chance: random.Random) -> int:
    return chance.randrange(1, USERS + 6)


def _money(chance: random.Random) -> Decimal:
    return Decimal(chance.randrange(1, 50_000)) / 100


def _event(chance: random.Random, number: int) -> Row:
    kind = chance.choice(("page_view", "page_view", "search", "product_view", "add_to_cart", "purchase"))
    bought = kind in ("add_to_cart", "purchase")
    attributes = [("browser", chance.choice(("chrome", "firefox")))]
    return {
        "event_id": number,
        "event_time": _moment(chance),
        "session_id": chance.randrange(1, 400),
        "user_id": _someone(chance),
        "event_type": kind,
        "page": chance.choice(("/", "/search", "/product")),
        "device": chance.choice(("mobile", "desktop")),
        "product_id": chance.randrange(1, PRODUCTS + 4) if bought else 0,
        "order_id": number if kind == "purchase" else 0,
        "quantity": chance.randrange(1, 4) if bought else 0,
        "price": _money(chance),
        "load_ms": chance.randrange(40, 6000),
        "attributes": attributes + ([("variant", "b")] if chance.random() < 0.3 else []),
    }


def _order_change(chance: random.Random, number: int) -> Row:
    """Three changes per order, whichever files they come in; an order's day and user follow from its number."""
    order, version = divmod(number, 3)
    fixed = random.Random(order)
    placed = _moment(fixed)
    return {
        "order_id": order,
        "ordered_at": placed,
        "changed_at": placed + timedelta(minutes=version),
        "user_id": _someone(fixed),
        "status": ("created", "paid", chance.choice(("shipped", "cancelled", "refunded")))[version],
        "version": version + 1,
        "product_id": chance.randrange(1, PRODUCTS + 4),
        "quantity": chance.randrange(1, 4),
        "amount": _money(fixed),
    }


def _payment(chance: random.Random, number: int) -> Row:
    return {
        "payment_id": number,
        "paid_at": _moment(chance),
        "order_id": chance.randrange(1, 5000),
        "user_id": _someone(chance),
        "method": chance.choice(("card", "paypal", "invoice")),
        "outcome": chance.choice(("captured", "captured", "failed", "refunded")),
        "amount": _money(chance),
        "fee": Decimal(chance.randrange(0, 300)) / 100,
    }


def _key(source: str, row: Row) -> Key:
    name, at, money = KEY_COLUMNS[source]
    millis = (row[at] - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    return (row[name], row.get("version", 0), row["user_id"], millis, int(row[money] * 100))


def _save_events(chance: random.Random, path: Path, rows: Sequence[Row], spoiled: Sequence[tuple[int, int]]) -> None:
    lines = list(rows)
    for number, how in spoiled:
        line = _event(chance, number) | ({"ingested_at": NOW} if rows and "ingested_at" in rows[0] else {})
        line |= ({"quantity": -1}, {"user_id": None}, {"load_ms": 2**40})[how]
        lines.insert(chance.randrange(len(lines) + 1), line)
    brought = rows and "ingested_at" in rows[0]
    schema = _EVENTS.append(pa.field("ingested_at", pa.timestamp("us", "UTC"))) if brought else _EVENTS
    table = pa.Table.from_pylist(lines, schema=schema)
    pq.write_table(table, path, row_group_size=max(1, len(lines) // 2), compression="zstd")


def _save_changes(chance: random.Random, path: Path, rows: Sequence[Row], spoiled: Sequence[tuple[int, int]]) -> None:
    lines = [_json(row) for row in rows]
    for number, how in spoiled:
        row = _order_change(chance, number) | {"order_id": number}
        text = ('{"order_id": %d, "ordered_at": ' % number, _json(row | {"version": -1}), _json(row | {"amount": "x"}))  # noqa: UP031
        lines.insert(chance.randrange(len(lines) + 1), text[how])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _json(row: Row) -> str:
    return json.dumps(row, default=_text)


def _text(value: object) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else str(value)


def _save_payments(chance: random.Random, path: Path, rows: Sequence[Row], spoiled: Sequence[tuple[int, int]]) -> None:
    names = list(rows[0])
    lines = [",".join(_text(value) for value in row.values()) for row in rows]
    for number, how in spoiled:
        row = {**_payment(chance, number), "ingested_at": NOW}
        cells = [_text(row[name]) for name in names]
        broken = (
            [str(number), "only", "three"],
            [*cells, "one", "too many"],
            ["abc" if n == "amount" else c for n, c in zip(names, cells, strict=True)],
        )
        lines.insert(chance.randrange(len(lines) + 1), ",".join(broken[how]))
    path.write_text("\n".join([",".join(names), *lines]) + "\n", encoding="utf-8")


# id, event time and money of each source: what a row is recognised by
KEY_COLUMNS = {
    "shop.events": ("event_id", "event_time", "price"),
    "shop.order_changes": ("order_id", "ordered_at", "amount"),
    "shop.payments": ("payment_id", "paid_at", "amount"),
}
_ENDINGS = {"shop.events": "parquet", "shop.order_changes": "jsonl", "shop.payments": "csv"}
_Save = Callable[[random.Random, Path, Sequence[Row], Sequence[tuple[int, int]]], None]
_MAKERS: dict[str, tuple[Callable[[random.Random, int], Row], _Save]] = {
    "shop.events": (_event, _save_events),
    "shop.order_changes": (_order_change, _save_changes),
    "shop.payments": (_payment, _save_payments),
}
