"""Laws of watermarks over any history: nothing goes back, sealed means sealed, batches move along their statuses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.batches import BatchRecord, Slice, decode_batch, encode_slices, may_follow, write_batch
from chmv_assets.core.model import ViewClass
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import BatchOutcome, Watermark, advance, from_micros, micros, rebuilt, reopen, seal

UTC = timezone.utc
START = datetime(2026, 7, 5, tzinfo=UTC)
MARK = Watermark(
    source_id=QName("d", "s"), target_table=QName("d", "t"), window_start=START, window_end=START + timedelta(hours=1)
)
TOLERANCE = timedelta(minutes=15)
moments = st.integers(0, 10_000).map(lambda minutes: START + timedelta(minutes=minutes))


@dataclass(frozen=True)
class Event:
    kind: str
    outcome: BatchOutcome
    now: datetime
    reconciled: bool


events = st.builds(
    Event,
    kind=st.sampled_from(["advance", "reopen", "seal", "rebuilt"]),
    outcome=st.builds(
        BatchOutcome,
        batch_id=st.text("ab", min_size=1, max_size=3),
        succeeded=st.booleans(),
        max_event_ts=moments,
        max_arrival_ts=moments,
        late_rows=st.integers(0, 3),
    ),
    now=moments,
    reconciled=st.booleans(),
)
classes = st.sampled_from(["append", "additive", "replacing", "opaque"])


def step(mark: Watermark, event: Event, view_class: ViewClass, version: int) -> Watermark:
    if event.kind == "advance":
        return advance(mark, event.outcome, view_class, version)
    if event.kind == "reopen":
        return reopen(mark, event.now, view_class, version)
    if event.kind == "seal":
        return seal(mark, event.now, version, reconciled=event.reconciled, tolerance=TOLERANCE)
    return rebuilt(mark, event.outcome.batch_id, version)


@given(history=st.lists(events, max_size=30), view_class=classes)
def test_nothing_of_a_watermark_ever_goes_back(history: list[Event], view_class: ViewClass) -> None:
    mark = MARK
    for version, event in enumerate(history, start=1):
        after = step(mark, event, view_class, version)
        assert after.version == (version if after != mark else mark.version)
        for before_ts, after_ts in (
            (mark.last_processed_ts, after.last_processed_ts),
            (mark.last_arrival_ts, after.last_arrival_ts),
        ):
            assert before_ts is None or (after_ts is not None and after_ts >= before_ts)
        assert (after.window_start, after.window_end) == (mark.window_start, mark.window_end)
        mark = after


@given(history=st.lists(events, max_size=30), view_class=classes)
def test_statuses_are_reached_only_by_the_rules(history: list[Event], view_class: ViewClass) -> None:
    mark = MARK
    for version, event in enumerate(history, start=1):
        after = step(mark, event, view_class, version)
        if after.status == "sealed" and mark.status != "sealed":
            assert event.kind == "seal" and event.reconciled and mark.window_end + TOLERANCE <= event.now
            assert mark.status != "stale"
        if mark.status == "stale" and after.status != "stale":
            assert event.kind == "rebuilt"
        if after.status == "stale":
            assert view_class == "opaque"
        if event.kind == "advance" and not event.outcome.succeeded:
            assert after == mark
        if event.kind == "advance" and event.outcome.succeeded:
            assert after.status != "sealed" or event.outcome.batch_id == mark.batch_id, (
                "only the same batch again changes nothing"
            )
        mark = after


@given(moment=st.datetimes(timezones=st.just(UTC)))
def test_times_travel_exactly(moment: datetime) -> None:
    assert from_micros(micros(moment)) == moment


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=10)
slices = st.lists(st.builds(Slice, st.integers(0, 99), names, st.integers(0, 10**9)), max_size=5)


@given(database=names, table=names, winners=slices, detail=names)
def test_a_batch_survives_the_journal(database: str, table: str, winners: list[Slice], detail: str) -> None:
    record = BatchRecord(
        batch="b", source=QName(database, table), status="staged", version=7, slices=tuple(sorted(winners)),
        rows=sum(one.rows for one in winners), detail=detail, owner="me",
    )  # fmt: skip
    values = write_batch(record).parameters
    row = [values[name] for name in ("batch_id", "source", "status", "slices", "rows", "detail", "owner", "version")]
    assert decode_batch(row) == record
    assert encode_slices(winners) == values["slices"]


@given(path=st.lists(st.sampled_from(["planned", "staged", "committed", "failed"]), max_size=8))
def test_a_committed_batch_stays_committed_and_was_staged_before(path: list[str]) -> None:
    status = None
    was: list[str] = []
    for wanted in path:
        if may_follow(status, wanted):  # type: ignore[arg-type]
            assert status != "committed" or wanted == "committed"
            assert wanted != "committed" or "staged" in was
            status = wanted
            was.append(wanted)
