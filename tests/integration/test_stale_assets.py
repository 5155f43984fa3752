"""A changed folder in Dagster: what was materialized by other DDL is stale, what was only reformatted is not, and the graph follows the files.

The definitions are built anew from the folder each time, as a reload of the code location does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from clickhouse_connect.driver.client import Client
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus  # what the UI asks
from dagster._core.loader import LoadingContextForTest
from dagster_site import Site, open_site

from chmv_assets.definitions import build_definitions
from chmv_assets.pipeline import load_pipeline
from resources.engine import EngineInfo

DDL = """
CREATE TABLE {db}.hits (page String, ms UInt32) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.pages (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits GROUP BY page;
CREATE TABLE {db}.slow (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.slow_mv TO {db}.slow AS SELECT page, count() AS total FROM {db}.hits WHERE ms > 100 GROUP BY page;
"""
SETTINGS = "version: 1\ndefault_database: {db}\nstart: '2026-10-01'\n"
OBJECTS = ("pages_mv", "pages", "slow_mv", "slow")


@pytest.fixture
def site(configured: EngineInfo, clickhouse: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with open_site(Site, clickhouse, tmp_path, monkeypatch, DDL, SETTINGS) as made:
        made.command("INSERT INTO {db}.hits SELECT toString(number % 3), number FROM numbers(300)")
        yield made


def edit(site: Site, old: str, new: str) -> None:
    path = site.folder / "all.sql"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def reload(site: Site) -> dg.Definitions:
    return build_definitions(load_pipeline(site.folder))


def stale(site: Site, definitions: dg.Definitions) -> set[str]:
    graph = definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(site.instance, graph, LoadingContextForTest(site.instance))
    found = {table: resolver.get_status(site.key(table)) for table in OBJECTS}
    assert StaleStatus.MISSING not in found.values(), found
    for table, status in found.items():
        if status == StaleStatus.STALE:
            causes = [cause.reason for cause in resolver.get_stale_causes(site.key(table))]
            assert causes == ["has a new code version"], (table, causes)
    return {table for table, status in found.items() if status == StaleStatus.STALE}


def test_a_changed_view_and_its_target_are_stale_and_a_reformatted_one_is_not(site: Site) -> None:
    assert site.run("hits", *OBJECTS).success
    assert stale(site, site.definitions) == set()
    edit(site, "ms > 100", "ms > 200")
    edit(site, "AS SELECT page, count() AS total FROM", "-- how often\nas\n  select page, COUNT() as total\n  from")
    edit(site, "CREATE MATERIALIZED VIEW", "create materialized view if not exists")
    changed = reload(site)
    assert stale(site, changed) == {"slow_mv", "slow"}
    job = changed.resolve_implicit_global_asset_job_def()
    selection = [site.key(table) for table in ("slow_mv", "slow")]
    assert job.execute_in_process(instance=site.instance, asset_selection=selection).success
    assert stale(site, changed) == set()


def test_the_asset_graph_follows_the_files(site: Site) -> None:
    assert len(list(site.definitions.resolve_all_asset_keys())) == 5
    more = site.folder / "more.sql"
    more.write_text(f"CREATE VIEW {site.database}.shown AS SELECT * FROM {site.database}.pages")
    added = reload(site).resolve_asset_graph()
    assert added.get(site.key("shown")).parent_keys == {site.key("pages")}
    more.unlink()
    assert site.key("shown") not in set(reload(site).resolve_all_asset_keys())
