"""The settings file: typed values, all defects at once, and the documented example."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from chmv_assets.core.errors import CatalogDefects
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Defaults, Landing, ObjectPolicy, ObjectSettings, Settings, check_settings
from chmv_assets.settings_file import parse_settings_text, read_settings

DOCS = Path(__file__).parents[3] / "docs" / "settings.md"


def documented_example() -> str:
    match = re.search(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert match
    return match.group(1)


def defects(text: str) -> list[tuple[str, int]]:
    _, findings = parse_settings_text(text)
    return [(finding.code, finding.place.line) for finding in findings if finding.place]


def message(text: str) -> str:
    _, findings = parse_settings_text(text)
    assert len(findings) == 1, findings
    return findings[0].message


def test_the_documented_example_has_no_defects() -> None:
    settings, findings = parse_settings_text(documented_example())
    assert findings == ()
    assert settings == Settings(
        default_database="shop",
        timezone="UTC",
        start=date(2026, 7, 1),
        databases=("shop",),
        defaults=Defaults(owners=("team:data-platform",)),
        sources=(
            (
                QName("shop", "currencies"),
                ObjectSettings(event_time="changed_at", cadence="day", start=date(2026, 9, 1)),
            ),
            (
                QName("shop", "orders"),
                ObjectSettings(
                    description="Orders as the shop writes them.",
                    event_time="ordered_at",
                    arrival="arrived_at",
                    lateness_tolerance_seconds=7200,
                    landing=Landing(path="s3://landing/orders/", format="jsonl", tolerated_bad_rate=0.001),
                    owners=("team:checkout", "ana@example.com"),
                    group="checkout",
                    tags=(("tier", "gold"),),
                ),
            ),
        ),
        targets=(
            (QName("shop", "odd.name"), ObjectSettings(group="experiments")),
            (
                QName("shop", "orders_per_hour"),
                ObjectSettings(event_time="hour", sla_seconds=90, protocol="gated", allow_empty=True),
            ),
        ),
        views=(
            (
                QName("shop", "orders_per_hour_mv"),
                ObjectSettings(
                    description="Hourly turnover, fed by every insert into shop.orders.", owners=("team:finance",)
                ),
            ),
        ),
    )


def test_settings_round_trip_through_json() -> None:
    settings, _ = parse_settings_text(documented_example())
    document = json.loads(json.dumps(settings.to_document()))
    again = Settings.from_document(document)
    assert again == settings
    assert again.lines == settings.lines
    assert Settings.from_document(Settings().to_document()) == Settings()


def test_a_document_that_was_tampered_with_is_refused() -> None:
    document = Settings().to_document()
    document["settings"]["timezone"] = "Mars/Olympus"
    with pytest.raises(CatalogDefects, match="settings-timezone"):
        Settings.from_document(document)


def test_a_policy_joins_sections_and_defaults() -> None:
    settings, _ = parse_settings_text(documented_example())
    assert settings.policy(QName("shop", "orders_per_hour")) == ObjectPolicy(
        lateness_tolerance_seconds=900,
        sla_seconds=90,
        owners=("team:data-platform",),
        protocol="gated",
        start=date(2026, 7, 1),
        event_time="hour",
        allow_empty=True,
    )
    assert settings.policy(QName("shop", "currencies")).start == date(2026, 9, 1)
    assert settings.policy(QName("x", "unheard")).protocol == "auto"


def test_a_missing_or_empty_file_means_defaults(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == (Settings(), ())
    (tmp_path / "chmv.yaml").write_text("# nothing yet\n")
    assert read_settings(tmp_path) == (Settings(), ())
    (tmp_path / "chmv.yaml").write_text("sources:\ntargets:\n  a.b:\n")
    settings, findings = read_settings(tmp_path)
    assert (settings.targets, findings) == (((QName("a", "b"), ObjectSettings()),), ())


def test_a_misnamed_file_is_not_ignored_silently(tmp_path: Path) -> None:
    (tmp_path / "chmv.yml").write_text("version: 1\n")
    _, findings = read_settings(tmp_path)
    assert [finding.code for finding in findings] == ["settings-file-name"]


def test_text_that_is_not_utf8_is_a_defect(tmp_path: Path) -> None:
    (tmp_path / "chmv.yaml").write_bytes(b"timezone: \xff\n")
    _, findings = read_settings(tmp_path)
    assert [finding.code for finding in findings] == ["settings-yaml"]


def test_all_defects_come_at_once_with_their_lines() -> None:
    text = """\
version: 2
timezon: UTC
timezone: Europe/Berln
start: July
databases: shop
defaults:
  sla: soon
  sla: 5m
  protocol: gate
sources:
  shop.orders:
    event_tme: at
    lateness_tolerance: -5
    landing: {format: xml, tolerated_bad_rate: 5}
    owners: [checkout]
  a.b.c: {}
targets:
  shop.orders:
    landing: {path: x}
    cadence: dayly
    group: a b
    tags: {tier: "not allowed"}
    sla: 0
views: [x]
"""
    assert sorted(defects(text), key=lambda item: (item[1], item[0])) == [  # order of lines, then of codes
        ("settings-version", 1),
        ("settings-unknown-key", 2),
        ("settings-timezone", 3),
        ("settings-date", 4),
        ("settings-type", 5),
        ("settings-duplicate-key", 8),
        ("settings-protocol", 9),
        ("settings-unknown-key", 12),
        ("settings-duration", 13),
        ("settings-format", 14),
        ("settings-rate", 14),
        ("settings-type", 14),
        ("settings-owner", 15),
        ("settings-name", 16),
        ("settings-unknown-key", 19),
        ("settings-cadence", 20),
        ("settings-group", 21),
        ("settings-tag", 22),
        ("settings-duration", 23),
        ("settings-type", 24),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timezon: UTC", "setting timezon: found an unknown key but wanted a known one. Did you mean timezone?"),
        (
            "targets: {shop.t: {slo: 5m}}",
            "setting targets.shop.t.slo: found an unknown key but wanted a known one. Did you mean sla?",
        ),
        (
            "defaults: {protocol: gate}",
            "setting defaults.protocol: found 'gate' but wanted a rebuild protocol out of auto, closed, gated, fenced, "
            "owned, whole. Did you mean gated?",
        ),
        (
            "defaults: {owners: [Data Team]}",
            "setting defaults.owners: found ['Data Team'] but wanted team:<name> or an e-mail address. "
            "Dagster takes no other form. Write team:Data-Team or an address.",
        ),
        (
            "sources: {shop.s: {landing: {}}}",
            "setting sources.shop.s.landing: found no path but wanted the folder of the files. Add path.",
        ),
    ],
)
def test_a_message_says_what_was_found_and_what_to_do(text: str, expected: str) -> None:
    assert message(text) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1,\nb: 2", 2), ("? [a]\n: 1", 1), ("a: 1\n---\nb: 2", 2), ("a: &x [*x]", 1)],
)
def test_broken_yaml_is_one_defect(text: str, line: int) -> None:
    assert defects(text) == [("settings-yaml", line)]


def test_a_document_that_is_no_mapping_is_a_defect() -> None:
    assert defects("- a\n- b\n") == [("settings-type", 1)]


def test_merge_keys_are_not_duplicates() -> None:
    text = "sources:\n  a.x: &base {sla: 1m, group: g}\n  a.y: {<<: *base, sla: 2m}\n"
    settings, findings = parse_settings_text(text)
    assert findings == ()
    assert settings.policy(QName("a", "y")).sla_seconds == 120
    assert settings.policy(QName("a", "y")).group == "g"


def test_one_table_under_two_spellings_is_a_duplicate() -> None:
    assert defects("default_database: a\nsources:\n  a.x: {}\n  x: {}\n") == [("settings-duplicate-key", 4)]


def test_sources_and_targets_must_agree_on_one_table() -> None:
    text = "sources:\n  a.x: {sla: 1m, group: g}\ntargets:\n  a.x:\n    group: g\n    sla: 2m\n"
    assert defects(text) == [("settings-conflict", 6)]


def test_names_and_columns_are_held_against_the_catalog() -> None:
    text = """\
default_database: shop
databases: [shop, servng]
sources:
  ordrs: {event_time: x}
  shop.orders:
    event_time: orderd_at
    arrival: arrived_at
targets:
  shop.unknown_columns: {event_time: anything}
"""
    settings, findings = parse_settings_text(text)
    assert findings == ()
    catalog = {"shop.orders": {"ordered_at", "arrived_at"}, "shop.unknown_columns": set(), "serving.v": {"a"}}
    found = check_settings(settings, catalog)
    assert [(finding.code, finding.place.line if finding.place else 0) for finding in found] == [
        ("settings-unknown-database", 2),
        ("settings-unknown-object", 4),
        ("settings-unknown-column", 6),
    ]
    assert [finding.subject for finding in found] == ["", "shop.ordrs", "shop.orders"]
    assert "Did you mean serving" in found[0].message
    assert "Did you mean shop.orders" in found[1].message
    assert "Did you mean ordered_at" in found[2].message


def test_emptying_is_permitted_per_target_only() -> None:
    settings, findings = parse_settings_text("targets: {a.b: {allow_empty: true}, a.c: {allow_empty: false}}")
    assert findings == ()
    assert [settings.policy(QName("a", table)).allow_empty for table in "bcd"] == [True, False, False]
    assert defects("sources: {a.b: {allow_empty: true}}") == [("settings-unknown-key", 1)]
    assert defects("targets: {a.b: {allow_empty: 'yes'}}") == [("settings-flag", 1)]
