"""Which windows of a target there are to compare: from the oldest to the newest row of the target and of what its views read.

A window in which the source has rows and the target has none is one of them: a lost partition must not be passed over.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.ddl_reader import view_of_inner
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.rebuild import covered_window
from chmv_assets.core.truncation import parse_time_type
from chmv_assets.core.windows import Window, next_period_start, period_start, scheme_zone
from resources.clickhouse import Server

MAX_WINDOWS = 2000
_NO_TIME = timedelta(0)


class TooManyWindows(ChmvError):
    """More windows than one call compares."""

    def __init__(self, target: QName, found: int) -> None:
        super().__init__(
            f"target {target}: found {found} windows but wanted at most {MAX_WINDOWS}. Each one is a query. "
            "Name a part of them with --window A..B."
        )


def fetch_windows(
    server: Server, catalog: Catalog, target: Object, window: Window | None, zone: str
) -> tuple[Window | None, ...]:
    """The target's windows inside `window`, or all; `(None,)` for a target that can only be compared as a whole."""
    scheme = catalog.schemes.get(target.name)
    views = catalog.views_into(target.name)
    if scheme is None or not views or any(view.kind == "refreshable_view" for view in views):
        return (None,)
    server_zone = server.timezone
    asked = window or _fetch_span(server, catalog, target, zone, server_zone)
    if asked is None:
        return ()
    _, partitions = covered_window(scheme, asked, zone, server_zone)
    if len(partitions) > MAX_WINDOWS:
        raise TooManyWindows(target.name, len(partitions))
    return tuple(Window(partition.start, partition.end) for partition in partitions)


def newest_closed(catalog: Catalog, target: Object, now: datetime, zone: str, server_zone: str) -> Window | None:
    """The last window that has ended; None for a target without time partitions."""
    scheme = catalog.schemes.get(target.name)
    if scheme is None:
        return None
    where = scheme_zone(scheme, zone, server_zone)
    end = period_start(now, scheme.unit, where, scheme.week_mode)
    start = period_start(
        datetime.fromtimestamp(end.timestamp() - 1, timezone.utc), scheme.unit, where, scheme.week_mode
    )
    return Window(start, next_period_start(start, scheme.unit, where))


def _fetch_span(server: Server, catalog: Catalog, target: Object, zone: str, server_zone: str) -> Window | None:
    """From the first to the last moment that the target or a source has rows of."""
    scheme = catalog.schemes[target.name]
    where = scheme_zone(scheme, zone, server_zone)
    held = view_of_inner(target.name) if target.kind == "inner_table" else target.name  # shows what is hidden behind it
    moments = fetch_ends(server, held, scheme.column, scheme.column_type, where)
    for view in catalog.views_into(target.name):
        made_of = catalog.facts[view.name].time_source if view.name in catalog.facts else None
        source = catalog.objects.get(made_of.table) if made_of is not None else None
        column = source.column(made_of.column) if source is not None and made_of is not None else None
        is_time = column is not None and parse_time_type(column.type) is not None
        if source is not None and column is not None and is_time and source.engine.endswith("MergeTree"):
            ends = fetch_ends(server, source.name, column.name, column.type, where)
            # A day of the view may be that of another zone than the window's.
            margin = (
                timedelta(days=1)
                if scheme.is_date and _zone_of(column.type, server_zone) not in ("", where)
                else _NO_TIME
            )
            moments += [at + shift for at in ends for shift in (-margin, margin)]
    if not moments:
        return None
    last = period_start(max(moments), scheme.unit, where, scheme.week_mode)
    return Window(min(moments), next_period_start(last, scheme.unit, where))


def _zone_of(kind: str, server_zone: str) -> str:
    """The zone in which a column's instants have days; nothing for a column of days."""
    time_type = parse_time_type(kind)
    if time_type is None or time_type.is_date:
        return ""
    return time_type.timezone or server_zone


def fetch_ends(server: Server, table: QName, column: str, kind: str, zone: str) -> list[datetime]:
    """The first and the last moment of a table's column; nothing if it has no rows."""
    time_type = parse_time_type(kind)
    name = quote_identifier(column)
    if time_type is not None and time_type.is_date:
        rows = server.rows(f"SELECT count(), toString(min({name})), toString(max({name})) FROM {table.sql}")
        days = [date.fromisoformat(str(day)) for day in rows[0][1:]] if rows[0][0] else []
        return [datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)) for day in days]
    rows = server.rows(
        f"SELECT count(), toUnixTimestamp64Micro(toDateTime64(min({name}), 6)), toUnixTimestamp64Micro(toDateTime64(max({name}), 6)) FROM {table.sql}"
    )
    return [datetime.fromtimestamp(int(at) / 1e6, timezone.utc) for at in rows[0][1:]] if rows[0][0] else []
