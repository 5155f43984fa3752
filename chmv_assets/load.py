"""What both ways of loading a batch share: where it comes from, what is stamped on it, and what they give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pyspark.sql import DataFrame, SparkSession

from chmv_assets.core.batches import BatchRecord
from chmv_assets.core.landing import Batch, fit_columns
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName, unquote_identifier
from chmv_assets.core.settings import Landing, ObjectPolicy
from chmv_assets.core.versions import split_version
from chmv_assets.watermark_moves import HourCount
from resources.journal import Journal
from spark_jobs.clickhouse_source import ClickHouseDataSource
from spark_jobs.connection import Connection
from spark_jobs.direct import Stamp
from spark_jobs.landing_reader import LandingColumn
from spark_jobs.types import map_type

Columns = Mapping[str, tuple[str, ...]]  # path → columns of that file
_ARROW_ROWS = "100000"  # Spark hands rows to Python in pieces of this size; its default of 10,000 costs a third more


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSite:
    """One source on one server, with the landing folder that feeds it."""

    source: Object
    policy: ObjectPolicy
    landing: Landing
    root: str
    journal: Journal
    spark: Callable[[], SparkSession]

    @property
    def connection(self) -> Connection:
        endpoint = self.journal.server.endpoint
        return Connection(url=endpoint.url, user=endpoint.user)

    def url(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}"

    def loaded_columns(self, found: Sequence[str]) -> tuple[LandingColumn, ...]:
        """The columns that files with these columns bring, in the table's order; refuses what does not fit."""
        stamped = [name for name, _ in stamped_columns(self.source, self.policy, found)]
        fit = fit_columns(self.source, found, self.landing.extra_columns, stamped)
        types = {column.name: column.type for column in self.source.columns}
        return tuple(LandingColumn(name, types[name], map_type(name, types[name]).spark) for name in fit.loaded)

    def write(self, frame: DataFrame, table: QName, batch: str, *, hold: bool) -> None:
        """Save a frame through the exactly-once data source; `hold`: stage only."""
        spark = self.spark()
        spark.dataSource.register(ClickHouseDataSource)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ARROW_ROWS)
        options = {"url": self.connection.url, "user": self.connection.user, "table": str(table), "batch": batch}
        writer = frame.write.format("clickhouse").mode("append").options(**options)
        writer.options(hold=str(hold).lower(), cluster=self.journal.cluster).save()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A batch whose rows are judged and written down, but not yet in the source."""

    record: BatchRecord
    rows_read: int
    reasons: Mapping[str, int]  # why rows were quarantined
    hours: tuple[HourCount, ...]  # what each hour of event time receives

    @property
    def rows_quarantined(self) -> int:
        return sum(self.reasons.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A batch in the manifest, with the version under which it was taken: the same in every attempt to load it."""

    batch: Batch
    version: int

    @property
    def arrived_at(self) -> datetime:
        return datetime.fromtimestamp(split_version(self.version).milliseconds / 1000, timezone.utc)


def stamped_columns(source: Object, policy: ObjectPolicy, found: Sequence[str]) -> list[tuple[str, str]]:
    """Columns that the files lack and the ingest fills once per batch: arrival time, and the version of a Replacing source.

    A DEFAULT would fill them too, but anew in every retry: then a target that heals would hold another value than its source.
    """
    types = {c.name: c.type for c in source.columns if c.default_kind not in ("MATERIALIZED", "ALIAS")}
    wanted = [policy.arrival] if policy.arrival else []
    if family(source.engine) == "replacing" and (version := version_column(source)):
        wanted.append(version)
    return [(name, types[name]) for name in wanted if name in types and name not in found and _stampable(types[name])]


def version_column(source: Object) -> str | None:
    """The version column of a Replacing table, if it has one.

    Replicated tables have their path and replica before it.
    """
    arguments = [part.strip() for part in source.engine_args.strip("()").split(",")]
    names = [part for part in arguments if part and not part.startswith("'")]
    return unquote_identifier(names[0]) if names else None


def _stampable(kind: str) -> bool:
    return kind in ("UInt64", "Int64") or kind.startswith("DateTime")


def stamps_of(site: LoadSite, taken: Taken, found: Sequence[str]) -> tuple[Stamp, ...]:
    """The values of the stamped columns."""
    return tuple(
        Stamp(
            name=name,
            clickhouse_type=kind,
            value=taken.version if kind in ("UInt64", "Int64") else taken.arrived_at,
        )
        for name, kind in stamped_columns(site.source, site.policy, found)
    )
