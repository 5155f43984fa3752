"""What a target still holds although its source has forgotten it: computed anew it would be gone. Pure.

A source's TTL deletes its oldest rows, or somebody drops its old partitions; what views made of them lives on in targets. So a deployment that computes a
target anew leaves those partitions of it as they are that begin before the source's memory does. Where partitions do not tell, or where the target has to
become another table, it is left to people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.changes import Cutover
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.retention import forgotten_before, is_untold, kept_since, tell_retention
from chmv_assets.core.windows import Window, begins_before, ch_partitions

Partition = tuple[str, str, int]  # id, value as the server prints it, rows
_NEVER = datetime(9000, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where the memory of a target's sources begins."""

    source: QName  # the most forgetful of them
    since: datetime
    why: str  # in words that go behind its name
    is_timed: bool  # whether rows that are older are in partitions of the target that are older


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What of a target cannot be computed anew."""

    edge: Edge
    partitions: tuple[str, ...]  # their ids
    rows: int

    @property
    def why(self) -> str:
        return f"{self.edge.source} {self.edge.why}"


def find_edge(declared: Catalog, live: Mapping[QName, Object], target: QName, now: datetime) -> Edge | None:
    """Where the memory of a target's sources begins, if the target remembers for longer. TTLs are those of the `live` tables: they have deleted the rows."""
    kept = kept_since(live[target], now) if target in live else None
    found: list[Edge] = []
    for view in declared.views_into(target):
        trigger = declared.trigger_of(view.name)
        if trigger is None or view.kind != "materialized_view":
            continue
        source = live.get(trigger)
        since = forgotten_before(source, now) if source is not None else None
        if source is not None and since is not None and (kept is None or kept < since):
            is_timed = _goes_by_time(declared, view, source)
            found.append(Edge(source=trigger, since=since, why=tell_retention(source, since), is_timed=is_timed))
    if not found:
        return None
    return replace(max(found, key=lambda one: one.since), is_timed=all(one.is_timed for one in found))


def begin_of_rows(
    source: QName, oldest: datetime | None, scheme: PartitionScheme | None, zone: str, server_zone: str
) -> Edge:
    """Where the rows of a source begin, by its own partitions if they go by time: what is dropped of it by hand goes in these."""
    if oldest is None:
        return Edge(source=source, since=_NEVER, why="holds no rows", is_timed=True)
    since = oldest
    if scheme is not None:
        moment = Window(oldest, oldest + timedelta(microseconds=1))
        since = min(since, ch_partitions(moment, scheme, zone, server_timezone=server_zone)[0].start)
    return Edge(source=source, since=since, why=f"has no rows before {oldest:%Y-%m-%d %H:%M}", is_timed=True)


def is_older(
    edge: Edge, oldest: datetime | None, scheme: PartitionScheme, held: Iterable[Partition], zone: str, server_zone: str
) -> bool:
    """Whether a target holds a partition that ended before its sources begin: proof that they have lost rows."""
    if oldest is None:
        return any(rows for _, _, rows in held)
    moment = Window(oldest, oldest + timedelta(microseconds=1))
    first = ch_partitions(moment, scheme, zone, server_timezone=server_zone)[0].start
    return select_forgotten(replace(edge, since=first), scheme, held, zone, server_zone) is not None


def _goes_by_time(declared: Catalog, view: Object, source: Object) -> bool:
    """Whether the partitions of a view's target follow the time by which its source forgets: the same column, or that of the arrival, which is no earlier."""
    facts = declared.facts.get(view.name)
    made_of = facts.time_source if facts is not None and facts.time_expression else None
    if made_of is None or made_of.table != source.name:
        return False
    if is_untold(source.ttl):
        return False
    words = set(re.findall(r"\w+", source.ttl))
    ages = [column for column in source.columns if column.name in words]
    return bool(ages) and all(
        column.name == made_of.column or column.default.lower().startswith(("now(", "now64(")) for column in ages
    )


def select_forgotten(
    edge: Edge, scheme: PartitionScheme | None, held: Iterable[Partition], zone: str, server_zone: str
) -> Forgotten | None:
    """The partitions of a target that begin before its sources remember; all of them if that cannot be told. Nothing if there are none."""
    there = [one for one in held if one[2]]
    befores = [
        begins_before(scheme, value, edge.since, zone, server_zone) if scheme is not None and edge.is_timed else None
        for _, value, _ in there
    ]
    if None in befores:
        edge, befores = replace(edge, is_timed=False), [True] * len(there)
    lost = [one for one, before in zip(there, befores, strict=True) if before]
    if not lost:
        return None
    return Forgotten(edge=edge, partitions=tuple(key for key, _, _ in lost), rows=sum(rows for _, _, rows in lost))


def find_irrecoverable(forgotten: Mapping[QName, Forgotten], cutover: Cutover) -> str:
    """Why a cutover would lose what nothing can give back, as a sentence without its end; nothing if it would not."""
    for target in cutover.targets:
        lost = forgotten.get(target)
        if lost is None:
            continue
        if target in cutover.storage:
            return (
                f"{target} has to become another table, but {lost.why}, and {len(lost.partitions)} partition(s) of {target} with {lost.rows} rows reach "
                "further back: they would be gone. Make the new table under another name, with a view of its own"
            )
        if not lost.edge.is_timed:
            return (
                f"{target} would be computed anew, but {lost.why}, and the partitions of {target} do not tell which of its {lost.rows} rows are older: they "
                "would be gone. Make a target under another name for the new query, or change view and rows by hand"
            )
    return ""
