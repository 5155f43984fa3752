"""An ingest with real Spark under the ingester account, on a server that asks for all grants; and without each of those that only it needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).resolve().parents[1] / "integration" / "security"))
from privilege_parts import deploy_everything
from privilege_site import HITS, PrivilegeSite, close_site, open_site, variants_of

from chmv_assets.core.errors import ChmvError
from chmv_assets.ingest import Ingester
from resources.journal import Journal


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivilegeSite]:
    made = open_site(tmp_path_factory.mktemp("ingest"), ["ingester"], secret="")
    deploy_everything(made, "recovery")
    yield made
    close_site(made)


def ingest(site: PrivilegeSite, spark: SparkSession, name: str) -> None:
    rows = [{"at": f"2026-11-12 10:00:{second:02}", "page": name, "ms": 1} for second in range(20)]
    path = site.folder / "ddl" / "landing" / f"{name}.jsonl"
    path.write_text("\n".join([*(json.dumps(row) for row in rows), "{broken"]) + "\n")
    landing = site.pipeline.settings.policy(HITS).landing
    assert landing is not None
    root = str(site.folder / "ddl" / "landing")
    try:
        with site.server("ingester") as server:
            Ingester(
                pipeline=site.pipeline,
                source=site.pipeline.catalog.objects[HITS],
                landing=replace(landing, path=root, tolerated_bad_rate=0.5),
                journal=Journal(server),
                spark=lambda: spark,
            ).run(root)
    finally:
        path.unlink()


def test_files_are_ingested_under_the_ingester_account(site: PrivilegeSite, spark: SparkSession) -> None:
    ingest(site, spark, "first")
    with site.server(None) as server:
        assert server.rows("SELECT count() FROM guarded.hits WHERE page = 'first'") == [(20,)]
        assert server.rows("SELECT sum(hits) FROM guarded.daily WHERE page = 'first'") == [(20,)]
        assert server.rows("SELECT count() FROM chmv.quarantine") == [(1,)]


@pytest.mark.thorough  # an ingest per privilege
def test_without_what_only_an_ingest_needs_it_is_refused(site: PrivilegeSite, spark: SparkSession) -> None:
    wanted = ("SHOW TABLES", "SELECT ON `chmv`.`diversions`", "SELECT ON `chmv`.`tunings`")
    variants = [
        one
        for one in variants_of(site.pipeline, "ingester")
        if one.taken.startswith(wanted) and "_mv`" not in one.taken
    ]
    idle = []
    for at, variant in enumerate(variants):
        try:
            ingest(replace(site, user=variant.user), spark, f"without{at}")
        except ChmvError as error:
            print(variant.taken, "|", str(error)[:150])
        else:
            idle.append(variant.taken)
    assert idle == []
