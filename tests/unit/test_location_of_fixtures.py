"""Whatever DDL is sound must load in Dagster: every fixture catalog becomes a location."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import dagster as dg
import pytest

from chmv_assets.asset_checks import build_asset_checks
from chmv_assets.assets import build_assets
from chmv_assets.core.catalog import SourceFile, build_catalog, decode_source
from chmv_assets.core.settings import Settings
from chmv_assets.jobs import checks_job
from chmv_assets.pipeline import Pipeline
from resources.clickhouse_resource import ClickHouseResource

FOLDER = Path(__file__).parents[1] / "fixtures" / "ddl"
FILES = [path for path in sorted(FOLDER.glob("*.sql")) if not path.name.startswith("broken_")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_sound_fixture_is_a_location(path: Path) -> None:
    file = decode_source(path.name, path.read_bytes())
    assert isinstance(file, SourceFile)
    catalog = build_catalog([file]).require_sound()
    pipeline = Pipeline(catalog=catalog, settings=Settings(), ddl_dir=FOLDER, fingerprint="")
    definitions = dg.Definitions(
        assets=build_assets(pipeline, date(2026, 1, 1)).assets,
        asset_checks=build_asset_checks(pipeline),
        jobs=[checks_job] if catalog.objects else [],
        resources={"clickhouse": ClickHouseResource()},
    )
    dg.Definitions.validate_loadable(definitions)
    found = {tuple(key.path) for key in definitions.resolve_all_asset_keys()}
    assert found == {(name.database, name.table) for name in catalog.objects}
    graph = definitions.resolve_asset_graph()
    for edge in catalog.edges:
        parents = graph.get(dg.AssetKey([edge.dest.database, edge.dest.table])).parent_keys
        assert dg.AssetKey([edge.source.database, edge.source.table]) in parents, edge
