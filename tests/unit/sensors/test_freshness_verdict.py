"""What the freshness sensor decides: numbers in, routes out. No server, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.freshness import (
    Lag,
    LagKind,
    Routed,
    Seen,
    decode_journal,
    decode_refreshes,
    period_seconds,
    read_journal,
)
from chmv_assets.core.freshness_reach import build_reach
from chmv_assets.core.names import QName
from chmv_assets.core.settings import ObjectPolicy
from chmv_assets.core.versions import VersionParts, join_version
from sensors.freshness_verdict import Cursor, Incident, decide, load_cursor
from sensors.verdict import Verdict

NOW = 1_800_000_000_000
SLA = 300
DDL = """
CREATE TABLE s.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE TABLE s.daily (day Date, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
CREATE TABLE s.monthly (month Date, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYear(month) ORDER BY month;
CREATE TABLE s.pages (page String, hits UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE TABLE s.top (page String, hits UInt64) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW s.daily_mv TO s.daily AS SELECT toDate(at) AS day, count() AS hits FROM s.hits GROUP BY day;
CREATE MATERIALIZED VIEW s.monthly_mv TO s.monthly AS SELECT toStartOfMonth(day) AS month, sum(hits) AS hits FROM s.daily GROUP BY month;
CREATE MATERIALIZED VIEW s.pages_mv TO s.pages AS SELECT page, count() AS hits FROM s.hits GROUP BY page;
CREATE MATERIALIZED VIEW s.hidden_mv ENGINE = SummingMergeTree ORDER BY page AS SELECT page, count() AS n FROM s.hits GROUP BY page;
CREATE MATERIALIZED VIEW s.top_mv REFRESH EVERY 1 HOUR TO s.top AS SELECT page, hits FROM s.pages ORDER BY hits DESC LIMIT 10;
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return build_catalog([SourceFile(path="all.sql", text=DDL)]).require_sound()


def name(table: str) -> QName:
    return QName("s", table)


def lag(kind: LagKind, subject: str, seconds: float | None) -> Lag:
    since = None if seconds is None else NOW - int(seconds * 1000)
    return Lag(kind=kind, subject=name(subject), what=f"{kind} of {subject}", since_ms=since)


def routed(target: str, route: str = "snapshot", reason: str = "freshness", seconds: float = 60) -> Routed:
    version = join_version(VersionParts(0, NOW - int(seconds * 1000), 0, 0))
    return Routed(target=name(target), route=route, reason=reason, version=version)  # type: ignore[arg-type]


def policy(recovery: str = "auto") -> ObjectPolicy:
    return ObjectPolicy(
        lateness_tolerance_seconds=900, sla_seconds=SLA, owners=(), protocol="auto", recovery=recovery  # type: ignore[arg-type]
    )  # fmt: skip


def judge(
    catalog: Catalog,
    *lags: Lag,
    routes: Sequence[Routed] = (),
    cursor: Cursor | None = None,
    now_ms: int = NOW,
    recovery: str = "auto",
) -> Verdict[Cursor]:
    seen = Seen(lags=lags, routes={one.target: one for one in routes})
    return decide(
        seen,
        cursor or Cursor(),
        reach=build_reach(catalog),
        policies=lambda _name: policy(recovery),
        now_ms=now_ms,
    )


def asked(verdict: Verdict[Cursor]) -> list[tuple[str, str]]:
    return [(ask.subject.table, ask.damage) for ask in verdict.asks]


@pytest.mark.parametrize(
    ("lags", "wanted"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([lag("outage", "monthly_mv", 301)], ["monthly"], id="outage over the SLA"),
        pytest.param([lag("outage", "monthly_mv", 299)], [], id="outage within the SLA"),
        pytest.param([lag("outage", "monthly_mv", 300)], [], id="outage exactly at the SLA"),
        pytest.param([lag("outage", "daily_mv", 400)], ["daily", "monthly"], id="what is downstream is behind too"),
        pytest.param([lag("outage", "hidden_mv", 400)], [], id="an inner table has no readers of ours"),
        pytest.param([lag("staged", "hits", 400)], ["daily", "monthly", "pages"], id="a batch that waits holds the fan-out"),
        pytest.param([lag("staged", "hits", 20)], [], id="a young batch is normal"),
        pytest.param([lag("diverted", "hits", 400)], ["daily", "monthly", "pages"], id="diverted"),
        pytest.param([lag("stale", "daily", 400)], ["daily", "monthly"], id="a stale window"),
        pytest.param([lag("refresh", "top_mv", 400)], ["top"], id="a refresh that is due"),
        pytest.param([lag("refresh", "top_mv", -10)], [], id="a refresh that is not due yet"),
        pytest.param([lag("repair", "daily_mv", 3000)], [], id="a repair alone is no reason"),
        pytest.param([lag("outage", "gone_mv", 400)], [], id="a view that is not declared any more"),
    ],
)  # fmt: skip
def test_behind_for_longer_than_the_sla_sends_readers_to_the_snapshot(
    catalog: Catalog, lags: list[Lag], wanted: list[str]
) -> None:
    assert sorted(asked(judge(catalog, *lags))) == [(target, "to snapshot") for target in wanted]


def test_the_ask_tells_cause_and_moment(catalog: Catalog) -> None:
    (ask,) = judge(catalog, lag("outage", "monthly_mv", 420)).asks
    assert ask.kind == "route"
    assert ask.evidence == "outage s.monthly_mv since 2027-01-15T07:53:00.000+00:00, route 0"
    assert (ask.since_ms, ask.detected_ms) == (NOW - 420_000, NOW)
    assert ask.seen["behind for"] == "420 s"


def test_the_oldest_incident_comes_first_and_going_back_comes_last(catalog: Catalog) -> None:
    verdict = judge(
        catalog,
        lag("outage", "monthly_mv", 400),
        lag("outage", "pages_mv", 900),
        routes=[routed("top")],
        cursor=Cursor(calm={"s.top": 1}),
    )
    assert asked(verdict) == [("pages", "to snapshot"), ("monthly", "to snapshot"), ("top", "to primary")]


def test_one_incident_gives_one_evidence_however_its_causes_change(catalog: Catalog) -> None:
    first = judge(catalog, lag("outage", "monthly_mv", 400), lag("stale", "monthly", 350))
    cursor = load_cursor(first.cursor.dump())
    later = NOW + 30_000
    assert (
        judge(catalog, lag("stale", "monthly", -20), lag("diverted", "hits", 10), cursor=cursor, now_ms=later)
        .asks[0]
        .key
        == first.asks[0].key
    )


def test_batches_that_wait_for_a_moment_each_are_never_one_incident(catalog: Catalog) -> None:
    cursor = Cursor()
    for tick in range(30):
        now = NOW + tick * 30_000
        staged = Lag(kind="staged", subject=name("hits"), what="a batch", since_ms=now - 20_000)
        verdict = judge(catalog, staged, cursor=cursor, now_ms=now)
        assert (verdict.asks, verdict.cursor.incidents) == ((), {})
        cursor = load_cursor(verdict.cursor.dump())


def test_a_view_that_never_succeeded_counts_from_when_it_was_first_seen(catalog: Catalog) -> None:
    first = judge(catalog, lag("refresh", "top_mv", None))
    assert first.asks == ()
    cursor = load_cursor(first.cursor.dump())
    assert judge(catalog, lag("refresh", "top_mv", None), cursor=cursor, now_ms=NOW + 300_000).asks == ()
    verdict = judge(catalog, lag("refresh", "top_mv", None), cursor=cursor, now_ms=NOW + 301_000)
    assert asked(verdict) == [("top", "to snapshot")]


def test_readers_go_back_after_two_calm_ticks_in_a_row(catalog: Catalog) -> None:
    routes = [routed("daily")]
    cursor = Cursor()
    told: list[list[tuple[str, str]]] = []
    calm: list[Lag] = []
    for lags in (calm, [lag("stale", "daily", 5)], calm, calm, calm):
        verdict = judge(catalog, *lags, routes=routes, cursor=cursor)
        cursor = load_cursor(verdict.cursor.dump())
        told.append(asked(verdict))
    assert told == [
        [],
        [],
        [],
        [("daily", "to primary")],
        [("daily", "to primary")],
    ]  # the same key: the run is asked for once


def test_what_is_normal_does_not_keep_readers_on_the_snapshot(catalog: Catalog) -> None:
    young = (lag("staged", "hits", 3), lag("refresh", "top_mv", 10))
    verdict = judge(
        catalog, *young, routes=[routed("daily"), routed("top")], cursor=Cursor(calm={"s.daily": 1, "s.top": 1})
    )
    assert asked(verdict) == [("daily", "to primary"), ("top", "to primary")]


@pytest.mark.parametrize("kind", ["outage", "diverted", "stale", "repair"])
def test_what_is_open_keeps_readers_on_the_snapshot_however_young(catalog: Catalog, kind: LagKind) -> None:
    subject = {"outage": "daily_mv", "repair": "daily_mv", "diverted": "hits", "stale": "daily"}[kind]
    verdict = judge(catalog, lag(kind, subject, 1), routes=[routed("daily")], cursor=Cursor(calm={"s.daily": 1}))
    assert verdict.asks == ()
    assert verdict.cursor.calm == {}


def test_a_snapshot_that_a_person_chose_stays(catalog: Catalog) -> None:
    verdict = judge(catalog, routes=[routed("daily", reason="by hand: audit")], cursor=Cursor(calm={"s.daily": 5}))
    assert verdict.asks == ()
    assert "left alone: by hand: audit" in verdict.told


def test_a_primary_that_a_person_chose_stays_for_incidents_he_knew_of(catalog: Catalog) -> None:
    chosen = routed("monthly", "primary", "by hand: needed live", seconds=500)
    assert judge(catalog, lag("outage", "monthly_mv", 600), routes=[chosen]).asks == ()
    assert asked(judge(catalog, lag("outage", "monthly_mv", 400), routes=[chosen])) == [("monthly", "to snapshot")]


def test_recovery_off_tells_and_asks_for_nothing(catalog: Catalog) -> None:
    verdict = judge(
        catalog,
        lag("outage", "pages_mv", 400),
        routes=[routed("daily")],
        cursor=Cursor(calm={"s.daily": 1}),
        recovery="off",
    )
    assert verdict.asks == ()
    assert verdict.told.count("recovery is off") == 2


def test_a_second_incident_after_going_back_is_another_ask(catalog: Catalog) -> None:
    outage = lag("outage", "monthly_mv", 400)
    (first,) = judge(catalog, outage).asks
    back = routed("monthly", "primary", "freshness: caught up", seconds=350)
    (second,) = judge(catalog, outage, routes=[back]).asks
    assert first.key != second.key


def test_a_route_of_a_target_that_is_not_declared_any_more_is_left_alone(catalog: Catalog) -> None:
    assert judge(catalog, routes=[routed("gone")], cursor=Cursor(calm={"s.gone": 1})).asks == ()


def test_many_targets_are_counted_not_listed(catalog: Catalog) -> None:
    verdict = judge(catalog, lag("diverted", "hits", 100))
    assert verdict.told.startswith("3 target(s) held back")


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"version":1}', '{"version":99,"incidents":{},"calm":{}}'])
def test_a_cursor_that_cannot_be_used_is_started_afresh(text: str) -> None:
    cursor = load_cursor(text)
    assert (cursor.incidents, cursor.calm) == ({}, {})
    assert bool(cursor.note) == bool(text)


def test_a_cursor_survives_its_own_text() -> None:
    cursor = Cursor(incidents={"s.a": Incident(since_ms=5, evidence="x")}, calm={"s.b": 1})
    assert load_cursor(cursor.dump()) == cursor


def test_only_present_tables_of_the_journal_are_read() -> None:
    statement = read_journal(["batches", "watermarks"], NOW)
    assert statement is not None
    assert "outages" not in statement.sql
    assert statement.parameters == {}


def test_rows_of_the_journal_become_lags_and_routes() -> None:
    version = join_version(VersionParts(0, NOW, 3, 1))
    seen = decode_journal(
        [
            ("outage", "s.daily_mv", 7, "dropped, open", version),
            ("diverted", "s.hits", 0, "diverted", version),
            ("route", "s.daily", 0, "snapshot by hand: x", version),
            ("route", "s.other", 0, "elsewhere", version),
            ("stale", "not a name", 7, "1", 0),
        ]
    )
    assert [(one.kind, one.subject, one.since_ms) for one in seen.lags] == [
        ("outage", name("daily_mv"), 7),
        ("diverted", name("hits"), NOW),
    ]
    assert seen.routes == {
        name("daily"): Routed(target=name("daily"), route="snapshot", reason="by hand: x", version=version)
    }
    assert replace(seen.routes[name("daily")]).is_by_hand


def test_a_refresh_is_due_after_its_period_and_the_time_it_takes() -> None:
    rows = [
        ("s", "top_mv", 1_000, 2_000, "Scheduled"),
        ("s", "new_mv", 0, 0, "Scheduled"),
        ("s", "foreign", 1, 1, "Scheduled"),
    ]
    lags = decode_refreshes(rows, {name("top_mv"): 3_600.0, name("new_mv"): 60.0})
    assert [(one.subject.table, one.since_ms) for one in lags] == [("top_mv", 4_602_000), ("new_mv", None)]


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        ("EVERY 1 HOUR", 3_600), ("every 5 minutes", 300), ("AFTER 10 SECOND", 10), ("EVERY 1 DAY OFFSET 2 HOUR", 86_400),
        ("EVERY 1 MONTH", 31 * 86_400), ("AFTER 1 HOUR 30 MINUTE", 5_400), ("EVERY 1 DAY RANDOMIZE FOR 1 HOUR", 90_000),
    ],
)  # fmt: skip
def test_periods_of_schedules(schedule: str, seconds: int) -> None:
    assert period_seconds(schedule) == seconds
