"""The soak, short: three minutes of everything in every run. `make soak` is the long one.

Judged by counts and by convergence within generous bounds, never by how fast anything was.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from soak.faults import CHEAP, Facts
from soak.play import Options, play
from soak.scene import Scene

SECONDS = float(os.environ.get("SOAK_SECONDS") or 180)
SEED = int(os.environ.get("SOAK_SEED") or 7)
SETTLE_SECONDS = 420.0
GAPS = (6.0, 14.0)  # between two actions: twice as long as in `make soak`, since other tests run beside it
pytestmark = pytest.mark.timeout(300 + 3 * SECONDS + 2 * SETTLE_SECONDS)


def test_nothing_is_lost_doubled_or_left_behind(tmp_path: Path) -> None:
    options = Options(seconds=SECONDS, seed=SEED, gaps=GAPS, settle_seconds=SETTLE_SECONDS, echo=False)
    result = play(tmp_path / "site", tmp_path / "timeline.jsonl", options)
    print(result.text)
    assert result.why == (), (tmp_path / "timeline.jsonl").read_text(encoding="utf-8")[-20_000:]
    assert len(result.done) >= 3  # it did something
    assert sum(one.sent for one in result.findings.accounts) > 50_000
    assert result.findings.reads.polls > 50


def broken_rebuild(scene: Scene) -> Facts:
    """The textbook: compute beside it, then replace, with the view live and writers writing."""
    day = scene.day(0).replace("-", "")
    with scene.site.server() as server:
        server.command("CREATE TABLE shop.broken AS shop.ledger")
        server.command(
            f"INSERT INTO shop.broken SELECT toDate(at) AS day, id, count() FROM shop.events WHERE toYYYYMMDD(at) = {day} GROUP BY day, id"
        )
        rows = scene.writers[1].rows
        while scene.writers[1].rows < rows + 20:  # on any machine somebody writes meanwhile
            time.sleep(0.05)
        server.command(f"ALTER TABLE shop.ledger REPLACE PARTITION ID '{day}' FROM shop.broken")
        server.command("DROP TABLE shop.broken SYNC")
        server.command("CREATE TABLE IF NOT EXISTS chmv.`scratch.left` (x UInt8) ENGINE = Null")
    return {"target": "ledger"}


@pytest.mark.thorough  # a minute; the pieces are tested in tests/integration/soak
def test_a_broken_rebuild_is_found(tmp_path: Path) -> None:
    options = Options(seconds=10, seed=SEED, settle_seconds=30, echo=False, actions={"broken rebuild": broken_rebuild})
    result = play(tmp_path / "site", tmp_path / "timeline.jsonl", options)
    print(result.text)
    account = next(one for one in result.findings.accounts if one.table == "shop.ledger")
    assert account.lost >= 20
    assert any(one.startswith("shop.ledger: ") and "lost" in one for one in result.why)
    assert any("missing" in one for one in result.why)
    assert "left behind: table scratch.left" in result.why
    assert not CHEAP.keys() & result.done.keys()
