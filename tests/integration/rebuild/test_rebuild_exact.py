"""The closed rebuild on the real server: damaged targets become exact again, and nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from clickhouse_connect.driver.client import Client
from rebuild_cases import CASES, DAILY_SUM, ODD, ROWS, SOURCE
from rebuild_oracle import UTC, Pipe, apply_ddl, covered, day

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import window_of_key
from resources.clickhouse import Server

HOWS = ("drop", "delete", "double")


THOROUGH = ("append", "additive", "replacing", "two_views", "dimensions", "unpartitioned")


@pytest.mark.parametrize("protocol", ["closed", "gated"])
@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in CASES for how in (HOWS if name in THOROUGH else HOWS[1:2])]
)
def test_damaged_window_is_exact_after_publish_and_the_rest_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], name: str, how: str, protocol: Protocol
) -> None:
    case = CASES[name]
    pipe = make(case, name)
    pipe.protocol = protocol
    assert {pipe.catalog.facts[v.name].view_class for v in pipe.catalog.views_into(pipe.name("target"))} == {
        case.view_class
    }
    truth = pipe.truth()
    damaged = covered(pipe, case.window)
    assert damaged
    pipe.damage(how, damaged)
    before = pipe.checksums()
    published = pipe.publish(case.window, timezone=case.timezone)
    after, now = pipe.checksums(), pipe.rows(pipe.name("target"))
    assert set(damaged) <= set(published.partitions)
    for partition in set(damaged) | set(published.partitions):
        assert now.get(partition) == truth.get(partition), partition
    others = set(before) - set(published.partitions)
    assert others or name == "unpartitioned"
    assert {p: after[p] for p in others} == {p: before[p] for p in others}
    assert set(after) == set(truth)
    assert published.tries == 1
    assert left_over() == []


def test_scratch_of_a_view_is_reused_and_built_again_after_an_insert(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    pipe = make(CASES["additive"], "reuse")
    view = pipe.catalog.objects[pipe.name("mv")]
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is False
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is True
    assert left_over() == [f"scratch.{pipe.database}.reuse_target.{pipe.database}.reuse_mv"]
    pipe.run("INSERT INTO {db}.{case}_source VALUES (1, '2026-07-09 10:00:00', 'DE', 5, 1)")
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is True, "another day's rows do not matter"
    pipe.run("INSERT INTO {db}.{case}_source VALUES (1, '2026-07-05 10:00:00', 'DE', 5, 1)")
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is False
    published = pipe.publish(day("2026-07-05"))
    assert published.shares_reused == 1
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


def test_readers_see_nothing_of_a_scratch(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(CASES["additive"], "unseen")
    pipe.damage("drop", ["20260705"])
    before = pipe.checksums()
    pipe.rebuilder().build_scratch(pipe.catalog.objects[pipe.name("mv")], day("2026-07-05"))
    assert pipe.checksums() == before


def test_windows_that_share_a_partition_do_not_take_each_others_scratch(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """A UTC day touches two Berlin days: publishing one window must not leave the next with a mark and no rows."""
    pipe = make(CASES["berlin"], "shared")
    view = pipe.catalog.objects[pipe.name("mv")]
    for key in ("2026-07-05", "2026-07-06", "2026-07-07"):
        pipe.rebuilder().build_scratch(view, day(key))
    for key in ("2026-07-05", "2026-07-06", "2026-07-07"):
        pipe.publish(day(key))
        assert pipe.rows(pipe.name("target")) == pipe.truth(), key
    assert left_over() == []


def test_lost_scratch_is_not_taken_for_an_empty_share(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """Somebody dropped the scratch of one of two views; its mark must not speak for it."""
    pipe = make(CASES["two_views"], "lost")
    for suffix in ("mv", "other_mv"):
        pipe.rebuilder().build_scratch(pipe.catalog.objects[pipe.name(suffix)], day("2026-07-05"))
    gone = next(name for name in left_over() if name.endswith("other_mv"))
    pipe.client.command(f"DROP TABLE chmv.`{gone}` SYNC")
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_source_partition_that_was_replaced_is_seen(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """A scratch built before the source's rows were exchanged for as many others is not used after it."""
    pipe = make(CASES["additive"], "exchanged")
    view = pipe.catalog.objects[pipe.name("mv")]
    pipe.rebuilder().build_scratch(view, day("2026-07-05"))
    source, other = pipe.name("source").sql, pipe.name("other").sql
    pipe.client.command(f"CREATE TABLE {other} AS {source}")
    pipe.client.command(f"INSERT INTO {other} SELECT * REPLACE (amount + 1 AS amount) FROM {source}")
    pipe.client.command(f"ALTER TABLE {source} REPLACE PARTITION ID '20260705' FROM {other}")
    assert pipe.publish(day("2026-07-05")).shares_reused == 0
    assert pipe.rows(pipe.name("target"))["20260705"] == pipe.truth()["20260705"]


def test_unqualified_names_mean_the_default_database(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]]
) -> None:
    text = (SOURCE + DAILY_SUM).replace("{case}", "bare")
    apply_ddl(clickhouse, text.replace("{db}", database))
    catalog = build_catalog([SourceFile(path="x.sql", text=text.replace("{db}.", ""))], default_database=database)
    pipe = Pipe(clickhouse, server, database, "bare", catalog.require_sound())
    pipe.run(ROWS.format(db=database, case="bare", first=0, count=500))
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_hostile_names_are_rebuilt_too(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(ODD, "odd", rows=0)
    source = QName(pipe.database, "odd_sour.ce `x`")
    pipe.client.command(
        f"INSERT INTO {source.sql} SELECT number, toDateTime('2026-07-01 00:00:00', 'UTC') + number * 5000 FROM numbers(100)"
    )
    view = pipe.catalog.objects[QName(pipe.database, "odd_m'v")]
    target = pipe.catalog.objects[pipe.name("target")]
    pipe.client.command(f"INSERT INTO {target.name.sql} SELECT * FROM {target.name.sql}")
    for key in ("2026-07-01", "2026-07-03"):
        pipe.rebuilder().build_scratch(view, day(key))
        assert pipe.publish(day(key)).shares_reused == 1
    expected = pipe.client.query(
        f"SELECT toDate(`ts'é`) AS d, count() FROM {source.sql} WHERE d IN ('2026-07-01', '2026-07-03') GROUP BY d ORDER BY d"
    )
    found = pipe.client.query(
        f"SELECT * FROM {target.name.sql} WHERE `d``ay` IN ('2026-07-01', '2026-07-03') ORDER BY ALL"
    )
    assert found.result_rows == expected.result_rows
    assert left_over() == []


def test_random_life_of_a_pipeline(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    """Thirty rounds of inserts, damage and publications; after each the published window is exact."""
    chance = random.Random(20261116)
    pipes = [make(CASES[name], f"life_{name}", rows=900) for name in ("two_views", "replacing", "dimensions")]
    for round_number in range(30):
        pipe = chance.choice(pipes)
        for _ in range(chance.randint(0, 2)):
            pipe.run(
                ROWS.format(
                    db=pipe.database, case=pipe.case, first=chance.randrange(10_000), count=chance.randint(1, 40)
                )
            )
        truth = pipe.truth()
        monthly = pipe.case != "life_two_views"
        moment = datetime(2026, 6, 20, tzinfo=UTC) + timedelta(days=chance.randrange(40))
        window = window_of_key(
            f"{moment:%Y-%m}-01" if monthly else f"{moment:%Y-%m-%d}", "month" if monthly else "day", "UTC"
        )
        damaged = [p for p in covered(pipe, window) if p in pipe.checksums()]
        pipe.damage(chance.choice(["drop", "delete", "double"]), damaged[: chance.randint(1, 3)])
        before = pipe.checksums()
        pipe.protocol = chance.choice(["closed", "gated", "auto"])
        published = pipe.publish(window)
        now, after = pipe.rows(pipe.name("target")), pipe.checksums()
        assert {p: now.get(p) for p in published.partitions} == {p: truth.get(p) for p in published.partitions}, (
            round_number
        )
        assert set(covered(pipe, window)) <= set(published.partitions)
        assert {p: v for p, v in after.items() if p not in published.partitions} == {
            p: v for p, v in before.items() if p not in published.partitions
        }
    assert left_over() == []
