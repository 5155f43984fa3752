"""Landing files of the demo: what the shop's services would have dropped there during the last day.

The rows come from the same model as the loaded ones (`demo_data`), under a seed of their own, so their ids are new and their users
and products are known. Among them are late rows, one malformed event (the landing tolerates 1%), and one file that is sent twice.
A file that is there is left as it is: a second demo finds nothing new. Files appear under their names when they are complete.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow
import pyarrow.parquet

from resources.demo_data import DemoLoad, DemoSize, FactTable, build_demo_select, demo_size
from resources.demo_rows import GROUP_EVENTS

LANDED_EVENTS = 6_000  # with them come about 300 order changes and 170 payments
_SPAN = timedelta(days=1)
_PIECES = 2
_BAD_EVENT = 7  # this row of the first piece says that its page was usable before it was asked for


class ArrowClient(Protocol):
    """The one call of a clickhouse-connect client that is needed here."""

    def query_arrow(self, query: str, /, *, parameters: Any = None) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFile:
    """One file below the landing folder of its source."""

    table: FactTable
    name: str
    content: bytes


def landing_load(*, rows: int, seed: int, start: datetime, end: datetime) -> DemoLoad:
    """What lands beside a demo of that many rows: the same users and products, the last day, another seed."""
    known = demo_size(rows)
    size = DemoSize(events=LANDED_EVENTS, users=known.users, products=known.products)
    return DemoLoad(size=size, seed=seed + 1, start=max(start, end - _SPAN), end=end)


def write_landing(client: ArrowClient, load: DemoLoad, roots: Mapping[FactTable, Path]) -> int:
    """Write the files that are not there yet, each below the root of its table; gives how many were written."""
    written = 0
    for file in build_files(client, load):
        path = roots[file.table] / file.name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.tmp")
        unfinished.write_bytes(file.content)
        unfinished.replace(path)
        written += 1
    return written


def build_files(client: ArrowClient, load: DemoLoad) -> Iterator[LandedFile]:
    """All files of a load, the same for the same load."""
    groups = load.size.events // GROUP_EVENTS
    events = client_rows(client, load, "events", load.size.events)
    for at, piece in enumerate(_pieces(events)):
        content = _parquet(_with_bad_event(piece) if at == 0 else piece)
        yield LandedFile(table="events", name=f"events-{at}.parquet", content=content)
    changes = [_jsonl(piece) for piece in _pieces(client_rows(client, load, "order_changes", groups))]
    for at, content in enumerate(changes):
        yield LandedFile(table="order_changes", name=f"order_changes-{at}.jsonl", content=content)
    yield LandedFile(table="order_changes", name="resent/order_changes-0.jsonl", content=changes[0])
    for at, piece in enumerate(_pieces(client_rows(client, load, "payments", groups))):
        yield LandedFile(table="payments", name=f"payments-{at}.csv", content=_csv(piece))


def client_rows(client: ArrowClient, load: DemoLoad, table: FactTable, count: int) -> Any:
    """All rows of a table as Arrow."""
    select, parameters = build_demo_select(load, table, 0, count)
    return client.query_arrow(select, parameters=parameters)


def _pieces(rows: Any) -> Iterator[Any]:
    size = -(-rows.num_rows // _PIECES)
    return (rows.slice(at * size, size) for at in range(_PIECES))


def _with_bad_event(rows: Any) -> Any:
    """The same rows, one of them with a negative time, which the table's UInt32 cannot hold."""
    values = rows.column("load_ms").to_pylist()
    values[_BAD_EVENT] = -1
    at = rows.schema.get_field_index("load_ms")
    return rows.set_column(at, "load_ms", pyarrow.array(values, pyarrow.int64()))


def _parquet(rows: Any) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(rows, buffer)
    return buffer.getvalue()


def _jsonl(rows: Any) -> bytes:
    return "".join(json.dumps(row, default=_text) + "\n" for row in rows.to_pylist()).encode()


def _csv(rows: Any) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=rows.schema.names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _text(value) for name, value in row.items()} for row in rows.to_pylist())
    return buffer.getvalue().encode()


def _text(value: Any) -> Any:
    """Moments with their zone; everything else as it prints."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
