"""The metrics on a real server, scraped over HTTP and read by Prometheus' own parser: break something and see the numbers move."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from prometheus_client.parser import text_string_to_metric_families

from chmv_assets.core.locks import LockState, lock_table, render_generation
from chmv_assets.core.metrics import BY_NAME, METRICS, exposed_names
from chmv_assets.core.names import QName
from chmv_assets.core.outages import Outage, write_outage
from chmv_assets.core.rebuild_journal import RebuildRecord, write_rebuild
from chmv_assets.core.recovery import RecoveryRecord, write_recovery
from chmv_assets.core.serving_journal import RouteRecord, write_route
from chmv_assets.core.watermarks import Watermark, from_micros, write_watermarks
from chmv_assets.pipeline import Pipeline, load_pipeline
from chmv_assets.process_identity import VERSIONS, new_rebuild_id
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.graph_endpoint import GraphPage
from resources.journal import Journal
from resources.metrics import MetricsCollector
from resources.metrics_endpoint import open_endpoint

DDL = """
CREATE TABLE {db}.events (id UInt64, ts DateTime('UTC')) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS parts_to_delay_insert = 50, parts_to_throw_insert = 90;
CREATE TABLE {db}.daily (day Date, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
CREATE MATERIALIZED VIEW {db}.daily_mv TO {db}.daily AS SELECT toDate(ts) AS day, count() AS n FROM {db}.events GROUP BY day;
"""


@dataclass
class Scrape:
    """One answer of the endpoint."""

    text: str

    def __post_init__(self) -> None:
        families = list(text_string_to_metric_families(self.text))
        self.names = {family.name for family in families}
        self.found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        return self.found.get((name, tuple(sorted(labels.items()))))


@dataclass
class Clocks:
    """Time as a test wants it."""

    passed: float = 0.0

    def monotonic(self) -> float:
        return self.passed


@dataclass
class Site:
    pipeline: Pipeline
    collector: MetricsCollector
    clocks: Clocks
    url: str
    database: str

    def scrape(self, later: float = 60.0) -> Scrape:
        self.clocks.passed += later
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            return Scrape(answer.read().decode())

    def name(self, table: str) -> str:
        return f"{self.database}.{table}"


@contextmanager
def served(collector: MetricsCollector, page: GraphPage | None = None) -> Iterator[str]:
    server = open_endpoint(collector, page=page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
        collector.close()


def declare(folder: Path, text: str, settings: str = "version: 1\ndefaults: {sla: 2m}\n") -> Pipeline:
    folder.mkdir(exist_ok=True)
    (folder / "ddl.sql").write_text(text)
    (folder / "chmv.yaml").write_text(settings)
    return load_pipeline(folder, cache=folder / "cache").require_sound()


@pytest.fixture
def site(tmp_path: Path, engine: EngineInfo, server: Server, clickhouse: Client, database: str) -> Iterator[Site]:
    text = DDL.format(db=database)
    for table in ("daily_mv", "daily", "events"):
        clickhouse.command(f"DROP TABLE IF EXISTS {database}.{table} SYNC")
    for statement in text.split(";\n"):
        if statement.strip():
            clickhouse.command(statement.strip())
    Journal(server).prepare()
    pipeline, clocks = declare(tmp_path / "ddl", text), Clocks()
    collector = MetricsCollector(
        pipeline.catalog, pipeline.settings, lambda: Endpoint(engine.url), monotonic=clocks.monotonic
    )
    with served(collector) as url:
        yield Site(pipeline, collector, clocks, url, database)


def run(server: Server, statement: object) -> None:
    server.run(statement)  # type: ignore[attr-defined]


def test_the_page_of_the_graph_stands_beside_them(site: Site, engine: EngineInfo, clickhouse: Client) -> None:
    """With the state of now, kept for some seconds; without a server what is declared."""
    away = [False]
    page = GraphPage(
        site.pipeline.catalog,
        site.pipeline.settings,
        lambda: Endpoint("http://127.0.0.1:1" if away[0] else engine.url),
        site.clocks.monotonic,
    )
    with served(site.collector, page) as url:

        def ask() -> str:
            with urllib.request.urlopen(url.replace("/metrics", "/graph"), timeout=20) as answer:
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                return str(answer.read().decode())

        assert "ACTIVE" in ask() and site.name("daily_mv") in ask()
        clickhouse.command(f"DROP TABLE {site.name('daily_mv')} SYNC")
        assert "is not on the server" not in ask()  # kept
        site.clocks.passed += 10
        assert "is not on the server" in ask()
        away[0] = True
        site.clocks.passed += 10
        assert "the server is away" in ask()


def test_a_scrape_of_a_sound_pipeline(site: Site, clickhouse: Client) -> None:
    clickhouse.command(f"INSERT INTO {site.database}.events SELECT number, '2026-10-01 00:00:00' FROM numbers(10)")
    seen = site.scrape()
    assert seen.get("chmv_up") == 1
    assert [value for (name, _), value in seen.found.items() if name == "chmv_collection_errors_total"] == [0] * 6
    assert seen.get("chmv_object_present", object=site.name("daily_mv"), kind="view") == 1
    assert seen.get("chmv_object_present", object=site.name("events"), kind="source") == 1
    assert seen.get("chmv_partition_parts_max", table=site.name("daily")) == 1
    assert seen.get("chmv_parts_to_delay_insert", table=site.name("events")) == 50
    assert seen.get("chmv_parts_to_throw_insert", table=site.name("events")) == 90
    assert seen.get("chmv_parts_delay_forecast_seconds", table=site.name("events")) == float("inf")
    assert (seen.get("chmv_merge_pool_size") or 0) > 0
    assert seen.get("chmv_route", target=site.name("daily"), route="primary") == 1
    assert seen.get("chmv_target_behind_seconds", target=site.name("daily")) == 0
    assert seen.get("chmv_target_sla_seconds", target=site.name("daily")) == 120
    known = {name for spec in METRICS for name in exposed_names(spec)}
    assert {name for name, _ in seen.found} <= known, "nothing is exported that is not declared"
    assert seen.names == {name.removesuffix("_total") for name in BY_NAME}, "every family is there, if only by its type"


def test_numbers_move_when_something_breaks(site: Site, server: Server, clickhouse: Client) -> None:
    clickhouse.command(f"DROP TABLE {site.database}.daily_mv SYNC")
    assert site.scrape().get("chmv_object_present", object=site.name("daily_mv"), kind="view") == 0

    target, view = QName(site.database, "daily"), QName(site.database, "daily_mv")
    now_ms = int(site.collector.clock() * 1000)
    run(server, write_route(RouteRecord(target=target, route="snapshot", reason="test", version=VERSIONS.next())))
    outage = Outage(view=view, opened_ms=now_ms - 90_000, damage="dropped", status="isolated", version=VERSIONS.next())
    run(server, write_outage(outage))
    broken = site.scrape()
    assert broken.get("chmv_route", target=str(target), route="snapshot") == 1
    assert broken.get("chmv_route", target=str(target), route="primary") == 0
    assert broken.get("chmv_target_behind_seconds", target=str(target)) == pytest.approx(90, abs=20)
    assert broken.get("chmv_outage_age_seconds", object=str(view), status="isolated") == pytest.approx(90, abs=20)
    assert broken.get("chmv_outages", status="isolated") == 1

    closed = Outage(**{name: getattr(outage, name) for name in ("view", "opened_ms", "damage")}, status="closed", closed_ms=now_ms, version=VERSIONS.next())  # fmt: skip
    run(server, write_outage(closed))
    run(server, write_route(RouteRecord(target=target, route="primary", version=VERSIONS.next())))
    mended = site.scrape()
    assert mended.get("chmv_route", target=str(target), route="primary") == 1
    assert mended.get("chmv_target_behind_seconds", target=str(target)) == 0
    assert mended.get("chmv_outage_age_seconds", object=str(view), status="isolated") is None


def test_parts_that_pile_up_are_forecast(site: Site, clickhouse: Client) -> None:
    table = site.name("events")
    clickhouse.command(f"SYSTEM STOP MERGES {table}")
    for at in range(2):
        clickhouse.command(f"INSERT INTO {table} VALUES ({at}, '2026-10-01 00:00:00')")
    assert site.scrape().get("chmv_partition_parts_max", table=table) == 2
    for at in range(10):
        clickhouse.command(f"INSERT INTO {table} VALUES ({at}, '2026-10-01 00:00:00')")
    seen = site.scrape(later=40)  # 10 parts in 40 s, 38 to go
    assert seen.get("chmv_partition_parts_max", table=table) == 12
    assert seen.get("chmv_parts_delay_forecast_seconds", table=table) == pytest.approx(38 / (10 / 40))
    clickhouse.command(f"SYSTEM START MERGES {table}")


def test_the_journal_as_counters(site: Site, server: Server) -> None:
    target, source = QName(site.database, "daily"), QName(site.database, "events")
    now = site.collector.clock()
    before = site.scrape()

    rebuild = RebuildRecord(rebuild_id=new_rebuild_id(), target=target, window="all", protocol="gated", status="running", steps=(), step=0, version=VERSIONS.next())  # fmt: skip
    run(server, write_rebuild(rebuild))
    assert site.scrape().get("chmv_rebuilds_open", status="running") == (before.get("chmv_rebuilds_open", status="running") or 0) + 1  # fmt: skip
    ended = VERSIONS.next() + (7_000 << 20)  # seven seconds later
    run(server, write_rebuild(RebuildRecord(rebuild_id=rebuild.rebuild_id, target=target, window="all", protocol="gated", status="published", steps=(), step=0, version=ended)))  # fmt: skip
    old = RebuildRecord(rebuild_id="0123456789ab", target=target, window="old", protocol="gated", status="published", steps=(), step=0, version=VERSIONS.next())  # fmt: skip
    run(server, write_rebuild(old))
    repair = RecoveryRecord(recovery=f"late:{target}", kind="late", subject=target, damage="late rows", tier=2, status="repaired", detected_ms=int(now * 1000) - 20_000, started_ms=int(now * 1000) - 4_000, ended_ms=int(now * 1000), detail='{"seen": {"late rows": "12", "windows": "3"}}', version=VERSIONS.next())  # fmt: skip
    run(server, write_recovery(repair))
    marks = [
        Watermark(
            source_id=source,
            target_table=target,
            window_start=from_micros(int(at * 86_400e6)),
            window_end=from_micros(int((at + 1) * 86_400e6)),
            last_processed_ts=from_micros(int((now - 100 * at) * 1e6)),
            status=status,
            version=VERSIONS.next(),
        )
        for at, status in ((1, "processed"), (2, "stale"), (3, "stale"))
    ]
    run(server, write_watermarks(marks))  # type: ignore[arg-type]
    seen = site.scrape()

    def moved(name: str, **labels: str) -> float:
        return (seen.get(name, **labels) or 0) - (before.get(name, **labels) or 0)

    assert moved("chmv_rebuilds_total", protocol="gated", outcome="published") == 2
    assert moved("chmv_rebuild_duration_seconds_count", protocol="gated", outcome="published") == 1, (
        "an old id does not tell"
    )
    assert moved("chmv_rebuild_duration_seconds_bucket", protocol="gated", outcome="published", le="5.0") == 0
    assert moved("chmv_rebuild_duration_seconds_bucket", protocol="gated", outcome="published", le="10.0") == 1
    assert moved("chmv_rebuild_duration_seconds_sum", protocol="gated", outcome="published") == pytest.approx(7, abs=2)
    assert moved("chmv_recovery_duration_seconds_sum", kind="late") == pytest.approx(4)
    assert moved("chmv_recovery_since_detection_seconds_sum", kind="late") == pytest.approx(20)
    assert moved("chmv_late_rows_total", object=str(target), damage="late rows") == 12
    assert moved("chmv_late_windows_total", object=str(target), damage="late rows") == 3
    assert seen.get("chmv_windows", target=str(target), status="stale") == 2
    assert seen.get("chmv_watermark_lag_seconds", target=str(target)) == pytest.approx(100, abs=20)

    again = RecoveryRecord(**{name: getattr(repair, name) for name in ("recovery", "kind", "subject", "damage", "tier", "detected_ms", "started_ms")}, status="running", version=VERSIONS.next())  # fmt: skip
    run(server, write_recovery(again))
    held = site.scrape()
    assert held.get("chmv_recovery_duration_seconds_count", kind="late") == seen.get("chmv_recovery_duration_seconds_count", kind="late")  # fmt: skip
    fresh = MetricsCollector(site.pipeline.catalog, site.pipeline.settings, site.collector.endpoint)
    with served(fresh) as url, urllib.request.urlopen(url, timeout=20) as answer:
        restarted = Scrape(answer.read().decode())
    for name in ("chmv_rebuilds_total", "chmv_rebuild_duration_seconds_sum"):
        labels = {"protocol": "gated", "outcome": "published"}
        assert restarted.get(name, **labels) == pytest.approx(seen.get(name, **labels)), (
            "counters come from the journal"
        )


def test_locks_that_are_held(site: Site, server: Server, clickhouse: Client) -> None:
    name = f"landing {site.name('events')}"
    expires = int(site.collector.clock() * 1e6) + 60_000_000
    before = site.scrape().get("chmv_locks_held", lock="landing") or 0
    server.command(render_generation(name, LockState(generation=1, owner="me", token=1, expires_us=expires)))
    assert site.scrape().get("chmv_locks_held", lock="landing") == before + 1
    server.command(render_generation(name, LockState(generation=2)))
    assert site.scrape().get("chmv_locks_held", lock="landing") == before
    for generation in (1, 2):
        clickhouse.command(f"DROP TABLE {lock_table(name, generation).sql} SYNC")


def test_a_server_that_is_away_gives_numbers_not_an_error(
    site: Site, engine: EngineInfo, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as silent:  # accepts and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        where = {"url": "http://127.0.0.1:1", "password": "canary-5f1c"}
        collector = MetricsCollector(
            site.pipeline.catalog, site.pipeline.settings, lambda: Endpoint(where["url"], password=where["password"]), cache_seconds=0, budget_seconds=2
        )  # fmt: skip
        with served(collector) as url:

            def scrape() -> tuple[Scrape, float]:
                started = time.monotonic()
                with urllib.request.urlopen(url, timeout=20) as answer:
                    return Scrape(answer.read().decode()), time.monotonic() - started

            refused, _ = scrape()
            assert refused.get("chmv_up") == 0
            assert refused.get("chmv_collection_errors_total", part="connect") == 1
            assert refused.get("chmv_merge_pool_size") is None, "what was not read is missing, not 0"
            where["url"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
            hung, seconds = scrape()
            assert hung.get("chmv_collection_errors_total", part="connect") == 2
            assert seconds < 4
            assert caplog.text.count("metrics: connect could not be read") == 1, "told once"
            assert "canary" not in caplog.text + refused.text + hung.text
            where.update(url=engine.url, password="")
            back, _ = scrape()
            assert (back.get("chmv_up"), back.get("chmv_collection_errors_total", part="connect")) == (1, 2)


def test_scrapes_do_not_load_the_server(site: Site, server: Server, tmp_path: Path, clickhouse: Client) -> None:
    """As many queries for 200 tables as for 10, and none at all within ten seconds."""

    def asked() -> int:
        server.command("SYSTEM FLUSH LOGS query_log")
        sql = "SELECT count() FROM system.query_log WHERE type = 'QueryFinish' AND is_initial_query AND log_comment = {said:String}"
        return int(server.rows(sql, {"said": '{"chmv": "metrics"}'})[0][0])

    cost = {}
    for tables in (10, 200):
        database = f"{site.database}_{tables}"
        names = [f"{database}.t{at}" for at in range(tables)]
        text = "\n".join(f"CREATE TABLE {name} (a UInt64) ENGINE = MergeTree ORDER BY a;" for name in names)
        clickhouse.command(f"CREATE DATABASE {database}")
        for statement in text.split(";\n"):
            clickhouse.command(statement.rstrip(";"))
        clickhouse.command(f"INSERT INTO {names[0]} VALUES (1)")
        pipeline = declare(tmp_path / database, text)
        clocks = Clocks()
        collector = MetricsCollector(
            pipeline.catalog, pipeline.settings, site.collector.endpoint, monotonic=clocks.monotonic
        )
        collector.collect()  # connecting costs a few more
        clocks.passed += 11
        before = asked()
        for _ in range(3):
            collector.collect()
            clocks.passed += 3
        cost[tables] = asked() - before
        collector.close()
        clickhouse.command(f"DROP DATABASE {database} SYNC")
    assert cost == {10: 4, 200: 4}, "refreshes are asked for only where there are refreshable views"


def test_the_command_prints_what_a_scrape_shows(
    site: Site, configured: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from chmv_assets.cli.main import main

    told = CliRunner().invoke(main, ["metrics", "--ddl", str(site.pipeline.ddl_dir)])
    assert told.exit_code == 0, told.output
    assert Scrape(told.output).get("chmv_object_present", object=site.name("daily"), kind="target") == 1
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:1")
    away = CliRunner().invoke(main, ["metrics", "--ddl", str(site.pipeline.ddl_dir)])
    assert away.exit_code == 1
    assert Scrape(away.stdout).get("chmv_up") == 0
