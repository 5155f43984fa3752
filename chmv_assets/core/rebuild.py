"""What rebuilding one window of a target means, as data and SQL text. Pure; `resources.rebuild` carries it out.

A feed runs the view's own SELECT, restricted to a window: exactly by a condition on the output column that the target is
partitioned by, and cheaply by a filter on the source column it comes from, where that selects the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from chmv_assets.core.cadence import PartitionScheme, narrows
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import RebuildRefused, SourceForgot
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.retention import forgotten_before, kept_since, tell_retention
from chmv_assets.core.truncation import NotTruncationError, parse_time_type, read_truncation
from chmv_assets.core.windows import ChPartition, Window, ch_partitions, scheme_zone, window_predicate

SCRATCH_DATABASE = OWN_DATABASE
_ROWLESS = ("null", "queue", "external", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One view's share of one window."""

    view: Object
    target: Object
    source: Object
    window: Window | None  # None: the whole target
    time_column: str  # output column of the window's condition, or ""
    source_filter: str  # SQL condition on the source that selects the same rows, or ""
    source_time: tuple[str, str] | None = None  # name and type of the source column in that condition
    archive: QName | None = None  # read this table of the source's shape instead: rows replayed from landing files

    @property
    def reads(self) -> QName:
        """The table that the share is computed from."""
        return self.archive or self.source.name

    @property
    def select(self) -> str:
        """The view's own SELECT, or the same over the archive."""
        if self.archive is None:
            return self.view.select
        from chmv_assets.core.retarget import retarget  # brings sqlglot along, which loading the location must not

        return retarget(self.view, self.source.name, self.archive)


def scratch_name(target: QName, view: QName | None) -> QName:
    """The table in which a view's share, or (without a view) the union of all shares, is built."""
    share = f".{view.database}.{view.table}" if view is not None else ""
    return QName(SCRATCH_DATABASE, f"scratch.{target.database}.{target.table}{share}")


def covered_window(
    scheme: PartitionScheme | None, window: Window | None, zone: str, server_zone: str
) -> tuple[Window | None, tuple[ChPartition, ...]]:
    """The window widened to whole ClickHouse partitions, and these partitions."""
    if scheme is None or window is None:
        return None, ()
    partitions = ch_partitions(window, scheme, zone, server_timezone=server_zone)
    return Window(partitions[0].start, partitions[-1].end), partitions


def plan_feed(
    catalog: Catalog,
    view: Object,
    window: Window | None,
    zone: str,
    server_zone: str,
    now: datetime,
    archive: QName | None = None,
    *,
    partly: bool = False,
) -> Feed:
    """Plan how a view's share of a window is computed from its source (or its archive), or refuse with the reason.

    Who asks for all of a target, and leaves alone what its source has forgotten, is content with what the source has: `partly`.
    """
    target = catalog.objects[view.target] if view.target is not None else view
    trigger = catalog.trigger_of(view.name)
    source = catalog.objects.get(trigger) if trigger is not None else None
    if source is None or trigger is None:
        raise RebuildRefused(
            f"view {view.name}: found no table that fires it but wanted one to read from. "
            f"{'Its SELECT could not be parsed. ' if view.reader != 'full' else ''}Rebuild it by hand."
        )
    if archive is None:
        _require_rows(view, source)
        _require_parts(view, source, "whose parts tell of every insert")
    _require_parts(view, target, "whose partitions can be replaced")
    scheme = catalog.schemes.get(target.name)
    if window is None or scheme is None:
        if archive is None and not partly:
            _refuse_forgotten(view, source, target, now)
        return Feed(
            view=view, target=target, source=source, window=None, time_column="", source_filter="", archive=archive
        )
    if archive is None:
        _refuse_expired(view, source, window, now)
    source_time = find_source_time(catalog, view, source, scheme, zone, server_zone)
    return Feed(
        view=view,
        target=target,
        source=source,
        window=window,
        time_column=scheme.column,
        source_filter=_time_filter(source_time, window, zone) if source_time else "",
        source_time=source_time,
        archive=archive,
    )


def needs_replay(source: Object, window: Window | None, now: datetime) -> str:
    """Why a window cannot be computed from its source any more, in a few words; nothing if it can.

    >>> from chmv_assets.core.model import Place
    >>> null = Object(name=QName("d", "s"), kind="null", engine="Null", place=Place("x.sql", 1), sql="")
    >>> needs_replay(null, None, datetime(2026, 1, 1))
    'd.s is a Null table'
    """
    if source.kind in _ROWLESS:
        return f"{source.name} is {_article(source)}"
    oldest = forgotten_before(source, now)
    if oldest is not None and window is not None and window.start < oldest:
        return f"{source.name} {tell_retention(source, oldest)} and the window starts {window.start:%Y-%m-%d %H:%M}"
    return ""


def _require_rows(view: Object, source: Object) -> None:
    if source.kind == "inner_table":
        raise RebuildRefused(
            f"view {view.name}: reads the hidden inner table of another view but wanted a source with a name. That name changes when the "
            "other view is created anew. Give the other view a target with TO."
        )
    if source.kind in _ROWLESS:
        raise RebuildRefused(
            f"view {view.name}: its source {source.name} is {_article(source)} but wanted a table that holds its rows. "
            "A rebuild from it would give nothing and replace what is there. Replay it from the landing archive (`--feed replay`)."
        )


def _time_filter(source_time: tuple[str, str], window: Window, zone: str) -> str:
    name, kind = source_time
    return window_predicate(quote_identifier(name), kind, window, zone)


def split_feed(feed: Feed, pieces: int, zone: str) -> tuple[Feed, ...]:
    """The same share in pieces of time, whose results add up; only where the class of the view allows it.

    What a piece reads is narrower; what it may give is not, since a view may shift times within the window.
    """
    if feed.window is None or feed.source_time is None or pieces <= 1:
        return (feed,)
    step = feed.window.seconds / pieces
    starts = [feed.window.start + timedelta(seconds=round(step * at)) for at in range(pieces)] + [feed.window.end]
    windows = [Window(start, end) for start, end in itertools.pairwise(starts) if start < end]
    return tuple(replace(feed, source_filter=_time_filter(feed.source_time, window, zone)) for window in windows)


def _require_parts(view: Object, table: Object, use: str) -> None:
    """Every protocol stands on parts and partitions."""
    if not table.engine.endswith("MergeTree"):
        raise RebuildRefused(
            f"view {view.name}: {table.name} is {table.engine or table.kind} but wanted a MergeTree table, {use}. "
            "Without that a rebuild cannot be verified. Rebuild it by hand."
        )


def _article(source: Object) -> str:
    return {"null": "a Null table", "queue": f"a {source.engine} queue", "function": "a table function"}.get(
        source.kind, "not declared here"
    )


def _refuse_expired(view: Object, source: Object, window: Window, now: datetime) -> None:
    oldest = forgotten_before(source, now)
    if oldest is not None and window.start < oldest:
        raise SourceForgot(
            f"view {view.name}: the window starts {window.start:%Y-%m-%d %H:%M} but {source.name} {tell_retention(source, oldest)}. "
            "A rebuild would replace complete numbers by partial ones. Replay it from the landing archive (`--feed replay`)."
        )


def _refuse_forgotten(view: Object, source: Object, target: Object, now: datetime) -> None:
    """All of a target cannot come from a source that forgets sooner than it."""
    oldest, kept = forgotten_before(source, now), kept_since(target, now)
    if oldest is not None and (kept is None or kept < oldest):
        raise SourceForgot(
            f"view {view.name}: all of {target.name} was asked for but {source.name} {tell_retention(source, oldest)}. "
            "A rebuild would replace complete numbers by partial ones. Rebuild windows that it still holds, or replay it from the "
            "landing archive (`--feed replay`)."
        )


def find_source_time(
    catalog: Catalog, view: Object, source: Object, scheme: PartitionScheme, zone: str, server_zone: str
) -> tuple[str, str] | None:
    """The source column by which a window of the target selects the same rows, if there is one."""
    facts = catalog.facts[view.name]
    if facts.time_source is None or facts.time_source.table != source.name:
        return None
    column = source.column(facts.time_source.column)
    if column is None or not facts.time_expression:
        return None
    try:
        truncation = read_truncation(facts.time_expression, {c.name: c.type for c in source.columns})
    except NotTruncationError:
        return None
    holds_days = _is_date(column.type)
    if holds_days and not scheme.is_date:  # becomes an instant on the way, in a zone that only the server knows
        return None
    if truncation.unit is None and scheme.is_date:  # an instant that the target's Date column cuts to its day
        truncation = replace(truncation, unit="day")
    same = narrows(
        truncation,
        scheme.unit,
        window_timezone=scheme_zone(scheme, zone, server_zone),
        column_timezone=truncation.timezone or (zone if holds_days else server_zone),
        window_week_mode=scheme.week_mode,
    )
    return (column.name, column.type) if same else None


def _is_date(column_type: str) -> bool | None:
    """Whether a type holds days; None for one that holds no time."""
    time_type = parse_time_type(column_type)
    return time_type.is_date if time_type is not None else None


def render_feed(feed: Feed, into: QName, outputs: Sequence[tuple[str, str]], held: Sequence[str], zone: str) -> str:
    """The INSERT that fills a scratch table: columns go by name, as the trigger itself does it."""
    columns = ", ".join(quote_identifier(name) for name, _ in outputs if name in set(held))
    return f"INSERT INTO {into.sql} ({columns}) {render_share(feed, outputs, held, zone)}"


def render_share(feed: Feed, outputs: Sequence[tuple[str, str]], held: Sequence[str], zone: str) -> str:
    """The SELECT of a feed: what a rebuild inserts, without inserting it."""
    columns = ", ".join(quote_identifier(name) for name, _ in outputs if name in set(held))
    if not columns:
        raise RebuildRefused(
            f"view {feed.view.name}: none of its columns is in {feed.target.name}. Nothing could be inserted. Fix the view."
        )
    where = ""
    if feed.window is not None:
        kind = dict(outputs).get(feed.time_column)
        if kind is None:
            raise RebuildRefused(
                f"view {feed.view.name}: does not give {feed.time_column}, by which {feed.target.name} is partitioned. "
                "Its rows cannot be told by window. Select that column, or rebuild the whole target."
            )
        column = feed.target.column(feed.time_column)
        value = quote_identifier(feed.time_column)
        if column is not None and _is_date(column.type) != _is_date(kind):  # the INSERT converts, so must the condition
            value, kind = f"CAST({value}, {quote_string(column.type)})", column.type
        where = f" WHERE {window_predicate(value, kind, feed.window, zone)}"
    return f"SELECT {columns} FROM ({feed.select}){where}"


def with_parts(source_filter: str, parts: Sequence[str] | None, partitions: Sequence[str] | None = None) -> str:
    """A source filter that also names the parts, or the partitions, to read; None: all of them.

    >>> with_parts("d = 1", ["a", "b"]), with_parts("", None, ["202611"])
    ("(d = 1) AND _part IN ('a', 'b')", "_partition_id IN ('202611')")
    """
    conditions = [f"({source_filter})"] if source_filter else []
    for column, values in (("_part", parts), ("_partition_id", partitions)):
        if values is not None:
            conditions.append(f"{column} IN ({', '.join(quote_string(value) for value in values)})")
    return source_filter if len(conditions) == 1 and source_filter else " AND ".join(conditions)
