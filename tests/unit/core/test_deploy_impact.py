"""What a plan says that it touches: what is there, once, with how much there is of it."""

from __future__ import annotations

from datetime import datetime, timezone

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Impact, Plan, Switch
from chmv_assets.core.deploy.forgotten import Edge, Forgotten
from chmv_assets.core.deploy.impact import Held, build_impacts
from chmv_assets.core.names import QName

TABLES = """
CREATE TABLE d.s (k UInt8, ts DateTime) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.t (k UInt8) ENGINE = MergeTree ORDER BY k;
"""
VIEW = "CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT k FROM d.s;"
S, T, V = (QName("d", name) for name in "stv")
HELD = {S: Held(3, 300, 3000), T: Held(2, 20, 200)}


def catalog(text: str) -> Catalog:
    return build_catalog([SourceFile(path="a.sql", text=text)], default_database="d")


def change(name: QName, action: str, late: tuple[str, ...] = ()) -> Change:
    return Change(name=name, kind="table", action=action, risk="safe", why="", late=late)  # type: ignore[arg-type]


def hows(found: tuple[Impact, ...]) -> list[tuple[str, str, int, int]]:
    return [(one.name.table, one.how, one.partitions, one.rows) for one in found]


def test_a_first_deployment_touches_nothing() -> None:
    made = [change(S, "create"), change(T, "create"), change(V, "switch")]
    cutovers = [Cutover(roots=(S,), targets=(T,), switches=(Switch(view=V, after="CREATE"),))]
    assert build_impacts(catalog(TABLES + VIEW), catalog(""), made, cutovers, {}) == ()


def test_a_new_view_over_a_table_that_is_there_makes_writers_wait_and_its_target_is_computed() -> None:
    cutovers = [Cutover(roots=(S,), targets=(T,), switches=(Switch(view=V, after="CREATE"),))]
    found = build_impacts(catalog(TABLES + VIEW), catalog(TABLES), [change(V, "switch")], cutovers, HELD)
    assert hows(found) == [("t", "computed anew", 2, 20), ("s", "its writers wait for a moment", 0, 0)]


def test_a_change_of_a_source_names_the_views_that_are_there() -> None:
    both = catalog(TABLES + VIEW)
    assert hows(build_impacts(both, both, [change(S, "alter")], [], HELD)) == [("v", "d.s fires it", 0, 0)]
    assert build_impacts(both, catalog(TABLES), [change(S, "alter")], [], HELD) == ()


def test_what_is_put_aside_is_told_with_its_size() -> None:
    gone = [change(T, "drop"), change(V, "drop", late=("DROP TABLE d.v",))]
    found = build_impacts(catalog(""), catalog(TABLES + VIEW), gone, [], HELD)
    assert hows(found) == [("t", "is put aside with its rows", 2, 20)]


def test_what_the_source_has_forgotten_is_told_to_stay() -> None:
    cutovers = [Cutover(roots=(S,), targets=(T,), switches=(Switch(view=V, after="CREATE"),))]
    both = catalog(TABLES + VIEW)
    edge = Edge(
        source=S,
        since=datetime(2026, 7, 1, tzinfo=timezone.utc),
        why="keeps rows only since 2026-07-01 00:00 (TTL)",
        is_timed=True,
    )
    forgotten = {T: Forgotten(edge=edge, partitions=("202605", "202606"), rows=7)}
    found = build_impacts(both, both, [change(V, "switch")], cutovers, HELD, forgotten)
    why = "of that, stays as it is, since d.s keeps rows only since 2026-07-01 00:00 (TTL)"
    assert hows(found)[:2] == [("t", "computed anew", 2, 20), ("t", why, 2, 7)]


def test_people_read_once_what_happens_to_an_object() -> None:
    wait = "its writers wait for a moment"
    impacts = (
        Impact(cause=V, name=S, how=wait), Impact(cause=V, name=T, how="computed anew", rows=7), Impact(cause=T, name=S, how=wait),
    )  # fmt: skip
    plan = Plan(plan_id="p", made_at="", declared="", live="", impacts=impacts)
    assert [(one.name, one.how) for one in plan.touched] == [(S, wait), (T, "computed anew")]
