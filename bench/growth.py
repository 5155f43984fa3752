"""How the cost of the location grows with objects and with partitions: load, parse, deploy, plan, sensor tick, rebuild, ingest; an exponent and a plot each.

    python -m bench.growth                      10, 100, 1,000 and 2,000 objects; 1, 10 and 100 partitions
    python -m bench.growth --quick              10, 30 and 100 objects, 1 and 10 partitions, to see that it works
    python -m bench.growth --plots FOLDER       where pictures and numbers go; docs/images/bench unless --quick

One engine per size with the pipeline of bench.sensors: a source, a target and a view between them, again and again. A curve is the median of its turns at
each size. The exponent is that of the straight line through log(size) and log(seconds), by least squares; a constant share (interpreter, connection)
flattens it, so the exponent of the last step alone, between the two largest sizes, stands beside it and the larger of the two counts. Above 1.15 it is
marked and has to be explained. Rebuilding along partitions means all of them, one after another; along objects one window of one target, ingesting the
same rows into one source. The first deployment is plan and apply of everything onto an empty server, once per size. Spark's start is not counted. The
exit code is 0 whatever comes out: a benchmark tells, it does not judge.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that `python bench/growth.py` works as well

from bench import sensors as ticks
from bench.curves import STEEP, Curve, Points, curves_of, draw
from bench.generate_ddl import write_folder
from bench.load_location import process_environment, time_process
from bench.rebuild import window
from bench.record import Record, json_option
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Landing
from chmv_assets.deploy import make_plan, open_applier
from chmv_assets.ingest import Ingester
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Server, endpoint_of
from resources.engine import EngineOptions, start_engine, stop_engine
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild import Rebuilder
from resources.spark_session import open_session

START = date(2026, 8, 1)  # of what bench.sensors fills
SOURCE, TARGET = QName("wide", "source_0000"), QName("wide", "target_0000")
BASE_OBJECTS, BASE_PARTITIONS = 30, 1  # what stays the same along the other axis
PLOTS = ROOT / "docs" / "images" / "bench"


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure_load(objects: int, turns: int, seconds: dict[str, Points]) -> None:
    """The location in fresh processes, and reading the folder without a cache."""
    with tempfile.TemporaryDirectory(prefix="chmv-bench-") as name:
        folder = Path(name)
        write_folder(folder / "ddl", objects)
        seconds["parse the folder"][objects].append(
            timed(lambda: load_pipeline(folder / "ddl", cache=folder / "cache"))
        )
        environment = process_environment(folder)
        for turn in range(turns + 1):  # the first one fills caches and is not counted
            _, parts = time_process(["load", "chmv_assets.definitions"], environment)
            if turn:
                seconds["load the location"][objects].append(
                    parts["own"]
                )  # without the interpreter and Dagster's import


@contextmanager
def open_site(objects: int) -> Iterator[tuple[Path, int, Pipeline, Server]]:
    """An empty server and the pipeline of that size: a folder for what else is needed, the number of tables, the pipeline, a connection."""
    tables = 2 * max(1, objects // 3)
    with tempfile.TemporaryDirectory(prefix="chmv-bench-", dir=_fast_folder(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        pipeline = ticks.write_pipeline(folder / "ddl", tables, 120.0)
        info = start_engine(EngineOptions(data_dir=folder / "engine"))
        try:
            endpoint = endpoint_of(info, {})
            os.environ["CHMV_CLICKHOUSE_URL"] = endpoint.url
            with Server(endpoint) as server:
                yield folder, tables, pipeline, server
        finally:
            stop_engine(info.data_dir)


def measure_deployment(objects: int, into: list[float]) -> None:
    """Everything that the folder declares, onto an empty server; once, since a second time is another thing."""
    with open_site(objects) as (_, _, pipeline, server):
        applier = open_applier(server, lambda _line: None)
        into.append(timed(lambda: applier.apply(make_plan(server, pipeline))))


def measure_server(
    objects: int, partitions: int, rows: int, turns: int, spark: Any, seconds: dict[str, Points], size: int
) -> None:
    """Plan, tick, rebuild and ingest on one server of that size."""
    with open_site(objects) as (folder, tables, pipeline, server):
        ticks.fill(server, tables, partitions, lambda _count: None)
        plan = make_plan(server, pipeline)  # makes the journal's tables, not counted
        assert not plan.changes, plan.changes
        for _ in range(turns):
            seconds["plan, nothing to do"][size].append(timed(lambda: make_plan(server, pipeline)))
        _, measured = ticks.measure(server, pipeline, turns)
        for turn in range(1, turns + 1):
            seconds["tick of all sensors"][size].append(sum(one.seconds[turn] for one in measured))
        measure_rebuild(server, pipeline, partitions, turns, seconds["rebuild"][size])
        measure_ingest(server, pipeline, folder, (partitions, rows, turns), spark, seconds["ingest"][size])


def measure_rebuild(server: Server, pipeline: Pipeline, partitions: int, turns: int, into: list[float]) -> None:
    """All windows of one target by one rebuilder, after one that is not counted."""
    catalog = pipeline.catalog
    executor = Executor(server, log=lambda _line: None)
    rebuilder = Rebuilder(executor, catalog, "UTC", lambda: datetime.now(timezone.utc))
    target = catalog.objects[TARGET]
    rebuilder.publish(target, window(START), "closed")

    def rebuild() -> None:
        for at in range(partitions):
            rebuilder.publish(target, window(START + timedelta(days=at)), "closed")

    into += [timed(rebuild) for _ in range(turns)]


def measure_ingest(
    server: Server, pipeline: Pipeline, folder: Path, size: tuple[int, int, int], spark: Any, into: list[float]
) -> None:
    """The same rows, spread over the days, from landing files; each turn has files of its own."""
    partitions, rows, turns = size
    source = pipeline.catalog.objects[SOURCE]
    for table in (SOURCE, TARGET):  # ingest refuses tables that do not deduplicate; the sensors' pipeline has none
        server.command(f"ALTER TABLE {table.sql} MODIFY SETTING non_replicated_deduplication_window = 10000")
    for turn in range(turns + 1):  # the first one is not counted
        landing = folder / f"landing_{turn}"
        landing.mkdir()
        found = server.driver.query_arrow(
            f"SELECT toDateTime('{START} 12:00:00', 'UTC') + (number % {partitions}) * 86400 AS at, "
            f"toUInt32(number) AS k, toUInt64({turn}) AS v FROM numbers({rows})"
        )
        pq.write_table(found, landing / "part.parquet")
        ingester = Ingester(
            pipeline=pipeline, source=source, landing=Landing(path=str(landing), format="parquet"), journal=Journal(server), spark=lambda: spark
        )  # fmt: skip
        reports: list[Any] = []
        taken = timed(
            lambda ingester=ingester, landing=landing, reports=reports: reports.append(ingester.run(str(landing)))
        )
        assert reports[0].summary.rows_loaded == rows, reports[0]
        if turn:
            into.append(taken)


def _fast_folder() -> str | None:
    """Memory if there is any: disks differ, the work does not."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def report(curves: list[Curve], record: Record, console: Console) -> None:
    """Print the table and keep it."""
    headings = ("cost", "along", "seconds by size", "exponent", "last step", "")
    rows = []
    for one in curves:
        points = ", ".join(f"{size:,}: {seconds:.3f}" for size, seconds in one.points)
        marked = f"above {STEEP}" if one.steep else ""
        rows.append((one.what, one.axis, points, f"{one.exponent:.2f}", f"{one.last_step:.2f}", marked))
        record.ratio(f"exponent of {one.what}, by {one.axis}", max(one.exponent, one.last_step), f"≤ {STEEP}", marked)
    table = Table(title="growth of costs", caption="load average " + " ".join(f"{one:.1f}" for one in os.getloadavg()))
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    record.table("growth: seconds by size, fitted exponent, exponent of the last step", headings, rows)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option(
    "--objects", "sizes", type=click.IntRange(min=3), multiple=True, default=(10, 100, 1000, 2000), show_default=True
)
@click.option("--partitions", type=click.IntRange(min=1), multiple=True, default=(1, 10, 100), show_default=True)
@click.option("--rows", type=click.IntRange(min=1), default=200_000, show_default=True, help="Rows of each ingest.")
@click.option("--turns", type=click.IntRange(min=1), default=3, show_default=True, help="The median counts.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder of pictures and numbers.")
@click.option("--quick", is_flag=True, help="10, 30 and 100 objects, 1 and 10 partitions, one turn.")
@json_option
def main(
    sizes: tuple[int, ...], partitions: tuple[int, ...], rows: int, turns: int, plots: Path | None, quick: bool, json_file: Path | None
) -> None:  # fmt: skip
    logging.disable(logging.INFO)
    if quick:
        sizes, partitions, rows, turns = (10, 30, 100), (1, 10), 10_000, 1
    folder = plots or (ROOT / "bench" / "results" / "quick" / "plots" if quick else PLOTS)
    folder.mkdir(parents=True, exist_ok=True)
    record = Record("growth", "How costs grow with objects and partitions", quick)
    by_objects: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    by_partitions: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    with open_session() as spark:
        for size in sizes:
            click.echo(f"{size} objects", err=True)
            measure_load(size, turns, by_objects)
            measure_deployment(size, by_objects["first deployment"][size])
            measure_server(size, BASE_PARTITIONS, rows, turns, spark, by_objects, size)
        for count in partitions:
            click.echo(f"{count} partitions", err=True)
            measure_server(BASE_OBJECTS, count, rows, turns, spark, by_partitions, count)
    curves = [*curves_of(by_objects, "objects"), *curves_of(by_partitions, "partitions")]
    report(curves, record, Console(width=max(140, Console().width)))
    for curve in curves:
        draw(curve, folder)
    record.raw = {"by objects": by_objects, "by partitions": by_partitions}
    (folder / "growth.json").write_text(json.dumps(record.raw, indent=1) + "\n", encoding="utf-8")
    record.write(json_file)


if __name__ == "__main__":
    main()
