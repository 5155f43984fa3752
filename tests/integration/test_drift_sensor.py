"""The drift sensor as the daemon evaluates it, on a real server: what it reports, when, and with how many queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from dagster_site import Site, open_site

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import lease_name
from chmv_assets.ddl_judgement import EQUAL
from chmv_assets.definitions import build_definitions
from chmv_assets.drift import Known, read_drift
from chmv_assets.pipeline import load_pipeline
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.journal import Journal
from sensors.drift import NAME, build_drift_sensor

DDL = """
CREATE TABLE {db}.hits (at DateTime('UTC'), page String, ms UInt32) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY page;
CREATE TABLE {db}.pages (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits GROUP BY page;
CREATE MATERIALIZED VIEW {db}.own ENGINE = MergeTree ORDER BY page AS SELECT page FROM {db}.hits;
"""
SETTINGS = "version: 1\ndefault_database: {db}\nstart: '2026-10-01'\n"


class DriftSite(Site):
    """A location whose drift sensor ticks by hand."""

    cursor: str | None = None
    said: str = ""
    sent: list[dict[str, Any]]
    sensor: dg.SensorDefinition

    def begin(self) -> None:
        self.sent = []

        def send(alert: Mapping[str, Any]) -> str:
            self.sent.append(dict(alert))
            return ""

        environ = {"CHMV_ALERT_URL": "https://hooks.example/x"}
        self.sensor = build_drift_sensor(self.pipeline, running=True, environ=environ, send=send)

    def tick(self) -> dict[str, bool]:
        """Evaluate, and note the events as the daemon does; gives the checks of this tick by table."""
        data = self.evaluate(self.sensor, self.cursor)
        self.cursor, self.said = data.cursor, data.skip_message or ""
        assert not data.run_requests
        return {event.asset_key.path[-1]: event.passed for event in data.asset_events}

    def latest(self, table: str) -> dg.AssetCheckEvaluation:
        key = dg.AssetCheckKey(self.key(table), EQUAL)
        record = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
        assert record.event is not None and record.event.dagster_event is not None
        return record.event.dagster_event.asset_check_evaluation_data


@pytest.fixture
def site(
    configured: EngineInfo, clickhouse: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DriftSite]:
    with open_site(DriftSite, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        made.begin()
        yield made


def test_nothing_is_said_of_what_is_as_declared(site: DriftSite) -> None:
    assert [site.tick() for _ in range(3)] == [{}, {}, {}]
    assert site.said == "4 objects compared, all as declared"
    assert site.sent == []


def test_drift_fails_the_check_from_the_second_tick_on_and_its_end_passes_it(site: DriftSite) -> None:
    site.tick()
    site.command("ALTER TABLE {db}.pages MODIFY COLUMN total UInt32")
    site.command("DROP VIEW {db}.pages_mv SYNC")
    assert site.tick() == {}
    assert "2 wait for one more tick" in site.said
    assert site.tick() == {"pages": False, "pages_mv": False}
    assert site.tick() == {}
    (alert,) = site.sent
    assert {one["name"].split(".")[1]: one["state"] for one in alert["drifted"]} == {"pages": "changed", "pages_mv": "missing"}  # fmt: skip
    found = site.latest("pages")
    assert not found.passed and "UInt32" in (found.description or "")
    assert found.metadata["chmv/found_by"].value == NAME
    site.command("ALTER TABLE {db}.pages MODIFY COLUMN total UInt64")
    site.command(
        "CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits GROUP BY page"
    )
    assert [site.tick() for _ in range(3)] == [{}, {"pages": True, "pages_mv": True}, {}]
    assert site.latest("pages").passed
    assert len(site.sent) == 1


def test_the_check_of_the_location_is_the_one_that_is_reported(site: DriftSite) -> None:
    keys = site.definitions.resolve_asset_graph().asset_check_keys
    assert dg.AssetCheckKey(site.key("pages"), EQUAL) in keys
    names = {one.name: one for one in build_definitions(site.pipeline).sensors or ()}
    assert NAME in names


def test_what_leaves_the_folder_is_reported_as_undeclared(site: DriftSite) -> None:
    path = site.folder / "all.sql"
    kept = [text for text in path.read_text().split(";\n") if "pages_mv" not in text]
    path.write_text(";\n".join(kept))
    site.pipeline = load_pipeline(site.folder)
    site.begin()
    assert [site.tick(), site.tick(), site.tick()] == [{}, {}, {}]
    assert f"not declared: {site.database}.pages_mv" in site.said
    (alert,) = site.sent
    assert alert["undeclared"] == [f"{site.database}.pages_mv"]


def test_a_tick_without_changes_asks_one_query_and_compares_nothing(
    site: DriftSite, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Known = {}
    asked: list[str] = []
    rows = Server.rows

    def counted(self: Server, sql: str, *values: Any, **more: Any) -> Any:
        asked.append(sql)
        return rows(self, sql, *values, **more)

    monkeypatch.setattr(Server, "rows", counted)
    first = read_drift(server, site.pipeline.catalog, known, limit=3)
    assert (first.compared, first.waiting, len(first.comparisons), len(first.held)) == (3, 1, 3, 1)
    assert len(asked) <= 3  # one of them once per process
    assert read_drift(server, site.pipeline.catalog, known, limit=3).compared == 1
    asked.clear()
    assert read_drift(server, site.pipeline.catalog, known).compared == 0
    assert len(asked) == 1
    site.command("ALTER TABLE {db}.pages MODIFY COMMENT 'x'")
    assert read_drift(server, site.pipeline.catalog, known).compared == 1


def test_what_a_rebuild_works_on_is_left_alone(site: DriftSite, server: Server) -> None:
    journal = Journal(server)
    journal.prepare()
    server.command(
        "INSERT INTO chmv.rebuilds (rebuild_id, target, window, protocol, status, steps, step, detail, owner, version) "
        "SELECT {id:String}, {target:String}, 'all', 'fenced', 'running', '[]', 0, '', '', 1",
        {"id": site.database, "target": f"{site.database}.pages"},
    )
    site.command("ALTER TABLE {db}.pages_mv MODIFY QUERY SELECT page, count() AS total FROM {db}.hits WHERE ms > 1 GROUP BY page")  # fmt: skip
    try:
        with journal.locks.hold(lease_name(QName(site.database, "pages")), "somebody"):
            assert [site.tick() for _ in range(3)] == [{}, {}, {}]
            assert "1 differ while a rebuild works on them" in site.said
        assert [site.tick() for _ in range(2)] == [{}, {"pages_mv": False}], "who was killed holds its lock no more"
    finally:
        server.command(
            "ALTER TABLE chmv.rebuilds DELETE WHERE rebuild_id = {id:String}",
            {"id": site.database},
            {"mutations_sync": 1},
        )


def test_a_server_that_does_not_answer_changes_nothing(site: DriftSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.tick()
    kept = site.cursor
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    assert site.tick() == {}
    assert site.said.startswith("the server could not be asked")
    assert site.cursor in (kept, None)
