"""What ClickHouse did by itself, told to Dagster: live partitions become runless materializations.

A materialized view streams without Dagster, so without this the UI would call full partitions missing. `sensors.live_partitions` tells
them bit by bit, the demo all at once. A partition whose last event is of a run is not told over it: the run's page says more. (An event costs
11–33 ms on SQLite, so only what changed is told, and what was told is asked once per partitioned asset and once for all others together.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import dagster as dg

from chmv_assets.core.cadence import PartitionScheme
from chmv_assets.core.names import QName
from chmv_assets.core.windows import ChPartition, Window, ch_partitions, partition_value
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator, NodeProps
from resources.clickhouse import Server
from resources.inner_tables import fetch_real_names, fetch_states
from resources.introspect import PartitionState, fetch_marks, fetch_partitions

DATA_VERSION = "dagster/data_version"
_OURS = "live-"  # how the versions of these events begin; those of runs are Dagster's own

Place = tuple[QName, str | None]  # an asset and its partition
States = Mapping[QName, tuple[PartitionState, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePartition:
    """One Dagster partition of one asset as it stands on the server."""

    name: QName
    table: QName  # which holds the rows: of a view, its target
    key: str | None
    rows: int
    version: str

    @property
    def place(self) -> Place:
        return self.name, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The last event that Dagster has of a partition."""

    event: int  # its place in the event log
    version: str | None  # of the content that was told; None if a run told it


def live_event(partition: LivePartition, translator: AssetTranslator) -> dg.AssetMaterialization:
    """What Dagster is told of a partition."""
    return dg.AssetMaterialization(
        translator.get_asset_key(partition.name),
        partition=partition.key,
        description="written by ClickHouse itself",
        metadata={"dagster/partition_row_count" if partition.key else "dagster/row_count": partition.rows},
        tags={DATA_VERSION: partition.version},
    )


@dataclass
class LivePartitions:
    """Finds the partitions of all sources and targets; a view is as full as its target."""

    pipeline: Pipeline
    props: Sequence[NodeProps]
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    _assets: dict[QName, list[NodeProps]] = field(default_factory=dict)  # by the table that holds their rows
    _windows: dict[dg.TimeWindowPartitionsDefinition, tuple[tuple[str, Window], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.props:
            if one.role in ("source", "target", "lookup", "view") and (table := _table(one)) is not None:
                self._assets.setdefault(table, []).append(one)

    def fetch(self, server: Server) -> States:
        """What the tables hold now. Two queries at most."""
        return fetch_states(server, self.pipeline.catalog, self._assets)

    def fetch_moved(self, server: Server, before: Mapping[QName, int]) -> tuple[dict[QName, int], list[LivePartition]]:
        """The marks of the tables now, and the partitions of those whose marks are not as `before`. Three queries at most, however many tables there are."""
        real = fetch_real_names(server, self.pipeline.catalog, self._assets)
        found, server_zone = fetch_marks(server, real.values())
        marks = {name: found[held] for name, held in real.items() if held in found}
        moved = {name: real[name] for name, mark in marks.items() if before.get(name) != mark}
        states = fetch_partitions(server, moved.values())
        held_now = {name: states[held] for name, held in moved.items() if held in states}
        return marks, list(self.find(held_now, server_zone))

    def find(self, states: States, server_zone: str) -> Iterator[LivePartition]:
        """The partitions of the assets whose tables are given."""
        for table, held in states.items():
            for one in self._assets[table]:
                spans = self._windows_of(one.partitions_def) if one.partitions_def is not None else ()
                yield from _of_node(self.pipeline, one, table, spans, held, server_zone)

    def _windows_of(self, definition: dg.TimeWindowPartitionsDefinition) -> tuple[tuple[str, Window], ...]:
        """Most assets share a definition, and Dagster needs long for the windows of its keys: worked out again when the open one is over."""
        known = self._windows.get(definition)
        if not known or known[-1][1].end <= self.now():
            known = self._windows[definition] = windows_of(definition)
        return known


def windows_of(definition: dg.TimeWindowPartitionsDefinition) -> tuple[tuple[str, Window], ...]:
    """The keys of a definition until now, each with its window."""
    keyed = ((key, definition.time_window_for_partition_key(key)) for key in definition.get_partition_keys())
    return tuple((key, Window(span.start, span.end)) for key, span in keyed)


def upstream_first(pipeline: Pipeline, partitions: Iterable[LivePartition]) -> list[LivePartition]:
    """In the order in which rows flow."""
    depth = {name: at for at, layer in enumerate(pipeline.catalog.layers()) for name in layer}
    return sorted(partitions, key=lambda partition: depth[partition.name])


def _table(props: NodeProps) -> QName | None:
    if props.role == "view":
        return props.node.target
    return props.node.name if props.node.kind in ("table", "inner_table") else None


def _of_node(
    pipeline: Pipeline,
    props: NodeProps,
    table: QName,
    windows: Iterable[tuple[str, Window]],
    states: Sequence[PartitionState],
    server_zone: str,
) -> Iterator[LivePartition]:
    name, scheme = props.node.name, pipeline.catalog.scheme(props.node.name)
    if props.partitions_def is None or scheme is None:
        yield LivePartition(
            name=name, table=table, key=None, rows=sum(state.rows for state in states), version=_version(states)
        )
        return
    places = _StatePlaces.of(states, scheme)
    for key, window in windows:
        wanted = ch_partitions(window, scheme, pipeline.settings.timezone, server_timezone=server_zone)
        if mine := [states[at] for at in places.select(wanted)]:
            yield LivePartition(name=name, table=table, key=key, rows=sum(s.rows for s in mine), version=_version(mine))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatePlaces:
    """Where the states of a period stand; finds what `select_states` does, without walking all states for each period."""

    by_id: Mapping[str, int]
    by_value: Mapping[str | None, Sequence[int]]

    @classmethod
    def of(cls, states: Sequence[PartitionState], scheme: PartitionScheme) -> _StatePlaces:
        by_value: dict[str | None, list[int]] = {}
        for at, state in enumerate(states):
            by_value.setdefault(partition_value(scheme, state.partition), []).append(at)
        return cls(by_id={state.partition_id: at for at, state in enumerate(states)}, by_value=by_value)

    def select(self, partitions: Iterable[ChPartition]) -> list[int]:
        """Places in the order of the states, which the versions depend on."""
        found: set[int] = set()
        for partition in partitions:
            if partition.partition_id is None:
                found.update(self.by_value.get(partition.value, ()))
            elif partition.partition_id in self.by_id:
                found.add(self.by_id[partition.partition_id])
        return sorted(found)


def _version(states: Iterable[PartitionState]) -> str:
    """Changes when rows come or go, not when parts merge."""
    text = "-".join(f"{s.partition_id}.{s.max_block}.{s.data_version}" for s in states)
    return _OURS + hashlib.sha256(text.encode()).hexdigest()[:16]


def fetch_told(
    instance: dg.DagsterInstance, places: Collection[Place], translator: AssetTranslator
) -> dict[Place, Told]:
    """What Dagster was told last of these places; those of which it knows nothing are left out."""
    keys: dict[QName, set[str]] = {}
    for name, key in places:
        if key is not None:
            keys.setdefault(name, set()).add(key)
    told = dict(_fetch_whole(instance, {name for name, key in places if key is None}, translator))
    storage, kind = instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION
    for name, wanted in keys.items():
        asset = translator.get_asset_key(name)
        # Asked for all of the asset's partitions: SQLite takes no list of any length.
        events = storage.get_latest_storage_id_by_partition(asset, kind)
        tags = storage.get_latest_tags_by_partition(asset, kind, tag_keys=[DATA_VERSION])
        for key in wanted & events.keys():
            told[name, key] = Told(event=events[key], version=_told_version(tags.get(key, {})))
    return told


def _fetch_whole(
    instance: dg.DagsterInstance, names: Collection[QName], translator: AssetTranslator
) -> Iterator[tuple[Place, Told]]:
    """Of assets without partitions, with one question for all."""
    by_key = {translator.get_asset_key(name): name for name in names}
    if not by_key:
        return
    for record in instance.get_asset_records(list(by_key)):
        last = record.asset_entry.last_materialization_record
        if last is not None and last.asset_materialization is not None:
            told = Told(event=last.storage_id, version=_told_version(last.asset_materialization.tags or {}))
            yield (by_key[record.asset_entry.asset_key], None), told


def _told_version(tags: Mapping[str, str]) -> str | None:
    version = tags.get(DATA_VERSION, "")
    return version if version.startswith(_OURS) else None
