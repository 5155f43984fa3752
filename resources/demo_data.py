"""Rows for the demo pipeline, made by the server itself: any size, the same rows for the same arguments.

Every value is a function of the row number and a salt that comes from (seed, sizes, window), so a load is a value
(`DemoLoad`) and its statements are pure builders; only `load_demo` talks to a server. Two laws hold: nothing here reads
a clock or a random source, and every INSERT is one block with a deduplication token (docs/measured.md), so that
loading twice, or again after a crash, adds nothing in the sources and in every target behind them. Users and products
depend on their number alone: loads with different seeds share them.

Not here: the columns' expressions (`demo_rows`), the DDL (`chmv_assets/ddl`), the writing of landing files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from chmv_assets.core.batches import EXACT_SETTINGS
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName, quote_identifier
from resources import demo_rows
from resources.demo_rows import DAY_MS, GROUP_EVENTS

DATABASE = "shop"
MAX_ROWS = 2**31 - 1  # ids are a 31-bit tag of the load and a 31-bit number
MAX_ROWS_PER_INSERT = 500_000
EVENT_DAYS_PER_INSERT = 3  # < 80 hourly partitions, the server refuses more than 100 per block
ORDER_DAYS_PER_INSERT = 30
_SHORTEST_WINDOW = timedelta(minutes=1)
_LONGEST_VISIT_MS = 30 * 60_000

FactTable = Literal["events", "order_changes", "payments"]
DimensionTable = Literal["users", "products"]
DemoTable = Literal["users", "products", "events", "order_changes", "payments"]
Arrival = Literal["modelled", "server"]
_ORDER_TABLES: tuple[FactTable, ...] = ("order_changes", "payments")


class DemoLoadError(ChmvError):
    """A demo load that cannot be made: too many rows, or a window that is too short or has no zone."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"demo load: {found} but wanted {wanted}. Nothing was written. Call it with other arguments.")


class DemoClient(Protocol):
    """The two calls of a clickhouse-connect client that loading needs."""

    def command(self, cmd: str, /, *, parameters: Any = None, settings: Any = None) -> Any: ...

    def query(self, query: str, /, *, parameters: Any = None) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """How many of each; orders and payments follow from the events."""

    events: int
    users: int
    products: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLoad:
    """Everything that decides the rows of one load. `server` arrival leaves `ingested_at` to the server's clock."""

    size: DemoSize
    seed: int
    start: datetime
    end: datetime
    arrival: Arrival = "modelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStatement:
    """One INSERT, ready for a client; `rows` is how many it adds at most."""

    table: DemoTable
    sql: str
    parameters: Mapping[str, int]
    settings: Mapping[str, Any]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """Rows per source table after the load, and how many of them are new."""

    rows: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, int] = field(default_factory=dict)


def demo_size(events: int) -> DemoSize:
    """Choose how many users and products go with that many events.

    >>> demo_size(200_000)
    DemoSize(events=200000, users=5000, products=400)
    """
    return DemoSize(
        events=events, users=min(max(events // 40, 100), 1_000_000), products=min(max(events // 500, 50), 20_000)
    )


def load_demo(
    client: DemoClient,
    *,
    rows: int,
    seed: int,
    start: datetime,
    end: datetime,
    progress: Callable[[int, int], None] | None = None,
    arrival: Arrival = "modelled",
) -> DemoSummary:
    """Write `rows` events and what belongs to them into the demo's sources; the same call again adds nothing."""
    load = DemoLoad(size=demo_size(rows), seed=seed, start=start, end=end, arrival=arrival)
    dimensions, facts = build_dimension_statements(load.size), build_fact_statements(load)
    total, done = sum(statement.rows for statement in (*dimensions, *facts)), 0
    before = _fetch_counts(client)
    for statement in (*dimensions, *facts):
        if statement is facts[0]:
            # The views look users up in memory; a copy loaded before the users came would say "unknown".
            client.command(f"SYSTEM RELOAD DICTIONARY {QName(DATABASE, 'users_dict').sql}")
        client.command(statement.sql, parameters=dict(statement.parameters), settings=dict(statement.settings))
        done += statement.rows
        if progress:
            progress(done, total)
    after = _fetch_counts(client)
    return DemoSummary(rows=after, added={table: count - before[table] for table, count in after.items()})


def build_dimension_statements(size: DemoSize) -> tuple[DemoStatement, ...]:
    """The INSERTs for users and products."""
    counts: dict[DimensionTable, int] = {"users": size.users, "products": size.products}
    return tuple(
        _dimension_statement(table, first, min(MAX_ROWS_PER_INSERT, count - first))
        for table, count in counts.items()
        for first in range(0, count, MAX_ROWS_PER_INSERT)
    )


def build_fact_statements(load: DemoLoad) -> tuple[DemoStatement, ...]:
    """The INSERTs for events, order changes and payments, oldest first."""
    _refuse_bad(load)
    events = [_fact_statement(load, "events", *chunk) for chunk in _event_chunks(load)]
    orders = [_fact_statement(load, table, *chunk) for chunk in _order_chunks(load) for table in _ORDER_TABLES]
    return (*events, *orders)


def build_demo_select(load: DemoLoad, table: FactTable, first: int, count: int) -> tuple[str, dict[str, int]]:
    """SELECT and parameters for a slice: of events by number, of order changes and payments by group (20 events).

    All rows are `0, load.size.events` or `0, load.size.events // GROUP_EVENTS`, for example to write landing files.
    """
    _refuse_bad(load)
    columns = ",\n    ".join(f"{sql} AS {quote_identifier(name)}" for name, sql in _fact_columns(load, table).items())
    template = {
        "events": demo_rows.EVENTS_FROM,
        "order_changes": demo_rows.CHANGES_FROM,
        "payments": demo_rows.PAYMENTS_FROM,
    }[table]
    return f"SELECT\n    {columns}\n{template}", {**_load_parameters(load), "first": first, "count": count}


def _refuse_bad(load: DemoLoad) -> None:
    if not GROUP_EVENTS <= load.size.events <= MAX_ROWS:
        raise DemoLoadError(f"{load.size.events} rows", f"{GROUP_EVENTS} to {MAX_ROWS}")
    if load.start.tzinfo is None or load.end.tzinfo is None:
        raise DemoLoadError("a window without a time zone", "aware datetimes")
    if load.end - load.start < _SHORTEST_WINDOW:
        raise DemoLoadError(f"a window of {load.end - load.start}", f"at least {_SHORTEST_WINDOW}")


def _fact_statement(load: DemoLoad, table: FactTable, first: int, count: int) -> DemoStatement:
    select, parameters = build_demo_select(load, table, first, count)
    rows = {"events": count, "order_changes": count * 5, "payments": count * 3}[table]
    token = f"chmv-demo:{_load_digest(load).hex()[:24]}:{table}:{first}:{count}"
    return _insert(table, tuple(_fact_columns(load, table)), select, parameters, token, rows)


def _dimension_statement(table: DimensionTable, first: int, count: int) -> DemoStatement:
    columns = demo_rows.USERS if table == "users" else demo_rows.PRODUCTS
    values = ",\n    ".join(f"{sql} AS {quote_identifier(name)}" for name, sql in columns.items())
    select = f"SELECT\n    {values}\nFROM numbers({{first:UInt64}}, {{count:UInt64}})\nORDER BY 1"
    return _insert(
        table, tuple(columns), select, {"first": first, "count": count}, f"chmv-demo:{table}:{first}:{count}", count
    )


def _insert(
    table: DemoTable, columns: tuple[str, ...], select: str, parameters: dict[str, int], token: str, rows: int
) -> DemoStatement:
    names = ", ".join(quote_identifier(name) for name in columns)
    sql = f"INSERT INTO {QName(DATABASE, table).sql} ({names})\n{select}"
    settings = {**EXACT_SETTINGS, "insert_deduplication_token": token}
    return DemoStatement(table=table, sql=sql, parameters=parameters, settings=settings, rows=rows)


def _fact_columns(load: DemoLoad, table: FactTable) -> dict[str, str]:
    columns = {"events": demo_rows.EVENTS, "order_changes": demo_rows.CHANGES, "payments": demo_rows.PAYMENTS}[table]
    return {name: sql for name, sql in columns.items() if name != "ingested_at" or load.arrival == "modelled"}


def _fetch_counts(client: DemoClient) -> dict[str, int]:
    tables: tuple[DemoTable, ...] = ("users", "products", "events", "order_changes", "payments")
    parts = [f"(SELECT count() FROM {QName(DATABASE, table).sql})" for table in tables]
    return dict(zip(tables, map(int, client.query(f"SELECT {', '.join(parts)}").result_rows[0]), strict=True))


# --- time: events follow a day with quiet nights, by integer arithmetic so that every machine agrees ---


def _to_busy_ms(wall_ms: int) -> int:
    """The inverse of `demo_rows`'s wall clock: 0–8 h hold a fifth of the day's events, 8–24 h the rest."""
    day, within = divmod(wall_ms, DAY_MS)
    night = DAY_MS // 3
    return day * DAY_MS + (within * 3 // 5 if within < night else DAY_MS // 5 + (within - night) * 6 // 5)


def _epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _load_digest(load: DemoLoad) -> bytes:
    size = load.size
    facts = (
        size.events,
        size.users,
        size.products,
        load.seed,
        _epoch_ms(load.start),
        _epoch_ms(load.end),
        load.arrival,
    )
    return hashlib.sha256(":".join(map(str, facts)).encode()).digest()


def _load_parameters(load: DemoLoad) -> dict[str, int]:
    digest = _load_digest(load)
    start, end = _epoch_ms(load.start), _epoch_ms(load.end)
    visit = min(_LONGEST_VISIT_MS, (end - start) // 4)
    busy_start = _to_busy_ms(start)
    return {
        "salt": int.from_bytes(digest[:8], "big"),
        "base": (int.from_bytes(digest[8:12], "big") >> 1) << 31,
        "groups": -(-load.size.events // GROUP_EVENTS),
        "users": load.size.users,
        "products": load.size.products,
        "end_ms": end,
        "busy_start": busy_start,
        "busy_span": _to_busy_ms(end - 2 * visit) - busy_start,
        "visit_ms": visit,
        "step_ms": visit // 9,
    }


def _event_chunks(load: DemoLoad) -> Iterator[tuple[int, int]]:
    groups = _load_parameters(load)["groups"]
    per_chunk = _groups_per_chunk(load, EVENT_DAYS_PER_INSERT, GROUP_EVENTS)
    for first in range(0, groups, per_chunk):
        first_event = first * GROUP_EVENTS
        yield first_event, min(per_chunk * GROUP_EVENTS, load.size.events - first_event)


def _order_chunks(load: DemoLoad) -> Iterator[tuple[int, int]]:
    groups = load.size.events // GROUP_EVENTS  # a last, incomplete group has no purchase
    per_chunk = _groups_per_chunk(load, ORDER_DAYS_PER_INSERT, 5)
    for first in range(0, groups, per_chunk):
        yield first, min(per_chunk, groups - first)


def _groups_per_chunk(load: DemoLoad, days: int, rows_per_group: int) -> int:
    parameters = _load_parameters(load)
    by_time = parameters["groups"] * days * DAY_MS // max(parameters["busy_span"], 1)
    return max(1, min(by_time, MAX_ROWS_PER_INSERT // rows_per_group))
