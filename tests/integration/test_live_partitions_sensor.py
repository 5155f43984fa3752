"""What views write by themselves is on Dagster's pages: the sensor on a real server, with the events that the daemon would note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import Site, open_site

from chmv_assets.assets import build_props
from chmv_assets.start import resolve_start
from resources.clickhouse import Server
from resources.engine import EngineInfo
from sensors.live_partitions import build_live_partitions_sensor

DDL = """
CREATE TABLE {db}.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY page;
CREATE TABLE {db}.pages (day Date, page String, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, page);
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT toDate(at) AS day, page, count() AS n FROM {db}.hits GROUP BY day, page;
CREATE MATERIALIZED VIEW {db}.own ENGINE = SummingMergeTree PARTITION BY month ORDER BY month
AS SELECT toStartOfMonth(at) AS month, count() AS n FROM {db}.hits GROUP BY month;
CREATE TABLE {db}.seen (page String, n UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.seen_mv TO {db}.seen AS SELECT page, count() AS n FROM {db}.hits GROUP BY page;
"""
SETTINGS = "version: 1\ndefault_database: {db}\nstart: '2026-10-01'\n"
Told = dict[tuple[str, str | None], int]


class LiveSite(Site):
    """A location whose sensor ticks by hand; every tick is half a minute after the last."""

    said: str = ""
    moment: float = 0.0
    sensor: dg.SensorDefinition

    def restart(self) -> None:
        """A new code server: it remembers nothing."""
        start = resolve_start(self.pipeline, lambda _pipeline: None, None)  # type: ignore[arg-type]
        props = tuple(build_props(self.pipeline, start))
        self.sensor = build_live_partitions_sensor(self.pipeline, props, running=True, now=lambda: self.moment)

    def tick(self) -> Told:
        """Evaluate, and note the events as the daemon does."""
        self.moment += 30
        data = self.evaluate(self.sensor)
        self.said = data.skip_message or ""
        assert not data.run_requests
        return {
            (event.asset_key.path[-1], event.partition): next(iter(event.metadata.values())).value
            for event in data.asset_events
        }

    def insert(self, day: str, rows: int = 10) -> None:
        self.command(f"INSERT INTO {{db}}.hits SELECT '{day} 12:00:00', toString(number) FROM numbers({rows})")

    def last(self, table: str, partition: str) -> dg.EventLogEntry:
        records = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=self.key(table), asset_partitions=[partition]), limit=1
        ).records
        return records[0].event_log_entry


@pytest.fixture
def site(
    configured: EngineInfo, clickhouse: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveSite]:
    with open_site(LiveSite, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        made.restart()
        yield made


def test_an_empty_pipeline_has_nothing_to_tell(site: LiveSite) -> None:
    assert site.tick() == {} and site.said == "0 tables: nothing new"


def test_what_views_wrote_is_told_with_its_rows_upstream_first_and_once(site: LiveSite) -> None:
    site.insert("2026-10-05")
    site.insert("2026-10-06", 4)
    told = site.tick()
    days = {"2026-10-05": 10, "2026-10-06": 4}
    assert told == {
        **{(table, day): rows for table in ("hits", "pages_mv", "pages") for day, rows in days.items()},
        ("own", "2026-10-01"): 2,
        (".inner.own", "2026-10-01"): 2,
        ("seen_mv", None): 14,
        ("seen", None): 14,
    }
    order = [table for table, _ in told]
    assert order.index("hits") < order.index("pages_mv") < order.index("pages")
    assert site.said.startswith("4 tables: told Dagster of 10 partitions")
    assert site.tick() == {} and site.tick() == {}
    filled = site.instance.get_materialized_partitions(site.key("pages"))
    assert filled == {"2026-10-05", "2026-10-06"}


def test_a_partition_under_writers_is_told_when_they_leave_it(site: LiveSite) -> None:
    site.insert("2026-10-05")
    site.tick(), site.tick()
    for _ in range(3):
        site.insert("2026-10-05", 1)
        assert site.tick() == {} and "told when they rest" in site.said
    told = site.tick()
    assert told["hits", "2026-10-05"] == 13 and told["pages", "2026-10-05"] == 13
    assert site.tick() == {}


def test_a_rebuild_keeps_its_event_and_a_new_process_knows_it(site: LiveSite) -> None:
    site.insert("2026-10-05")
    site.tick(), site.tick()
    assert site.run("pages", partition_key="2026-10-05").success
    for _ in range(3):
        assert not {place for place in site.tick() if place[0] in ("pages", "pages_mv")}
    site.restart()
    for _ in range(3):
        assert not {place for place in site.tick() if place[0] in ("pages", "pages_mv")}
    event = site.last("pages", "2026-10-05")
    assert event.asset_materialization is not None and "chmv/protocol" in event.asset_materialization.metadata
    site.insert("2026-10-05", 1)
    site.tick()
    assert site.tick()["pages", "2026-10-05"] == 11


def test_merges_are_nothing_to_tell(site: LiveSite) -> None:
    site.insert("2026-10-05")
    site.insert("2026-10-05")
    site.tick(), site.tick()
    for table in ("hits", "pages", "seen"):
        site.command(f"OPTIMIZE TABLE {{db}}.{table} FINAL")
    assert site.tick() == {} and site.tick() == {}


def test_a_tick_has_few_queries_however_many_partitions_there_are(site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    asked: list[str] = []
    real = Server.rows

    def spy(self: Server, sql: str, *arguments: Any, **options: Any) -> Any:
        asked.append(sql)
        return real(self, sql, *arguments, **options)

    monkeypatch.setattr(Server, "rows", spy)
    counts = []
    for day in range(5, 25):
        site.insert(f"2026-10-{day:02}", 1)
    for _ in range(3):
        asked.clear()
        site.tick()
        counts.append(len(asked))
    assert max(counts) <= 3, counts


def test_a_server_that_does_not_answer_is_told(site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:1")
    assert site.tick() == {} and "could not be asked" in site.said
