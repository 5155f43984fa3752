"""A Spark data source for ClickHouse: `spark.dataSource.register(ClickHouseDataSource)`, then format "clickhouse".

    spark.read.format("clickhouse").option("url", "http://host:8123").option("table", "db.t").load()
    df.write.format("clickhouse").option("url", …).option("table", "db.t").option("batch", "2026-01-01").mode("append").save()

Options: url (or CHMV_CLICKHOUSE_URL), user (or CHMV_CLICKHOUSE_USER), table; reading: columns (`a,b`), splitRows (partitions
above that are split by parts), pushdown (auto, true, false); writing: batch (the same id is written once, however often it is
saved; default a new one), owner, cluster, hold (true: stage only, `resume_batch` or chmv's journal commits). The password is CHMV_CLICKHOUSE_PASSWORD in the environment, never an option.
Spark's Python data sources cannot prune columns by themselves (4.3): name them in `columns` or in `.schema(...)`. Filters are
pushed when spark.sql.python.filterPushdown.enabled is true. Only wiring lives here.
"""

from __future__ import annotations

import secrets
import sys
from contextlib import closing
from dataclasses import replace

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from chmv_assets.core.errors import ReadRefused, WriteRefused
from spark_jobs.connection import read_connection, read_table
from spark_jobs.reader import DEFAULT_SPLIT_ROWS, ClickHouseReader, PushingReader, fetch_schema
from spark_jobs.writer import ClickHouseWriter, start_write

PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"
# Spark refuses a reader that takes filters while the conf above is off, and tells a reader nothing about the conf. But it
# plans with this worker module exactly when the conf is on.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class ClickHouseDataSource(DataSource):
    """Format "clickhouse": parallel Arrow reads, exactly-once writes."""

    @classmethod
    def name(cls) -> str:
        return "clickhouse"

    def schema(self) -> StructType:
        """The table's columns, or those named in option `columns`."""
        wanted = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        with closing(read_connection(self.options).connect()) as client:
            return fetch_schema(client, read_table(self.options), wanted)

    def reader(self, schema: StructType) -> DataSourceReader:
        connection, table = read_connection(self.options), read_table(self.options)
        text = self.options.get("splitRows", str(DEFAULT_SPLIT_ROWS))
        if not text.isdigit():
            raise ReadRefused(
                f"option splitRows: found {text!r} but wanted a number of rows (0: never split). It sizes the tasks. Correct it."
            )
        kind = PushingReader if self._pushes() else ClickHouseReader
        return kind(connection, table, schema, int(text))

    def _pushes(self) -> bool:
        wish = self.options.get("pushdown", "auto").lower()
        if wish not in ("auto", "true", "false"):
            raise ReadRefused(
                f"option pushdown: found {wish!r} but wanted auto, true or false. It decides who filters. Correct it."
            )
        return wish == "true" or (wish == "auto" and _PUSHDOWN_WORKER in _loaded_modules())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        connection, source = read_connection(self.options), read_table(self.options)
        if overwrite:
            raise WriteRefused(
                f"source {source}: mode overwrite asked for but wanted append. Rows and their targets cannot be swapped for others in "
                "one step. Drop the partition or rebuild it with `chmv`, then append."
            )
        batch = self.options.get("batch") or secrets.token_hex(12)
        owner, cluster = self.options.get("owner", ""), self.options.get("cluster", "")
        job = start_write(connection, source, batch, schema, owner=owner, cluster=cluster)
        return ClickHouseWriter(replace(job, hold=self.options.get("hold", "false").lower() == "true"))


def _loaded_modules() -> set[str]:
    """Modules of this process, with the one that was started under its own name."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {*sys.modules, *((main.name,) if main is not None else ())}
