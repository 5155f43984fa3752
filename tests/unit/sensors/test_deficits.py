"""What stays open of failed comparisons, and what the sensor makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.deficits import WHOLE, Compared, Deficit, dump_window, follow
from chmv_assets.core.names import QName
from chmv_assets.core.settings import parse_settings
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.windows import window_of_key
from resources.health import Health, KnownOutage, LiveView
from sensors.verdict import Verdict
from sensors.view_health_cursor import Cursor, load_cursor
from sensors.view_health_verdict import decide
from sensors.view_health_watch import watch

DAILY, DAILY_MV, EVENTS = QName("s", "daily"), QName("s", "daily_mv"), QName("s", "events")
FIRST, SECOND = (window_of_key(day, "day", "UTC") for day in ("2026-11-14", "2026-11-15"))
A, B = dump_window(FIRST), dump_window(SECOND)
DDL = """
CREATE TABLE s.events (ts DateTime, id UInt64) ENGINE = MergeTree ORDER BY id;
CREATE TABLE s.daily (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY day ORDER BY day;
CREATE MATERIALIZED VIEW s.daily_mv TO s.daily AS SELECT toDate(ts) AS day, count() AS n FROM s.events GROUP BY day;
"""
WATCHED = watch(build_catalog([SourceFile(path="a.sql", text=DDL)]), parse_settings({"version": 1}, {})[0])
WELL = Health(
    now_ms=1_000_000,
    tables=frozenset([EVENTS, DAILY, DAILY_MV]),
    views={DAILY_MV: LiveView(name=DAILY_MV, sql="x", select="x")},
    hooks={EVENTS: frozenset({DAILY_MV})},
)


def compared(number: int, different: tuple[str, ...] = (), equal: tuple[str, ...] = ()) -> Compared:
    return Compared(target=DAILY, number=number, run_id=f"run{number}", different=different, equal=equal)


def deficit(number: int, *windows: str) -> dict[QName, Deficit]:
    return {DAILY: Deficit(number=number, run_id=f"run{number}", windows=windows)}


@pytest.mark.parametrize(
    ("evaluations", "open_"),
    [
        pytest.param([compared(1, equal=(A,))], {}, id="all right"),
        pytest.param([compared(1, (A,))], deficit(1, A), id="wrong"),
        pytest.param([compared(1, (A,)), compared(2, equal=(A,))], {}, id="right again"),
        pytest.param([compared(1, (A,)), compared(2, equal=(B,))], deficit(1, A), id="another window is right"),
        pytest.param([compared(1, (A,)), compared(2, (B,))], deficit(2, A, B), id="two windows"),
        pytest.param([compared(1, (A, B)), compared(2, (B,), (A,))], deficit(2, B), id="one of two is right"),
        pytest.param([compared(1, (WHOLE,)), compared(2, equal=(WHOLE,))], {}, id="a whole target"),
    ],
)
def test_a_deficit_is_open_until_its_windows_are_equal(
    evaluations: list[Compared], open_: dict[QName, Deficit]
) -> None:
    assert follow({}, evaluations) == open_
    assert follow(follow({}, evaluations), evaluations) == open_, "the last minute is read twice"


def verdict(health: Health = WELL) -> Verdict[Cursor]:
    cursor = Cursor(declared=WATCHED.declared, at_ms=1, checked=5.5, deficits=deficit(7, A, B))
    assert load_cursor(cursor.dump()) == cursor
    return decide(WATCHED, health, {}, cursor, Limits())


def test_a_deficit_asks_for_its_windows_and_is_remembered() -> None:
    found = verdict()
    (ask,) = found.asks
    assert (ask.subject, ask.damage, ask.windows) == (DAILY, "deficit", (SECOND, FIRST))
    assert ask.evidence == "evaluation 7 of run run7"
    assert found.cursor.deficits == deficit(7, A, B)
    assert "s.daily: deficit (2 window(s) differ from the views)" in found.told


@pytest.mark.parametrize(
    "health",
    [
        pytest.param(replace(WELL, rebuilding=frozenset([DAILY])), id="a rebuild is at it"),
        pytest.param(replace(WELL, repairing=frozenset([DAILY_MV])), id="its view is under repair"),
        pytest.param(
            replace(WELL, outages={DAILY_MV: KnownOutage(status="isolated", opened_ms=1, closed_ms=0)}), id="its view is isolated"
        ),
    ],
)  # fmt: skip
def test_a_deficit_waits_for_what_is_under_way_and_is_not_forgotten(health: Health) -> None:
    found = verdict(health)
    assert [ask for ask in found.asks if ask.damage == "deficit"] == []
    assert found.cursor.deficits == deficit(7, A, B)
