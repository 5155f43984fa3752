"""The drift sensor's decision: a state counts from the second tick on, both ways, and nothing is said twice."""

from __future__ import annotations

import json

import pytest

from chmv_assets.core.compare import Comparison, Difference, State
from chmv_assets.core.names import QName
from chmv_assets.drift import Drift, Undeclared
from sensors.alert_texts import drift_alert
from sensors.drift_verdict import KEPT, REPORTS_PER_TICK, Cursor, DriftVerdict, decide, load_cursor

X = QName("s", "x")
EQUAL = Comparison("equal")
CHANGED = Comparison("changed", (Difference("TTL", "", "at + toIntervalDay(1)"),))
OTHERWISE = Comparison("changed", (Difference("TTL", "", "at + toIntervalDay(2)"),))
MISSING, UNSURE = Comparison("missing"), Comparison("cannot tell")


def seen(*found: Comparison, held: bool = False) -> list[Drift]:
    return [Drift(comparisons={X: one}, held=frozenset({X} if held else ())) for one in found]


def play(ticks: list[Drift]) -> tuple[list[list[State]], DriftVerdict]:
    """What each tick reports; the cursor travels as text."""
    text: str | None = None
    said: list[list[State]] = []
    for drift in ticks:
        verdict = decide(drift, load_cursor(text))
        text = verdict.cursor.dump()
        said.append([one.comparison.state for one in verdict.reports])
    return said, verdict


TABLE: dict[str, tuple[list[Drift], list[list[State]]]] = {
    "all right": (seen(EQUAL, EQUAL), [[], []]),
    "one tick only": (seen(EQUAL, CHANGED, EQUAL), [[], [], []]),
    "two ticks": (seen(CHANGED, CHANGED), [[], ["changed"]]),
    "told once": (seen(*[CHANGED] * 5), [[], ["changed"], [], [], []]),
    "missing": (seen(MISSING, MISSING), [[], ["missing"]]),
    "cannot tell": (seen(UNSURE, UNSURE, UNSURE), [[], ["cannot tell"], []]),
    "changing all the time": (seen(CHANGED, OTHERWISE, CHANGED, OTHERWISE), [[], [], [], []]),
    "changed in another way": (seen(*[CHANGED] * 2, *[OTHERWISE] * 2), [[], ["changed"], [], ["changed"]]),
    "right again": (seen(*[CHANGED] * 2, *[EQUAL] * 3), [[], ["changed"], [], ["equal"], []]),
    "right for one tick": (seen(CHANGED, CHANGED, EQUAL, CHANGED, CHANGED), [[], ["changed"], [], [], []]),
    "under a rebuild": (seen(*[CHANGED] * 3, held=True), [[], [], []]),
    "reported, then under a rebuild": (seen(CHANGED, CHANGED) + seen(EQUAL, EQUAL, held=True), [[], ["changed"], [], []]),
}  # fmt: skip


@pytest.mark.parametrize(("ticks", "wanted"), TABLE.values(), ids=list(TABLE))
def test_what_is_reported(ticks: list[Drift], wanted: list[list[State]]) -> None:
    assert play(ticks)[0] == wanted


def test_what_is_right_leaves_no_trace_in_the_cursor() -> None:
    _, verdict = play(seen(*[CHANGED] * 2, *[EQUAL] * 2))
    assert verdict.cursor == Cursor()
    assert verdict.told == "1 objects compared, all as declared; s.x: as declared"


def test_alerts_are_for_drift_only() -> None:
    assert [one.name for one in play(seen(CHANGED, CHANGED))[1].drifted] == [X]
    assert play(seen(UNSURE, UNSURE))[1].drifted == ()
    assert play(seen(CHANGED, CHANGED, EQUAL, EQUAL))[1].drifted == ()


def test_an_object_that_left_the_folder_is_forgotten_there_and_told_as_undeclared() -> None:
    gone = Drift(comparisons={}, undeclared=(Undeclared(name=X, engine="MergeTree", referred=False),))
    _, verdict = play([*seen(CHANGED, CHANGED), gone, gone])
    assert verdict.reports == () and verdict.undeclared == (X,)
    assert not verdict.cursor.declared
    assert "not declared: s.x; 1 of them new" in verdict.told
    _, later = play([*seen(CHANGED, CHANGED), gone, gone, gone])
    assert later.undeclared == () and "not declared: s.x" in later.told


def test_many_are_reported_in_turns_and_the_cursor_is_bounded() -> None:
    many = Drift(comparisons={QName("s", f"t{i:04}"): MISSING for i in range(2_000)})
    said, verdict = play([many] * 5)
    assert [len(one) for one in said] == [0] + [REPORTS_PER_TICK] * 4
    assert len(verdict.cursor.declared) == KEPT
    assert len(verdict.cursor.dump()) < 40_000
    assert len(verdict.told) < 2_000


def test_what_is_not_compared_yet_keeps_what_was_reported() -> None:
    wait = Drift(comparisons={}, held=frozenset({X}), waiting=1)
    said, verdict = play([*seen(CHANGED, CHANGED), wait, wait, wait, *seen(CHANGED)])
    assert said == [[], ["changed"], [], [], [], []]
    assert "1 more in the next ticks" in decide(wait, verdict.cursor).told


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"version":99}', '{"version":1}'])
def test_a_cursor_that_cannot_be_read_is_started_afresh(text: str | None) -> None:
    verdict = decide(seen(EQUAL)[0], load_cursor(text))
    assert verdict.told.startswith("The cursor") is bool(text)
    assert json.loads(verdict.cursor.dump())["version"] == 1


def test_one_alert_names_all() -> None:
    alert = drift_alert([(X, CHANGED), (QName("s", "y"), MISSING)], [QName("s", "<z>")], "here")
    assert (alert["event"], alert["subject"], alert["location"]) == ("drift", "3 objects", "here")
    assert "s.x changed; s.y missing; not declared: s.`&lt;z&gt;`" in alert["text"]
    assert alert["drifted"][0] == {"name": "s.x", "state": "changed", "differs": ["TTL"]}
    assert drift_alert([], [X], "")["subject"] == "s.x"
