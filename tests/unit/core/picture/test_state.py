"""Statuses of nodes and rows of edges, from facts: a table of cases."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.outages import Outage
from chmv_assets.core.picture.state import Flow, Seen, TargetSeen, edge_rows, judge_nodes
from chmv_assets.core.settings import Settings

NOW = datetime(2026, 10, 1, 12, tzinfo=timezone.utc)
DDL = """
CREATE TABLE d.src (x UInt64) ENGINE = MergeTree ORDER BY x;
CREATE TABLE d.mid (x UInt64) ENGINE = MergeTree ORDER BY x;
CREATE MATERIALIZED VIEW d.mid_mv TO d.mid AS SELECT x FROM d.src WHERE x NOT IN (SELECT x FROM elsewhere.other);
CREATE TABLE d.last (x UInt64) ENGINE = SummingMergeTree ORDER BY x;
CREATE MATERIALIZED VIEW d.last_mv TO d.last AS SELECT x FROM d.mid;
CREATE VIEW d.shown AS SELECT * FROM d.last;
"""
CATALOG = build_catalog([SourceFile(path="a.sql", text=DDL)], default_database="d")
SETTINGS = Settings()
TABLES = frozenset(QName("d", name) for name in ("src", "mid", "mid_mv", "last", "last_mv", "shown"))
WELL = Seen(
    taken=NOW,
    tables=TABLES,
    hooks={
        QName("d", "src"): frozenset({QName("d", "mid_mv")}),
        QName("d", "mid"): frozenset({QName("d", "last_mv")}),
    },
    targets={QName("d", "mid"): TargetSeen(status="ACTIVE"), QName("d", "last"): TargetSeen(status="ACTIVE")},
)


def statuses(seen: Seen | None) -> dict[str, str]:
    return {name.table: one.status for name, one in judge_nodes(CATALOG, SETTINGS, seen).items()}


def outage(age: timedelta) -> Outage:
    return Outage(
        view=QName("d", "mid_mv"), opened_ms=int((NOW - age).timestamp() * 1000), damage="dropped", status="open"
    )


def test_all_is_well() -> None:
    found = statuses(WELL)
    assert found.pop("other") == "unknown"  # nobody declared it, and it is not there
    assert set(found.values()) == {"ACTIVE"}


def test_without_a_server_all_are_unknown() -> None:
    assert set(statuses(None).values()) == {"unknown"}


@pytest.mark.parametrize(
    "seen",
    [
        replace(WELL, tables=TABLES - {QName("d", "mid_mv")}),
        replace(WELL, hooks={QName("d", "mid"): frozenset({QName("d", "last_mv")})}),
        replace(WELL, outages=(outage(timedelta(seconds=10)),)),
        replace(WELL, troubles={QName("d", "mid_mv"): "it made 1 insert(s) fail"}),
    ],
    ids=["missing", "unhooked", "outage", "failing"],
)
def test_a_broken_view_degrades_all_that_it_fills_and_what_shows_it(seen: Seen) -> None:
    found = statuses(seen)
    assert found["mid_mv"] == found["mid"] == found["last"] == found["shown"] == "DEGRADED"
    assert found["src"] == found["last_mv"] == "ACTIVE"


def test_an_outage_beyond_the_sla_is_stale_and_says_so() -> None:
    judged = judge_nodes(CATALOG, SETTINGS, replace(WELL, outages=(outage(timedelta(hours=2)),)))
    view = judged[QName("d", "mid_mv")]
    assert view.status == "STALE" and "dropped, open for 7200 s, the SLA is" in view.why[0]
    assert judged[QName("d", "mid")].why == ("it gets no rows through d.mid_mv",)


def test_a_target_keeps_the_status_that_it_was_given() -> None:
    stale = {**WELL.targets, QName("d", "last"): TargetSeen(status="STALE", why=("readers are on the snapshot: x",))}
    judged = judge_nodes(CATALOG, SETTINGS, replace(WELL, targets=stale))
    assert judged[QName("d", "last")].why == ("readers are on the snapshot: x",)
    assert judged[QName("d", "shown")].status == "STALE"
    assert judged[QName("d", "mid")].status == "ACTIVE"


def test_an_empty_server_has_nothing_of_what_is_declared() -> None:
    found = statuses(Seen(taken=NOW, tables=frozenset()))
    assert found.pop("other") == "unknown"
    assert set(found.values()) == {"DEGRADED"}


def test_rows_of_edges_are_what_flowed_or_what_the_table_holds() -> None:
    flows = {QName("d", "mid_mv"): Flow(read=100, written=40, basis="in the last 24 hours")}
    rows = {QName("d", "last"): (7, 70), QName("d", "src"): (1_000, 1), QName("elsewhere", "other"): (5, 1)}
    logged = {
        (edge.source.table, edge.dest.table): count
        for edge, (count, _) in edge_rows(CATALOG, replace(WELL, flows=flows, rows=rows)).items()
    }
    assert logged == {
        ("src", "mid_mv"): 100, ("mid_mv", "mid"): 40, ("mid", "last_mv"): 0, ("last_mv", "last"): 0,
        ("last", "shown"): 7, ("other", "mid_mv"): 5,
    }  # fmt: skip
    unlogged = edge_rows(CATALOG, replace(WELL, flows=None, rows=rows))
    assert {(e.source.table, e.dest.table): n for e, (n, _) in unlogged.items()} == {
        ("src", "mid_mv"): 1_000, ("last_mv", "last"): 7, ("last", "shown"): 7, ("other", "mid_mv"): 5,
    }  # fmt: skip
    assert edge_rows(CATALOG, None) == {}
