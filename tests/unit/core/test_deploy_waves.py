"""What of a plan goes side by side, and what waits for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.deploy.changes import Change, Cutover, Plan
from chmv_assets.core.deploy.waves import build_waves
from chmv_assets.core.names import QName

DDL = """
CREATE TABLE d.s1 (k UInt8, ts DateTime) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.s2 (k UInt8, ts DateTime) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.t1 (k UInt8) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.t2 (k UInt8) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.t3 (k UInt8) ENGINE = MergeTree ORDER BY k;
CREATE MATERIALIZED VIEW d.v1 TO d.t1 AS SELECT k FROM d.s1;
CREATE MATERIALIZED VIEW d.v2 TO d.t2 AS SELECT k FROM d.s2;
CREATE MATERIALIZED VIEW d.v3 TO d.t3 AS SELECT k FROM d.s2 WHERE k IN (SELECT k FROM d.t1);
CREATE VIEW d.p AS SELECT k FROM d.t1;
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return build_catalog([SourceFile(path="a.sql", text=DDL)], default_database="d")


def name(table: str) -> QName:
    return QName("d", table)


def change(table: str, early: tuple[str, ...] = (), late: tuple[str, ...] = (), **more: object) -> Change:
    made = Change(name=name(table), kind="table", action="alter", risk="safe", why="", early=early, late=late)
    return replace(made, **more)  # type: ignore[arg-type]


def cutover(root: str, *targets: str) -> Cutover:
    return Cutover(roots=(name(root),), targets=tuple(map(name, targets)))


def titles(plan: Plan, catalog: Catalog) -> list[list[list[str]]]:
    return [[[unit.title for unit in line] for line in wave] for wave in build_waves(plan, catalog)]


def plan(changes: tuple[Change, ...] = (), cutovers: tuple[Cutover, ...] = ()) -> Plan:
    return Plan(plan_id="p", made_at="", declared="", live="", changes=changes, cutovers=cutovers)


def test_statements_of_a_layer_go_side_by_side_those_of_an_object_one_after_another(catalog: Catalog) -> None:
    made = plan((change("s1", ("a", "b")), change("s2", ("c",)), change("t1", ("d",)), change("p", ("e",))))
    assert titles(made, catalog) == [[["a", "b"], ["c"], ["d"]], [["e"]]]


def test_what_goes_comes_last_in_the_reverse_order(catalog: Catalog) -> None:
    gone = change("old", late=("DROP 1",), action="drop")
    aside = change("older", action="drop")
    made = plan((change("s1", ("a",), ("x",)), change("p", ("b",), ("y",)), gone, aside), (cutover("s1", "t1"),))
    assert titles(made, catalog) == [
        [["a"]],
        [["b"]],
        [["cut over d.t1"]],
        [["DROP 1"]],
        [["y"]],
        [["x"]],
        [["keep d.older aside"]],
    ]


@pytest.mark.parametrize(
    ("cutovers", "waves"),
    [
        ((cutover("s1", "t1"), cutover("s2", "t2")), [2]),
        ((cutover("s2", "t2"), cutover("s2", "t3")), [1, 1]),  # the same writers wait
        ((cutover("s1", "t1"), cutover("s2", "t3")), [1, 1]),  # t3 looks t1 up
        ((cutover("s2", "t3"), cutover("s1", "t1")), [1, 1]),
    ],
)
def test_cutovers_go_side_by_side_only_if_they_share_nothing(
    catalog: Catalog, cutovers: tuple[Cutover, ...], waves: list[int]
) -> None:
    assert [len(wave) for wave in build_waves(plan(cutovers=cutovers), catalog)] == waves


def test_many_pipelines_that_share_nothing_are_one_wave_and_are_looked_at_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 60
    ddl = "".join(
        f"CREATE TABLE d.s{at} (k UInt8) ENGINE = MergeTree ORDER BY k;\nCREATE TABLE d.t{at} (k UInt8) ENGINE = MergeTree ORDER BY k;\n"
        f"CREATE MATERIALIZED VIEW d.v{at} TO d.t{at} AS SELECT k FROM d.s{at};\n"
        for at in range(count)
    )
    catalog = build_catalog([SourceFile(path="a.sql", text=ddl)], default_database="d")
    asked: list[QName] = []
    real = Catalog.edges_into
    monkeypatch.setattr(Catalog, "edges_into", lambda self, one: asked.append(one) or real(self, one))
    waves = build_waves(plan(cutovers=tuple(cutover(f"s{at}", f"t{at}") for at in range(count))), catalog)
    assert [len(wave) for wave in waves] == [count]
    assert len(asked) == 3 * count, "a pair of cutovers is never looked at by itself: 500 views took two minutes"
