"""What waits to be deployed is not looked at."""

from __future__ import annotations

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from sensors.view_health_watch import watch

DDL = """
CREATE TABLE d.s (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE TABLE d.t (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE MATERIALIZED VIEW d.one TO d.t AS SELECT x FROM d.s;
CREATE MATERIALIZED VIEW d.two TO d.t AS SELECT x FROM d.s WHERE x > 1;
CREATE TABLE d.u (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE MATERIALIZED VIEW d.three TO d.u AS SELECT x FROM d.s;
"""


def test_a_pending_view_takes_its_target_and_siblings_along() -> None:
    watched = watch(build_catalog([SourceFile(path="a.sql", text=DDL)]), Settings())
    assert watched.without(frozenset()) is watched
    left = watched.without(frozenset({QName("d", "one")}))
    assert [view.name.table for view in left.views] == ["three"]
    assert set(left.targets) == {QName("d", "u")}
    assert [view.name.table for view in watched.without(frozenset({QName("d", "u")})).views] == ["one", "two"]
