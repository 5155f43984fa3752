"""Replays through Dagster: a target whose source has lost its rows is rebuilt from landing files, by itself or because a tag asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import RANGE, open_site
from pyspark.sql import SparkSession
from test_ingest_asset import DDL, FIRST, SECOND, SETTINGS, LandingSite, hit

from resources.engine import EngineInfo
from resources.spark_session import LazySession

DAYS = ("2026-11-09", "2026-11-10")
SHORT = DDL.replace("ORDER BY at\n", "ORDER BY at TTL toDateTime(at) + INTERVAL 2 DAY\n", 1)


@pytest.fixture
def site(
    configured: EngineInfo, clickhouse: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LandingSite]:
    monkeypatch.setenv("CHMV_LANDING_ROOT", str(tmp_path))
    with open_site(LandingSite, clickhouse, tmp_path, monkeypatch, SHORT, SETTINGS) as made:
        made.write("first.jsonl", hit(FIRST), hit(FIRST, page="q"))
        made.write("second.jsonl", hit(SECOND))
        made.ingest()
        yield made


def test_expired_windows_are_replayed_with_one_session(site: LandingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TTL" in SHORT
    asked: list[LazySession] = []
    session = LazySession.session

    def count(lazy: LazySession) -> SparkSession:
        asked.append(lazy)
        return session(lazy)

    monkeypatch.setattr(LazySession, "session", count)
    site.command("TRUNCATE TABLE {db}.hits")  # what its TTL does sooner or later
    site.command("INSERT INTO {db}.daily SELECT * FROM {db}.daily")
    found = site.materialize("daily", tags={RANGE + "start": DAYS[0], RANGE + "end": DAYS[1]})
    assert {key: (one["chmv/protocol"], one["chmv/rows_after"]) for key, one in found.items()} == {
        DAYS[0]: ("owned", 2), DAYS[1]: ("owned", 1),
    }  # fmt: skip
    assert all(str(one["chmv/why"]).startswith("replayed: ") for one in found.values())
    assert site.rows("SELECT toString(day), sum(hits) FROM {db}.daily GROUP BY 1 ORDER BY 1") == [
        (DAYS[0], 2),
        (DAYS[1], 1),
    ]
    assert asked and len(set(map(id, asked))) == 1
    assert site.rows("SELECT count() FROM system.tables WHERE database = 'chmv' AND name LIKE 'replay.%'") == [(0,)]


def test_tag_decides_whether_landing_files_are_read(site: LandingSite) -> None:
    result = site.run("daily", partition_key=DAYS[0], tags={"chmv/feed": "pushdown"})
    assert not result.success  # the source's TTL has eaten the window, and nothing else was allowed
    again = site.materialize("daily", partition_key=DAYS[0], tags={"chmv/feed": "replay"})
    assert again[DAYS[0]]["chmv/protocol"] == "owned"
