"""Every target of the demo equals its views after the load; every defect put into it is found, with its sign and its key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from clickhouse_connect.driver.client import Client
from reconcile_bench import Bench, numbers

from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.pipeline import DEMO_DDL, load_pipeline
from resources.clickhouse import Server
from resources.demo_data import load_demo

DAY = "2026-11-01"
# Per target: the sorting key, and what makes a key of it that no view gives.
KEYS: dict[str, tuple[str, str | None]] = {
    "events_enriched": ("event_id", "99999999 AS event_id"),
    "traffic_hourly": ("hour, event_type, device", "'fridge' AS device"),
    "traffic_daily": ("day, event_type, device", "'fridge' AS device"),
    "visitors_daily": ("day, country, segment", "'nobody' AS segment"),
    "page_speed_hourly": ("hour, page, device", "'fridge' AS device"),
    "sessions_daily": ("day, session_id, user_id", "99999999 AS user_id"),
    "attributes_daily": ("day, attribute, value", "'nothing' AS value"),
    "category_sales_daily": ("day, category, brand", "'nobody' AS brand"),
    "orders_latest": ("order_id", "99999999 AS order_id"),
    "revenue_daily": ("day", None),
    "settlement_weekly": ("week, method, outcome", "'lost' AS outcome"),
    "customer_value": ("user_id", "99999999 AS user_id"),
}
TIME = {"events_enriched": "toDate(event_time)", "orders_latest": "toDate(ordered_at)", "settlement_weekly": "week",
        "traffic_hourly": "toDate(hour)", "page_speed_hourly": "toDate(hour)"}  # fmt: skip


@pytest.fixture(scope="module")
def shop(clickhouse: Client, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    clickhouse.command("DROP DATABASE IF EXISTS shop SYNC")
    for file in sorted(DEMO_DDL.glob("*.sql")):
        for statement in split_statements(SourceFile(path=file.name, text=file.read_text()))[0]:
            clickhouse.command(statement.text)
    start, end = datetime(2026, 10, 28, tzinfo=timezone.utc), datetime(2026, 11, 3, 15, 30, tzinfo=timezone.utc)
    load_demo(clickhouse, rows=8000, seed=7, start=start, end=end)
    refresh(clickhouse)
    catalog = load_pipeline(DEMO_DDL, cache=tmp_path_factory.mktemp("cache")).catalog
    yield Bench(clickhouse, server, catalog, "shop")
    clickhouse.command("DROP DATABASE shop SYNC")


def refresh(client: Client) -> None:
    """Refresh what is recomputed as a whole, in a later second than the last change of its sources; a merge looks like one."""
    for table in ("orders_latest", "users"):
        client.command(f"OPTIMIZE TABLE shop.{table} FINAL")
    time.sleep(1.1)
    for verb in ("REFRESH", "WAIT"):
        client.command(f"SYSTEM {verb} VIEW shop.customer_value_mv")


@pytest.fixture(params=list(KEYS))
def target(request: pytest.FixtureRequest, shop: Bench) -> Iterator[str]:
    """A target that is put back as it was."""
    if request.param == "customer_value":
        refresh(shop.client)
    shop.keep(request.param)
    yield request.param
    shop.restore(request.param)


def in_window(target: str) -> str:
    if target == "customer_value":
        return "1"
    return f"{TIME.get(target, 'day')} = '{'2026-10-26' if target == 'settlement_weekly' else DAY}'"


def one_key(shop: Bench, target: str) -> tuple[str, dict[str, str]]:
    """Some key of the window: what selects it, and its values as text."""
    names = KEYS[target][0].split(", ")
    texts = ", ".join(f"toString({name})" for name in names)
    (values,) = shop.rows(
        f"SELECT {texts} FROM {{db}}.{target} WHERE {in_window(target)} ORDER BY {KEYS[target][0]} LIMIT 1"
    )
    found = dict(zip(names, map(str, values), strict=True))
    return " AND ".join(f"toString({name}) = '{value}'" for name, value in found.items()), found


@pytest.mark.parametrize("window", [DAY, "2026-10..2026-11"])
def test_every_target_equals_its_views_after_the_load(shop: Bench, window: str) -> None:
    roles = shop.catalog.roles()
    assert {name.table for name, role in roles.items() if role == "target"} == set(KEYS)
    found = {target: shop.verdict(target, window) for target in KEYS}
    assert {target: one.sentence() for target, one in found.items() if one.status != "equal"} == {}
    assert all(one.keys > 0 and one.tries == 1 for one in found.values())
    left_out = {(target, left.column) for target, one in found.items() for left in one.left_out}
    assert left_out == {("customer_value", "country"), ("customer_value", "segment")}


def test_a_lost_key_is_missing(shop: Bench, target: str) -> None:
    where, key = one_key(shop, target)
    shop.delete(target, where)
    found = shop.verdict(target)
    assert (found.status, numbers(found), found.deficit, found.excess) == ("different", {"missing": 1}, 1, 0)
    (sample,) = found.samples
    assert sample.kind == "missing" and sample.actual == ()
    assert {name: value for name, value in sample.key if name in key} == key


def test_a_doubled_key_is_larger(shop: Bench, target: str) -> None:
    where, key = one_key(shop, target)
    shop.add(target, f"SELECT * FROM {{db}}.{target} WHERE {where}")
    found = shop.verdict(target)
    if target == "orders_latest":  # the newest version is still the same
        assert found.status == "equal"
        return
    assert (found.status, numbers(found), found.deficit, found.excess) == ("different", {"larger": 1}, 0, 1)
    assert {name: value for name, value in found.samples[0].key if name in key} == key
    if target != "customer_value":
        assert all(not one.lacking and one.too_much for one in found.counts.sums) and found.counts.sums  # type: ignore[union-attr]


def test_a_foreign_key_is_extra(shop: Bench, target: str) -> None:
    other = KEYS[target][1]
    if other is None:  # its only key is the day: a foreign one is in another window
        return
    where, _ = one_key(shop, target)
    shop.add(target, f"SELECT * REPLACE ({other}) FROM (SELECT * FROM {{db}}.{target} WHERE {where} LIMIT 1)")
    found = shop.verdict(target)
    assert (found.status, numbers(found), found.deficit, found.excess) == ("different", {"extra": 1}, 0, 1)
    assert found.samples[0].kind == "extra" and found.samples[0].expected == ()


def test_a_lost_partition_is_a_deficit_of_all_its_keys(shop: Bench, target: str) -> None:
    if target == "customer_value":
        shop.run("TRUNCATE TABLE {db}.customer_value SYNC")
    shop.drop_partitions(target, in_window(target))
    found = shop.verdict(target)
    assert found.status == "different"
    assert numbers(found) == {"missing": found.keys} and found.excess == 0 and found.keys > 0
    assert len(found.samples) == min(20, found.keys)


def test_a_lost_state_is_smaller(shop: Bench) -> None:
    where, key = one_key(shop, "visitors_daily")
    shop.keep("visitors_daily")
    try:
        shop.delete("visitors_daily", where)
        shop.add(
            "visitors_daily",
            "SELECT day, country, segment, uniqState(user_id), uniqState(session_id), sum(revenue) FROM (SELECT toDate(event_time) AS day, * "
            f"FROM {{db}}.events_enriched) WHERE {where} AND user_id != (SELECT min(user_id) FROM {{db}}.events_enriched "
            f"WHERE toDate(event_time) = '{key['day']}' AND country = '{key['country']}' AND segment = '{key['segment']}') GROUP BY ALL",
        )
        found = shop.verdict("visitors_daily")
    finally:
        shop.restore("visitors_daily")
    assert numbers(found) == {"smaller": 1}
    (sample,) = found.samples
    assert int(dict(sample.actual)["users"]) == int(dict(sample.expected)["users"]) - 1


def test_a_changed_sum_names_its_column_and_its_amount(shop: Bench) -> None:
    shop.keep("revenue_daily")
    try:
        shop.add("revenue_daily", f"(day, orders, fees) VALUES ('{DAY}', 3, -1.25)")
        found = shop.verdict("revenue_daily")
    finally:
        shop.restore("revenue_daily")
    assert numbers(found) == {"smaller": 1, "larger": 1} and found.samples[0].kind == "smaller and larger"
    sums = {one.column: (str(one.lacking), str(one.too_much)) for one in found.counts.sums}  # type: ignore[union-attr]
    assert sums == {"orders": ("0", "3"), "fees": ("1.25", "0.00")}


def test_a_changed_lookup_is_a_difference_that_says_so(shop: Bench) -> None:
    shop.run(
        "INSERT INTO {db}.products SELECT * REPLACE ('moved' AS brand, updated_at + 1 AS updated_at) FROM {db}.products"
    )
    shop.run("OPTIMIZE TABLE {db}.products FINAL")
    found = shop.verdict("category_sales_daily")
    assert found.status == "different" and found.opaque
    assert "category_sales_daily_mv is opaque (it reads shop.products beside its trigger" in found.reason
    assert "may be history and no loss" in found.reason
