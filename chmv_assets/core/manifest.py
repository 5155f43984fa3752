"""The manifest of landing files and the quarantine, as tables and statements. Pure text; `resources.journal` runs it.

Invariant: a content (checksum) of a source belongs to the batch that took it first; noting it again changes nothing.
Quarantined rows are kept with file, reason and the row as it came; nothing ever deletes them but a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chmv_assets.core.landing import Batch
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import (
    OWN_DATABASE,
    REPLICA_NAME,
    Statement,
    keeper_path,
    on_cluster,
    read_settings,
    render_own_table,
    write_settings,
)

LANDING_FILES = QName(OWN_DATABASE, "landing_files")
QUARANTINE = QName(OWN_DATABASE, "quarantine")
_TIME = "DateTime64(6, 'UTC')"


def render_create_landing_files(cluster: str = "") -> str:
    """One row per source and content; versions are kept inverted, so that of two notes the older one wins a merge."""
    columns = (
        "source String", "checksum String", "path String", "bytes UInt64", "batch_id String", "version UInt64",
        f"first_seen {_TIME} DEFAULT now64(6, 'UTC')",
    )  # fmt: skip
    return render_own_table(LANDING_FILES, columns, ("source", "checksum"), cluster)


def render_create_quarantine(cluster: str = "") -> str:
    """Bad rows as they came. Written through the same exactly-once path as the good ones."""
    columns = (
        "source LowCardinality(String), batch_id String, file String, reason String, row String CODEC(ZSTD(3)), "
        f"quarantined_at {_TIME} DEFAULT now64(6, 'UTC')"
    )
    path = keeper_path(cluster, "tables", QUARANTINE.table)
    engine = f"ReplicatedMergeTree({path}, {REPLICA_NAME})" if cluster else "MergeTree"
    window = "" if cluster else " SETTINGS non_replicated_deduplication_window = 10000"
    return (
        f"CREATE TABLE IF NOT EXISTS {QUARANTINE.sql}{on_cluster(cluster)} ({columns}) ENGINE = {engine} "
        f"PARTITION BY toYYYYMM(quarantined_at) ORDER BY (source, batch_id, file){window}"
    )


def note_files(source: QName, batches: Sequence[Batch], version: int, cluster: str = "") -> Statement:
    """Note that batches have taken their files. The first note of a content counts, whoever's clock it carries: a later one adds
    nothing, also if it was sent before and held up on its way."""
    sql = (
        f"INSERT INTO {LANDING_FILES.sql} (source, checksum, path, bytes, batch_id, version) "
        "SELECT {source:String}, file.1, file.2, file.3, file.4, bitNot({version:UInt64}) "
        "FROM (SELECT arrayJoin({files:Array(Tuple(String, String, UInt64, String))}) AS file) "
        f"WHERE file.1 NOT IN (SELECT checksum FROM {LANDING_FILES.sql} WHERE source = {{source:String}})"
    )
    files = [(file.checksum, file.path, file.bytes, batch.id) for batch in batches for file in batch.files]
    values = {"source": str(source), "version": version, "files": files}
    return Statement(sql=sql, parameters=values, settings={**write_settings(cluster), **read_settings(cluster)})


def read_taken(source: QName, cluster: str = "") -> Statement:
    """Checksum, path, batch and version of every content that a source has taken."""
    sql = (
        f"SELECT checksum, path, batch_id, bitNot(version) FROM {LANDING_FILES.sql} FINAL "
        "WHERE source = {source:String}"
    )
    return Statement(sql=sql, parameters={"source": str(source)}, settings=read_settings(cluster))


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFile:
    """One content in the manifest."""

    checksum: str
    path: str
    batch: str
    version: int  # of the first time it was taken; the arrival time and version of its rows come from it


def decode_taken(row: Sequence[Any]) -> TakenFile:
    """A row of `read_taken` as a record."""
    checksum, path, batch, version = row
    return TakenFile(checksum=str(checksum), path=str(path), batch=str(batch), version=int(version))


def count_quarantined(source: QName, batch: str, cluster: str = "") -> Statement:
    """Reasons of a batch's bad rows with their counts, most frequent first."""
    sql = (
        f"SELECT reason, count() AS rows FROM {QUARANTINE.sql} WHERE source = {{source:String}} AND batch_id = {{batch:String}} "
        "GROUP BY reason ORDER BY rows DESC, reason"
    )
    return Statement(sql=sql, parameters={"source": str(source), "batch": batch}, settings=read_settings(cluster))
