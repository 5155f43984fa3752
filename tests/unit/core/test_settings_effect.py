"""Settings that nothing reads where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from chmv_assets.pipeline import DEMO_DDL, load_pipeline

DDL = """
CREATE TABLE d.s (ts DateTime, x UInt8) ENGINE = MergeTree ORDER BY x SETTINGS non_replicated_deduplication_window = 10;
CREATE TABLE d.t (ts DateTime, x UInt8) ENGINE = MergeTree ORDER BY x SETTINGS non_replicated_deduplication_window = 10;
CREATE TABLE d.u (ts DateTime, x UInt8) ENGINE = MergeTree ORDER BY x SETTINGS non_replicated_deduplication_window = 10;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT ts, x FROM d.s;
CREATE MATERIALIZED VIEW d.w TO d.u AS SELECT ts, x FROM d.t;
CREATE VIEW d.shown AS SELECT x FROM d.t;
"""


def told(folder: Path, settings: str) -> list[tuple[str, int, str]]:
    (folder / "a.sql").write_text(DDL)
    (folder / "chmv.yaml").write_text(settings)
    findings = load_pipeline(folder, cache=folder / "cache").catalog.findings
    return [
        (one.severity, one.place.line, one.message)
        for one in findings
        if one.code == "settings-no-effect" and one.place
    ]


def test_keys_of_a_view_that_belong_to_its_tables(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        "views:\n  d.v: {sla: 5m, protocol: gated, event_time: ts, lateness_tolerance: 1h, group: g, recovery: off}\n",
    )
    why = "found a value but nothing reads it here. A setting that does nothing misleads."
    assert found == [
        ("warning", 2, f"setting views.d.v.sla: {why} Say it of its target d.t, or remove it."),
        ("warning", 2, f"setting views.d.v.protocol: {why} Say it of its target d.t, or remove it."),
        ("warning", 2, f"setting views.d.v.event_time: {why} Say it of the source, or remove it."),
        ("warning", 2, f"setting views.d.v.lateness_tolerance: {why} Say it of the source, or remove it."),
    ]


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ("sources:\n  d.s: {sla: 5m, protocol: closed, event_time: ts, arrival: ts, lateness_tolerance: 1h}\n", ["sla", "protocol"]),
        ("sources:\n  d.t: {sla: 5m, protocol: closed, lateness_tolerance: 1h}\n", []),  # it is a target, too
        ("targets:\n  d.u: {sla: 5m, protocol: closed, event_time: ts, lateness_tolerance: 1h}\n", []),
        ("views:\n  d.shown: {sla: 5m, group: g}\n", ["sla"]),
        ("defaults: {sla: 5m, protocol: closed, lateness_tolerance: 1h}\n", []),
    ],
)  # fmt: skip
def test_what_is_read_is_not_told(tmp_path: Path, settings: str, keys: list[str]) -> None:
    assert [message.partition(":")[0].rpartition(".")[2] for _, _, message in told(tmp_path, settings)] == keys


def test_the_demo_has_no_idle_setting(tmp_path: Path) -> None:
    findings = load_pipeline(DEMO_DDL, cache=tmp_path).catalog.findings
    assert [one for one in findings if one.code == "settings-no-effect"] == []
