"""Thresholds: every one has a unit and a reason, the settings file overrides them, bad numbers are refused."""

from __future__ import annotations

import pytest

from chmv_assets.core.settings import Settings
from chmv_assets.core.thresholds import THRESHOLDS, Limits
from chmv_assets.settings_file import parse_settings_text


def test_every_threshold_says_why() -> None:
    assert len({one.name for one in THRESHOLDS}) == len(THRESHOLDS) > 10
    for one in THRESHOLDS:
        assert one.reason.endswith(".") and len(one.reason) > 30, one.name
        assert one.lowest <= one.default <= one.highest, one.name


def test_the_settings_file_overrides_the_defaults_and_round_trips() -> None:
    settings, findings = parse_settings_text(
        "version: 1\nthresholds: {parts_warn: 20, forecast: 5m}\ndefaults: {recovery: off}\n"
    )
    assert not findings
    assert (settings.limits.parts_warn, settings.limits.forecast, settings.limits.strikes) == (
        20,
        300,
        Limits().strikes,
    )
    assert settings.defaults.recovery == "off"
    assert Settings.from_document(settings.to_document()) == settings


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("thresholds: {parts_warm: 20}", "settings-unknown-key", "Did you mean parts_warn"),
        ("thresholds: {parts_warn: many}", "settings-threshold", "a number of parts, at least 2"),
        ("thresholds: {pool_busy: 85}", "settings-threshold", "at most 1"),
        ("thresholds: {strikes: true}", "settings-threshold", "The default is 3"),
        ("thresholds: [1]", "settings-type", "a mapping"),
        ("defaults: {recovery: maybe}", "settings-recovery", "auto"),
    ],
)
def test_bad_thresholds_are_named(text: str, code: str, word: str) -> None:
    _, findings = parse_settings_text(f"version: 1\n{text}\n")
    assert [finding.code for finding in findings] == [code]
    assert word in findings[0].message
