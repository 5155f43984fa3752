"""How chmv's own tables are spelled and written: one renderer for a single server and for a cluster. Pure text.

Without a cluster the engine is ReplacingMergeTree; with one it is its Replicated form with ON CLUSTER and a Keeper path
of that cluster, so that every replica sees every row. What the tables mean belongs to `batches`, `watermarks` and
`journal_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.quorum import JOURNAL_QUORUM

OWN_DATABASE = "chmv"
REPLICA_NAME = "'{shard}-{replica}'"
_KEEPER_ROOT = "/clickhouse/chmv"
_WINDOW = 10_000
_NARROW = "LowCardinality("


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement with its bound values and settings."""

    sql: str
    parameters: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTable:
    """A journal of records: its columns are said once, for CREATE, INSERT and SELECT. After them come the record's version and its moment."""

    name: QName
    columns: Mapping[str, str]  # name → type
    key: tuple[str, ...]
    moment: str = "updated_at"
    moment_digits: int = 6

    @property
    def sql(self) -> str:
        return self.name.sql

    @property
    def selected(self) -> str:
        """The columns of a record, as a list for SELECT and INSERT."""
        return ", ".join([*self.columns, "version"])

    def render_create(self, cluster: str = "") -> str:
        """The CREATE statement."""
        now = f"{self.moment} DateTime64({self.moment_digits}, 'UTC') DEFAULT now64({self.moment_digits}, 'UTC')"
        columns = [*(f"{name} {kind}" for name, kind in self.columns.items()), "version UInt64", now]
        return render_own_table(self.name, columns, self.key, cluster)

    def render_insert(
        self, values: Sequence[Any], cluster: str = "", settings: Mapping[str, Any] | None = None
    ) -> Statement:
        """Note one record, its values in the order of the columns and its version last; of a key the highest version counts."""
        kinds = {**self.columns, "version": "UInt64"}
        bound = ", ".join(f"{{{name}:{_bound(kind)}}}" for name, kind in kinds.items())
        return Statement(
            sql=f"INSERT INTO {self.sql} ({self.selected}) SELECT {bound}",
            parameters=dict(zip(kinds, values, strict=True)),
            settings={**write_settings(cluster), **(settings or {})},
        )


def _bound(kind: str) -> str:
    """The type by which a value of a column travels.

    >>> _bound("LowCardinality(String)"), _bound("Int64")
    ('String', 'Int64')
    """
    return kind[len(_NARROW) : -1] if kind.startswith(_NARROW) else kind


def on_cluster(cluster: str) -> str:
    """The ON CLUSTER clause with a leading blank, or nothing.

    >>> on_cluster("main"), on_cluster("")
    (' ON CLUSTER `main`', '')
    """
    return f" ON CLUSTER {quote_identifier(cluster)}" if cluster else ""


def render_own_table(name: QName, columns: Sequence[str], order_by: Sequence[str], cluster: str = "") -> str:
    """A CREATE statement for a table that keeps the row of the highest `version` per key and deduplicates by token."""
    return (
        f"CREATE TABLE IF NOT EXISTS {name.sql}{on_cluster(cluster)} ({', '.join(columns)}) "
        f"ENGINE = {_engine(name, cluster)} ORDER BY ({', '.join(order_by)})"
        + (
            "" if cluster else f" SETTINGS non_replicated_deduplication_window = {_WINDOW}"
        )  # replicated ones have it by default
    )


def _engine(name: QName, cluster: str) -> str:
    if not cluster:
        return "ReplacingMergeTree(version)"
    return f"ReplicatedReplacingMergeTree({keeper_path(cluster, 'tables', name.table)}, {REPLICA_NAME}, version)"


def keeper_path(cluster: str, kind: str, name: str) -> str:
    """Where a table of ours is in Keeper, as a literal: each cluster has a journal of its own, and a cluster is one shard.

    >>> keeper_path("main", "tables", "batches")
    "'/clickhouse/chmv/main/tables/batches'"
    """
    return quote_string(f"{_KEEPER_ROOT}/{cluster}/{kind}/{name}")


def write_settings(cluster: str = "") -> Mapping[str, Any]:
    """Settings of an INSERT into an own table: at once, and on a cluster only when a majority has it."""
    return {"async_insert": 0, **(JOURNAL_QUORUM.settings if cluster else {})}


def read_settings(cluster: str = "") -> Mapping[str, Any]:
    """Settings of a SELECT from an own table: on a cluster it sees every write that reached its quorum."""
    return {"select_sequential_consistency": 1} if cluster else {}
