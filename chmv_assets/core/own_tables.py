"""How chmv's own tables are spelled: one renderer for a single server and for a cluster. Pure text.

Without a cluster the engine is ReplacingMergeTree; with one it is its Replicated form with ON CLUSTER and a Keeper path
that all shards share, so that every node sees every row. What the tables mean belongs to `batches`, `watermarks` and
`journal_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chmv_assets.core.names import QName, quote_identifier

OWN_DATABASE = "chmv"
_KEEPER_ROOT = "/clickhouse/chmv"
_WINDOW = 10_000


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
    return f"ReplicatedReplacingMergeTree('{_KEEPER_ROOT}/tables/{name.table}', '{{shard}}-{{replica}}', version)"


def write_settings(cluster: str = "") -> Mapping[str, Any]:
    """Settings of an INSERT into an own table: at once, and on a cluster only when a majority has it."""
    quorum = {"insert_quorum": "auto", "insert_quorum_parallel": 0, "insert_quorum_timeout": 60_000} if cluster else {}
    return {"async_insert": 0, **quorum}


def read_settings(cluster: str = "") -> Mapping[str, Any]:
    """Settings of a SELECT from an own table: on a cluster it sees every write that reached its quorum."""
    return {"select_sequential_consistency": 1} if cluster else {}
