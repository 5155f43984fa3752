"""What a doctor's rules look at: the declared pipeline and what the server said. Plain data; `resources.doctor` reads it.

A fact that could not be read is in `unread`, and rules pass over what they do not know: "cannot tell" is never "all is well".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from chmv_assets.core.capabilities import is_replicated, read_setting
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from chmv_assets.core.thresholds import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as it holds for our user, and between what that user may change it."""

    value: str
    lowest: str | None = None
    highest: str | None = None
    is_fixed: bool = False  # a profile says CONST or READONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    name: str
    free_bytes: int
    total_bytes: int
    is_object_storage: bool = False
    is_read_only: bool = False
    is_broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One line of SHOW GRANTS; a REVOKE takes from what other lines give."""

    privileges: frozenset[str]
    scope: str  # `*.*`, `database.*`, `database.table`, or `*` for privileges of the server
    with_option: bool = False
    is_revoke: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTable:
    """A declared table as it is on the server."""

    name: QName
    engine: str
    engine_full: str = ""
    storage_policy: str = ""
    partitions: int = 0
    months: int = 0  # how many months its partitions span; 0 when they tell no time
    largest_partition_bytes: int = 0
    broken_parts: tuple[str, ...] = ()
    detached_parts: tuple[str, ...] = ()
    replicas: int = 0  # known to Keeper; 0 for a table that is not replicated
    active_replicas: int = 0
    is_readonly: bool = False

    def number(self, setting: str, default: int) -> int:
        """A number of its own SETTINGS, else the default."""
        return read_setting(self.engine_full, setting, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How many target partitions a view makes of what one insert brings: recent rows of as many source partitions as an insert touches."""

    view: QName
    source: QName
    target: QName
    part: str  # the newest one
    rows: int
    partitions: int  # distinct partitions of the target that these rows give
    touched: int = 1  # partitions of the source in one insert, as the part log saw
    seen: int | None = None  # the most partitions of the target that an insert really made in the last day
    refused: int = 0  # inserts of the last day that made too many

    @property
    def per_insert(self) -> int:
        """What really happened counts more than a sample of whole parts, unless inserts were refused."""
        return self.partitions if self.seen is None or self.refused else min(self.partitions, self.seen)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything at once."""

    catalog: Catalog
    settings: Settings
    user: str = ""
    is_own_engine: bool = False  # the server that chmv itself started, as its only user
    version: str = ""
    clock_skew_seconds: float = 0  # the server's clock ahead of ours, beyond what the round trip explains
    cores: int = 0
    memory_bytes: int = 0
    session: Mapping[str, Setting] = field(default_factory=dict)
    merge_tree: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    pool_tasks: int = 0
    pool_size: int = 0
    pool_peak: int | None = None  # most tasks at once in the last day, where the server keeps its metrics
    delayed_inserts: int = 0
    rejected_inserts: int = 0
    missing_logs: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()
    policies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # storage policy → disks
    grants: tuple[Grant, ...] | None = None
    parents: Mapping[str, str] = field(default_factory=dict)  # privilege → the group that has it
    tables: Mapping[QName, LiveTable] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    untried: tuple[tuple[QName, str], ...] = ()  # views whose SELECT could not be run over a sample, and why
    unread: tuple[tuple[str, str], ...] = ()  # what could not be read, and why

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    def value(self, name: str) -> str:
        """A setting of our session; nothing if the server does not know it."""
        found = self.session.get(name)
        return found.value if found is not None else ""

    def number(self, name: str, default: float = 0) -> float:
        """A setting of our session as a number."""
        return read_number(self.value(name), default)

    def merge_tree_number(self, name: str, default: int) -> int:
        return int(read_number(self.merge_tree.get(name, ""), default))

    @cached_property
    def reached(self) -> Mapping[QName, tuple[QName, ...]]:
        """Source → the MergeTree tables that one insert into it writes: itself and everything behind its views."""
        hooks: dict[QName, list[QName]] = {}
        targets: set[QName] = set()
        for name, made in self.catalog.objects.items():
            trigger = self.catalog.trigger_of(name) if made.kind == "materialized_view" else None
            if trigger is not None and made.target is not None:
                hooks.setdefault(trigger, []).append(made.target)
                targets.add(made.target)
        return {source: self._walk(source, hooks) for source in hooks if source not in targets}

    def _walk(self, source: QName, hooks: Mapping[QName, list[QName]]) -> tuple[QName, ...]:
        found: dict[QName, None] = {source: None}
        waiting = [source]
        while waiting:
            for target in hooks.get(waiting.pop(), ()):
                if target not in found:
                    found[target] = None
                    waiting.append(target)
        return tuple(name for name in found if self.is_merge_tree(name))

    def is_merge_tree(self, name: QName) -> bool:
        made = self.catalog.objects.get(name)
        return made is not None and bool(family(made.engine))

    @property
    def fan_out(self) -> int:
        """The most tables that one insert writes."""
        return max((len(tables) for tables in self.reached.values()), default=0)

    @property
    def wanted_pool(self) -> int:
        """Merges that must be able to run side by side."""
        return max(2, math.ceil(self.limits.pool_per_table * self.fan_out))

    @property
    def replicated(self) -> tuple[LiveTable, ...]:
        return tuple(table for table in self.tables.values() if is_replicated(table.engine))


def read_number(text: str, default: float = 0) -> float:
    """A number as the server prints it.

    >>> read_number("auto(2)", 4), read_number("600000"), read_number("")
    (4, 600000.0, 0)
    """
    try:
        return float(text)
    except ValueError:
        return default
