"""The README keeps up with the code: every environment variable that the code knows has its place in the table."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("chmv_assets", "resources", "sensors", "spark_jobs")
OF_A_PROCESS = {"CHMV_ENGINE_PASSWORD_SHA256"}  # set by chmv for the server that it starts


def test_every_variable_is_in_the_table_of_the_readme() -> None:
    code = "\n".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    known = set(re.findall(r"\"(CHMV_[A-Z0-9_]*[A-Z0-9])\"", code))
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `CHMV_")]
    told = {name for line in table for name in re.findall(r"CHMV_[A-Z0-9_]+", line.split("|")[1])}
    assert "CHMV_DDL_DIR" in known
    assert told == known - OF_A_PROCESS
