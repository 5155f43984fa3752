"""Late rows on the real server: what is read, which windows are rebuilt, what happens to watermarks; exactly the touched ones."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from backlog_site import BacklogSite

from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.watermarks import BatchOutcome, Watermark, advance, seal
from chmv_assets.core.windows import Window, period_start
from resources import late_rows
from resources.journal import Journal
from resources.late_rows import LateSeen, read_late_rows
from sensors.late_data import late_sources, reached_of
from sensors.late_data_cursor import Cursor
from sensors.late_data_verdict import asked_of, decide
from sensors.verdict import Verdict

UTC = timezone.utc
LATE = "now() - INTERVAL 3 DAY"


def day_of(days_ago: int) -> Window:
    start = period_start(datetime.now(UTC) - timedelta(days=days_ago), "day", "UTC")
    return Window(start, start + timedelta(days=1))


def read(site: BacklogSite, fence_us: int | None, overlap: float = 5.0) -> LateSeen:
    return read_late_rows(site.server, late_sources(site.pipeline), fence_us, overlap)


def tick(site: BacklogSite, cursor: Cursor, done: set[str] | None = None, overlap: float = 5.0) -> Verdict[Cursor]:
    seen = read(site, cursor.fence_us, overlap)
    reached = reached_of(site.pipeline, site.name("events"))
    return decide(seen, reached, cursor, now=time.time(), limits=site.pipeline.settings.limits, done=done or set())


def test_late_rows_are_counted_by_hour_and_rows_on_time_are_not(site: BacklogSite) -> None:
    first = read(site, None)
    site.insert("now()", rows=5)
    site.insert(LATE, rows=3)
    site.insert("now() - INTERVAL 14 MINUTE", rows=2)
    seen = read(site, first.fence_us)
    (hour,) = seen.hours
    assert (hour.source, hour.rows, hour.tail_rows) == (site.name("events"), 3, 3)
    assert day_of(3).start <= hour.start < day_of(3).end
    assert abs(hour.latest_us - seen.now_us) < 60_000_000


def test_a_tick_reads_only_young_parts_also_when_they_are_merged_meanwhile(site: BacklogSite) -> None:
    site.insert(LATE, rows=2_000)
    time.sleep(1.1)
    fence = read(site, None, 0.0).fence_us
    site.insert(LATE, rows=7, first=50_000)
    site.server.rows("SELECT 1", settings={"log_comment": ""})
    assert [hour.rows for hour in read(site, fence).hours] == [7]
    site.run("SYSTEM FLUSH LOGS")
    found = site.rows(
        "SELECT max(read_rows) FROM system.query_log WHERE type = 'QueryFinish' AND event_time > now() - 60 "
        "AND query LIKE '%chmv_event%' AND query LIKE '%{db}%' AND query NOT LIKE '%query_log%'"
    )
    assert 0 < int(str(found[0][0])) < 1_000  # the 2,000 old rows were not read
    site.run("OPTIMIZE TABLE {db}.events FINAL")
    assert [hour.rows for hour in read(site, fence).hours] == [7]


def test_sources_that_a_tick_has_no_room_for_come_next_and_lose_nothing(
    site: BacklogSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("other", "third"):
        site.run(f"CREATE TABLE {{db}}.{name} AS {{db}}.events")
    sources = [replace(late_sources(site.pipeline)[0], source=site.name(name)) for name in ("events", "other", "third")]
    monkeypatch.setattr(late_rows, "PARTS_AT_ONCE", 1)
    first = fence = read_late_rows(site.server, sources, None, 0.0).fence_us
    behind = dict[QName, int]()
    for rows, one in enumerate(sources, start=1):
        site.run(f"INSERT INTO {one.source.sql} (id, at, kind, n) SELECT number, {LATE}, 1, 1 FROM numbers({rows})")
    time.sleep(1.1)
    found: dict[str, int] = {}
    for left in (2, 1, 0):
        seen = read_late_rows(site.server, sources, fence, 60.0, behind=behind)
        assert (seen.sources_read, len(seen.behind)) == (1, left)
        assert all(since == first for since in seen.behind.values())
        found |= {hour.source.table: hour.rows for hour in seen.hours}
        site.run("OPTIMIZE TABLE {db}.third FINAL SETTINGS optimize_skip_merged_partitions = 0")
        fence, behind = seen.now_us, dict(seen.behind)  # as if there were no overlap
    assert found == {"events": 1, "other": 2, "third": 3}


def test_late_rows_rebuild_the_opaque_window_and_what_is_behind_it_and_nothing_else(site: BacklogSite) -> None:
    site.insert(LATE, rows=4)
    site.insert("now()", rows=4, first=100)
    cursor = tick(site, Cursor(), overlap=0.0).cursor
    site.run("TRUNCATE TABLE {db}.kinds")
    site.run("INSERT INTO {db}.kinds VALUES (1, 'uno')")
    site.insert(LATE, rows=2, first=4)
    verdict = tick(site, cursor)
    assert [(ask.damage, ask.subject, ask.windows) for ask in verdict.asks] == [
        ("late rows", site.name("named"), (day_of(3),))
    ]
    outcome = site.repair(verdict.asks[0])
    assert [name for name, _ in outcome.rebuilt] == [site.name("named"), site.name("monthly")]
    assert outcome.tier == 2 and outcome.reconciled == 2
    assert set(site.totals().values()) == {10}
    names = dict(site.rows("SELECT day = today(), groupUniqArray(name) FROM {db}.named GROUP BY 1"))
    assert names == {0: ["uno"], 1: ["one"]}  # the other day was not touched
    again = tick(site, verdict.cursor, {ask.key for ask in asked_of(verdict.cursor)})
    assert again.asks == ()  # the same rows, once


def seal_day(site: BacklogSite, target: str, days_ago: int) -> None:
    window, source, name = day_of(days_ago), site.name("events"), site.name(target)
    outcome = BatchOutcome(batch_id="b", succeeded=True, max_event_ts=window.start, max_arrival_ts=window.end)
    journal = Journal(site.server)
    journal.move_watermarks(source, {name: {window: lambda mark, version: advance(mark, outcome, "append", version)}})

    def sealed(mark: Watermark, version: int) -> Watermark:
        return seal(mark, datetime.now(UTC), version, reconciled=True)

    journal.move_watermarks(source, {name: {window: sealed}})


def status(site: BacklogSite, target: str) -> dict[int, str]:
    today = day_of(0).start
    marks = Journal(site.server).read_watermarks(target=site.name(target))
    return {(today - mark.window_start).days: mark.status for mark in marks}


def test_sealed_windows_are_opened_again_and_a_replacing_target_is_merged_off_peak(site: BacklogSite) -> None:
    site.run("SYSTEM STOP MERGES {db}.latest")
    site.insert(LATE, rows=4)
    for target in ("added", "latest", "named"):
        seal_day(site, target, 3)
        seal_day(site, target, 5)
    cursor = tick(site, Cursor(), overlap=0.0).cursor
    site.insert(LATE, rows=2)
    site.run("SYSTEM START MERGES {db}.latest")
    verdict = tick(site, cursor)
    asks = {ask.damage: ask for ask in verdict.asks}
    assert asks["reopen"].subject == site.name("events") and len(asks["reopen"].windows) == 1
    outcome = site.repair(asks["reopen"])
    assert (outcome.tier, outcome.rebuilt) == (1, ())
    assert status(site, "added") == status(site, "latest") == {3: "reopened", 5: "sealed"}
    assert status(site, "named") == {3: "sealed", 5: "sealed"}
    site.repair(asks["late rows"])
    assert status(site, "named") == {3: "processed", 5: "sealed"}
    assert site.parts("latest") == 1
    assert "nothing was changed" in " ".join(site.repair(asks["reopen"]).steps)  # a second run finds nothing to do


def test_stale_windows_of_our_own_ingest_are_rebuilt_without_reading_rows(site: BacklogSite) -> None:
    site.insert(LATE, rows=4)
    window, moment = day_of(3), datetime.now(UTC)
    late = BatchOutcome(batch_id="b", succeeded=True, max_event_ts=window.start, max_arrival_ts=moment, late_rows=4)
    journal = Journal(site.server)
    journal.move_watermarks(
        site.name("events"),
        {site.name("named"): {window: lambda mark, version: advance(mark, late, "opaque", version)}},
    )
    time.sleep(1.1)
    verdict = tick(site, Cursor(fence_us=int(time.time() * 1_000_000)), overlap=0.0)
    (ask,) = verdict.asks
    assert (ask.subject, ask.windows, ask.seen["late rows"]) == (
        site.name("named"),
        (window,),
        "known from the watermarks",
    )
    site.repair(ask)
    assert status(site, "named") == {3: "processed"}
    assert tick(site, verdict.cursor, {ask.key}).asks == ()


def test_late_rows_of_a_target_that_the_folder_no_longer_has_are_refused(site: BacklogSite) -> None:
    ask = Ask(kind="late", subject=site.name("gone"), damage="late rows", evidence="an old tick", windows=(day_of(3),))
    with pytest.raises(RecoveryFailed, match=r"gone: found no such declared object .* Nothing was done"):
        site.repair(ask)
