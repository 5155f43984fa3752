"""Observing what others write: tables without parts are counted, hidden tables are found under their own names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from chmv_assets.assets import build_props
from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings
from chmv_assets.core.windows import Window
from chmv_assets.live_partitions import LivePartitions
from chmv_assets.pipeline import load_pipeline
from chmv_assets.start import probe_server
from resources.clickhouse import Server
from resources.inner_tables import fetch_inner_tables, fetch_states
from resources.observe import observe_windows


def test_table_without_parts_is_counted(clickhouse: Client, server: Server, database: str) -> None:
    sql = f"CREATE TABLE {database}.lines (x UInt8) ENGINE = Log"
    clickhouse.command(sql)
    clickhouse.command(f"INSERT INTO {database}.lines SELECT number FROM numbers(7)")
    catalog = build_catalog([SourceFile(path="a.sql", text=sql)])
    name = QName(database, "lines")
    (seen,) = observe_windows(server, catalog, catalog.objects[name], [], "UTC", Settings().policy(name))
    assert seen.rows == 7


HIDDEN = """
CREATE TABLE {db}.clicks (ts DateTime('UTC')) ENGINE = MergeTree PARTITION BY toDate(ts) ORDER BY ts;
CREATE MATERIALIZED VIEW {db}.daily ENGINE = SummingMergeTree PARTITION BY day ORDER BY day AS
SELECT toDate(ts) AS day, count() AS n FROM {db}.clicks GROUP BY day;
CREATE MATERIALIZED VIEW {db}.monthly ENGINE = SummingMergeTree PARTITION BY month ORDER BY month AS
SELECT toStartOfMonth(ts) AS month, count() AS n FROM {db}.clicks GROUP BY month;
"""


@pytest.fixture
def hidden(clickhouse: Client, database: str) -> Iterator[str]:
    """Two views without TO, whose tables have names that only the server knows."""
    text = HIDDEN.replace("{db}", database)
    for sql in text.strip().split(";\n"):
        clickhouse.command(sql.strip(";\n"))
    clickhouse.command(
        f"INSERT INTO {database}.clicks SELECT toDateTime('2026-07-05 00:00:00', 'UTC') + number * 3600 FROM numbers(48)"
    )
    yield text
    for name in ("daily", "monthly", "clicks"):
        clickhouse.command(f"DROP TABLE {database}.{name} SYNC")


@contextmanager
def counted(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    asked: list[str] = []
    rows = server.rows

    def spy(sql: str, *arguments: Any, **options: Any) -> Any:
        asked.append(sql)
        return rows(sql, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(server, "rows", spy)
        yield lambda: len(asked)


def test_hidden_table_is_observed_under_its_own_name(server: Server, database: str, hidden: str) -> None:
    catalog = build_catalog([SourceFile(path="a.sql", text=hidden)])
    name = QName(database, ".inner.daily")
    windows = [
        Window(datetime(2026, 7, day, tzinfo=timezone.utc), datetime(2026, 7, day + 1, tzinfo=timezone.utc))
        for day in (5, 6, 7)
    ]
    seen = observe_windows(server, catalog, catalog.objects[name], windows, "UTC", Settings().policy(name))
    assert [(one.rows, one.parts) for one in seen] == [(1, 1), (1, 1), (0, 0)]


def test_all_hidden_tables_are_found_with_one_query(
    server: Server, database: str, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = build_catalog([SourceFile(path="a.sql", text=hidden)])
    views = [QName(database, "daily"), QName(database, "monthly"), QName(database, "missing")]
    with counted(server, monkeypatch) as asked:
        found = fetch_inner_tables(server, views)
        assert asked() == 1
        assert sorted(found) == views[:2]
        assert all(one.table.startswith(".inner_id.") for one in found.values())
        states = fetch_states(server, catalog, catalog.schemes)
        assert asked() == 3
        assert fetch_inner_tables(server, []) == {}
        assert asked() == 3
    assert {name.table: sum(one.rows for one in some) for name, some in states.items()} == {
        "clicks": 48,
        ".inner.daily": 2,
        ".inner.monthly": 1,
    }


def test_hidden_tables_are_reported_and_begin_the_history(
    server: Server, database: str, hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clickhouse: Client
) -> None:
    (tmp_path / "a.sql").write_text(hidden)
    pipeline = load_pipeline(tmp_path)
    live = LivePartitions(pipeline, tuple(build_props(pipeline, date(2026, 7, 1))))
    found = [one for one in live.find(live.fetch(server), server.timezone) if one.rows]
    assert {(one.name.table, one.key): one.rows for one in found if one.name.table in ("daily", ".inner.daily")} == {
        (table, key): 1 for table in ("daily", ".inner.daily") for key in ("2026-07-05", "2026-07-06")
    }
    clickhouse.command(f"TRUNCATE TABLE {database}.clicks")  # only hidden tables tell of July
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", server.endpoint.url)
    assert str(probe_server(pipeline)) == "2026-07-01"
