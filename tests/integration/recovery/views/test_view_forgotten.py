"""A source that has forgotten a part of what a view missed: the rest is repaired, and what is left is told."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from view_site import ViewSite

from chmv_assets.core.errors import SourceForgot
from chmv_assets.core.recovery import Outcome
from chmv_assets.core.window_text import parse_window
from chmv_assets.pipeline import load_pipeline
from chmv_assets.recovery.windows import repair_windows

NOW = datetime.now(timezone.utc).replace(microsecond=0)


@pytest.fixture
def forgetful(site: ViewSite) -> ViewSite:
    """The source keeps ten days, in the folder and on the server, where no merge has deleted a row yet."""
    file = site.pipeline.ddl_dir / "01.sql"
    text = file.read_text()
    if "TTL" not in text:
        key = "PARTITION BY toYYYYMMDD(ts) ORDER BY id"
        file.write_text(text.replace(key, f"{key} TTL ts + INTERVAL 10 DAY", 1))
    site.run("SYSTEM STOP MERGES {db}.events")
    site.run("ALTER TABLE {db}.events MODIFY TTL ts + INTERVAL 10 DAY SETTINGS materialize_ttl_after_modify = 0")
    site.pipeline = load_pipeline(file.parent, cache=file.parent / "cache").require_sound()
    assert site.tick().asks == ()
    return site


def miss(site: ViewSite, *days_ago: int) -> Outcome:
    site.run("DROP TABLE {db}.both_a_mv SYNC")
    for days in days_ago:
        at = (NOW - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S")
        site.run(f"INSERT INTO {{db}}.events (ts, id, kind, value) VALUES ('{at}', {10 * next(site.numbers)}, 'a', 1)")
    (ask,) = [ask for ask in site.tick().asks if ask.subject.table == "both_a_mv"]
    return site.repair(ask)


def test_one_row_of_long_ago_does_not_hold_up_the_repair_of_today(forgetful: ViewSite) -> None:
    outcome = miss(forgetful, 0, 20, 30)
    assert outcome.status == "repaired" and outcome.reconciled == len(outcome.rebuilt) == 1
    (left,) = [step for step in outcome.steps if step.startswith("left ")]
    days = [f"{NOW - timedelta(days=ago):%Y-%m-%d}" for ago in (30, 20)]
    assert f"both {days[0]}..{days[1]} as it is, 2 window(s)" in left and "keeps rows only since" in left
    held = forgetful.rows(f"SELECT sum(n) FROM {{db}}.both WHERE day = '{NOW:%Y-%m-%d}'")
    assert held == forgetful.rows(
        f"SELECT count() FROM {{db}}.events WHERE toDate(ts) = '{NOW:%Y-%m-%d}' AND kind IN ('a', 'b')"
    )
    assert [ask for ask in forgetful.tick().asks if ask.subject.table == "both_a_mv"] == []


def test_a_repair_that_can_do_nothing_fails_with_the_reason(forgetful: ViewSite) -> None:
    window = parse_window(f"{NOW - timedelta(days=20):%Y-%m-%d}")
    own = forgetful.own()
    target = own.pipeline.catalog.get(f"{forgetful.database}.both")
    with pytest.raises(SourceForgot, match="keeps rows only since"):
        repair_windows(own, target, [window])
    assert own.steps == []
