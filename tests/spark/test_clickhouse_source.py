"""The Spark data source on the real server: every type there and back, every row read once, every batch written once."""

from __future__ import annotations

import datetime as dt
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import DecimalType, StructType

from chmv_assets.core.batches import plan_commit, staging_name
from chmv_assets.core.errors import IngestRefused, ReadRefused, TypeRefused, WriteRefused
from chmv_assets.core.names import QName
from resources.engine import EngineInfo
from spark_jobs.clickhouse_source import PUSHDOWN_CONF, ClickHouseDataSource
from spark_jobs.commit import fetch_batch, plan_batch, record_winners, resume_batch
from spark_jobs.connection import Connection, Retry, run_statement
from spark_jobs.preflight import fetch_capability
from spark_jobs.reader import ClickHouseReader, ReadTask, fetch_schema
from spark_jobs.writer import ClickHouseWriter, stage_task, start_write, winners

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot import the tests
ROWS = 6000
ORDERS = StructType().add("id", "long").add("day", "date").add("kind", "string").add("amount", DecimalType(12, 2))
WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"


class DyingWriter(ClickHouseWriter):
    """A driver that writes its winners down and then is gone."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        job = self.job
        with closing(job.connection.connect()) as client:
            record_winners(client, plan_batch(client, job.source, job.batch, job.owner), winners(job, messages))
        raise RuntimeError("the driver died after writing the winners down")


class DyingDataSource(ClickHouseDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        made = super().writer(schema, overwrite)
        assert isinstance(made, ClickHouseWriter)
        return DyingWriter(made.job)


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ClickHouseDataSource)
    spark.dataSource.register(DyingDataSource)
    return spark


@pytest.fixture(scope="module")
def connection(engine: EngineInfo) -> Connection:
    return Connection(url=engine.url)


@pytest.fixture
def pipeline(clickhouse: Client, database: str) -> Iterator[str]:
    """A source with two views, one of them feeding a chain; all of it deduplicates."""
    name = f"p{secrets.token_hex(3)}"
    at = f"{database}.{name}"
    for sql in (
        f"CREATE TABLE {at} (id UInt64, day Date, kind LowCardinality(String), amount Decimal(12, 2), "
        f"seen DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY day ORDER BY id {WINDOW}",
        f"CREATE TABLE {at}_kinds (day Date, kind LowCardinality(String), n UInt64, total Decimal(18, 2)) "
        f"ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY (day, kind) {WINDOW}",
        f"CREATE TABLE {at}_copy (id UInt64, kind String) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {at}_days (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day {WINDOW}",
        f"CREATE MATERIALIZED VIEW {at}_v1 TO {at}_kinds AS "
        f"SELECT day, kind, count() AS n, sum(amount) AS total FROM {at} GROUP BY day, kind",
        f"CREATE MATERIALIZED VIEW {at}_v2 TO {at}_copy AS SELECT id, kind FROM {at}",
        f"CREATE MATERIALIZED VIEW {at}_v3 TO {at}_days AS SELECT day, sum(n) AS n FROM {at}_kinds GROUP BY day",
    ):
        clickhouse.command(sql)
    yield at


def orders(spark: SparkSession, rows: int = ROWS, tasks: int = 3) -> DataFrame:
    return spark.range(0, rows, 1, tasks).select(
        F.col("id"),
        F.expr("date_add(DATE'2026-01-01', cast(id % 5 as int))").alias("day"),
        F.concat(F.lit("k"), (F.col("id") % 7).cast("string")).alias("kind"),
        (F.col("id") * F.lit(1.25).cast("decimal(4,2)")).cast("decimal(12,2)").alias("amount"),
    )


def save(frame: DataFrame, engine: EngineInfo, table: str, batch: str, source: str = "clickhouse") -> None:
    writer = frame.write.format(source).option("url", engine.url).option("table", table).option("batch", batch)
    writer.mode("append").save()


def assert_exact(clickhouse: Client, at: str, rows: int = ROWS) -> None:
    """Every row once in the source, every target equal to its view's query over it, nothing left in staging."""
    assert clickhouse.query(f"SELECT count(), uniqExact(id), sum(id) FROM {at}").result_rows == [
        (rows, rows, rows * (rows - 1) // 2)
    ]
    kinds = f"SELECT day, kind, count(), sum(amount) FROM {at} GROUP BY day, kind ORDER BY ALL"
    found = f"SELECT day, kind, sum(n), sum(total) FROM {at}_kinds GROUP BY day, kind ORDER BY ALL"
    assert clickhouse.query(found).result_rows == clickhouse.query(kinds).result_rows
    copies = clickhouse.query(f"SELECT id, kind FROM {at}_copy ORDER BY ALL").result_rows
    assert copies == clickhouse.query(f"SELECT id, kind FROM {at} ORDER BY ALL").result_rows
    days = f"SELECT day, count() FROM {at} GROUP BY day ORDER BY ALL"
    assert (
        clickhouse.query(f"SELECT day, sum(n) FROM {at}_days GROUP BY day ORDER BY ALL").result_rows
        == clickhouse.query(days).result_rows
    )
    assert staging_tables(clickhouse, at) == []


def staging_tables(clickhouse: Client, at: str) -> list[str]:
    found = clickhouse.query(
        "SELECT name FROM system.tables WHERE database = 'chmv' AND startsWith(name, {prefix:String})",
        parameters={"prefix": f"stage.{at}."},
    )
    return [name for (name,) in found.result_rows]


def qname(at: str) -> QName:
    return QName(*at.split("."))


ALL_TYPES = """
    id UInt8, i8 Int8, i16 Int16, i32 Int32, i64 Int64, u16 UInt16, u32 UInt32, u64 UInt64, f32 Float32, f64 Float64,
    dec Decimal(30, 5), b Bool, s String, d Date, d32 Date32, t DateTime, tz DateTime('Europe/Berlin'),
    t3 DateTime64(3, 'Asia/Tokyo'), t6 DateTime64(6), u UUID, fs FixedString(4), e Enum8('a' = 1, 'it\\'s, (b)' = 2),
    lc LowCardinality(Nullable(String)), i4 IPv4, i6 IPv6, n Nullable(UInt32), au Array(Nullable(UUID)),
    aa Array(Array(UInt16)), m Map(String, UInt64), ml Map(LowCardinality(String), Array(Date)),
    tu Tuple(a UInt8, `odd name` Nullable(String)), tt Tuple(UInt8, DateTime), j JSON, nt Nullable(DateTime64(3)),
    sa SimpleAggregateFunction(sum, UInt64)
"""
ALL_VALUES = """
    (1, -128, -32768, -2147483648, -9223372036854775808, 65535, 4294967295, 18446744073709551615, 1.5, -2.25,
     '-1234.56789', true, 'grün', '2149-06-06', '1900-01-01', '2106-02-07 06:28:15', '2024-07-01 12:30:00',
     '2024-01-01 00:00:00.123', '1969-12-31 23:59:59.999999', '61f0c404-5cb3-11e7-907b-a6006ad3dba0', 'ab', 'it\\'s, (b)',
     NULL, '1.2.3.4', '::1', NULL, ['61f0c404-5cb3-11e7-907b-a6006ad3dba0', NULL], [[1, 65535], []],
     map('x', 18446744073709551615), map('k', ['2020-01-01']), (1, NULL), (2, '2020-01-01 00:00:00'),
     '{"a": {"b": 1}, "c": [1, 2]}', NULL, 5),
    (2, 127, 32767, 2147483647, 9223372036854775807, 0, 0, 0, -0.5, 1e300, '1.00000', false, '', '1970-01-01', '2299-12-31',
     '1970-01-01 00:00:00', '2024-12-01 00:00:00', '2024-01-01 00:00:00.999', '2024-02-29 00:00:00.000001',
     '00000000-0000-0000-0000-000000000000', 'abcd', 'a', 'low', '255.255.255.255', '2001:db8::1', 7, [], [], map(), map(),
     (255, 'x'), (0, '2021-01-01 00:00:00'), '{}', '2024-01-01 00:00:00.5', 0)
"""


def test_all_types_survive_a_round_trip(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, database: str
) -> None:
    for name in ("types_in", "types_out"):
        clickhouse.command(f"CREATE TABLE {database}.{name} ({ALL_TYPES}) ENGINE = MergeTree ORDER BY id {WINDOW}")
    clickhouse.command(f"INSERT INTO {database}.types_in VALUES {ALL_VALUES}")
    read = registered.read.format("clickhouse").option("url", engine.url).option("table", f"{database}.types_in").load()
    first = read.orderBy("id").first()
    assert first is not None
    assert (first["u64"], first["s"], first["m"]["x"]) == (2**64 - 1, "grün", 2**64 - 1)
    assert first["tz"].isoformat() == "2024-07-01T10:30:00"  # Spark gives the session's zone, UTC
    save(read, engine, f"{database}.types_out", "all-types")
    text = "SELECT toString(tuple(*)) FROM {} ORDER BY id"
    rows = clickhouse.query(text.format(f"{database}.types_in")).result_rows
    assert len(rows) == 2
    assert clickhouse.query(text.format(f"{database}.types_out")).result_rows == rows


def test_wide_integers_are_read_as_text_and_states_are_refused(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, database: str, connection: Connection
) -> None:
    clickhouse.command(f"CREATE TABLE {database}.wide (w Int256, a AggregateFunction(uniq, UInt8)) ENGINE = Memory")
    with closing(connection.connect()) as client, pytest.raises(TypeRefused, match=r"column a: AggregateFunction"):
        fetch_schema(client, QName(database, "wide"))
    clickhouse.command(f"INSERT INTO {database}.wide (w) SELECT -toInt256(2) * 9223372036854775807")
    read = registered.read.format("clickhouse").option("url", engine.url).option("table", f"{database}.wide")
    assert [row.w for row in read.option("columns", "w").load().collect()] == ["-18446744073709551614"]


@pytest.fixture(scope="module")
def parted(clickhouse: Client, database: str) -> str:
    """Four partitions of three parts each."""
    clickhouse.command(
        f"CREATE TABLE {database}.parted (id UInt32, p UInt8, name String, at DateTime('UTC')) ENGINE = MergeTree PARTITION BY p ORDER BY id"
    )
    clickhouse.command(f"SYSTEM STOP MERGES {database}.parted")
    for start in (0, 1000, 2000):
        clickhouse.command(
            f"INSERT INTO {database}.parted SELECT number, number % 4, concat('n', toString(number % 10)), toDateTime(number, 'UTC') "
            f"FROM numbers({start}, 1000)"
        )
    return f"{database}.parted"


@pytest.mark.parametrize(("split_rows", "tasks"), [(0, 4), (600, 8), (1, 12)])
def test_parallel_tasks_read_every_row_once(
    registered: SparkSession, engine: EngineInfo, parted: str, split_rows: int, tasks: int
) -> None:
    frame = registered.read.format("clickhouse").option("url", engine.url).option("table", parted)
    read = frame.option("splitRows", split_rows).load()
    assert read.rdd.getNumPartitions() == tasks
    assert sorted(row.id for row in read.select("id").collect()) == list(range(3000))


def test_a_task_whose_parts_were_merged_fails_instead_of_losing_rows(
    clickhouse: Client, database: str, connection: Connection
) -> None:
    clickhouse.command(f"CREATE TABLE {database}.merging (id UInt32) ENGINE = MergeTree ORDER BY id")
    for at in range(2):
        clickhouse.command(f"INSERT INTO {database}.merging VALUES ({at})")
    table = QName(database, "merging")
    with closing(connection.connect()) as client:
        reader = ClickHouseReader(connection, table, fetch_schema(client, table), 1)
    tasks = reader.partitions()
    clickhouse.command(f"OPTIMIZE TABLE {database}.merging FINAL")
    assert isinstance(tasks[0], ReadTask)
    with pytest.raises(ReadRefused, match="splitRows"):
        list(reader.read(tasks[0]))


def test_filters_run_on_the_server(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, parted: str
) -> None:
    registered.conf.set(PUSHDOWN_CONF, "true")
    try:
        read = registered.read.format("clickhouse").option("url", engine.url).option("table", parted).load()
        when = dt.datetime(1970, 1, 1, 0, 40, tzinfo=dt.timezone.utc)
        wanted = read.where(
            (F.col("id") >= 100) & F.col("name").isin("n1", "n2") & (F.col("p") == 1) & (F.col("at") < F.lit(when))
        ).where("id % 3 = 0")
        found = sorted(row.id for row in wanted.collect())
    finally:
        registered.conf.unset(PUSHDOWN_CONF)
    assert found == [n for n in range(100, 2400) if n % 10 in (1, 2) and n % 4 == 1 and n % 3 == 0]
    clickhouse.command("SYSTEM FLUSH LOGS")
    logged = clickhouse.query(
        "SELECT query, result_rows FROM system.query_log WHERE type = 'QueryFinish' AND query_kind = 'Select' "
        "AND has(tables, {table:String}) AND position(query, 'name IN') > 0",
        parameters={"table": parted},
    ).result_rows
    assert logged
    assert [query for query, _ in logged if "id >= " not in query or "p = " not in query] == []
    assert sum(rows for _, rows in logged) == len([n for n in range(100, 2400) if n % 10 in (1, 2) and n % 4 == 1])


def test_a_written_batch_is_in_source_and_targets_and_a_second_save_changes_nothing(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, pipeline: str
) -> None:
    for _ in range(2):
        save(orders(registered), engine, pipeline, "b1")
        assert_exact(clickhouse, pipeline)


def test_a_failing_task_is_retried_without_doubling_rows(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, pipeline: str, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed_once")

    def fail_late_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        yield from batches
        if not os.path.exists(marker):  # noqa: PTH110 - runs on a worker
            open(marker, "w").close()  # noqa: PTH123
            raise RuntimeError("first attempt fails at its end")

    frame = orders(registered)
    save(frame.mapInArrow(fail_late_once, frame.schema), engine, pipeline, "flaky")
    assert Path(marker).exists()
    assert_exact(clickhouse, pipeline)


def test_a_batch_that_fails_for_good_leaves_nothing_and_can_be_sent_again(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, pipeline: str
) -> None:
    bad = orders(registered).withColumn("day", F.when(F.col("id") == 5, None).otherwise(F.col("day")))
    with pytest.raises(Exception, match="column day"):
        save(bad, engine, pipeline, "again")
    assert clickhouse.query(f"SELECT count() FROM {pipeline}").result_rows == [(0,)]
    assert staging_tables(clickhouse, pipeline) == []
    save(orders(registered), engine, pipeline, "again")
    assert_exact(clickhouse, pipeline)


def test_a_driver_that_died_before_the_commit_is_finished_by_the_next_save(
    registered: SparkSession, clickhouse: Client, engine: EngineInfo, pipeline: str
) -> None:
    with pytest.raises(Exception, match="the driver died"):
        save(orders(registered), engine, pipeline, "dead", "dying")
    assert len(staging_tables(clickhouse, pipeline)) == 1
    assert clickhouse.query(f"SELECT count() FROM {pipeline}").result_rows == [(0,)]
    save(orders(registered, rows=10), engine, pipeline, "dead")  # not staged again: the recorded winners count
    assert_exact(clickhouse, pipeline)


def stage_without_spark(connection: Connection, at: str, batch: str, *, zombie: bool = False) -> QName:
    """Three tasks of 2,000 rows, as a driver would have left them after writing the winners down."""
    source = qname(at)
    job = start_write(connection, source, batch, ORDERS)
    day = dt.date(2026, 1, 1)
    with closing(connection.connect()) as client:
        slices = []
        for task in range(3):
            ids = range(task * 2000, task * 2000 + 2000)
            columns = {
                "id": pa.array(ids, pa.int64()),
                "day": pa.array([day + dt.timedelta(days=n % 5) for n in ids]),
                "kind": pa.array([f"k{n % 7}" for n in ids]),
                "amount": pa.array(ids, pa.int64()).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
            }
            batches = pa.table(columns).to_batches(max_chunksize=300)
            if zombie:
                stage_task(client, job, task, "zombie", batches[:2], Retry())
            slices += stage_task(client, job, task, "winner", batches, Retry())
        record_winners(client, plan_batch(client, source, batch, "test"), slices)
    return source


def test_zombie_attempts_stay_in_staging(clickhouse: Client, connection: Connection, pipeline: str) -> None:
    source = stage_without_spark(connection, pipeline, "z", zombie=True)
    staged = clickhouse.query(f"SELECT count() FROM {staging_name(source, 'z').sql}").result_rows
    assert staged == [(ROWS + 3 * 600,)]
    with closing(connection.connect()) as client:
        resume_batch(client, source, "z", connect=connection.connect)
    assert_exact(clickhouse, pipeline)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_driver_that_died_between_slices_is_resumed(
    clickhouse: Client, connection: Connection, pipeline: str, done: int
) -> None:
    source = stage_without_spark(connection, pipeline, "half")
    with closing(connection.connect()) as client:
        record = fetch_batch(client, source, "half")
        assert record is not None
        for statement in plan_commit(source, "half", ("id", "day", "kind", "amount"), record.slices)[:done]:
            run_statement(client, statement)
        assert clickhouse.query(f"SELECT count() FROM {pipeline}").result_rows == [(2000 * done,)]
        assert resume_batch(client, source, "half", connect=connection.connect).status == "committed"
        assert_exact(clickhouse, pipeline)
        resume_batch(client, source, "half", connect=connection.connect)
    assert_exact(clickhouse, pipeline)


def test_of_two_drivers_with_the_same_batch_the_first_winners_count(
    clickhouse: Client, connection: Connection, pipeline: str
) -> None:
    source = qname(pipeline)
    job = start_write(connection, source, "race", ORDERS)
    row = pa.table({
        "id": pa.array([0], pa.int64()), "day": [dt.date(2026, 1, 1)], "kind": ["k"],
        "amount": pa.array([1], pa.int64()).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
    })  # fmt: skip
    with closing(connection.connect()) as client:
        seen = plan_batch(client, source, "race", "a")
        mine = stage_task(client, job, 0, "a", row.to_batches(), Retry())
        other = stage_task(client, job, 0, "b", row.to_batches(), Retry())
        assert record_winners(client, seen, mine).slices == mine
        assert record_winners(client, seen, other).slices == mine  # both had seen the same row of the journal
        resume_batch(client, source, "race", connect=connection.connect)
    assert_exact(clickhouse, pipeline, rows=1)


def test_a_batch_begun_with_other_columns_starts_anew(
    clickhouse: Client, connection: Connection, pipeline: str
) -> None:
    source = qname(pipeline)
    start_write(connection, source, "other", StructType().add("id", "long").add("seen", "timestamp"))
    job = start_write(connection, source, "other", StructType().add("id", "long"))
    rows = pa.table({"id": pa.array([0], pa.int64())}).to_batches()
    with closing(connection.connect()) as client:
        slices = stage_task(client, job, 0, "a", rows, Retry())
        record_winners(client, plan_batch(client, source, "other", "test"), slices)
        resume_batch(client, source, "other", connect=connection.connect)
    assert clickhouse.query(f"SELECT count() FROM {pipeline} WHERE seen > now() - 600").result_rows == [(1,)]
    assert staging_tables(clickhouse, pipeline) == []


def test_lost_staging_rows_are_noticed_before_the_commit(
    clickhouse: Client, connection: Connection, pipeline: str
) -> None:
    source = stage_without_spark(connection, pipeline, "short")
    clickhouse.command(f"TRUNCATE TABLE {staging_name(source, 'short').sql}")
    with closing(connection.connect()) as client, pytest.raises(WriteRefused, match="staged 0 rows but wanted 2000"):
        resume_batch(client, source, "short", connect=connection.connect)
    clickhouse.command(f"DROP TABLE {staging_name(source, 'short').sql}")


def test_a_source_whose_chain_does_not_deduplicate_is_refused_with_the_remedy(
    clickhouse: Client, connection: Connection, pipeline: str
) -> None:
    clickhouse.command(f"ALTER TABLE {pipeline}_days MODIFY SETTING non_replicated_deduplication_window = 0")
    with closing(connection.connect()) as client, pytest.raises(IngestRefused) as refused:
        fetch_capability(client, qname(pipeline)).require()
    remedy = refused.value.statements
    assert len(remedy) == 1
    clickhouse.command(remedy[0])
    with closing(connection.connect()) as client:
        fetch_capability(client, qname(pipeline)).require()


def test_overwrite_and_passwords_are_refused(registered: SparkSession, engine: EngineInfo, pipeline: str) -> None:
    with pytest.raises(Exception, match="mode overwrite"):
        orders(registered, 1).write.format("clickhouse").option("url", engine.url).option("table", pipeline).mode(
            "overwrite"
        ).save()
    reader = registered.read.format("clickhouse").option("url", engine.url).option("table", pipeline)
    with pytest.raises(Exception, match="CHMV_CLICKHOUSE_PASSWORD"):
        reader.option("password", "x").load()
