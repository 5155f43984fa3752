"""Spark's second opinion: right about every target of the demo and about every defect; and the allow-list, tried on both engines."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from datetime import datetime, timezone

import dagster as dg
import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client
from pyspark.sql import SparkSession

from chmv_assets.cli.reconcile import reconcile_command
from chmv_assets.core.names import QName
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.core.windows import Window, window_of_key
from chmv_assets.pipeline import DEMO_DDL, Pipeline, load_pipeline
from chmv_assets.second_opinion import SecondOpinion
from chmv_assets.second_opinion_check import AGREES, build_spark_checks
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.demo_data import load_demo
from resources.engine import EngineInfo
from resources.reconcile import Reconciled
from resources.spark import SparkResource

DAY, MONTH, WEEK = "2026-11-01", "2026-11-01", "2026-10-26"


def create(client: Client, text: str) -> None:
    for statement in split_statements(SourceFile(path="x", text=text))[0]:
        client.command(statement.text)


class Site:
    """A pipeline on the server, and who judges it."""

    def __init__(self, pipeline: Pipeline, server: Server, spark: SparkSession, database: str) -> None:
        self.pipeline, self.database = pipeline, database
        self.started = 0

        def session() -> SparkSession:
            self.started += 1
            return spark

        self.opinion = SecondOpinion(pipeline, server, session)

    def judge(self, table: str, key: str | None = None, unit: str = "day") -> Reconciled:
        target = self.pipeline.catalog.objects[QName(self.database, table)]
        window: Window | None = window_of_key(key, unit, "UTC") if key else None  # type: ignore[arg-type]
        return self.opinion.run(target, window)


@pytest.fixture(scope="module")
def shop(
    clickhouse: Client, server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    clickhouse.command("DROP DATABASE IF EXISTS shop SYNC")
    for file in sorted(DEMO_DDL.glob("*.sql")):
        create(clickhouse, file.read_text())
    start, end = datetime(2026, 10, 28, tzinfo=timezone.utc), datetime(2026, 11, 3, 15, 30, tzinfo=timezone.utc)
    load_demo(clickhouse, rows=4000, seed=7, start=start, end=end)
    pipeline = load_pipeline(DEMO_DDL, cache=tmp_path_factory.mktemp("cache"))
    yield Site(pipeline, server, spark, "shop")
    clickhouse.command("DROP DATABASE shop SYNC")


DEMO = {
    "events_enriched": (
        DAY,
        "day",
        (
            "event_id",
            "event_time",
            "ingested_at",
            "session_id",
            "user_id",
            "event_type",
            "page",
            "device",
            "product_id",
            "order_id",
            "revenue",
            "rows",
        ),
    ),
    "traffic_hourly": ("2026-11-01-09:00", "hour", ("hour", "event_type", "device", "events", "items", "load_ms")),
    "traffic_daily": ("2026-11-01", "month", ("day", "event_type", "device", "events", "items", "load_ms")),
    "visitors_daily": (DAY, "day", ("day", "country", "segment", "revenue")),
    "page_speed_hourly": (DAY, "day", ("hour", "page", "device", "loads", "slowest")),
    "sessions_daily": (
        DAY,
        "day",
        ("day", "session_id", "user_id", "started_at", "ended_at", "events", "carts", "converted"),
    ),
    "orders_latest": (
        "2026-11-01",
        "month",
        ("order_id", "version", "ordered_at", "changed_at", "user_id", "status", "product_id", "quantity", "amount"),
    ),
    "revenue_daily": (DAY, "day", ("day", "orders", "ordered", "payments", "captured", "refunded", "fees")),
    "settlement_weekly": (
        "2026-10-26",
        "week",
        ("week", "method", "outcome", "payments", "settled", "fees", "largest"),
    ),
}


@pytest.mark.parametrize("table", DEMO)
def test_targets_of_the_demo_are_equal_to_spark(shop: Site, table: str) -> None:
    key, unit, compared = DEMO[table]
    found = shop.judge(table, key, unit)
    assert (found.status, found.reason, found.compared) == ("equal", "", compared)
    assert found.keys


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("attributes_daily", "JOIN"),
        ("category_sales_daily", "shop.products"),
        ("customer_value", "refreshed"),
    ],
)
def test_what_spark_cannot_compute_is_said_without_starting_it(shop: Site, table: str, reason: str) -> None:
    before = shop.started
    found = shop.judge(
        table, None if table == "customer_value" else DAY, "month" if table == "attributes_daily" else "day"
    )
    assert found.status == "cannot tell" and reason in found.reason
    assert shop.started == before


def test_lost_doubled_and_changed_rows_are_seen_with_their_sign(shop: Site, clickhouse: Client) -> None:
    at = "shop.sessions_daily"
    one = clickhouse.query(
        f"SELECT session_id FROM {at} WHERE day = '{DAY}' AND session_id NOT IN (SELECT session_id FROM {at} WHERE day != '{DAY}') GROUP BY session_id HAVING count() = 1 ORDER BY 1 LIMIT 3"
    )
    lost, doubled, foreign = (row[0] for row in one.result_rows)
    clickhouse.command(f"DELETE FROM {at} WHERE session_id = {lost}")
    clickhouse.command(f"INSERT INTO {at} SELECT * FROM {at} WHERE session_id = {doubled}")
    clickhouse.command(
        f"INSERT INTO {at} SELECT * REPLACE (99999999 AS user_id) FROM {at} WHERE session_id = {foreign}"
    )
    found = shop.judge("sessions_daily", DAY)
    assert found.status == "different" and found.counts is not None
    assert (found.counts.missing, found.counts.larger, found.counts.extra, found.changed) == (1, 1, 1, 0)
    assert {(sample.kind, dict(sample.key)["session_id"]) for sample in found.samples} == {
        ("missing", str(lost)), ("larger", str(doubled)), ("extra", str(foreign)),
    }  # fmt: skip
    assert shop.judge("sessions_daily", "2026-10-31").status == "equal"


def test_an_older_version_in_the_place_of_the_newest_is_seen(shop: Site, clickhouse: Client) -> None:
    at = "shop.orders_latest"
    order = clickhouse.query(
        f"SELECT order_id FROM {at} FINAL WHERE version > 1 AND ordered_at >= '{DAY}' ORDER BY 1 LIMIT 1"
    ).result_rows[0][0]
    clickhouse.command(f"INSERT INTO {at} SELECT * REPLACE ('lost' AS status) FROM {at} FINAL WHERE order_id = {order}")
    tied = shop.judge("orders_latest", MONTH, "month")
    assert tied.status == "equal" and tied.counts is not None and tied.counts.undecided == 1
    clickhouse.command(
        f"INSERT INTO {at} SELECT * REPLACE (version + 1 AS version) FROM {at} FINAL WHERE order_id = {order}"
    )
    found = shop.judge("orders_latest", MONTH, "month")
    assert (found.status, found.excess) == ("different", 1)


SHAPES = """
CREATE TABLE {db}.raw (at DateTime64(3, 'Europe/Berlin'), kind LowCardinality(String), code Enum8('x' = 1, 'y' = 2), n UInt32, big UInt64,
    price Decimal(12, 2), maybe Nullable(Int32), f Float64, tags Array(String), seen DateTime DEFAULT now())
    ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY at;
CREATE TABLE {db}.states (day Date, kind String, total AggregateFunction(sum, UInt32), c AggregateFunction(count), top AggregateFunction(max, UInt32),
    u AggregateFunction(uniq, UInt32), few AggregateFunction(sumIf, UInt32, UInt8)) ENGINE = AggregatingMergeTree PARTITION BY day ORDER BY (day, kind);
CREATE MATERIALIZED VIEW {db}.states_mv TO {db}.states AS SELECT toDate(at) AS day, kind, sumState(n) AS total, countState() AS c, maxState(n) AS top, uniqState(n) AS u,
    sumIfState(n, code = 'x') AS few FROM {db}.raw GROUP BY day, kind;
CREATE TABLE {db}.copies (at DateTime64(3, 'Europe/Berlin'), kind String, code Enum8('x' = 1, 'y' = 2), worth Decimal(18, 2), maybe Nullable(Int32), f Float64,
    tags Array(String), low String) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY at;
CREATE MATERIALIZED VIEW {db}.copies_mv TO {db}.copies AS SELECT at, kind, code, if(kind = '', 0, price * n) AS worth, maybe, f, tags, lower(kind) AS low FROM {db}.raw
    WHERE n > 0 AND (code = 'x' OR maybe IS NULL);
CREATE TABLE {db}.shadowed (at DateTime('Europe/Berlin'), n UInt64, least SimpleAggregateFunction(min, Int32)) ENGINE = AggregatingMergeTree
    PARTITION BY toDate(at) ORDER BY (at, n);
CREATE MATERIALIZED VIEW {db}.shadowed_mv TO {db}.shadowed AS SELECT toStartOfHour(at) AS at, n % 3 AS n, min(i) AS least FROM (SELECT at, n, maybe AS i FROM {db}.raw) GROUP BY at, n;
CREATE TABLE {db}.hours (hour DateTime('Europe/Berlin'), kind String, n UInt64, big UInt64, maybe Int64) ENGINE = SummingMergeTree PARTITION BY toDate(hour) ORDER BY (hour, kind);
CREATE MATERIALIZED VIEW {db}.hours_mv TO {db}.hours AS SELECT toStartOfHour(at) AS hour, kind, sum(n) AS n, sum(big) AS big, sum(maybe) AS maybe FROM {db}.raw GROUP BY hour, kind;
CREATE TABLE {db}.same_name (at DateTime('Europe/Berlin'), n UInt64) ENGINE = SummingMergeTree PARTITION BY toDate(at) ORDER BY at;
CREATE MATERIALIZED VIEW {db}.same_name_mv TO {db}.same_name AS SELECT toStartOfHour(at) AS at, sum(n) AS n FROM {db}.raw GROUP BY at;
"""


@pytest.fixture(scope="module")
def shapes(
    clickhouse: Client, server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    database, folder = f"shapes_{secrets.token_hex(3)}", tmp_path_factory.mktemp("shapes")
    text = SHAPES.replace("{db}", database)
    (folder / "all.sql").write_text(text)
    clickhouse.command(f"CREATE DATABASE {database}")
    create(clickhouse, text)
    for half in range(2):  # two blocks, so that partial results have to be put together; around the end of summer time
        clickhouse.command(
            f"INSERT INTO {database}.raw SELECT toDateTime64('2026-10-24 20:00:00', 3, 'UTC') + number * 61, ['', 'a', 'ä'][number % 3 + 1], "
            f"if(number % 2, 'x', 'y'), number % 50, number, number / 7, if(number % 5, number, NULL), number / 3, [toString(number)], now() FROM numbers({half * 900}, 900)"
        )
    pipeline = load_pipeline(folder, cache=tmp_path_factory.mktemp("cache")).require_sound()
    yield Site(pipeline, server, spark, database)
    clickhouse.command(f"DROP DATABASE {database} SYNC")


@pytest.mark.parametrize(
    ("table", "compared", "left_out"),
    [
        ("states", ("day", "kind", "total", "c", "top", "few"), {"u"}),
        ("copies", ("at", "kind", "code", "worth", "maybe", "f", "rows"), {"tags", "low"}),
        ("hours", ("hour", "kind", "n", "big", "maybe"), set()),
        ("same_name", ("at", "n"), set()),
    ],
)
@pytest.mark.parametrize("day", ["2026-10-25", "2026-10-26"])
def test_shapes_zones_and_states_are_equal(
    shapes: Site, table: str, compared: tuple[str, ...], left_out: set[str], day: str
) -> None:
    found = shapes.judge(table, day)
    assert (found.status, found.reason, found.compared) == ("equal", "", compared)
    assert {left.column for left in found.left_out} == left_out
    assert found.keys


def test_a_subquery_is_not_computed(shapes: Site) -> None:
    assert "does not read a table alone" in shapes.judge("shadowed", "2026-10-25").reason


def test_a_lost_state_is_seen_in_its_value(shapes: Site, clickhouse: Client) -> None:
    clickhouse.command(
        f"INSERT INTO {shapes.database}.states (day, kind, total) SELECT '2026-10-25', 'a', sumState(toUInt32(5))"
    )
    found = shapes.judge("states", "2026-10-25")
    assert (found.status, found.excess, found.deficit) == ("different", 1, 0)
    assert found.counts is not None
    assert [(one.column, int(str(one.too_much))) for one in found.counts.sums] == [("total", 5)]


def test_a_sum_that_wraps_is_no_verdict(shapes: Site, clickhouse: Client) -> None:
    clickhouse.command(
        f"INSERT INTO {shapes.database}.raw (at, kind, code, big, maybe) SELECT toDateTime64('2026-10-26 12:00:00', 3, 'UTC'), 'big', 'x', 18446744073709551615, 1 FROM numbers(2)"
    )
    found = shapes.judge("hours", "2026-10-26")
    assert found.status == "cannot tell" and "does not fit into its type" in found.reason


def test_the_check_warns_where_it_cannot_tell_and_starts_no_spark_for_that(
    shop: Site, spark: SparkSession, configured: EngineInfo
) -> None:
    checks = build_spark_checks(shop.pipeline, on=True)
    assert build_spark_checks(shop.pipeline, on=False) == [] and len(checks) == 1
    specs = [dg.AssetSpec(key) for key in {spec.asset_key for spec in checks[0].check_specs}]
    defs = dg.Definitions(
        assets=specs, asset_checks=checks, resources={"clickhouse": ClickHouseResource(), "spark": SparkResource()}
    )

    def run(table: str, day: str) -> dg.AssetCheckEvaluation:
        key = dg.AssetCheckKey(dg.AssetKey(["shop", table]), AGREES)
        job = defs.resolve_implicit_global_asset_job_def().get_subset(
            asset_selection=set(), asset_check_selection={key}
        )
        (found,) = job.execute_in_process(tags={"dagster/partition": day}).get_asset_check_evaluations()
        return found

    unsure, sure = run("category_sales_daily", DAY), run("visitors_daily", DAY)
    assert (unsure.passed, unsure.severity, unsure.blocking) == (False, dg.AssetCheckSeverity.WARN, False)
    assert sure.passed and "1 window(s) equal" in (sure.description or "")


def test_the_command_prints_both_verdicts(shop: Site, spark: SparkSession, configured: EngineInfo) -> None:
    arguments = ["shop.visitors_daily", "--ddl", str(DEMO_DDL), "--window", DAY, "--with", "spark", "--json"]
    answer = CliRunner().invoke(reconcile_command, arguments)
    found = json.loads(answer.stdout)
    assert (answer.exit_code, found["status"], found["spark"]["status"]) == (0, "equal", "equal")
    assert [one["column"] for one in found["spark"]["windows"][0]["not_compared"]] == ["users", "sessions"]
