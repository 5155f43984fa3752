"""A SELECT over a twin: one name exchanged, nothing else."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.retarget import retarget
from chmv_assets.pipeline import DEMO_DDL, load_pipeline

TWIN = QName("chmv", "twin.1")
SOURCE = "CREATE TABLE d.s (a UInt8, `from` UInt8) ENGINE = MergeTree ORDER BY a; CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a;"


def view(select: str, database: str = "d") -> Object:
    text = f"{SOURCE} CREATE MATERIALIZED VIEW d.v TO d.t AS {select}"
    return build_catalog([SourceFile(path="x.sql", text=text)], default_database=database).objects[QName("d", "v")]


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        ("SELECT a FROM d.s", "SELECT a FROM `chmv`.`twin.1` AS `s`"),
        ("SELECT a FROM s WHERE a > 1", "SELECT a FROM `chmv`.`twin.1` AS `s` WHERE a > 1"),
        ("SELECT x.a FROM `d`.`s` AS x", "SELECT x.a FROM `chmv`.`twin.1` AS x"),
        ("SELECT x.a FROM d.s x GROUP BY a", "SELECT x.a FROM `chmv`.`twin.1` x GROUP BY a"),
        ("SELECT s.a FROM d.s /* here */ GROUP BY a", "SELECT s.a FROM `chmv`.`twin.1` AS `s` /* here */ GROUP BY a"),
        (
            "SELECT a FROM (SELECT a FROM d.s) GROUP BY a",
            "SELECT a FROM (SELECT a FROM `chmv`.`twin.1` AS `s`) GROUP BY a",
        ),
        ("SELECT `from` AS a FROM d.s", "SELECT `from` AS a FROM `chmv`.`twin.1` AS `s`"),
        ("SELECT a, 'FROM d.s' AS t FROM d.s", "SELECT a, 'FROM d.s' AS t FROM `chmv`.`twin.1` AS `s`"),
        (
            "WITH x AS (SELECT a FROM d.s) SELECT a FROM x",
            "WITH x AS (SELECT a FROM `chmv`.`twin.1` AS `s`) SELECT a FROM x",
        ),
    ],
)
def test_only_the_trigger_is_exchanged(select: str, wanted: str) -> None:
    assert retarget(view(select), QName("d", "s"), TWIN) == wanted


@pytest.mark.parametrize(
    "select", ["SELECT d.s.a FROM d.s", "SELECT a FROM d.s WHERE a IN (SELECT a FROM d.s)", "SELECT a FROM d.other"]
)
def test_what_is_not_certain_is_refused(select: str) -> None:
    with pytest.raises(RebuildRefused, match="cannot be made with certainty"):
        retarget(view(select), QName("d", "s"), TWIN)


def test_every_view_of_the_demo_has_a_twin() -> None:
    catalog = load_pipeline(DEMO_DDL).catalog
    views = [node for node in catalog.objects.values() if node.kind == "materialized_view"]
    assert len(views) >= 8
    for one in views:
        trigger = catalog.trigger_of(one.name)
        assert trigger is not None
        assert TWIN.sql in retarget(one, trigger, TWIN)
