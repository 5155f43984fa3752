"""Facts → series: gaps stay gaps, only declared names get series, journals of any state are read."""

from __future__ import annotations

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.metrics import BUCKETS, Sample, Spread
from chmv_assets.core.metrics_samples import Facts, Row, build_declared, build_families
from chmv_assets.core.metrics_sql import read_journal_counts
from chmv_assets.core.settings import Settings

DDL = """
CREATE TABLE d.s (ts DateTime) ENGINE = MergeTree ORDER BY ts;
CREATE TABLE d.a (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day;
CREATE TABLE d.b (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day;
CREATE MATERIALIZED VIEW d.a_mv TO d.a AS SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day;
CREATE MATERIALIZED VIEW d.b_mv TO d.b AS SELECT day, sum(n) AS n FROM d.a GROUP BY day;
"""
DECLARED = build_declared(build_catalog([SourceFile(path="ddl.sql", text=DDL)]), Settings())
NOW = 1_000_000.0


def families(facts: Facts) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        one.spec.name: {sample.labels: sample.value for sample in one.samples}
        for one in build_families(facts, DECLARED)
    }


def journal(*rows: Row) -> dict[str, dict[tuple[str, ...], float]]:
    return families(Facts(now=NOW, version="1", objects=(), journal=rows))


def lag(kind: str, subject: str, since: float, words: str = "") -> Row:
    return ("lag", [kind, subject, str(int(since * 1000)), words, "0"], [0.0])


def test_what_could_not_be_read_is_missing() -> None:
    found = families(Facts(now=NOW, version="1", errors={"connect": 3}))
    assert found.pop("chmv_target_sla_seconds") == {("d.a",): 300.0, ("d.b",): 300.0}
    assert found == {
        "chmv_up": {(): 0.0},
        "chmv_build_info": {("1", ""): 1.0},
        "chmv_collected_timestamp_seconds": {(): NOW},
        "chmv_collection_duration_seconds": {(): 0.0},
        "chmv_collection_errors_total": {("connect",): 3.0},
    }


def test_an_empty_journal_gives_zeros_for_what_is_declared() -> None:
    found = journal()
    assert found["chmv_target_behind_seconds"] == {("d.a",): 0.0, ("d.b",): 0.0}
    assert found["chmv_route"][("d.a", "primary")] == 1.0
    assert found["chmv_deployments"] == {("running",): 0.0, ("failed",): 0.0, ("done",): 0.0, ("rolled_back",): 0.0}
    assert found["chmv_source_diverted"] == {("d.s",): 0.0}


def test_what_holds_a_target_back_holds_back_what_is_computed_from_it() -> None:
    found = journal(lag("outage", "d.a_mv", NOW - 60, "dropped, isolated"), lag("repair", "d.b_mv", NOW - 900))
    assert found["chmv_target_behind_seconds"] == {("d.a",): 60.0, ("d.b",): 60.0}, "a repair is no reason"
    assert found["chmv_outage_age_seconds"] == {("d.a_mv", "isolated"): 60.0}
    later = journal(lag("stale", "d.b", NOW - 30), lag("refresh", "d.a_mv", NOW + 500))
    assert later["chmv_target_behind_seconds"] == {("d.a",): 0.0, ("d.b",): 30.0}, "a refresh that is not due yet"


def test_names_that_are_not_declared_give_no_series() -> None:
    found = journal(
        lag("outage", "old.view", NOW - 60, "dropped, open"),
        ("watermark", ["old.t", "d.s", "sealed"], [NOW, 4.0]),
        ("batch", ["old.s", "committed"], [1.0, 10.0]),
        ("quarantine", ["it's `odd", ], [5.0]),
        ("late", ["old.t", "late rows"], [5.0, 1.0]),
    )  # fmt: skip
    names = [label for series in found.values() for labels in series for label in labels]
    assert not [name for name in names if "old" in name or "odd" in name]


def test_a_target_is_as_far_as_the_source_that_is_furthest_behind() -> None:
    found = journal(
        ("watermark", ["d.b", "d.s", "sealed"], [NOW - 500, 3.0]),
        ("watermark", ["d.b", "d.s", "processed"], [NOW - 20, 1.0]),
        ("watermark", ["d.b", "d.a", "stale"], [NOW - 40, 2.0]),
        ("watermark", ["d.b", "gone.source", "open"], [NOW - 9_999, 1.0]),
        ("watermark", ["d.a", "d.s", "open"], [0.0, 1.0]),
    )
    assert found["chmv_watermark_lag_seconds"] == {("d.b",): 40.0}
    assert found["chmv_windows"] == {("d.a", "open"): 1.0, ("d.b", "processed"): 1.0, ("d.b", "sealed"): 3.0, ("d.b", "stale"): 2.0}  # fmt: skip


def test_only_final_ends_are_counters() -> None:
    numbers = [2.0, 1.0, 7.0, *(float(edge >= 10) for edge in BUCKETS)]
    rows: list[Row] = [
        ("rebuild", ["gated", "published"], numbers),
        ("rebuild", ["closed", "rolled_back"], [1.0, 0.0, 0.0]),  # of an older version: it does not tell how long
        ("rebuild", ["closed", "unverified"], [1.0, 0.0, 0.0]),
    ]
    made = {
        one.spec.name: one for one in build_families(Facts(now=NOW, version="1", objects=(), journal=rows), DECLARED)
    }
    assert made["chmv_rebuilds_total"].samples == (Sample(("closed", "rolled_back"), 1.0), Sample(("gated", "published"), 2.0))  # fmt: skip
    assert made["chmv_rebuilds_open"].samples == (Sample(("running",), 0.0), Sample(("unverified",), 1.0))
    nothing = Spread(("closed", "rolled_back"), (0.0,) * len(BUCKETS), 0.0, 0.0)
    assert made["chmv_rebuild_duration_seconds"].spreads == (nothing, Spread(("gated", "published"), tuple(numbers[3:]), 1.0, 7.0))  # fmt: skip


def test_a_journal_of_an_older_version_is_asked_only_for_what_it_has() -> None:
    statement = read_journal_counts(["batches", "watermarks"], 0)
    assert statement is not None
    assert "rebuilds" not in statement.sql
    assert "routes" not in statement.sql
