"""Names, the rule of lost partitions, what is copied, refusals and statuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.serving import (
    ANY_BLOCK,
    UNGUARDED,
    CopyPlan,
    Held,
    TargetFacts,
    copy_survived,
    has_shrunk,
    is_guarded,
    is_lost,
    least_offset,
    mark_in,
    plan_copy,
    quote_regex,
    render_guard_view,
    render_snapshot_view,
    serving_names,
    serving_targets,
    snapshot_name,
    snapshot_refusal,
    status_of,
)
from chmv_assets.core.serving_journal import Guard

X = QName("shop", "x")
DDL = """
CREATE TABLE shop.s (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id;
CREATE TABLE shop.x (id UInt64, ts DateTime) ENGINE = ReplacingMergeTree PARTITION BY toDate(ts) ORDER BY id;
CREATE MATERIALIZED VIEW shop.x_mv TO shop.x AS SELECT id, ts FROM shop.s;
CREATE MATERIALIZED VIEW shop.hidden ENGINE = MergeTree ORDER BY id AS SELECT id FROM shop.s;
CREATE TABLE shop.whole (id UInt64) ENGINE = MergeTree ORDER BY id;
CREATE MATERIALIZED VIEW shop.whole_mv REFRESH EVERY 1 HOUR TO shop.whole AS SELECT id FROM shop.s;
CREATE TABLE shop.kept (id UInt64) ENGINE = Memory;
CREATE MATERIALIZED VIEW shop.kept_mv TO shop.kept AS SELECT id FROM shop.s;
"""
CATALOG = build_catalog([SourceFile(path="ddl.sql", text=DDL)])


def held(rows: int = 10, low: int = 1, high: int = 5, version: int = 0, largest: int = 10, emptied: int = 0) -> Held:
    return Held(rows, low, high, version, emptied, largest, largest)


def guard(block: int, partition: str = "p", copied: str = "u 10 5 0", uuid: str = "u") -> Guard:
    return Guard(target=X, partition_id=partition, max_block=block, table_uuid=uuid, copied=copied)


def test_merge_tree_targets_are_served_and_hidden_ones_are_not() -> None:
    assert [one.name.table for one in serving_targets(CATALOG)] == ["whole", "x"]


def test_a_table_that_is_refreshed_as_a_whole_is_not_guarded() -> None:
    assert (is_guarded(CATALOG, X), is_guarded(CATALOG, QName("shop", "whole"))) == (True, False)


def test_only_shared_table_names_carry_their_database() -> None:
    names = serving_names([QName("a", "x"), QName("b", "x"), QName("b", "y")])
    assert [one.table for one in names.values()] == ["a.x", "b.x", "y"]


def test_names_of_snapshots_cannot_be_mistaken() -> None:
    assert snapshot_name(QName("a.b", "c")) != snapshot_name(QName("a", "b.c"))


@pytest.mark.parametrize(
    "name", ["x", "a.b", "it's", "täglich", "x (1)|y", "back\\slash", "$^+*?[]{}", "日本", "a b-c#&~"]
)
def test_a_regular_expression_matches_its_name_alone(name: str) -> None:
    literal = quote_regex([name, "other"])
    pattern = literal[1:-1].replace("\\'", "'").replace("\\\\", "\\")
    assert (
        re.fullmatch(pattern, name) and not re.fullmatch(pattern, name + "x") and not re.fullmatch(pattern, "x" + name)
    )
    assert not re.search(r"\\[^\x00-\x7f]", pattern), "RE2 refuses a backslash before other scripts"


def test_views_tell_their_text_by_a_mark() -> None:
    target = CATALOG.objects[X]
    primary = render_guard_view(QName("serving", "x"), target, ["id", "ts"])
    snapshot = render_snapshot_view(QName("serving", "x"), target, ["id", "ts"])
    assert mark_in(primary) and mark_in(snapshot) and mark_in(primary) != mark_in(snapshot)
    assert primary.count(" FINAL WHERE") == 4, "two reads of rows and two of guards"
    assert snapshot.startswith(
        "CREATE OR REPLACE VIEW `serving`.`x` AS SELECT `id`, `ts` FROM `chmv_snapshots`.`shop.x` FINAL "
    )


@pytest.mark.parametrize(
    ("guarded", "now", "uuid", "lost"),
    [
        (None, None, "u", False),
        (guard(UNGUARDED), None, "u", False),
        (guard(5), held(), "u", False),
        (guard(5), held(low=5), "u", False),
        (guard(5), held(low=6), "u", True),
        (guard(5), None, "u", True),
        (guard(5), held(), "another table", True),
        (guard(ANY_BLOCK), held(low=10**9), "u", False),
        (guard(ANY_BLOCK), None, "u", True),
        (guard(5, copied="u 10 5 0 3"), held(largest=4), "u", False),
        (guard(5, copied="u 10 5 0 3"), held(largest=3), "u", True),
        (guard(5, copied="u 10 5 0 3"), held(largest=3, version=9), "u", False),
        (guard(5, copied="u 10 5 0 0"), held(largest=1), "u", False),
    ],
)
def test_lost_is_what_has_no_part_from_before(guarded: Guard | None, now: Held | None, uuid: str, lost: bool) -> None:
    assert is_lost(guarded, now, uuid) is lost


@pytest.mark.parametrize(
    ("now", "copied", "guards", "wanted"),
    [
        ({"p": held()}, {}, {}, CopyPlan(copy=("p",))),
        ({"p": held()}, {"p": held()}, {"p": guard(5)}, CopyPlan()),
        ({"p": held(rows=11, high=6)}, {"p": held()}, {"p": guard(5)}, CopyPlan(copy=("p",))),
        ({"p": held(version=7)}, {"p": held()}, {"p": guard(5)}, CopyPlan(copy=("p",))),
        ({"p": held(low=9, high=9)}, {"p": held()}, {"p": guard(5)}, CopyPlan(lost=("p",))),
        ({}, {"p": held()}, {"p": guard(5)}, CopyPlan(lost=("p",))),
        ({}, {"p": held()}, {"p": guard(UNGUARDED)}, CopyPlan(drop=("p",))),
        ({"p": held(low=9, high=9)}, {"p": held()}, {"p": guard(ANY_BLOCK, copied="")}, CopyPlan(copy=("p",))),
        ({"p": held(low=9, high=9)}, {}, {"p": guard(5)}, CopyPlan(copy=("p",))),  # the copy has expired too
    ],
)  # fmt: skip
def test_what_changed_is_copied_and_what_was_lost_is_kept(
    now: dict[str, Held], copied: dict[str, Held], guards: dict[str, Guard], wanted: CopyPlan
) -> None:
    assert plan_copy(now, copied, guards, "u") == wanted


def test_a_copy_counts_if_some_part_from_before_is_still_there() -> None:
    target = CATALOG.objects[X]
    assert copy_survived(target, held(), held(high=9))
    assert not copy_survived(target, held(), held(low=6, high=9))
    assert not copy_survived(target, held(), None)
    assert not copy_survived(target, held(), held(high=9, largest=3)), "what is left was merged with what a DROP leaves"
    assert not copy_survived(target, held(), held(high=9, emptied=1))


@pytest.mark.parametrize(
    ("engine", "ttl", "now", "wanted"),
    [
        ("MergeTree", "", held(largest=18807), 8191),
        ("MergeTree", "", held(largest=4), 1),
        ("MergeTree", "", held(largest=3), 0),
        ("MergeTree", "", held(largest=0), 0),
        ("MergeTree", "ts + INTERVAL 1 DAY", held(largest=18807), 0),
        ("MergeTree", "", held(largest=18807, version=3), 0),
        ("CollapsingMergeTree", "", held(largest=18807), 0),
        ("GraphiteMergeTree", "", held(largest=18807), 0),
        ("ReplicatedSummingMergeTree", "", held(largest=18807), 8191),
        ("SummingMergeTree", "", Held(9, 1, 5, 0, 0, 18807, 0), 0),
    ],
)
def test_how_large_a_part_has_to_be_is_known_where_nothing_goes_by_itself(
    engine: str, ttl: str, now: Held, wanted: int
) -> None:
    target = replace(CATALOG.objects[X], engine=engine, ttl=ttl)
    assert least_offset(target, now) == wanted
    assert not has_shrunk(wanted, now), "never of what was just seen"


def test_no_snapshot_and_an_old_one_are_refused() -> None:
    assert "no complete snapshot" in snapshot_refusal(X, 0, 10_000, 60)
    assert "61 s old but wanted 60 s" in snapshot_refusal(X, 1_000, 62_000, 60)
    assert snapshot_refusal(X, 1_000, 61_000, 60) == ""


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ({}, "ACTIVE"),
        ({"snapshot_age_seconds": 10**6}, "ACTIVE"),
        ({"lost": 1}, "DEGRADED"),
        ({"outages": (("v dropped", 299.0),)}, "DEGRADED"),
        ({"repairs_running": ("dropped",)}, "DEGRADED"),
        ({"stale_seconds": 300.0}, "DEGRADED"),
        ({"outages": (("v dropped", 301.0),), "lost": 1}, "STALE"),
        ({"stale_seconds": 301.0}, "STALE"),
        ({"route": "snapshot", "route_reason": "v is isolated"}, "STALE"),
    ],
)
def test_the_status_of_a_target(known: dict[str, object], status: str) -> None:
    found, why = status_of(TargetFacts(target=X, sla_seconds=300, **known))  # type: ignore[arg-type]
    assert found == status
    assert bool(why) == (status != "ACTIVE")
