"""All benchmarks, one after another, and `bench/results.md` from what they wrote.

    python -m bench.run_all                     everything: takes long and wants an idle machine
    python -m bench.run_all --quick             small sizes, to see that all of it works; written to bench/results/quick/results.md
    python -m bench.run_all --only growth       one of them, then the page from all records that are there
    python -m bench.run_all --render            only the page

Before each it waits until the load is down, five minutes at most. Each writes its record to bench/results/NAME.json. The page shows ratios first; seconds
are context, never a claim. A benchmark that fails is named on the page and makes the exit code 1; a record that is missing is named as missing, never
made up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that `python bench/run_all.py` works as well

from bench.record import BUSY_LOAD

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "bench" / "results.md"
REST_SECONDS, REST_STEP = 300.0, 5.0
QUICK = {  # what each needs to be small
    "load_location": ("--objects", "100", "--repeat", "1"),
    "ingest": ("--rows", "200000", "--rounds", "1"),
    "rebuild": ("--quick",),
    "sensors": ("--quick",),
    "peers": ("--quick",),  # bench.schema_change is a part of it
    "growth": ("--quick",),
}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--quick", is_flag=True, help="Small sizes.")
@click.option("--only", type=click.Choice(list(QUICK)), multiple=True, help="Run these alone.")
@click.option("--render", "render_only", is_flag=True, help="Run nothing, write the page.")
def main(quick: bool, only: tuple[str, ...], render_only: bool) -> None:
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in () if render_only else only or tuple(QUICK):
        click.echo(f"--- {name}", err=True)
        path = folder / f"{name}.json"
        path.unlink(missing_ok=True)  # a record is of this run or it is missing
        if not quick:
            rest()
        command = [sys.executable, "-m", f"bench.{name}", *(QUICK[name] if quick else ()), "--json", str(path)]
        if subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode:
            failed.append(name)
    page = folder / "results.md" if quick else PAGE
    page.write_text(render(read(folder), failed, quick), encoding="utf-8")
    click.echo(f"Written to {page}.", err=True)
    if failed:
        raise click.ClickException(f"{', '.join(failed)}: found an exit code that is not 0 but wanted 0. See above.")


def rest(load: Callable[[], float] = lambda: os.getloadavg()[0], sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until what ran before has left the machine alone, a few minutes at most: a benchmark that begins busy is marked so."""
    waited = 0.0
    while load() > BUSY_LOAD and waited < REST_SECONDS:
        sleep(REST_STEP)
        waited += REST_STEP


def _note(ratio: dict[str, Any]) -> str:
    """What stands beside a ratio: that it misses what was wanted, and its own note.

    >>> _note({"value": 1.36, "wanted": "≤ 1.25", "note": ""}), _note({"value": 0.94, "wanted": "≥ 0.6", "note": "x"})
    ('**missed**', 'x')
    """
    sign, _, bound = ratio["wanted"].partition(" ")
    value = ratio["value"]
    missed = value is not None and bool(bound) and (value > float(bound) if sign == "≤" else value < float(bound))
    return ", ".join(filter(None, ("**missed**" if missed else "", ratio["note"])))


def read(folder: Path) -> dict[str, dict[str, Any] | None]:
    """The records that are there; none for one that is not."""
    return {
        name: json.loads(path.read_text(encoding="utf-8")) if (path := folder / f"{name}.json").exists() else None
        for name in QUICK
    }


def render(records: dict[str, dict[str, Any] | None], failed: list[str], quick: bool) -> str:
    """The page: machine, ratios of every benchmark, then tables."""
    there = {name: record for name, record in records.items() if record is not None}
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench{'-quick' if quick else ''}`. Ratios are of sides that were measured in the same run; seconds are context and no claim.",
    ]
    if quick:
        lines += ["", "**A quick run: sizes are small. It shows that everything works, not how fast it is.**"]
    for names, what in (([name for name in records if name not in there], "no record"), (failed, "failed")):
        if names:
            lines += ["", f"**{what}: {', '.join(names)}.**"]
    lines += ["", *_machines(there), "", "## Ratios", ""]
    for record in there.values():
        lines += [f"### {record['title']}", ""]
        rows = [
            (one["what"], "cannot" if one["value"] is None else f"{one['value']:.2f}", one["wanted"], _note(one))
            for one in record["ratios"]
        ]
        lines += [*_table(("", "ratio", "wanted", ""), rows), ""]
    lines += ["## Figures behind them", ""]
    for record in there.values():
        for figures in record["tables"]:
            lines += [
                f"### {record['title']}: {figures['title']}",
                "",
                *_table(figures["headings"], figures["rows"]),
                "",
            ]
        lines += [f"- {note}" for note in record["notes"]] + ([""] if record["notes"] else [])
    return "\n".join(lines).rstrip() + "\n"


def _machines(records: dict[str, dict[str, Any]]) -> list[str]:
    """Where and when, benchmark by benchmark, and whether the machine had other work."""
    rows = []
    for name, record in records.items():
        machine = record["machine"]
        before, after = (" ".join(map(str, machine.get(key, ()))) for key in ("load_before", "load_after"))
        busy = "**busy**" if machine["load_before"][0] > BUSY_LOAD else ""
        where = f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"
        rows.append((name, machine["began"], where, before, after, busy))
    versions: dict[str, str] = {}
    for record in records.values():
        versions |= record["machine"]["versions"]
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return [*_table(("benchmark", "began", "machine", "load before", "load after", ""), rows), "", f"Versions: {told}."]


def _table(headings: Any, rows: Any) -> list[str]:
    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(headings), line("---" for _ in headings), *(line(row) for row in rows)]


if __name__ == "__main__":
    main()
