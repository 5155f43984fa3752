"""The graph: cycles are named with their path, layers respect every edge, roles follow from edges."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.errors import CatalogDefects, UnknownObject
from chmv_assets.core.graph import build_layers, find_cycle, neighbours, reachable
from chmv_assets.core.model import Edge
from chmv_assets.core.names import QName

DEMO = Path(__file__).parents[3] / "chmv_assets" / "ddl"


@pytest.fixture(scope="module")
def demo() -> Catalog:
    files = [SourceFile(path=f.name, text=f.read_text()) for f in sorted(DEMO.glob("*.sql"))]
    return build_catalog(files, default_database="shop")


def name(text: str) -> QName:
    return QName("d", text)


def edges(*pairs: str) -> list[Edge]:
    return [Edge(name(pair[0]), name(pair[1]), "feeds") for pair in pairs]


def test_layers_of_the_demo(demo: Catalog) -> None:
    layers = [{node.table for node in layer} for layer in demo.layers()]
    assert layers == [
        {"events", "order_changes", "payments", "products", "users"},
        {"attributes_daily_mv", "category_sales_daily_mv", "orders_latest_mv", "page_speed_hourly_mv", "revenue_orders_mv",
         "revenue_payments_mv", "sessions_daily_mv", "settlement_weekly_mv", "traffic_hourly_mv", "users_dict"},
        {"attributes_daily", "category_sales_daily", "events_enriched_mv", "orders_latest", "page_speed_hourly",
         "revenue_daily", "sessions_daily", "settlement_weekly", "traffic_hourly"},
        {"customer_value_mv", "events_enriched", "orders_current", "traffic_daily_mv"},
        {"customer_value", "traffic_daily", "visitors_daily_mv"},
        {"daily_overview", "visitors_daily"},
    ]  # fmt: skip


def test_roles_of_the_demo(demo: Catalog) -> None:
    roles = {node.table: role for node, role in demo.roles().items()}
    assert {table for table, role in roles.items() if role == "source"} == {"events", "order_changes", "payments"}
    assert {table for table, role in roles.items() if role == "lookup"} == {"users", "products", "users_dict"}
    assert roles["traffic_hourly"] == "target", "a target that fires a view is still a target"
    assert {roles["orders_current"], roles["daily_overview"]} == {"other"}
    assert sum(role == "view" for role in roles.values()) == 13


def test_cycle_is_a_closed_path_along_edges() -> None:
    every = edges("ab", "bc", "cd", "db", "xa")
    cycle = find_cycle(every)
    assert cycle is not None
    assert cycle[0] == cycle[-1]
    assert {node.table for node in cycle} == {"b", "c", "d"}
    along = {(edge.source, edge.dest) for edge in every}
    steps = list(pairwise(cycle))
    assert all(step in along for step in steps), "the path runs the way the data flows"
    assert find_cycle(edges("ab", "bc", "ac")) is None


def test_cycle_is_refused_with_its_path() -> None:
    text = """CREATE TABLE d.a (x UInt8) ENGINE = Log; CREATE TABLE d.b (x UInt8) ENGINE = Log;
    CREATE MATERIALIZED VIEW d.ab TO d.b AS SELECT x FROM d.a; CREATE MATERIALIZED VIEW d.ba TO d.a AS SELECT x FROM d.b;"""
    catalog = build_catalog([SourceFile(path="x.sql", text=text)])
    with pytest.raises(CatalogDefects) as caught:
        catalog.require_sound()
    (finding,) = caught.value.findings
    assert finding.code == "cycle"
    path = finding.message.split("the cycle ")[1].split(" but")[0].split(" → ")
    assert path[0] == path[-1]
    start = path.index("d.a") if path[0] != "d.a" else 0
    turned = [*path[start:-1], *path[:start], path[start]]
    assert turned == ["d.a", "d.ab", "d.b", "d.ba", "d.a"]


def test_layers_of_a_diamond() -> None:
    layers = build_layers(map(name, "abcdz"), edges("ab", "ac", "bd", "cd"))
    assert [[node.table for node in layer] for layer in layers] == [["a", "z"], ["b", "c"], ["d"]]


def test_reachable_and_neighbours() -> None:
    up, down = neighbours(edges("ab", "bc", "cb"))
    assert reachable(name("a"), down) == {name("b"), name("c")}
    assert reachable(name("b"), down) == {name("b"), name("c")}, "on a cycle one reaches oneself"
    assert reachable(name("a"), up) == set()


def test_unknown_name_lists_the_nearest(demo: Catalog) -> None:
    with pytest.raises(UnknownObject, match=r"shop\.events_enrichd.* Did you mean shop\.events_enriched"):
        demo.get("shop.events_enrichd")
    assert demo.get("events").name == demo.get("`shop`.`events`").name == QName("shop", "events")
