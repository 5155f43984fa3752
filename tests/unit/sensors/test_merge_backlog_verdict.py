"""The merge backlog sensor's decision, case by case; no server, no Dagster."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from chmv_assets.core import diversions, thresholds
from chmv_assets.core.backlog import Fullest
from chmv_assets.core.diversions import Diversion, DiversionStatus
from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits, in_peak
from resources.backlog import Backlog
from sensors import merge_backlog_verdict
from sensors.merge_backlog_verdict import CALM, OPTIMIZE, Cursor, Known, Watched, asked_of, decide, judge, load_cursor
from sensors.verdict import Verdict

EVENTS, HOURLY = QName("shop", "events"), QName("shop", "hourly")
SOURCE = Watched(source=EVENTS, tables=(EVENTS, HOURLY))
DAY = 20_000 * 86_400
NIGHT, NOON = DAY + 2 * 3_600.0, DAY + 12 * 3_600.0  # UTC
LIMITS = Limits()
FIRST_ROUND = 20_000_000


def full(
    parts: int, table: QName = HOURLY, partition: str = "20260705", delay: int = 1000, throw: int = 3000
) -> Fullest:
    return Fullest(table=table, partition_id=partition, parts=parts, parts_to_delay=delay, parts_to_throw=throw)


def seen(*tables: Fullest, tasks: int = 0, diversion: DiversionStatus | None = None) -> Backlog:
    said = Diversion(source=EVENTS, status=diversion, reason="", since_ms=77) if diversion else None
    return Backlog(
        fullest={one.table: one for one in tables},
        pool_tasks=tasks,
        pool_size=16,
        diversions={EVENTS: said} if said else {},
    )


def known(parts: int, tier: int = 1, at: float = NOON - 60, number: int = 5, partition: str = "20260705") -> Cursor:
    return Cursor(tables={HOURLY: Known(partition, parts, at, tier, number)})


def run(found: Backlog, cursor: Cursor | None = None, now: float = NOON, **more: object) -> Verdict[Cursor]:
    options: dict[str, object] = {"limits": LIMITS, "zone": "UTC", **more}
    return decide(found, [SOURCE], cursor or Cursor(), now=now, **options)  # type: ignore[arg-type]


def test_doctests() -> None:
    for module in (merge_backlog_verdict, thresholds, diversions):
        assert doctest.testmod(module).failed == 0


# What was seen, what the cursor knows, when → which asks, what is said.
CASES = {
    "nothing there": (seen(), None, NOON, [], "calm, no parts"),
    "at rest": (seen(full(3)), None, NOON, [], "calm, 3 parts"),
    "merges lag": (seen(full(11)), None, NOON, [], "slow, 11 parts"),
    "the pool is busy": (seen(full(3), tasks=14), None, NOON, [], "slow, 3 parts"),
    "near the delay limit at night": (seen(full(800)), None, NIGHT, ["optimize"], "merge now, off peak"),
    "near the delay limit at noon, not growing": (seen(full(800)), None, NOON, [], "so merging waits"),
    "at the delay limit at noon": (seen(full(1000)), None, NOON, ["optimize"], "although it is peak"),
    "at the delay limit at noon, pool busy": (seen(full(1000), tasks=14), None, NOON, [], "would only queue"),
    "growing fast at noon": (seen(full(400)), known(280), NOON, ["optimize"], "+2.00 per s, the delay limit in 300 s"),
    "growing slowly": (seen(full(400)), known(370), NOON, [], "slow, 400 parts"),
    "growing fast but few": (seen(full(9, delay=20)), known(5), NOON, [], "slow, 9 parts"),
    "shrinking": (seen(full(400)), known(900), NOON, [], "slow, 400 parts"),
    "another partition has no trend": (seen(full(400, partition="x")), known(100), NOON, [], "slow, 400 parts"),
    "half way to refused inserts": (seen(full(1500)), None, NOON, ["optimize", "divert"], "divert, 1500 parts"),
    "refused soon, pool busy at noon": (seen(full(1500), tasks=16), None, NOON, ["divert"], "would only queue"),
    "diverted already": (seen(full(1500), diversion="diverted"), None, NIGHT, ["optimize"], "divert"),
    "diverted, not calm yet": (seen(full(751), diversion="diverted"), None, NOON, [], "slow, 751 parts"),
    "diverted, calm": (seen(full(750), diversion="diverted"), None, NOON, ["drain"], "drain"),
    "diverted, all parts gone": (seen(diversion="diverted"), None, NOON, ["drain"], "drain"),
    "a drain that died": (seen(full(5), diversion="draining"), None, NOON, ["drain"], "drain"),
    "drained": (seen(full(5), diversion="clear"), None, NOON, [], "calm, 5 parts"),
    "diverted once more": (seen(full(1500), diversion="clear"), None, NIGHT, ["optimize", "divert"], "divert"),
    "limits of the table itself": (seen(full(10, delay=10, throw=20)), None, NOON, ["optimize", "divert"], "from 20 on"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_source(case: str) -> None:
    found, cursor, now, damages, said = CASES[case]
    verdict = run(found, cursor, now)
    assert [ask.damage for ask in verdict.asks] == damages
    assert said in verdict.told and "merge pool" in verdict.told
    assert load_cursor(verdict.cursor.dump()) == verdict.cursor


def test_the_fullest_table_of_the_whole_fan_out_decides_and_only_its_partition_is_merged() -> None:
    verdict = run(seen(full(4, table=EVENTS, partition="a"), full(900, partition="b")), now=NIGHT)
    (ask,) = verdict.asks
    assert (ask.subject, ask.evidence, ask.kind) == (HOURLY, f"b #{FIRST_ROUND}", "backlog")
    assert ask.seen["parts"] == "900"


def test_diverting_and_draining_are_named_by_the_diversion_so_that_each_happens_once() -> None:
    assert run(seen(full(1500))).asks[-1].evidence == "after 0"
    assert run(seen(full(1500), diversion="clear")).asks[-1].evidence == "after 77"
    assert run(seen(full(5), diversion="diverted")).asks[-1].evidence == "since 77"
    assert run(seen(full(5), diversion="draining")).asks[-1].evidence == "since 77"


def test_of_many_sources_those_in_trouble_are_told_and_the_rest_is_counted() -> None:
    names = [QName("shop", f"t{number:03d}") for number in range(500)]
    watched = [Watched(source=name, tables=(name,)) for name in names]
    found = seen(*(full(400 if name.table == "t321" else 1, table=name) for name in names))
    verdict = decide(found, watched, Cursor(), now=NOON, limits=LIMITS, zone="UTC")
    assert "shop.t321: slow, 400 parts" in verdict.told and verdict.told.endswith("and 490 more sources")
    assert len(verdict.told) < 2_000


def test_a_tick_that_is_evaluated_twice_asks_for_the_same() -> None:
    first, again = (run(seen(full(parts)), known(700, tier=2), NIGHT + after) for parts, after in ((900, 0), (903, 7)))
    assert (
        [ask.key for ask in first.asks] == [ask.key for ask in again.asks] == [f"backlog:{HOURLY}:optimize:20260705 #5"]
    )


def test_a_merge_that_was_not_enough_is_asked_for_again_under_another_name() -> None:
    cursor = known(900, tier=2)
    (earlier,) = asked_of(cursor)
    same = run(seen(full(900)), cursor, NIGHT)
    assert same.asks[0].key == earlier.key
    more = run(seen(full(900)), cursor, NIGHT, done={earlier.key})
    assert more.asks[0].evidence == "20260705 #6"


def test_numbers_of_repairs_outlive_calm_and_go_on_above_a_lost_cursor() -> None:
    (earlier,) = asked_of(known(900, tier=2))
    calm = run(seen(full(2)), known(900, tier=2), NIGHT, done={earlier.key})
    assert calm.cursor.tables[HOURLY].round == 6 and not calm.asks
    gone = run(seen(), calm.cursor, NIGHT + 60)
    assert gone.cursor.tables[HOURLY].round == 6
    assert run(seen(full(900)), gone.cursor, NIGHT + 120).asks[0].evidence == "20260705 #6"
    assert run(seen(full(900)), load_cursor("broken"), NIGHT).asks[0].evidence == f"20260705 #{FIRST_ROUND}"


def test_a_tier_is_left_only_well_below_where_it_began() -> None:
    assert run(seen(full(401)), known(1000, tier=2), NIGHT).asks != ()
    assert run(seen(full(400)), known(1000, tier=2), NIGHT).asks == ()
    assert run(seen(full(400)), known(400, tier=1), NIGHT).asks == ()
    assert "divert, 751 parts" in run(seen(full(751)), known(1500, tier=3), NIGHT).told


@pytest.mark.parametrize(
    ("off", "damages"), [({EVENTS, HOURLY}, []), ({EVENTS}, ["optimize"]), ({HOURLY}, ["divert"]), (set(), ["optimize", "divert"])]
)  # fmt: skip
def test_recovery_off_tells_and_asks_for_nothing_of_that_object(off: set[QName], damages: list[str]) -> None:
    watched = [replace(SOURCE, off=frozenset(off))]
    verdict = decide(seen(full(1500)), watched, Cursor(), now=NIGHT, limits=LIMITS, zone="UTC")
    assert [ask.damage for ask in verdict.asks] == damages
    assert ("recovery: off" in verdict.told) == bool(off) and "1500 parts" in verdict.told


def test_a_table_without_a_delay_limit_is_judged_by_the_one_that_refuses() -> None:
    calm = judge(full(3, delay=0, throw=100), None, 0.0, Limits())
    assert (calm.tier, calm.seconds_to_delay) == (CALM, None)
    near = judge(full(49, delay=0, throw=100), None, 0.0, Limits(parts_act=0.4))
    assert near.tier == OPTIMIZE


def test_the_fullest_comes_first_and_merges_come_before_diversions() -> None:
    verdict = run(seen(full(1600, table=EVENTS), full(1700)), now=NIGHT)
    assert [(ask.damage, ask.subject) for ask in verdict.asks] == [
        ("optimize", HOURLY), ("optimize", EVENTS), ("divert", EVENTS),
    ]  # fmt: skip


def test_peak_hours_follow_the_zone_of_the_location_and_may_go_over_midnight() -> None:
    assert in_peak(NOON, "UTC", LIMITS) and not in_peak(NOON, "Pacific/Auckland", LIMITS)
    late = Limits(peak_starts=22, peak_ends=4)
    assert in_peak(NIGHT, "UTC", late) and not in_peak(NOON, "UTC", late)
    assert not in_peak(NOON, "UTC", Limits(peak_starts=0, peak_ends=0))


def test_a_foreign_cursor_is_started_afresh_and_says_so() -> None:
    cursor = load_cursor('{"version": 99}')
    assert "version 99, not 1" in cursor.note
    assert "version 99" in run(seen(full(3)), cursor).told
