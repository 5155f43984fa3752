"""What is known of live views: making room forgets what nobody asks for, never what this tick looks at."""

from __future__ import annotations

from typing import Any

import pytest

from chmv_assets import live
from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.compare import Comparison, Difference
from chmv_assets.core.names import QName
from chmv_assets.live_views import Verdicts, find_changed
from resources.health import LiveView

DDL = """
CREATE TABLE d.s (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE TABLE d.t (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT x FROM d.s;
CREATE MATERIALIZED VIEW d.w TO d.t AS SELECT x FROM d.s;
"""


def test_making_room_keeps_the_verdicts_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Comparison("changed", (Difference("query", "a", "b"),))
    monkeypatch.setattr(live, "compare_with_live", lambda _c, _o, _s, names: dict.fromkeys(names, changed))
    catalog = build_catalog([SourceFile(path="a.sql", text=DDL)]).require_sound()
    v, w = (LiveView(name=QName("d", name), sql=f"live {name}", select="") for name in "vw")
    server: Any = None
    known: Verdicts = {}
    assert find_changed(server, catalog, [v], known) == {v.name: ("query",)}
    known |= {(QName("old", str(number)), "", ""): () for number in range(20_000)}
    assert find_changed(server, catalog, [v, w], known) == {v.name: ("query",), w.name: ("query",)}
    assert len(known) == 2, "the rest is forgotten"
