"""Parallel reads: one task per ClickHouse partition, several for big ones, Arrow batches all the way.

Invariant: the tasks together give every row that was there at planning exactly once, or one of them fails. A partition is
named by its id, which survives merges. A big one is split by part names, which do not: each such task looks after its query has
started whether its parts are still active (a part never comes back, so then the query saw them) and fails otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructField, StructType

from chmv_assets.core.errors import ReadRefused
from chmv_assets.core.names import QName
from spark_jobs.connection import DRIVER_ERRORS, Connection, server_error
from spark_jobs.filters import Condition, build_condition, selected
from spark_jobs.tables import Part, TableColumn, fetch_columns, fetch_engine, fetch_missing_parts, fetch_parts
from spark_jobs.types import TypeMap, map_type, spark_schema_arrow

DEFAULT_SPLIT_ROWS = 20_000_000
_SETTINGS = {
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "output_format_arrow_compression_method": "lz4_frame",
}


@dataclass(frozen=True, kw_only=True)
class ReadTask(InputPartition):
    """What one Spark task reads: the whole table, one partition, or some parts of one."""

    partition_id: str | None = None
    parts: tuple[str, ...] = ()


def fetch_schema(client: Client, table: QName, wanted: Sequence[str] = ()) -> StructType:
    """The table's columns as a Spark schema; `wanted` picks some of them."""
    columns = pick_columns(table, fetch_columns(client, table), wanted)
    mapped = [(column.name, map_type(column.name, column.type)) for column in columns]
    return StructType([StructField(name, kind.spark, kind.nullable) for name, kind in mapped])


def pick_columns(table: QName, columns: Sequence[TableColumn], wanted: Sequence[str]) -> tuple[TableColumn, ...]:
    """The wanted columns in the wanted order; all that are stored, if none is named."""
    if not wanted:
        return tuple(column for column in columns if not column.computed)
    by_name = {column.name: column for column in columns}
    if unknown := [name for name in wanted if name not in by_name]:
        raise ReadRefused(
            f"table {table}: column {', '.join(unknown)} asked for but it has {', '.join(by_name)}. "
            "Rows cannot be read from columns that are not there. Correct the schema."
        )
    return tuple(by_name[name] for name in wanted)


def plan_tasks(parts: Sequence[Part], split_rows: int) -> tuple[ReadTask, ...]:
    """One task per partition; partitions over `split_rows` rows in runs of neighbouring parts of about that size.

    >>> [t.parts for t in plan_tasks([Part(partition_id="p", name=n, rows=6) for n in "abc"], 10)]
    [('a',), ('b',), ('c',)]
    """
    tasks: list[ReadTask] = []
    for partition_id, group in groupby(parts, key=lambda part: part.partition_id):
        held = list(group)
        if split_rows <= 0 or len(held) == 1 or sum(part.rows for part in held) <= split_rows:
            tasks.append(ReadTask(partition_id=partition_id))
            continue
        tasks += [ReadTask(partition_id=partition_id, parts=names) for names in _runs(held, split_rows)]
    return tuple(tasks)


def _runs(parts: Sequence[Part], split_rows: int) -> Iterator[tuple[str, ...]]:
    names: list[str] = []
    rows = 0
    for part in parts:
        if names and rows + part.rows > split_rows:
            yield tuple(names)
            names, rows = [], 0
        names.append(part.name)
        rows += part.rows
    yield tuple(names)


class ClickHouseReader(DataSourceReader):
    """Reads a table as Arrow; filters stay with Spark."""

    def __init__(self, connection: Connection, table: QName, schema: StructType, split_rows: int) -> None:
        self.connection = connection
        self.table = table
        self.schema = schema
        self.split_rows = split_rows
        self.conditions: tuple[Condition, ...] = ()
        client = connection.connect()
        try:
            columns = pick_columns(table, fetch_columns(client, table), schema.names)
        finally:
            client.close()
        self.columns: tuple[tuple[str, str], ...] = tuple((column.name, column.type) for column in columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Spark wants a list; one empty task is made of an empty one."""
        client = self.connection.connect()
        try:
            if not fetch_engine(client, self.table).endswith("MergeTree"):
                return [ReadTask()]
            return list(plan_tasks(fetch_parts(client, self.table), self.split_rows))
        finally:
            client.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stream one task's rows in the Arrow types that Spark's JVM expects."""
        if not isinstance(partition, ReadTask):
            return  # Spark's stand-in for a table without parts
        client = self.connection.connect()
        try:
            sql, parameters = self.build_query(partition)
            with client.query_arrow_stream(sql, parameters, settings=dict(_SETTINGS)) as stream:
                self._check_parts(partition)
                yield from to_spark_batches(stream, spark_schema_arrow(self.schema))
        except DRIVER_ERRORS as error:
            raise server_error(error) from error
        finally:
            client.close()

    def build_query(self, task: ReadTask) -> tuple[str, dict[str, Any]]:
        """The task's SELECT with its bound values."""
        mapped = [(name, kind, map_type(name, kind)) for name, kind in self.columns]
        # Casts get an alias of their own: an alias equal to a column's name would replace the column in WHERE.
        fields = ", ".join(f"{selected(name, how, kind)} AS _chmv_{at}" for at, (name, kind, how) in enumerate(mapped))
        where = [condition.sql for condition in self.conditions]
        parameters: dict[str, Any] = {k: v for condition in self.conditions for k, v in condition.parameters.items()}
        if task.partition_id is not None:
            where.append("_partition_id = {partition_id:String}")
            parameters["partition_id"] = task.partition_id
        if task.parts:
            where.append("_part IN {parts:Array(String)}")
            parameters["parts"] = list(task.parts)
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        return f"SELECT {fields} FROM {self.table.sql}{condition}", parameters

    def _check_parts(self, task: ReadTask) -> None:
        if not task.parts:
            return
        client = self.connection.connect()  # the other one is busy with the stream
        try:
            gone = fetch_missing_parts(client, self.table, task.parts)
        finally:
            client.close()
        if gone:
            raise ReadRefused(
                f"table {self.table}: parts {', '.join(gone)} were merged or dropped after the read was planned but wanted "
                "unchanged. Their rows would be missing. Read again, or set option splitRows to 0 (one task per partition)."
            )


class PushingReader(ClickHouseReader):
    """Reads a table as Arrow and takes over the filters that ClickHouse answers as Spark would."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what can be taken; give the rest back to Spark."""
        kinds: dict[str, TypeMap] = {name: map_type(name, kind) for name, kind in self.columns}
        pairs = [(found, build_condition(found, kinds, f"f{at}")) for at, found in enumerate(filters)]
        self.conditions = tuple(condition for _, condition in pairs if condition is not None)
        return [found for found, condition in pairs if condition is None]


def to_spark_batches(stream: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Each batch with the names, types and nullability that Spark checks; a copy only where they differ."""
    for batch in stream:
        if batch.num_rows:
            arrays = [
                column if column.type.equals(field.type) else column.cast(field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
