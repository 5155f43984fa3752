"""Stale windows are processed after their rebuild, unless rows came in while it ran."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from rebuild_cases import CASES
from rebuild_oracle import Pipe, day

from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.watermarks import BatchOutcome, Watermark, advance
from chmv_assets.core.windows import Window
from resources.journal import Journal
from resources.journal.store import Decide

WINDOW = day("2026-07-05")


def late(batch: str) -> Decide:
    outcome = BatchOutcome(
        batch_id=batch,
        succeeded=True,
        max_event_ts=WINDOW.start + timedelta(hours=1),
        max_arrival_ts=WINDOW.end + timedelta(hours=1),
        late_rows=3,
    )
    return lambda mark, version: advance(mark, outcome, "opaque", version)


def mark_of(pipe: Pipe) -> Watermark:
    (mark,) = Journal(pipe.server).read_watermarks(target=pipe.name("target"))
    return mark


def test_stale_window_is_processed_after_its_rebuild(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    pipe = make(CASES["opaque"], "marks", rows=300)
    journal = Journal(pipe.server)
    changes: dict[Window, Decide] = {WINDOW: late("a")}
    journal.move_watermarks(pipe.name("source"), {pipe.name("target"): changes})
    assert mark_of(pipe).status == "stale"
    pipe.publish(day("2026-07-06"))
    assert mark_of(pipe).status == "stale", "another day's rebuild does not help"
    pipe.publish(WINDOW)
    assert mark_of(pipe).status == "processed"


def test_rows_that_come_meanwhile_keep_it_stale(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(CASES["opaque"], "marks_late", rows=300)
    journal = Journal(pipe.server)
    journal.move_watermarks(pipe.name("source"), {pipe.name("target"): {WINDOW: late("a")}})

    def meanwhile(_number: int, step: Step) -> None:
        if step.kind == "publish":
            journal.move_watermarks(pipe.name("source"), {pipe.name("target"): {WINDOW: late("b")}})

    pipe.rebuilder().publish(pipe.catalog.objects[pipe.name("target")], WINDOW, "gated", meanwhile)
    assert (mark_of(pipe).status, mark_of(pipe).batch_id) == ("stale", "b")
