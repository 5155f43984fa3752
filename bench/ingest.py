"""How fast landing files become rows: chmv's exactly-once ingest against two ways that promise nothing, in one run.

    python -m bench.ingest                      5 million events, three rounds
    python -m bench.ingest --rows 500000 --rounds 1

All sides start from the same Parquet files and the demo's source with every view attached, emptied before each turn; they take
turns, so that other load hits them alike. (a) is clickhouse-connect's `insert_arrow` from one process; (b) is the Spark
`foreachPartition` insert that every tutorial shows. Spark's start is not counted on either Spark side. The bound to keep: chmv at
least 0.6 of (a) and 1.0 of (b). The exit code tells only whether the rows are right: a benchmark does not judge.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import Any

import click
import clickhouse_connect
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/ingest.py` works as well

from bench.record import Record, json_option
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Landing
from chmv_assets.demo import apply_ddl
from chmv_assets.ingest import Ingester
from chmv_assets.pipeline import DEMO_DDL, Pipeline, load_pipeline
from chmv_assets.watermark_moves import reached_targets
from resources.clickhouse import Server, endpoint_of
from resources.demo_data import DemoLoad, build_demo_select, build_dimension_statements, demo_size
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine
from resources.journal import Journal
from resources.spark_session import open_session

SOURCE = QName("shop", "events")
FILE_ROWS = 500_000
NAIVE_ROWS = 50_000  # what tutorials collect before they insert
START = datetime(2026, 11, 14, tzinfo=timezone.utc)
BOUNDS = {"insert_arrow": 0.6, "foreachPartition": 1.0}


class Bench:
    """One server with the demo's pipeline, one folder of files."""

    def __init__(self, info: EngineInfo, server: Server, folder: Path, rows: int) -> None:
        self.info, self.server, self.folder, self.rows = info, server, folder, rows
        self.pipeline: Pipeline = load_pipeline(DEMO_DDL).require_sound()
        self.tables = list(reached_targets(self.pipeline.catalog, SOURCE))

    def prepare(self) -> None:
        """The demo's tables and dimensions, and the files."""
        apply_ddl(self.server)
        size = demo_size(self.rows)
        for statement in build_dimension_statements(size):
            self.server.run(statement)
        self.server.command("SYSTEM RELOAD DICTIONARY shop.users_dict")
        load = DemoLoad(size=size, seed=7, start=START, end=START + timedelta(days=2), arrival="server")
        for number, first in enumerate(range(0, self.rows, FILE_ROWS)):
            sql, values = build_demo_select(load, "events", first, min(FILE_ROWS, self.rows - first))
            found = self.server.driver.query_arrow(sql, parameters=values)
            pq.write_table(found, self.folder / f"part-{number:03}.parquet")

    def empty(self) -> None:
        """All tables that an insert reaches, and what the journal knows of earlier turns."""
        for table in self.tables:
            self.server.command(f"TRUNCATE TABLE {table.sql} SYNC")
        self.server.command("DROP DATABASE IF EXISTS chmv SYNC")

    def files(self) -> list[str]:
        return sorted(str(path) for path in self.folder.glob("*.parquet"))

    def count(self) -> tuple[int, ...]:
        """Rows of the source and the sums of two targets: the same on every side, or the side is wrong."""
        rows = self.server.rows(
            f"SELECT (SELECT count() FROM {SOURCE.sql}), (SELECT sum(events) FROM shop.traffic_hourly), "
            "(SELECT sum(events) FROM shop.traffic_daily)"
        )
        return tuple(int(value) for value in rows[0])


def insert_arrow(bench: Bench) -> None:
    """(a) One process, Arrow in, no guarantee."""
    with closing(clickhouse_connect.get_client(host="127.0.0.1", port=bench.info.http_port)) as client:
        for path in bench.files():
            client.insert_arrow(f"{SOURCE}", pq.read_table(path))


def naive_spark(bench: Bench, spark: SparkSession) -> None:
    """(b) Spark rows to Python, inserted as they come, no guarantee."""
    port = bench.info.http_port
    frame = spark.read.parquet(*bench.files())
    names = frame.columns

    def insert(rows: Iterable[Any]) -> None:
        with closing(clickhouse_connect.get_client(host="127.0.0.1", port=port)) as client:
            held: list[list[Any]] = []
            for row in rows:
                held.append(list(row))
                if len(held) == NAIVE_ROWS:
                    client.insert("shop.events", held, column_names=names)
                    held = []
            if held:
                client.insert("shop.events", held, column_names=names)

    frame.foreachPartition(insert)


def exactly_once(bench: Bench, spark: SparkSession) -> None:
    """chmv."""
    ingester = Ingester(
        pipeline=bench.pipeline,
        source=bench.pipeline.catalog.objects[SOURCE],
        landing=Landing(path=str(bench.folder), format="parquet"),
        journal=Journal(bench.server),
        spark=lambda: spark,
    )
    report = ingester.run(str(bench.folder))
    assert report.summary.rows_loaded == bench.rows, report


@click.command()
@click.option("--rows", default=5_000_000, show_default=True, help="Events in the files.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each side; the median counts.")
@click.option("--skip-naive", is_flag=True, help="Leave the slow side (b) out, while profiling.")
@json_option
def main(rows: int, rounds: int, skip_naive: bool, json_file: Path | None) -> None:
    """Measure and print ratios."""
    record = Record("ingest", "Landing files become rows")
    with tempfile.TemporaryDirectory(prefix="chmv-bench-", dir=_fast_folder()) as folder:
        root = Path(folder)
        (root / "landing").mkdir()
        info = start_engine(EngineOptions(data_dir=root / "engine"))
        try:
            with Server(endpoint_of(info)) as server, open_session() as spark:
                bench = Bench(info, server, root / "landing", rows)
                bench.prepare()
                sides: dict[str, Callable[[], None]] = {
                    "chmv": lambda: exactly_once(bench, spark),
                    "insert_arrow": lambda: insert_arrow(bench),
                    "foreachPartition": lambda: naive_spark(bench, spark),
                }
                if skip_naive:
                    del sides["foreachPartition"]
                seconds, counts = measure(bench, sides, rounds)
                report(bench, seconds, record)
                record.machine["versions"]["clickhouse"] = info.version
                record.write(json_file)
                tell_whether_right(bench, counts["chmv"])
        finally:
            stop_engine(info.data_dir)


def _fast_folder() -> str | None:
    """Memory if there is any: disks differ, the paths' own work does not."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def measure(
    bench: Bench, sides: dict[str, Callable[[], None]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, set[tuple[int, ...]]]]:
    """Seconds of every turn of every side, and what each left in the tables."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    counts: dict[str, set[tuple[int, ...]]] = {name: set() for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            bench.empty()
            started = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - started)
            counts[name].add(bench.count())
    return seconds, counts


def report(bench: Bench, seconds: dict[str, list[float]], record: Record) -> None:
    """Print the table and keep it."""
    table = Table(title=f"{bench.rows:,} events, {len(bench.tables) - 1} targets behind them")
    for heading in ("side", "seconds", "rows/s", "chmv ÷ side", "wanted"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    ours = median(seconds["chmv"])
    for name, turns in seconds.items():
        mine = median(turns)
        bound = f"≥ {BOUNDS[name]}" if name in BOUNDS else ""
        table.add_row(name, f"{mine:.2f}", f"{bench.rows / mine:,.0f}", f"{mine / ours:.2f}", bound)
        if name != "chmv":
            record.ratio(f"rows per second, chmv ÷ {name}", mine / ours, bound)
    rows = [(name, f"{median(turns):.2f}", f"{bench.rows / median(turns):,.0f}") for name, turns in seconds.items()]
    record.table(f"{bench.rows:,} events, {len(bench.tables) - 1} targets behind them", ("side", "s", "rows/s"), rows)
    record.raw["seconds"] = seconds
    console = Console()
    console.print(table)
    console.print(
        f"turns in seconds: { {name: [round(turn, 2) for turn in turns] for name, turns in seconds.items()} }"
    )


def tell_whether_right(bench: Bench, ours: set[tuple[int, ...]]) -> None:
    """Exit 1 if chmv's rows are not right."""
    if ours != {(bench.rows,) * 3}:
        Console().print(f"chmv's rows are wrong: {ours} but wanted {bench.rows} in each", style="red")
        sys.exit(1)


if __name__ == "__main__":
    main()
