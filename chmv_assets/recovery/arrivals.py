"""Which windows an outage has touched: those of the rows that arrived meanwhile in the table that fires the view.

Rows are found by the parts that changed since (merges change parts too, so it is a superset), by their arrival where that is declared,
and placed by the time that the view makes the target's time of. Where that is not known the view itself is asked what it gives for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier, quote_map, quote_string
from chmv_assets.core.recovery import moment
from chmv_assets.core.truncation import parse_time_type
from chmv_assets.core.windows import Window, ch_partitions, window_of_key
from chmv_assets.recovery.site import RecoverySite
from resources.inner_tables import fetch_real_names
from resources.introspect import fetch_running_inserts

MARGIN_MS = 60_000  # parts have times in whole seconds, and an insert that began before may have ended after
DRAIN_SECONDS = 120.0
_SLICE = timedelta(minutes=15)  # every zone's offset is a multiple of it
_MANY_PARTS = 5_000


def drain_inserts(site: RecoverySite, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until every insert has ended that may not know of what we just changed: it fixed its list of views when it began."""
    waiting = fetch_running_inserts(site.server, site.journal.cluster)
    deadline = site.clock() + DRAIN_SECONDS
    while waiting & fetch_running_inserts(site.server, site.journal.cluster):
        if site.clock() > deadline:
            raise RecoveryFailed(
                f"repair: found {len(waiting)} insert(s) that run for more than {DRAIN_SECONDS:.0f} s but wanted them done. They began before the "
                "repair and their rows would be missed. It is tried again by itself."
            )
        sleep(0.05)


@dataclass(frozen=True, slots=True)
class Changed:
    """What changed in a table since a moment: whether anything did, and the parts that did not."""

    is_any: bool
    old_parts: tuple[str, ...] | None  # None: too many to name, or no moment is known

    def where(self, condition: str = "") -> str:
        """SQL that leaves the old parts out. What is new is never named: merges give it other names between two queries.

        >>> Changed(True, ("a_1_1_0",)).where("d = 1")
        "(d = 1) AND _part NOT IN ('a_1_1_0')"
        """
        old = ", ".join(quote_string(name) for name in self.old_parts or ())
        return " AND ".join([*([f"({condition})"] if condition else []), *([f"_part NOT IN ({old})"] if old else [])])


def fetch_changed(site: RecoverySite, table: QName, since_ms: int | None) -> Changed:
    """What changed since a moment, with a margin."""
    since = 0 if since_ms is None else (since_ms - MARGIN_MS) // 1000
    rows = site.server.rows(
        "SELECT countIf(active AND toUnixTimestamp(modification_time) >= {since:Int64}), "
        f"groupArrayIf({_MANY_PARTS + 1})(name, toUnixTimestamp(modification_time) < {{since:Int64}}) "
        "FROM system.parts WHERE database = {d:String} AND table = {t:String}",
        {"d": table.database, "t": table.table, "since": since},
    )
    young, old = int(rows[0][0]), tuple(sorted(str(name) for name in rows[0][1]))
    return Changed(young > 0, old if since_ms is not None and len(old) <= _MANY_PARTS else None)


def find_windows(site: RecoverySite, view: Object, since_ms: int | None, *, by_arrival: bool = True) -> list[Window]:
    """The windows that a view has to be given again, newest first; none: nothing arrived.

    The declared arrival narrows them down; not `by_arrival` gives all windows of parts that changed, for who does not trust it.
    """
    catalog = site.pipeline.catalog
    trigger = catalog.trigger_of(view.name)
    if trigger is None or view.target is None:
        return []
    if not catalog.objects[trigger].engine.endswith("MergeTree"):
        site.did(f"{trigger} keeps no rows, so the time of the outage itself is repaired")
        start = 0 if since_ms is None else since_ms - MARGIN_MS
        return [Window(moment(start), moment(site.now_ms() + MARGIN_MS))]
    stored = fetch_real_names(site.server, catalog, [trigger])[trigger]
    changed = fetch_changed(site, stored, since_ms)
    if not changed.is_any:
        return []
    if view.target not in catalog.schemes:
        return [Window(moment(0), moment(site.now_ms() + MARGIN_MS))]  # it is rebuilt as a whole
    column = _time_column(site, view, trigger)
    if column is not None:
        arrived = _arrived(site, trigger, since_ms) if by_arrival else ""
        return _by_column(site, stored, column, changed.where(arrived))
    return _by_view(site, view, stored, changed.where())


def _time_column(site: RecoverySite, view: Object, trigger: QName) -> tuple[str, str] | None:
    """The trigger's column of which the target's time is made, with its type."""
    catalog = site.pipeline.catalog
    found = catalog.facts[view.name].time_source if view.name in catalog.facts else None
    if found is None or found.table != trigger:
        return None
    column = catalog.objects[trigger].column(found.column)
    return (column.name, column.type) if column is not None and parse_time_type(column.type) is not None else None


def _arrived(site: RecoverySite, trigger: QName, since_ms: int | None) -> str:
    """The condition on the arrival, where it is declared."""
    arrival = site.pipeline.settings.policy(trigger).arrival
    if arrival is None or since_ms is None:
        return ""
    return f"{quote_identifier(arrival)} >= fromUnixTimestamp64Milli({since_ms - MARGIN_MS})"


def _by_column(site: RecoverySite, table: QName, column: tuple[str, str], where: str) -> list[Window]:
    sql = f"SELECT DISTINCT {_slice_sql(*column)} FROM {table.sql}" + (f" WHERE {where}" if where else "")
    return _windows(site, column[1], site.server.rows(sql))


def _by_view(site: RecoverySite, view: Object, table: QName, where: str) -> list[Window]:
    assert view.target is not None
    scheme = site.pipeline.catalog.schemes[view.target]
    settings: dict[str, Any] = {"database": view.session_database} if view.session_database else {}
    if where:
        settings["additional_table_filters"] = quote_map({f"{table.database}.{table.table}": where})
    value = f"CAST({quote_identifier(scheme.column)}, {quote_string(scheme.column_type)})"
    rows = site.server.rows(
        f"SELECT DISTINCT {_slice_sql(value, scheme.column_type, quoted=True)} FROM ({view.select})", settings=settings
    )
    return _windows(site, scheme.column_type, rows)


def _slice_sql(column: str, column_type: str, *, quoted: bool = False) -> str:
    value = column if quoted else quote_identifier(column)
    time_type = parse_time_type(column_type)
    if time_type is not None and time_type.is_date:
        return f"toString({value})"
    return f"intDiv(toUnixTimestamp(toDateTime({value}, 'UTC')), {int(_SLICE.total_seconds())})"


def _windows(site: RecoverySite, column_type: str, rows: Sequence[tuple[Any, ...]]) -> list[Window]:
    time_type = parse_time_type(column_type)
    if time_type is not None and time_type.is_date:
        zone = site.pipeline.settings.timezone
        return sorted((window_of_key(str(day), "day", zone) for (day,) in rows), reverse=True)
    starts = [moment(int(number) * int(_SLICE.total_seconds()) * 1000) for (number,) in rows]
    return sorted((Window(start, start + _SLICE) for start in starts), reverse=True)


def window_of_partition(scheme: PartitionScheme, partition_id: str, zone: str, server_zone: str) -> Window | None:
    """The window of a ClickHouse partition's id; None where the id does not tell.

    >>> from chmv_assets.core.cadence import parse_scheme
    >>> from chmv_assets.core.model import Column
    >>> scheme = parse_scheme("toYYYYMM(day)", (Column(name="day", type="Date"),))
    >>> str(window_of_partition(scheme, "202611", "UTC", "UTC"))
    '[2026-11-01 00:00:00, 2026-12-01 00:00:00) UTC'
    """
    guess = _guess(scheme, partition_id)
    if guess is None:
        return None
    around = Window(guess - timedelta(hours=26), guess + timedelta(hours=26))  # whatever the zone
    found = [
        one for one in ch_partitions(around, scheme, zone, server_timezone=server_zone) if one.partition_id == partition_id
    ]  # fmt: skip
    return Window(found[0].start, found[0].end) if found else None


def _guess(scheme: PartitionScheme, text: str) -> datetime | None:
    forms = {"yyyymm": "%Y%m", "yyyymmdd": "%Y%m%d", "year": "%Y", "date": "%Y%m%d"}
    try:
        if scheme.value_type in forms:
            return datetime.strptime(text, forms[scheme.value_type]).replace(tzinfo=timezone.utc)
        if scheme.value_type == "date32":
            return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(days=int(text))
        return datetime.fromtimestamp(int(text), timezone.utc) if scheme.value_type == "datetime" else None
    except (ValueError, OverflowError, OSError):
        return None
