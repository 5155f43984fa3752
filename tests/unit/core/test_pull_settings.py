"""What is inferred for chmv.yaml: facts with their reason, and a file that reads back."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.pull_settings import Said, SourceFacts, infer_sources, render_settings
from chmv_assets.settings_file import parse_settings_text

DDL = """
CREATE TABLE d.s (ts DateTime, at DateTime64(6) DEFAULT now64(6), n UInt8) ENGINE = MergeTree PARTITION BY toDate(ts) ORDER BY n;
CREATE TABLE d.two (a DateTime DEFAULT now(), b DateTime DEFAULT now('UTC'), n UInt8) ENGINE = MergeTree ORDER BY n;
CREATE TABLE d.t (n UInt8) ENGINE = MergeTree ORDER BY n;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT n FROM d.s;
CREATE MATERIALIZED VIEW d.w TO d.t AS SELECT n FROM d.two;
"""


def catalog() -> Catalog:
    return build_catalog([SourceFile(path="a.sql", text=DDL)], default_database="d").require_sound()


def test_facts_of_sources() -> None:
    found = infer_sources(catalog(), {QName("d", "s"): date(2026, 10, 1)})
    assert [one.name.table for one in found] == ["s", "two"]
    assert found[0].said == (
        Said("event_time", "ts", "PARTITION BY toDate(ts), daily"),
        Said("arrival", "at", "DEFAULT now64(6)"),
    )
    assert found[0].start == date(2026, 10, 1)
    assert found[1].said == () and len(found[1].open) == 2
    assert "a, b are all stamped" in found[1].open[1]


def test_every_value_says_where_it_comes_from() -> None:
    facts = infer_sources(catalog(), {QName("d", "s"): date(2026, 10, 1), QName("d", "two"): date(2026, 11, 1)})
    text = render_settings(facts, "Europe/Berlin", "d")
    assert "default_database: d  # the only database\n" in text
    assert "timezone: Europe/Berlin  # the server's\n" in text
    assert 'start: "2026-10-01"  # the earliest partition of all sources, in d.s\n' in text
    assert "    event_time: ts  # PARTITION BY toDate(ts), daily\n" in text
    settings, findings = parse_settings_text(text)
    assert findings == ()
    assert settings.timezone == "Europe/Berlin" and settings.start == date(2026, 10, 1)
    policy = settings.policy(QName("d", "two"))
    assert (policy.start, policy.arrival) == (date(2026, 11, 1), None)
    assert settings.policy(QName("d", "s")).arrival == "at"


def test_nothing_known_is_a_valid_file_too() -> None:
    settings, findings = parse_settings_text(render_settings([], "UTC"))
    assert findings == () and settings.default_database == "default" and settings.start is None


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(NAMES, NAMES, NAMES.filter(lambda name: name == name.strip()))
def test_any_name_reads_back(database: str, table: str, column: str) -> None:
    name = QName(database, table)
    facts = SourceFacts(name=name, said=(Said("arrival", column, f"DEFAULT {column}"),), open=(f"x {table}",))
    settings, findings = parse_settings_text(render_settings([facts], "UTC"))
    assert findings == ()
    assert settings.policy(name).arrival == column
