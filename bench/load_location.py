"""How long Dagster waits for the location: chmv against the same number of hand-written static assets.

    python -m bench.load_location                        100, 1,000 and 2,000 objects
    python -m bench.load_location --objects 2000 --repeat 5

Every figure is the wall time of a whole fresh process, interpreter and Dagster's own import included, with a warm cache;
sides take turns, so that other load on the machine hits them alike. The bound to keep: ratio to plain static assets at most
2 at 2,000 objects. The exit code is 0 whatever comes out: a benchmark tells, it does not judge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import dagster as dg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/load_location.py` works as well

from bench.generate_ddl import write_folder
from bench.record import Record, json_option
from bench.static_location import write_package
from chmv_assets.assets import Built, build_assets
from chmv_assets.pipeline import Pipeline, load_pipeline

BOUND = 2.0
ROOT = Path(__file__).resolve().parent.parent
SIDES = {"chmv": "chmv_assets.definitions", "static": "static_plain", "static+metadata": "static_full"}
PARTITION = "2026-10-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The repetitions of one side."""

    walls: tuple[float, ...]
    parts: tuple[dict[str, Any], ...]

    @property
    def wall(self) -> float:
        return median(self.walls)

    def part(self, name: str) -> float:
        return float(median(part[name] for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All figures of one size."""

    objects: int
    parse_ms_per_object: float
    load: dict[str, Timed]
    run: dict[str, Timed]


def measure(objects: int, repeat: int, console: Console) -> Measured:
    """Make a folder of that size and time both processes on all sides."""
    with tempfile.TemporaryDirectory(prefix="chmv-bench-") as name:
        folder = Path(name)
        write_folder(folder / "ddl", objects)
        before = time.perf_counter()
        pipeline = load_pipeline(folder / "ddl", cache=folder / "cache")
        parse = time.perf_counter() - before
        assert not pipeline.from_cache
        assert len(pipeline.require_sound().catalog.objects) == objects
        built = write_static(folder, pipeline)
        environment = process_environment(folder)
        asset = some_asset(built)
        with console.status(f"{objects} objects: loading"):
            load = time_sides(["load"], [], repeat, environment)
        with console.status(f"{objects} objects: starting a run"):
            run = time_sides(["run"], [*asset.path, PARTITION], repeat, environment)
    return Measured(objects=objects, parse_ms_per_object=1000 * parse / objects, load=load, run=run)


def process_environment(folder: Path) -> dict[str, str]:
    """The environment of the measured processes; byte code is kept, else the static modules would be compiled each time."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "DAGSTER_HOME")}
    own = {"CHMV_DDL_DIR": str(folder / "ddl"), "CHMV_CACHE_DIR": str(folder / "cache")}
    return kept | own | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "DAGSTER_DISABLE_TELEMETRY": "1"}


def write_static(folder: Path, pipeline: Pipeline) -> Built:
    """Write the static alternatives beside the folder."""
    assert pipeline.settings.start is not None
    built = build_assets(pipeline, pipeline.settings.start)
    for module, full in (("static_plain", False), ("static_full", True)):
        write_package(folder / module, built.assets, with_metadata=full)
    return built


def some_asset(built: Built) -> dg.AssetKey:
    """A daily target in the middle of the folder."""
    keys = [made.key for made in built.assets if isinstance(made, dg.AssetsDefinition)]
    daily = [key for key in keys if key.path[-1].endswith("_enriched")]
    return daily[len(daily) // 2]


def time_sides(words: list[str], rest: list[str], repeat: int, environment: dict[str, str]) -> dict[str, Timed]:
    """Time all sides in turn; the first round fills the caches (byte code, files) and is not counted."""
    timed: dict[str, list[tuple[float, dict[str, Any]]]] = {side: [] for side in SIDES}
    for _ in range(repeat + 1):
        for side, module in SIDES.items():
            timed[side].append(time_process([*words, module, *rest], environment))
    return {
        side: Timed(walls=tuple(wall for wall, _ in rows[1:]), parts=tuple(part for _, part in rows[1:]))
        for side, rows in timed.items()
    }


def time_process(words: list[str], environment: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """Run one process to its end; give its wall time and what it measured itself."""
    command = [sys.executable, "-m", "bench.location_process", *words]
    before = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - before, json.loads(done.stdout.splitlines()[-1])


def render(all_measured: list[Measured]) -> Table:
    """The table of all sizes and sides."""
    table = Table(title="Wall seconds of a fresh process, median (min)", caption=_load_average())
    for heading in ("objects", "process", "side", "wall s", "chmv is ×", "cpu s", "cpu ×", "own s", "peak MB"):
        table.add_column(heading, justify="left" if heading in ("process", "side") else "right")
    for measured in all_measured:
        for process, sides in (("load", measured.load), ("run", measured.run)):
            for side, timed in sides.items():
                ours = sides["chmv"]
                wall, cpu = f"{ours.wall / timed.wall:.2f}", f"{ours.part('cpu') / timed.part('cpu'):.2f}"
                table.add_row(
                    str(measured.objects), process, side, f"{timed.wall:.2f} ({min(timed.walls):.2f})",
                    "" if side == "chmv" else wall, f"{timed.part('cpu'):.2f}", "" if side == "chmv" else cpu,
                    f"{timed.part('own'):.2f}", f"{timed.part('peak_mb'):.0f}",
                )  # fmt: skip
        table.add_section()
    return table


def _load_average() -> str:
    return "load average " + " ".join(f"{value:.1f}" for value in os.getloadavg())


def render_summary(all_measured: list[Measured]) -> list[str]:
    """Parse time, Dagster's own import, snapshot size, and the bound."""
    lines = []
    for measured in all_measured:
        ours, plain = measured.load["chmv"], measured.load["static"]
        lines.append(
            f"{measured.objects} objects: cold parse {measured.parse_ms_per_object:.2f} ms per object; "
            f"dagster import {ours.part('dagster_import'):.2f} s of each process; "
            f"snapshot {ours.part('result') / 1e6:.1f} MB (static {plain.part('result') / 1e6:.1f} MB); "
            f"sqlglot imported with a warm cache: {'yes' if ours.part('sqlglot') else 'no'}"
        )
    largest = max(all_measured, key=lambda measured: measured.objects)
    for process, sides in (("load", largest.load), ("run start", largest.run)):
        wall = sides["chmv"].wall / sides["static"].wall
        cpu = sides["chmv"].part("cpu") / sides["static"].part("cpu")
        verdict = "within" if wall <= BOUND else "OVER"
        lines.append(
            f"{process} at {largest.objects} objects: {wall:.2f} × plain static assets, {verdict} the bound {BOUND:g} "
            f"(processor time alone: {cpu:.2f})"
        )
    return lines


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option(
    "--objects", "sizes", type=click.IntRange(min=20), multiple=True, default=(100, 1000, 2000), show_default=True
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Counted repetitions per side."
)
@json_option
def main(sizes: tuple[int, ...], repeat: int, json_file: Path | None) -> None:
    record = Record("load_location", "Dagster loads the location and starts a run")
    console = Console(width=max(100, Console().width))
    all_measured = [measure(size, repeat, console) for size in sizes]
    console.print(render(all_measured))
    for line in render_summary(all_measured):
        console.print(line, soft_wrap=True)
    keep(all_measured, record)
    record.write(json_file)


def keep(all_measured: list[Measured], record: Record) -> None:
    """The ratios and medians of all sizes."""
    rows = []
    for measured in all_measured:
        for process, sides in (("load", measured.load), ("run start", measured.run)):
            for side, timed in sides.items():
                rows.append((measured.objects, process, side, f"{timed.wall:.2f}", f"{timed.part('cpu'):.2f}"))
                if side != "chmv":
                    ratio = sides["chmv"].wall / timed.wall
                    wanted = f"≤ {BOUND:g}" if side == "static" and measured.objects == 2000 else ""
                    record.ratio(f"{process}, {measured.objects} objects: chmv ÷ {side} assets", ratio, wanted)
    record.table("wall seconds of a fresh process, median", ("objects", "process", "side", "wall s", "cpu s"), rows)
    record.notes += render_summary(all_measured)


if __name__ == "__main__":
    main()
