"""Other tools from PyPI, each in an environment of its own under the user's cache folder: never dependencies of the product."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from resources.toolchain import cache_dir

DBT = ("dbt-core==1.11.16", "dbt-clickhouse==1.10.3")
SQLMESH = ("sqlmesh[clickhouse]==0.236.4",)


def install(packages: Sequence[str], program: str) -> Path:
    """A program in an environment of its own, kept for the next time."""
    home = cache_dir() / "bench" / "-".join(one.replace("[clickhouse]", "").replace("==", "-") for one in packages)
    made = home / "bin" / program
    if (home / ".ready").exists() and made.exists():
        return made
    click.echo(f"Installing {' and '.join(packages)} into {home} (once) ...")
    shutil.rmtree(home, ignore_errors=True)
    try:
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines() or [""]
        why = next((line for line in reversed(said) if line.lower().startswith("error")), said[-1])
        shutil.rmtree(home, ignore_errors=True)
        raise click.ClickException(
            f"{', '.join(packages)}: found no way to install it but wanted it to compare with. {why}"
        ) from error
    (home / ".ready").touch()
    return made


def clean_environment() -> dict[str, str]:
    """What such a program sees: nothing of ours, and it tells nobody about us."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "DO_NOT_TRACK": "1",
        "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true",
    }


def run(command: Sequence[str], environment: dict[str, str], folder: Path, wanted: tuple[int, ...] = (0,)) -> str:
    """A process to its end; what it said if it failed."""
    done = attempt(command, environment, folder)
    if done.returncode not in wanted:
        raise click.ClickException(f"{' '.join(command)}: exit code {done.returncode}.\n{done.stdout}{done.stderr}")
    return done.stdout


def attempt(command: Sequence[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A process to its end, however it ends."""
    return subprocess.run(list(command), env=environment, cwd=folder, capture_output=True, text=True)
