"""A job on a real Spark standalone cluster: executors are other processes in other folders and run the shipped code."""

from __future__ import annotations

from pathlib import Path

from cluster import run_script, standalone_cluster

JOB = """
import json, os
from pyspark.sql import functions as F
from resources.spark_session import open_session

def describe(number):
    import time
    import chmv_assets, spark_jobs
    from chmv_assets.core import names
    time.sleep(0.5)  # so that one executor cannot take all tasks
    files = [os.path.abspath(module.__file__) for module in (chmv_assets, names, spark_jobs)]
    return json.dumps([names.quote_identifier(f"n{number}"), os.getcwd(), os.getpid(), files])

with open_session() as spark:
    rows = spark.range(0, 8, 1, 4).select(F.udf(describe, "string")("id").alias("told")).collect()
    total = spark.range(1000).repartition(3).groupBy((F.col("id") % 2).alias("odd")).sum("id").orderBy("odd").collect()
    print(json.dumps({
        "told": [json.loads(row.told) for row in rows],
        "sums": [row["sum(id)"] for row in total],
        "master": spark.sparkContext.master,
        "driver": os.getpid(),
    }))
"""


def test_executors_of_a_cluster_run_the_shipped_code(tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with standalone_cluster(tmp_path / "cluster") as master:
        variables = {
            "CHMV_SPARK_MASTER": master,
            "CHMV_SPARK_CONF": ";".join(f"{key}={value}" for key, value in conf.items()),
            "CHMV_SPARK_ARCHIVE": "off",
            "CHMV_CACHE_DIR": str(tmp_path / "cache"),
        }
        result = run_script(JOB, driver, variables)

    quoted, folders, processes, files = zip(*result["told"], strict=True)
    assert result["master"] == master
    assert list(quoted) == [f"`n{number}`" for number in range(8)]
    assert result["sums"] == [sum(range(0, 1000, 2)), sum(range(1, 1000, 2))]
    assert {Path(folder).parents[1].name for folder in folders} == {"worker1", "worker2"}, "both workers took part"
    assert result["driver"] not in processes
    [package] = (tmp_path / "cache" / "spark").glob("chmv-*.zip")
    for folder, (assets, names, jobs) in zip(folders, files, strict=True):
        inside = [f"{package.name}/{name}" for name in ("chmv_assets/__init__.py", "chmv_assets/core/names.py")]
        assert [assets, names] == [str(Path(folder) / name) for name in inside], "not from the installed package"
        assert jobs == str(Path(folder) / package.name / "spark_jobs" / "__init__.py")
