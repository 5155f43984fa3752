"""Differences of a table → statements and risks, as a table."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import compare_objects
from chmv_assets.core.deploy.alters import render_alters
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName

HEAD = "CREATE TABLE d.t (a UInt64, b String DEFAULT 'x', c UInt32, INDEX i c TYPE minmax GRANULARITY 1) ENGINE = MergeTree ORDER BY a"


def read(sql: str) -> Object:
    return build_catalog([SourceFile(path="x.sql", text=sql)]).objects[QName("d", "t")]


@pytest.mark.parametrize(
    ("before", "after", "early", "late", "risk"),
    [
        ("c UInt32", "c UInt32, z Date", ["ADD COLUMN IF NOT EXISTS `z` Date AFTER `c`"], [], "safe"),
        ("c UInt32, ", "c UInt32, ", [], [], "safe"),
        ("b String DEFAULT 'x', ", "", [], ["DROP COLUMN IF EXISTS `b`"], "destructive"),
        ("DEFAULT 'x'", "DEFAULT 'y'", ["MODIFY COLUMN `b` String DEFAULT 'y'"], [], "safe"),
        ("String DEFAULT 'x'", "String", ["MODIFY COLUMN `b` REMOVE DEFAULT"], [], "safe"),
        ("c UInt32", "c UInt64", ["MODIFY COLUMN `c` UInt64"], [], "rewrites data"),
        ("c UInt32", "c UInt32 COMMENT 'it''s'", [r"COMMENT COLUMN `c` 'it\'s'"], [], "safe"),
        ("c UInt32", "c UInt32 CODEC(ZSTD(3))", ["MODIFY COLUMN `c` UInt32 CODEC(ZSTD(3))"], [], "safe"),
        (", INDEX i c TYPE minmax GRANULARITY 1", "", ["DROP INDEX IF EXISTS `i`"], [], "safe"),
        (
            "GRANULARITY 1",
            "GRANULARITY 2",
            ["DROP INDEX IF EXISTS `i`", "ADD INDEX IF NOT EXISTS `i` c TYPE minmax GRANULARITY 2"],
            [],
            "safe",
        ),
        ("ORDER BY a", "ORDER BY a COMMENT 'new'", ["MODIFY COMMENT 'new'"], [], "safe"),
        (
            "ORDER BY a",
            "ORDER BY a SETTINGS merge_max_block_size = 100",
            ["MODIFY SETTING merge_max_block_size = 100"],
            [],
            "safe",
        ),
        ("c UInt32", "at Date, c UInt32", ["ADD COLUMN IF NOT EXISTS `at` Date AFTER `b`"], [], "safe"),
        ("ORDER BY a", "ORDER BY (a, b)", [], [], "manual"),
        ("ENGINE = MergeTree", "ENGINE = ReplacingMergeTree", [], [], "manual"),
        ("a UInt64", "a UInt32", [], [], "manual"),
    ],
)
def test_alters_of_a_source(before: str, after: str, early: list[str], late: list[str], risk: str) -> None:
    assert before in HEAD
    declared, live = read(HEAD.replace(before, after)), read(HEAD)
    found = render_alters(declared, live, compare_objects(declared, live, "default").differences, is_target=False)
    head = "ALTER TABLE `d`.`t` "
    assert ([one.removeprefix(head) for one in found.early], [one.removeprefix(head) for one in found.late]) == (
        early,
        late,
    )
    assert found.risk == risk


@pytest.mark.parametrize(("is_target", "risk"), [(False, "manual"), (True, "rewrites data")])
def test_an_ephemeral_column_cannot_be_altered_into_another(is_target: bool, risk: str) -> None:
    live = read(HEAD.replace("DEFAULT 'x'", "EPHEMERAL 'x'"))
    declared = read(HEAD.replace(" DEFAULT 'x'", ""))
    found = render_alters(declared, live, compare_objects(declared, live, "default").differences, is_target=is_target)
    assert (found.risk, found.early) == (risk, [])


@pytest.mark.parametrize("after", ["ORDER BY (a, b)", "ORDER BY a TTL toDate(c)"])
def test_a_target_becomes_another_table_only_where_it_must(after: str) -> None:
    declared, live = read(HEAD.replace("ORDER BY a", after)), read(HEAD)
    found = render_alters(declared, live, compare_objects(declared, live, "default").differences, is_target=True)
    if "TTL" in after:
        assert (
            found.storage == []
            and found.risk == "destructive"
            and found.late == ["ALTER TABLE `d`.`t` MODIFY TTL toDate(c)"]
        )
    else:
        assert found.storage == ["ORDER BY"] and found.risk == "rewrites data" and found.early == []
