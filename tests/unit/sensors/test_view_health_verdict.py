"""What the view health sensor concludes from what it read: one row per damage, and how it remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings import parse_settings
from chmv_assets.core.thresholds import Limits
from resources.health import FailedRefresh, Failures, Health, KnownOutage, LiveView, Lost
from sensors.asking import ask_digest
from sensors.attempts import Attempts
from sensors.verdict import Verdict
from sensors.view_health import escalate
from sensors.view_health_cursor import Cursor, load_cursor
from sensors.view_health_verdict import decide
from sensors.view_health_watch import Watch, watch

DDL = """
CREATE TABLE s.events (ts DateTime, id UInt64) ENGINE = MergeTree ORDER BY id;
CREATE TABLE s.daily (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY day ORDER BY day;
CREATE MATERIALIZED VIEW s.daily_mv TO s.daily AS SELECT toDate(ts) AS day, count() AS n FROM s.events GROUP BY day;
CREATE TABLE s.short (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY day ORDER BY day TTL day + INTERVAL 1 DAY;
CREATE MATERIALIZED VIEW s.short_mv TO s.short AS SELECT toDate(ts) AS day, count() AS n FROM s.events GROUP BY day;
CREATE TABLE s.fresh (n UInt64) ENGINE = MergeTree ORDER BY n;
CREATE MATERIALIZED VIEW s.fresh_mv REFRESH EVERY 1 HOUR TO s.fresh AS SELECT count() AS n FROM s.events;
"""
CATALOG = build_catalog([SourceFile(path="a.sql", text=DDL)])
EVENTS, DAILY, DAILY_MV, SHORT_MV, FRESH_MV = (
    QName("s", name) for name in ("events", "daily", "daily_mv", "short_mv", "fresh_mv")
)
NOW = 10_000_000
BEFORE = NOW - 30_000


def watched(**settings: Any) -> Watch:
    return watch(CATALOG, parse_settings({"version": 1, **settings}, {})[0])


WATCHED = watched()
VIEWS = {name: LiveView(name=name, sql="x", select="x") for name in (DAILY_MV, SHORT_MV, FRESH_MV)}
WELL = Health(
    now_ms=NOW,
    tables=frozenset([EVENTS, DAILY, QName("s", "short"), QName("s", "fresh"), *VIEWS]),
    views=VIEWS,
    hooks={EVENTS: frozenset({DAILY_MV, SHORT_MV})},
)
SEEN = Cursor(declared=WATCHED.declared, at_ms=BEFORE)


def without_view(name: QName) -> dict[str, Any]:
    return {
        "views": {known: view for known, view in VIEWS.items() if known != name},
        "tables": WELL.tables - {name},
        "hooks": {EVENTS: frozenset({DAILY_MV, SHORT_MV} - {name})},
    }


def failing(*moments: int) -> dict[str, Any]:
    return {"failures": {DAILY_MV: Failures(moments_ms=moments, exception="Code: 395. poison\nstack")}}


def conclude(
    cursor: Cursor = SEEN, changed: dict[QName, tuple[str, ...]] | None = None, watch: Watch = WATCHED, **found: Any
) -> Verdict[Cursor]:
    return decide(watch, replace(WELL, **found), changed or {}, cursor, Limits())


def shown(verdict: Verdict[Cursor]) -> list[tuple[str, str, int | None]]:
    return [(str(ask.subject), ask.damage, ask.since_ms) for ask in verdict.asks]


CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str, int | None]]]] = {
    "all right": ({}, []),
    "target dropped": ({"tables": WELL.tables - {DAILY}}, [("s.daily", "target dropped", BEFORE)]),
    "view dropped": (without_view(DAILY_MV), [("s.daily_mv", "dropped", BEFORE)]),
    "view detached": (
        {**without_view(DAILY_MV), "detached": frozenset({DAILY_MV})},
        [("s.daily_mv", "detached", BEFORE)],
    ),
    "who lists no detached": ({**without_view(DAILY_MV), "detached": None}, [("s.daily_mv", "dropped", BEFORE)]),
    "hook missing": ({"hooks": {EVENTS: frozenset({SHORT_MV})}}, [("s.daily_mv", "unhooked", BEFORE)]),
    "query changed": ({"changed": {DAILY_MV: ("query",)}}, [("s.daily_mv", "changed", BEFORE)]),
    "view before its target": (
        {**without_view(DAILY_MV), "tables": WELL.tables - {DAILY, DAILY_MV}},
        [("s.daily", "target dropped", BEFORE)],
    ),
    "a rebuild works on it": ({"changed": {DAILY_MV: ("query",)}, "rebuilding": frozenset({DAILY})}, []),
    "two failures": (failing(NOW - 9_000, NOW - 8_000), []),
    "three failures": (
        failing(NOW - 9_000, NOW - 8_000, NOW - 7_000),
        [("s.daily_mv", "throws", NOW - 9_000)],
    ),
    "a failure that nobody repeats": (failing(NOW - 400_000), [("s.daily_mv", "throws", NOW - 400_000)]),
    "failures before the last repair": (
        {
            **failing(NOW - 9_000, NOW - 8_000, NOW - 7_000),
            "outages": {DAILY_MV: KnownOutage(status="closed", opened_ms=1, closed_ms=NOW - 5_000)},
        },
        [],
    ),
    "partition lost": (
        {"lost": {DAILY: (Lost(partition_id="20261101", max_block=4),)}},
        [("s.daily", "partition lost", None)],
    ),
    "partition expired": ({"lost": {QName("s", "short"): (Lost(partition_id="20261101", max_block=4),)}}, []),
    "refresh failed": (
        {"refreshes": {FRESH_MV: FailedRefresh(status="Scheduled", exception="Code: 1", succeeded_s=5)}},
        [("s.fresh_mv", "refresh failed", 5_000)],
    ),
    "refresh stopped": ({"refreshes": {FRESH_MV: FailedRefresh(status="Disabled", exception="", succeeded_s=5)}}, []),
    "outage left open": (
        {"outages": {DAILY_MV: KnownOutage(status="open", opened_ms=5, closed_ms=0)}},
        [("s.daily_mv", "rows missed", 5)],
    ),
    "outage under repair": (
        {
            "outages": {DAILY_MV: KnownOutage(status="open", opened_ms=5, closed_ms=0)},
            "repairing": frozenset({DAILY_MV}),
        },
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_damage_is_named(case: str) -> None:
    found, wanted = CASES[case]
    verdict = conclude(**found)
    assert shown(verdict) == wanted
    assert "3 views and 3 targets looked at" in verdict.told
    assert load_cursor(verdict.cursor.dump()) == verdict.cursor


def test_the_most_important_comes_first() -> None:
    verdict = conclude(
        tables=WELL.tables - {QName("s", "short")},
        changed={DAILY_MV: ("query",)},
        refreshes={FRESH_MV: FailedRefresh(status="Scheduled", exception="x", succeeded_s=0)},
    )
    assert [ask.damage for ask in verdict.asks] == ["target dropped", "changed", "refresh failed"]


def test_the_same_damage_keeps_its_evidence_and_its_moment() -> None:
    first = conclude(**without_view(DAILY_MV))
    again = conclude(cursor=first.cursor, **{**without_view(DAILY_MV), "now_ms": NOW + 30_000})
    assert again.asks[0].key == first.asks[0].key and again.asks[0].since_ms == BEFORE


def test_damage_after_a_repair_is_another_one() -> None:
    first = conclude(**without_view(DAILY_MV))
    closed = {DAILY_MV: KnownOutage(status="closed", opened_ms=BEFORE, closed_ms=NOW + 10)}
    again = conclude(cursor=first.cursor, **{**without_view(DAILY_MV), "now_ms": NOW + 30_000, "outages": closed})
    assert again.asks[0].key != first.asks[0].key and again.asks[0].since_ms == NOW + 10


def test_what_was_repaired_is_forgotten() -> None:
    first = conclude(**without_view(DAILY_MV))
    closed = {DAILY_MV: KnownOutage(status="closed", opened_ms=BEFORE, closed_ms=NOW + 10)}
    after = conclude(cursor=first.cursor, now_ms=NOW + 30_000, outages=closed)
    assert after.asks == () and after.cursor.wrong == {}


def test_what_somebody_repaired_has_missed_rows() -> None:
    first = conclude(**without_view(DAILY_MV))
    after = conclude(cursor=first.cursor, now_ms=NOW + 30_000)
    assert shown(after) == [("s.daily_mv", "rows missed", BEFORE)]


@pytest.mark.parametrize("cursor", [Cursor(), replace(SEEN, declared="another")])
def test_what_was_never_right_waits_for_whoever_applies_it(cursor: Cursor) -> None:
    verdict = conclude(cursor=cursor, **without_view(DAILY_MV))
    assert verdict.asks == () and "apply the DDL" in verdict.told
    assert conclude(cursor=verdict.cursor, **without_view(DAILY_MV)).asks == ()
    assert shown(conclude(cursor=conclude(cursor=verdict.cursor).cursor, **without_view(DAILY_MV))) == [
        ("s.daily_mv", "dropped", NOW)
    ]


def test_an_edit_of_one_view_does_not_make_the_sensor_forget_the_others() -> None:
    """The soak found it: a view that was detached right before a deployment of another one was never repaired."""
    before = load_cursor(conclude().cursor.dump())
    text = DDL.replace(
        "CREATE MATERIALIZED VIEW s.fresh_mv REFRESH EVERY 1 HOUR",
        "CREATE MATERIALIZED VIEW s.fresh_mv REFRESH EVERY 2 HOUR",
    )
    edited = watch(build_catalog([SourceFile(path="a.sql", text=text)]), parse_settings({"version": 1}, {})[0])
    assert edited.declared != WATCHED.declared
    later = NOW + 30_000
    assert shown(conclude(watch=edited, cursor=before, now_ms=later, **without_view(DAILY_MV))) == [
        ("s.daily_mv", "dropped", NOW)
    ]
    waits = conclude(watch=edited, cursor=before, now_ms=later, **without_view(FRESH_MV))
    assert waits.asks == () and "apply the DDL" in waits.told
    assert conclude(watch=edited, cursor=waits.cursor, now_ms=later + 1, **without_view(FRESH_MV)).asks == ()


def test_recovery_that_is_off_is_told_only() -> None:
    off = watched(targets={"s.daily": {"recovery": "off"}})
    verdict = conclude(watch=off, cursor=replace(SEEN, declared=off.declared), **without_view(DAILY_MV))
    assert verdict.asks == () and "its recovery is off" in verdict.told
    assert verdict.cursor.wrong == {"s.daily_mv": BEFORE}


def test_an_isolated_view_is_probed_less_and_less_often() -> None:
    outage = {DAILY_MV: KnownOutage(status="isolated", opened_ms=7, closed_ms=0)}
    cursor, asked = SEEN, []
    for now in range(NOW, NOW + 1_000_000, 30_000):
        verdict = conclude(cursor=cursor, **{**without_view(DAILY_MV), "outages": outage, "now_ms": now})
        cursor = verdict.cursor
        asked += [((now - NOW) // 1000, ask.damage, ask.evidence) for ask in verdict.asks]
    assert asked == [
        (60, "probe", "outage 7, probe 1"), (180, "probe", "outage 7, probe 2"), (420, "probe", "outage 7, probe 3"),
        (900, "probe", "outage 7, probe 4"),
    ]  # fmt: skip


def test_an_isolated_view_that_somebody_attached_is_probed_at_once() -> None:
    outage = {DAILY_MV: KnownOutage(status="isolated", opened_ms=7, closed_ms=0)}
    assert shown(conclude(outages=outage)) == [("s.daily_mv", "probe", 7)]


def test_the_first_failure_is_remembered_when_the_log_has_forgotten_it() -> None:
    first = conclude(**failing(NOW - 9_000, NOW - 8_000, NOW - 7_000))
    later = conclude(cursor=first.cursor, **{**failing(NOW + 1, NOW + 2, NOW + 3), "now_ms": NOW + 30_000})
    assert later.asks[0].key == first.asks[0].key


def test_a_repair_that_failed_three_times_becomes_an_isolation() -> None:
    (ask,) = conclude(**without_view(DAILY_MV)).asks
    failed = Attempts(runs=3, latest="failed", since=0.0)
    (other,) = escalate([ask], {ask_digest(ask): failed}, Limits())
    assert (other.damage, other.since_ms, other.seen["failed repairs"]) == ("isolate", BEFORE, "3")
    assert escalate([ask], {ask_digest(ask): replace(failed, runs=2)}, Limits()) == [ask]


def test_logs_that_are_missing_are_told() -> None:
    assert "not known" in conclude(failures=None).told


@pytest.mark.parametrize("text", ['{"version":9}', "nonsense", "{}"])
def test_a_foreign_cursor_is_started_afresh(text: str) -> None:
    assert load_cursor(text) == Cursor(note=load_cursor(text).note) and "afresh" in load_cursor(text).note


def test_what_was_deployed_as_declared_is_repaired_though_nobody_has_looked_at_it_since() -> None:
    """The soak found it: a deployment changed a view, and somebody dropped it before the next look. It stayed away for ever."""
    deployed, never = BEFORE - 5_000, replace(SEEN, declared="other", marks=frozenset({"others"}))
    found = {**without_view(DAILY_MV)}
    health = replace(WELL, **found)
    assert conclude(never, **found).asks == (), "a declaration that nobody has applied is no damage"
    verdict = decide(WATCHED, health, {}, never, Limits(), deployed)
    assert shown(verdict) == [(str(DAILY_MV), "dropped", deployed)]
    assert verdict.cursor.wrong == {str(DAILY_MV): deployed} and not verdict.cursor.unseen
    again = decide(WATCHED, health, {}, conclude(never, **found).cursor, Limits(), deployed)
    assert shown(again) == [(str(DAILY_MV), "dropped", deployed)], (
        "also if an earlier tick did not know of the deployment"
    )
