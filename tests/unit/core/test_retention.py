"""What TTLs keep: read where that can be, and doubted in the safe direction where it cannot."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from chmv_assets.core.model import Object, Place
from chmv_assets.core.names import QName
from chmv_assets.core.retention import forgotten_before, is_untold, kept_since, tell_retention, ttl_days

NOW = datetime(2026, 3, 31, 12, tzinfo=timezone.utc)


def table(ttl: str) -> Object:
    return Object(name=QName("d", "t"), kind="table", engine="MergeTree", ttl=ttl, place=Place("a.sql", 1), sql="")


@pytest.mark.parametrize(
    ("ttl", "days"),
    [
        ("ts + INTERVAL 30 DAY", 30),
        ("ts + toIntervalMonth(2)", 60),
        ("toDate(ts) + INTERVAL '1' YEAR DELETE", 365),
        ("ts + INTERVAL 36 HOURS", 1.5),
        ("ts + INTERVAL 1 DAY TO DISK 'cold', ts + INTERVAL 90 DAY", 90),
        ("ts + INTERVAL 1 DAY TO VOLUME 'cold'", None),
        ("ts + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(17)), ts + INTERVAL 1 WEEK DELETE", 7),
        ("ts + INTERVAL 7 DAY DELETE WHERE k = 1, ts + INTERVAL 90 DAY", 7),
        ("ts + INTERVAL 1 MONTH + INTERVAL 2 DAY", 32),
        ("ts + INTERVAL 1 DAY GROUP BY k SET x = max(x), y = min(y)", 1),
        ("expires_at", None),
        ("", None),
    ],
)
def test_retention(ttl: str, days: float | None) -> None:
    assert ttl_days(ttl) == days


@pytest.mark.parametrize(
    ("ttl", "untold"),
    [
        ("expires_at", True),
        ("ts + toIntervalDay(days)", True),
        ("ts + INTERVAL 30 DAY, expires_at DELETE WHERE k = 1", True),
        ("expires_at TO DISK 'cold', ts + INTERVAL 30 DAY", False),
        ("ts + INTERVAL 1 DAY GROUP BY k SET x = max(x), y = min(y)", False),
        ("", False),
    ],
)
def test_rows_that_go_when_a_column_says_are_forgotten_at_any_time(ttl: str, untold: bool) -> None:
    assert is_untold(ttl) == untold
    if untold:
        assert forgotten_before(table(ttl), NOW) == NOW
        assert f"deletes rows at times that its TTL does not tell beforehand (TTL {ttl})" == tell_retention(
            table(ttl), NOW
        )


def test_a_source_may_have_forgotten_what_a_target_has_not_for_certain() -> None:
    assert (
        forgotten_before(table("ts + INTERVAL 10 DAY"), NOW)
        == kept_since(table("ts + INTERVAL 10 DAY"), NOW)
        == NOW - timedelta(days=10)
    )
    month = table("ts + toIntervalMonth(1)")
    since = forgotten_before(month, NOW)
    assert since is not None and since >= datetime(2026, 3, 1, tzinfo=timezone.utc), (
        "of 28 February all is gone on 28 March"
    )
    assert kept_since(month, NOW) == NOW - timedelta(days=30)
    assert kept_since(table("expires_at"), NOW) is None and forgotten_before(table(""), NOW) is None
    assert tell_retention(month, NOW) == "keeps rows only since 2026-03-31 12:00 (TTL)"
