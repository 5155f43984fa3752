"""Lints beyond the corpus: each rule fires on its case and keeps quiet beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog

DEMO = Path(__file__).parents[3] / "chmv_assets" / "ddl"
WINDOW = "SETTINGS non_replicated_deduplication_window = 100"


def codes(sql: str) -> set[tuple[str, str]]:
    catalog = build_catalog([SourceFile(path="x.sql", text=sql)], default_database="d")
    return {(finding.subject, finding.code) for finding in catalog.findings}


def pipeline(select: str, target: str = "k UInt8, n UInt64", order_by: str = "k", **extra: str) -> str:
    return (
        f"CREATE TABLE s (k UInt8, x UInt32, ts DateTime) ENGINE = MergeTree ORDER BY k {extra.get('source_ttl', '')} {WINDOW};"
        f"CREATE TABLE t ({target}) ENGINE = {extra.get('engine', 'SummingMergeTree')} {extra.get('partition_by', '')} "
        f"ORDER BY {order_by} {extra.get('ttl', '')} {WINDOW};"
        f"CREATE MATERIALIZED VIEW v TO t AS {select};"
    )


GOOD = "SELECT k, count() AS n FROM s GROUP BY k"


def test_a_good_pipeline_has_no_findings() -> None:
    assert codes(pipeline(GOOD)) == set()


def test_the_demo_has_no_warnings_but_those_it_shows_on_purpose() -> None:
    files = [SourceFile(path=file.name, text=file.read_text()) for file in sorted(DEMO.glob("*.sql"))]
    findings = build_catalog(files, default_database="shop").findings
    assert [str(finding) for finding in findings if finding.severity != "note"] == []


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (pipeline("SELECT k, count() AS n, max(x) AS top FROM s GROUP BY k"), ("d.v", "output-column-dropped")),
        (pipeline("SELECT count() AS n FROM s"), ("d.v", "key-column-missing")),
        (pipeline(GOOD, "k UInt8, day Date, n UInt64", partition_by="PARTITION BY day"), ("d.v", "key-column-missing")),
        (pipeline("SELECT k, x AS q, count() AS n FROM s GROUP BY k, q", "k UInt8, q UInt32, n UInt64"), ("d.v", "order-by-lacks-group-key")),
        (pipeline("SELECT k, uniq(x) AS n FROM s GROUP BY k", engine="ReplacingMergeTree").replace("uniq", "count"), ("d.v", "replacing-counts")),
        (pipeline(GOOD, source_ttl="TTL ts + INTERVAL 7 DAY"), ("d.v", "ttl-shorter-than-target")),
        (pipeline(GOOD, "k UInt8, ts DateTime, n UInt64", source_ttl="TTL ts + INTERVAL 7 DAY", ttl="TTL ts + INTERVAL 8 DAY"), ("d.v", "ttl-shorter-than-target")),
        (pipeline("SELECT k, count() AS n FROM elsewhere GROUP BY k"), ("d.elsewhere", "not-declared")),
        (pipeline("SELECT COLUMNS('k') REPLACE STRICT (1 AS k) FROM s"), ("d.v", "cannot-tell")),
        (pipeline(GOOD).replace(WINDOW, "SETTINGS non_replicated_deduplication_window = 0", 1), ("d.s", "no-dedup-window")),
        (pipeline(GOOD, "k UInt8, at DateTime, n UInt64", partition_by="PARTITION BY toStartOfMinute(at)"), ("d.t", "partition-per-insert")),
        (pipeline(GOOD, "k UInt8, id UInt64, n UInt64", partition_by="PARTITION BY (k, id)"), ("d.t", "partition-per-insert")),
    ],
)  # fmt: skip
def test_rule_fires(sql: str, wanted: tuple[str, str]) -> None:
    assert wanted in codes(sql)


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        (pipeline(GOOD, source_ttl="TTL ts + INTERVAL 7 DAY TO VOLUME 'cold'"), "ttl-shorter-than-target"),
        (pipeline(GOOD, "k UInt8, ts DateTime, n UInt64", source_ttl="TTL ts + INTERVAL 7 DAY", ttl="TTL ts + INTERVAL 7 DAY"), "ttl-shorter-than-target"),
        (pipeline(GOOD, "k UInt8, day Date DEFAULT today(), n UInt64", partition_by="PARTITION BY day"), "key-column-missing"),
        (pipeline(GOOD, "k UInt8, c LowCardinality(String), n UInt64", partition_by="PARTITION BY c"), "partition-per-insert"),
        (pipeline(GOOD, "k UInt8, at DateTime, n UInt64", partition_by="PARTITION BY toYYYYMM(at)"), "partition-per-insert"),
    ],
)  # fmt: skip
def test_rule_keeps_quiet(sql: str, code: str) -> None:
    assert code not in {found for _, found in codes(sql)}


def test_findings_are_in_order_of_files_and_lines_and_name_what_to_do() -> None:
    files = [
        SourceFile(path="10.sql", text="\nCREATE TABLE a (x UInt8) ENGINE = Log;\n\nFOO BAR;"),
        SourceFile(path="2.sql", text="CREATE VIEW v AS SELECT 1 FROM nowhere;\nBAR"),
    ]
    findings = build_catalog(files, default_database="d").findings
    assert [str(f.place) for f in findings if f.place] == ["2.sql:1", "2.sql:2", "10.sql:4"]
    assert all(f.message.rstrip(".").count(". ") >= 1 for f in findings if f.severity == "error")
