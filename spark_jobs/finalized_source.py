"""Format "clickhouse_finalized": a table read as by "clickhouse", with columns of aggregate states as the values that they hold.

Each row gives the value of its own, partial state; putting those together is the reader's business, and possible for counts, sums, least and
greatest values only. Everything else about reading is in `reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from clickhouse_connect.driver.client import Client
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructField, StructType

from chmv_assets.core.names import QName, quote_identifier, quote_string
from spark_jobs.clickhouse_source import ClickHouseDataSource
from spark_jobs.connection import Connection, fetch_rows, plain, read_connection, read_table
from spark_jobs.filters import build_condition, selected
from spark_jobs.reader import DEFAULT_SPLIT_ROWS, PushingReader, ReadTask, pick_columns
from spark_jobs.tables import TableColumn, fetch_columns, fetch_engine
from spark_jobs.types import map_type

FORMAT = "clickhouse_finalized"
ONE_TASK_ROWS = 2_000_000
_STATE = "AggregateFunction("


class FinalizedDataSource(ClickHouseDataSource):
    """Reads columns of states, too. Wants the configuration that pushes filters, and option `columns`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        wanted = [name for name in self.options.get("columns", "").split(",") if name]
        table = read_table(self.options)
        with closing(read_connection(self.options).connect()) as client:
            types = fetch_finalized(client, table, pick_columns(table, fetch_columns(client, table), wanted))
        mapped = [(name, map_type(name, kind)) for name, kind in types.items()]
        return StructType([StructField(name, kind.spark, kind.nullable) for name, kind in mapped])

    def reader(self, schema: StructType) -> DataSourceReader:
        return FinalizedReader(read_connection(self.options), read_table(self.options), schema, DEFAULT_SPLIT_ROWS)


def fetch_finalized(client: Client, table: QName, columns: Iterable[TableColumn]) -> dict[str, str]:
    """The types of some columns; of a state's, that of the value it holds."""
    columns = tuple(columns)
    states = [column.name for column in columns if column.type.startswith(_STATE)]
    found: list[tuple[Any, ...]] = []
    if states:
        values = ", ".join(f"finalizeAggregation({quote_identifier(name)}) AS _{at}" for at, name in enumerate(states))
        found = fetch_rows(client, plain(f"DESCRIBE (SELECT {values} FROM {table.sql})"))
    types = dict(zip(states, (str(row[1]) for row in found), strict=True))
    return {column.name: types.get(column.name, column.type) for column in columns}


class FinalizedReader(PushingReader):
    """A reader of values instead of states."""

    def __init__(self, connection: Connection, table: QName, schema: StructType, split_rows: int) -> None:
        super().__init__(connection, table, schema, split_rows)
        self.states = frozenset(name for name, kind in self.columns if kind.startswith(_STATE))
        if self.states:
            columns = [TableColumn(name=name, type=kind, computed=False) for name, kind in self.columns]
            with closing(connection.connect()) as client:
                self.columns = tuple(fetch_finalized(client, table, columns).items())

    def partitions(self) -> Sequence[InputPartition]:
        """One task for what the filters leave of a table, if that is little: a target may have thousands of partitions."""
        sql, parameters = self.build_query(ReadTask())
        with closing(self.connection.connect()) as client:
            if not fetch_engine(client, self.table).endswith("MergeTree"):
                return [ReadTask()]
            rows = fetch_rows(client, plain(f"EXPLAIN ESTIMATE {sql}", **parameters))
        return [ReadTask()] if sum(int(row[3]) for row in rows) <= ONE_TASK_ROWS else super().partitions()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """As usual, but never on a column of states."""
        kinds = {name: map_type(name, kind) for name, kind in self.columns if name not in self.states}
        pairs = [(found, build_condition(found, kinds, f"f{at}")) for at, found in enumerate(filters)]
        self.conditions = tuple(condition for _, condition in pairs if condition is not None)
        return [found for found, condition in pairs if condition is None]

    def build_query(self, task: ReadTask) -> tuple[str, dict[str, Any]]:
        """The task's SELECT, over the values."""
        sql, parameters = super().build_query(task)
        fields = ", ".join(f"{self._value(name, kind)} AS _chmv_{at}" for at, (name, kind) in enumerate(self.columns))
        return f"SELECT {fields}{sql[sql.rindex(f' FROM {self.table.sql}') :]}", parameters

    def _value(self, name: str, kind: str) -> str:
        how = map_type(name, kind)
        if name not in self.states:
            return selected(name, how, kind)
        value = f"finalizeAggregation({quote_identifier(name)})"
        return value if how.cast == kind else f"CAST({value}, {quote_string(how.cast)})"
