"""The code location in a fresh interpreter, and who may import what. Slow imports are why these are few."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from chmv_assets import core

ROOT = Path(__file__).parents[2]
HEAVY = (
    "dagster",
    "pyspark",
    "clickhouse_connect",
    "click",
    "rich",
    "yaml",
    "pyarrow",
    "resources",
    "sensors",
    "spark_jobs",
)


def run(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CHMV_", "DAGSTER_"))}
    return subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**kept, "CHMV_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path), **environment},
        check=False,
        timeout=120,
    )


def test_location_loads_in_a_fresh_interpreter_without_a_server(tmp_path: Path) -> None:
    code = (
        "import sys, dagster as dg, chmv_assets.definitions as location\n"
        "dg.Definitions.validate_loadable(location.defs)\n"
        "print(len(list(location.defs.resolve_all_asset_keys())), 'pyspark' in sys.modules)\n"
    )
    result = run(code, tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split() == ["33", "False"], result.stdout
    assert not (tmp_path / ".local").exists(), "no engine was installed or started"


def test_location_of_a_broken_folder_names_all_defects(tmp_path: Path) -> None:
    (tmp_path / "ddl").mkdir()
    (tmp_path / "ddl" / "a.sql").write_text("FOO;\nCREATE TABLE d.x;\n")
    result = run("import chmv_assets.definitions", tmp_path, CHMV_DDL_DIR=str(tmp_path / "ddl"))
    assert result.returncode == 1
    last = result.stderr[result.stderr.index("CatalogDefects:") :]
    assert "2 defect(s)" in last
    assert "a.sql:1" in last
    assert "a.sql:2" in last


def test_location_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "ddl").mkdir()
    (tmp_path / "ddl" / "a.sql").write_text("CREATE TABLE d.x (a UInt8) ENGINE = Log;")
    code = "import chmv_assets.definitions as l; print([k.path for k in l.defs.resolve_all_asset_keys()])"
    result = run(code, tmp_path, CHMV_DDL_DIR=str(tmp_path / "ddl"))
    assert result.stdout.strip() == "[['d', 'x']]", result.stderr[-2000:]


def test_definitions_are_loadable_here(tmp_path: Path) -> None:
    from chmv_assets.definitions import build_definitions
    from chmv_assets.pipeline import DEMO_DDL, load_pipeline

    dg.Definitions.validate_loadable(build_definitions(load_pipeline(DEMO_DDL, cache=tmp_path)))


def test_a_location_of_your_own_says_how_assets_look(tmp_path: Path) -> None:
    from chmv_assets.definitions import build_definitions
    from chmv_assets.pipeline import DEMO_DDL, load_pipeline
    from chmv_assets.translator import AssetTranslator, NodeProps

    class Mine(AssetTranslator):
        def get_asset_spec(self, props: NodeProps) -> dg.AssetSpec:
            return super().get_asset_spec(props).replace_attributes(group_name="mine")

    definitions = build_definitions(load_pipeline(DEMO_DDL, cache=tmp_path), Mine())
    dg.Definitions.validate_loadable(definitions)
    assert {spec.group_name for spec in definitions.resolve_all_asset_specs()} == {"mine"}


def test_the_core_imports_nothing_heavy(tmp_path: Path) -> None:
    modules = [f"chmv_assets.core.{module.name}" for module in pkgutil.iter_modules(core.__path__)]
    assert len(modules) > 15
    code = f"import sys, {', '.join(modules)}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    result = run(code, tmp_path)
    assert result.stdout.strip() == "[]", result.stderr[-2000:]


@pytest.mark.parametrize("module", ["spark_jobs", "chmv_assets.pipeline"])
def test_light_modules_stay_light(tmp_path: Path, module: str) -> None:
    code = f"import sys, {module}\nprint([n for n in ('dagster', 'pyspark', 'clickhouse_connect') if n in sys.modules])"
    result = run(code, tmp_path)
    assert result.stdout.strip() == "[]", result.stderr[-2000:]
