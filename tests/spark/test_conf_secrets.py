"""A secret in CHMV_SPARK_CONF reaches Spark, but no command line. A process of its own: the JVM is started by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "Kanarienvogel7Spark"
SCRIPT = """
import sys
from pathlib import Path
from resources.spark_session import open_session
with open_session() as session:
    shown = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.exists()]
    java = [line for line in shown if line.split(b"\\0")[0].endswith(b"java")]
    told = session.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key")
    print(len(java) > 0, any(sys.argv[1].encode() in line for line in java), told == "Kanarienvogel" + "7Spark")
"""


@pytest.mark.thorough  # a JVM of its own
def test_a_secret_setting_is_told_to_spark_and_shown_to_nobody(tmp_path: Path) -> None:
    environ = {**os.environ, "CHMV_SPARK_CONF": f"spark.hadoop.fs.s3a.secret.key={SECRET}", "CHMV_SPARK_ARCHIVE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, SECRET[:13]],
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.split() == ["True", "False", "True"], done.stdout + done.stderr[-2000:]
    assert SECRET not in done.stdout + done.stderr
