"""Windows for which the views give nothing any more: dropped when that is certain or permitted, else refused. And cadences that differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rebuild_cases import CASES, DAILY_SUM, SOURCE, Case
from rebuild_oracle import Pipe, day

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window, window_of_key

PROTOCOLS: tuple[Protocol, ...] = ("closed", "gated", "owned")
BIG_ONLY = Case(ddl=DAILY_SUM.replace("GROUP BY", "WHERE version > 900000 GROUP BY"))
JULY = window_of_key("2026-07-01", "month", "UTC")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_emptied_window_is_refused_and_the_permission_named(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    pipe = make(CASES["additive"], f"kept_{protocol}")
    pipe.protocol = protocol
    before = pipe.checksums()
    pipe.run("ALTER TABLE {db}.{case}_source DROP PARTITION ID '20260705'")
    with pytest.raises(RebuildRefused, match=r"say so with `--allow-empty`, or with `allow_empty: true`"):
        pipe.publish(day("2026-07-05"))
    assert pipe.checksums() == before


@pytest.mark.parametrize("name", ["additive", "two_views"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_emptied_window_is_dropped_where_permitted_and_the_rest_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol, name: str
) -> None:
    pipe = make(CASES[name], f"emptied_{name}_{protocol}")
    pipe.protocol = protocol
    before = pipe.checksums()
    pipe.run("ALTER TABLE {db}.{case}_source DROP PARTITION ID '20260705'")
    target = pipe.name("target")
    published = pipe.publish(day("2026-07-05"), may_empty=lambda one: one == target)
    assert (published.partitions, published.rows_after) == (("20260705",), 0)
    del before["20260705"]
    assert pipe.checksums() == before
    assert pipe.rows(target) == pipe.truth()
    assert any("dropped, as permitted" in line for line in pipe.logged)
    assert left_over() == []
    again = pipe.publish(day("2026-07-05"))
    assert again.partitions == (), "nothing is there, nothing is to be dropped"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stale_window_is_dropped_without_a_question_while_its_source_rows_are_there(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    """The source did not lose anything: the view gives nothing of what it holds."""
    pipe = make(BIG_ONLY, f"stale_{protocol}")
    pipe.protocol = protocol
    pipe.run("INSERT INTO {db}.{case}_target VALUES ('2026-07-05', 'DE', 1, 9000), ('2026-07-06', 'DE', 1, 9000)")
    pipe.publish(day("2026-07-05"))
    assert set(pipe.checksums()) == {"20260706"}
    pipe.run("ALTER TABLE {db}.{case}_source DROP PARTITION ID '20260706'")
    with pytest.raises(RebuildRefused, match="holds rows for this window but its views give none"):
        pipe.publish(day("2026-07-06"))
    assert left_over() == [] or protocol != "gated"


def test_window_that_cannot_be_found_in_the_source_is_not_certain(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """Its days come from a text: rows of the source say nothing about this very day."""
    pipe = make(CASES["texts_as_days"], "uncertain")
    pipe.run("INSERT INTO {db}.{case}_target VALUES ('2030-01-01', 5)")
    with pytest.raises(RebuildRefused, match="holds rows for this window but its views give none"):
        pipe.publish(day("2030-01-01"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_days_that_became_empty_inside_a_month_are_dropped(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    pipe = make(CASES["additive"], f"within_{protocol}")
    pipe.protocol = protocol
    for one in ("20260705", "20260720"):
        pipe.run(f"ALTER TABLE {{db}}.{{case}}_source DROP PARTITION ID '{one}'")
    published = pipe.publish(JULY)
    assert {"20260705", "20260720"} <= set(published.partitions)
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


# --- cadences --------------------------------------------------------------------------------------------------------

HOURLY = SOURCE.replace("toYYYYMMDD(ts)", "toStartOfHour(ts)")
MONTHLY_TARGET = DAILY_SUM.replace("toYYYYMMDD(day)", "toYYYYMM(day)")
MONTHLY = SOURCE.replace("toYYYYMMDD(ts)", "toYYYYMM(ts)")
SHIFTED = """
CREATE TABLE {db}.{case}_target (due Date, events UInt64)
ENGINE = SummingMergeTree PARTITION BY due ORDER BY due;
CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
SELECT toDate(ts) + toIntervalDay(arrayJoin([0, 7])) AS due, count() AS events FROM {db}.{case}_source GROUP BY due;
"""
HOUR = Window(day("2026-07-05").start, day("2026-07-05").start.replace(hour=1))


@pytest.mark.parametrize("protocol", ["closed", "gated"])
@pytest.mark.parametrize(
    ("name", "case", "window", "changed"),
    [
        ("hour_in_month", Case(ddl=MONTHLY_TARGET, source=HOURLY), HOUR, ["202607"]),
        ("month_over_days", Case(ddl=DAILY_SUM, source=MONTHLY), day("2026-07-05"), ["20260705"]),
        ("hours_into_days", Case(ddl=DAILY_SUM, source=HOURLY), JULY, [f"202607{n:02}" for n in range(1, 30)]),
        ("one_day_into_two", Case(ddl=SHIFTED), day("2026-07-12"), ["20260712"]),
    ],
)
def test_cadences_that_differ_are_exact(
    make: Callable[..., Pipe],
    left_over: Callable[[], list[str]],
    protocol: Protocol,
    name: str,
    case: Case,
    window: Window,
    changed: list[str],
) -> None:
    """The window is widened to whole partitions of the target; what of the source is read follows from that."""
    pipe = make(case, f"{name}_{protocol}", rows=270 if case.source == HOURLY else 900)
    pipe.protocol = protocol
    truth = pipe.truth()
    pipe.damage("drop", changed[:1])
    pipe.damage("double", changed[1:2])
    before = pipe.checksums()
    published = pipe.publish(window)
    assert set(changed) <= set(published.partitions)
    assert pipe.rows(pipe.name("target")) == truth
    after = pipe.checksums()
    untouched = set(before) - set(published.partitions)
    assert untouched
    assert {one: after[one] for one in untouched} == {one: before[one] for one in untouched}
    assert left_over() == []
