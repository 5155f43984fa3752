"""The landing sensor's decision, case by case; no folder, no Dagster."""

from __future__ import annotations

import doctest
import json

import pytest

import sensors
from resources.landing_entry import LandingEntry
from sensors import attempts, landing_verdict
from sensors.attempts import Attempts
from sensors.landing_verdict import (
    Cursor,
    IngestRequest,
    Known,
    Present,
    decide,
    load_cursor,
    settle,
)

NOW = 1_000_000.0
FRESH = Known(2, "d1")


def present(source: str = "shop.events", files: int = 2, digest: str = "d1", **more: object) -> Present:
    return Present(source=source, root=f"/landing/{source}", files=files, bytes=10, digest=digest, **more)  # type: ignore[arg-type]


def request(source: str = "shop.events", digest: str = "d1", attempt: int = 0) -> IngestRequest:
    return IngestRequest(source=source, files=2, bytes=10, digest=digest, attempt=attempt)


def test_doctests() -> None:
    for module in (attempts, landing_verdict, sensors):
        assert doctest.testmod(module).failed == 0


# What lies there, what the cursor knows, how the runs went → which attempt is asked for, what the cursor knows then, what is said.
CASES = {
    "first sight": (present(), None, None, 0, FRESH, "2 files, changed"),
    "nothing new": (present(), FRESH, None, None, FRESH, "2 files, nothing new"),
    "another file": (present(digest="d2"), FRESH, None, 0, Known(2, "d2"), "2 files, changed"),
    "files archived away": (present(files=0, digest="d0"), FRESH, None, None, Known(0, "d0"), "no files"),
    "empty folder": (present(files=0, digest="d0"), None, None, None, Known(0, "d0"), "no files"),
    "no folder": (Present(source="shop.events", root="/x", problem="there is no such folder"), None, None, None, None,
                  "there is no such folder"),
    "listing failed": (Present(source="shop.events", root="/x", problem="cannot be listed, OSError: no"), FRESH, None, None,
                       FRESH, "cannot be listed, OSError: no"),
    "the run succeeded": (present(), FRESH, Attempts(runs=1, latest="done", since=NOW), None, FRESH, "nothing new"),
    "the run failed just now": (present(), FRESH, Attempts(runs=1, latest="failed", since=NOW - 60), None, FRESH,
                                "the last ingest failed, the next try comes in 540 s"),
    "the run failed a while ago": (present(), FRESH, Attempts(runs=1, latest="failed", since=NOW - 600), 1, FRESH, "failed, try 2"),
    "the second run failed": (present(), FRESH, Attempts(runs=2, latest="failed", since=NOW - 600), None, FRESH, "comes in 600 s"),
    "the run goes on": (present(), FRESH, Attempts(runs=1, latest="going", since=NOW - 3_599), None, FRESH, "their ingest began"),
    "the run seems lost": (present(), FRESH, Attempts(runs=1, latest="going", since=NOW - 3_600), 1, FRESH, "lost, try 2"),
    "young files wait": (present(young=3), FRESH, None, None, FRESH, "nothing new, 3 younger than 2 s wait"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_source(case: str) -> None:
    found, known, runs, attempt, after, said = CASES[case]
    verdict = decide(
        [found],
        Cursor(known={found.source: known} if known else {}),
        now=NOW,
        attempts={found.source: runs} if runs else {},
    )
    assert verdict.requests == (() if attempt is None else (request(digest=found.digest, attempt=attempt),))
    assert verdict.cursor.known == ({found.source: after} if after else {})
    assert said in verdict.told
    assert found.root in verdict.told and found.source in verdict.told


def test_a_queued_run_will_see_the_files_and_is_not_asked_for_twice() -> None:
    verdict = decide([present(digest="d2")], Cursor(known={"shop.events": FRESH}), now=NOW, queued={"shop.events"})
    assert verdict.requests == ()
    assert verdict.cursor.known == {"shop.events": FRESH}, "it comes up again if the queued run is cancelled"
    assert "a run is queued" in verdict.told


def test_a_tick_is_capped_and_the_next_one_goes_on_behind_it() -> None:
    landings = [present(f"shop.t{at}") for at in range(5)]
    asked: list[str] = []
    cursor = Cursor()
    for _ in range(3):
        verdict = decide(landings, cursor, now=NOW, max_requests=2)
        asked += [one.source for one in verdict.requests]
        cursor = load_cursor(verdict.cursor.dump())
    assert asked == [f"shop.t{at}" for at in range(5)]
    assert "asks for 2 runs at most" in decide(landings, Cursor(), now=NOW, max_requests=2).told


def test_a_source_that_changes_in_every_tick_starves_no_other() -> None:
    asked: list[str] = []
    cursor = Cursor()
    for tick in range(4):
        verdict = decide(
            [present("a", digest=f"a{tick}"), present("b", digest=f"b{tick}")], cursor, now=NOW, max_requests=1
        )
        asked += [one.source for one in verdict.requests]
        cursor = verdict.cursor
    assert asked == ["a", "b", "a", "b"]


def test_one_failing_source_does_not_stop_the_others() -> None:
    broken = Present(source="shop.a", root="s3://x", problem="cannot be listed, OSError: no route")
    verdict = decide([broken, present("shop.b")], Cursor(), now=NOW)
    assert verdict.requests == (request("shop.b"),)
    assert "no route" in verdict.told


def test_a_source_that_is_no_longer_declared_leaves_the_cursor() -> None:
    cursor = Cursor(known={"shop.gone": FRESH, "shop.events": FRESH})
    assert decide([present()], cursor, now=NOW).cursor.known == {"shop.events": FRESH}


def test_no_landing_at_all_is_said() -> None:
    assert decide([], Cursor(), now=NOW).told == "no source declares a landing"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (None, ""),
        ("", ""),
        ("not json", "The cursor was not readable and is started afresh."),
        ("[]", "The cursor was not readable and is started afresh."),
        ('{"version": 1, "last": "", "sources": {"a": 3}}', "The cursor was not readable and is started afresh."),
        ('{"version": 2, "sources": {}}', "The cursor has version 2, not 1, and is started afresh."),
    ],
)
def test_unusable_cursor_is_started_afresh_and_says_so(text: str | None, note: str) -> None:
    cursor = load_cursor(text)
    assert cursor == Cursor(note=note)
    verdict = decide([present()], cursor, now=NOW)
    assert verdict.requests == (request(),)
    assert verdict.told.startswith(note)
    assert load_cursor(verdict.cursor.dump()).note == ""


def test_cursor_stays_small_whatever_lands() -> None:
    entries = [LandingEntry(path=f"part-{at}.parquet", bytes=at, modified=1.0) for at in range(5_000)]
    verdict = decide([settle("shop.events", "/landing", entries, NOW)], Cursor(), now=NOW)
    text = verdict.cursor.dump()
    assert len(text) < 120
    assert json.loads(text)["sources"]["shop.events"][0] == 5_000
    assert load_cursor(text) == verdict.cursor


def entry(path: str = "a.csv", size: int = 1, modified: float | None = NOW - 60) -> LandingEntry:
    return LandingEntry(path=path, bytes=size, modified=modified)


@pytest.mark.parametrize(
    ("modified", "settled"),
    [(NOW - 60, 1), (NOW - 2, 1), (NOW - 1.9, 0), (NOW, 0), (NOW + 1, 0), (NOW + 3_600, 1), (None, 1)],
)
def test_young_files_wait_and_wrong_clocks_do_not_block(modified: float | None, settled: int) -> None:
    found = settle("s", "/x", [entry(modified=modified)], NOW)
    assert (found.files, found.young) == (settled, 1 - settled)


def test_digest_names_exactly_the_settled_files() -> None:
    base = settle("s", "/x", [entry("a"), entry("b")], NOW).digest
    assert settle("s", "/x", [entry("b"), entry("a"), entry("c", modified=NOW)], NOW).digest == base
    others = [
        settle("t", "/x", [entry("a"), entry("b")], NOW),
        settle("s", "/x", [entry("a")], NOW),
        settle("s", "/x", [entry("a", size=2), entry("b")], NOW),
        settle("s", "/x", [entry("a", modified=NOW - 61), entry("b")], NOW),
        settle("s", "/x", [entry("a"), entry("c")], NOW),
    ]
    assert len({base, *(one.digest for one in others)}) == 6


def test_run_keys_are_deterministic_and_a_retry_has_its_own() -> None:
    assert request().run_key == "shop.events:d1"
    assert request(attempt=2).run_key == "shop.events:d1:2"
