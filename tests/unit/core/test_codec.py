"""The codec: what comes back from the cache is what went in, for every catalog we have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chmv_assets.core import catalog_codec
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog, decode_source

ROOT = Path(__file__).parents[3]
FIXTURES = sorted((ROOT / "tests" / "fixtures" / "ddl").glob("*.sql"))


def fixture(path: Path) -> Catalog:
    source = decode_source(path.name, path.read_bytes())
    files = [source] if isinstance(source, SourceFile) else []
    findings = [] if isinstance(source, SourceFile) else [source]
    return build_catalog(files, default_database="dflt", findings=findings)


def round_trip(catalog: Catalog) -> Catalog:
    return catalog_codec.decode(json.loads(json.dumps(catalog_codec.encode(catalog))))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixture_comes_back_equal(path: Path) -> None:
    catalog = fixture(path)
    back = round_trip(catalog)
    assert back == catalog
    assert list(back.objects) == list(catalog.objects), "order is kept"


def test_demo_comes_back_equal() -> None:
    files = [SourceFile(path=f.name, text=f.read_text()) for f in sorted((ROOT / "chmv_assets" / "ddl").glob("*.sql"))]
    catalog = build_catalog(files, default_database="shop")
    back = round_trip(catalog)
    assert back == catalog
    assert (back.roles(), back.layers()) == (catalog.roles(), catalog.layers())


def test_document_is_plain_json_and_stable() -> None:
    one, two = (json.dumps(catalog_codec.encode(fixture(FIXTURES[-1]))) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("version", [None, 0, "1", 10_000])
def test_other_versions_are_refused(version: object) -> None:
    document = catalog_codec.encode(fixture(FIXTURES[0]))
    with pytest.raises(ValueError, match="version"):
        catalog_codec.decode({**document, "version": version})
