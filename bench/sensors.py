"""What a tick of each sensor costs on a server with many parts: queries, and time against the bare query over `system.parts`.

    python -m bench.sensors                     1,000 tables with 100 partitions each
    python -m bench.sensors --tables 300 --rounds 9
    python -m bench.sensors --quick             seconds, to see that it works

Half of the tables are sources, each with a view into one of the other half; one INSERT per source fills 100 partitions of both, two at a time (with
TMPDIR=/dev/shm the 100,000 parts do not wear the disk). Every partition of a target is guarded, as after its first snapshot. The parts of all
sources count as new, which is the worst that can meet the late data sensor; `--late-overlap 120` is the default of a real location. A tick is
evaluated as the daemon does it, connection included, on an instance in memory; ticks and the bare query take turns, so that other load hits
them alike. The bare query is what any look at the parts costs: `SELECT … count() FROM system.parts WHERE active GROUP BY database, table,
partition_id`, once with its rows brought here as a sensor would have to, once counted on the server. The first tick of a process may cost more
(nothing is known yet) and stands apart. Two sensors learn bit by bit, drift_sensor how texts compare and live_partitions_sensor what Dagster was told, 250 objects
a tick; so there are as many ticks as that takes before those that count. (150,000 events take the better part of an hour to write, so the event log is played:
it says that runs have told every partition.) What is counted are our own statements; the driver's greeting is in the time only. Bounds to keep: at
most 3 queries per tick, ratio at most 2. The exit code is 0 whatever comes out: a benchmark tells, it does not judge.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import click
import dagster as dg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/sensors.py` works as well

import sensors
from bench.record import Record, json_option
from chmv_assets.assets import build_props
from chmv_assets.core.serving_journal import GUARDS
from chmv_assets.live_partitions import Place, Told
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Endpoint, Server, endpoint_of
from resources.clickhouse_resource import ClickHouseResource
from resources.engine import EngineOptions, start_engine, stop_engine
from resources.journal import open_journal
from sensors import live_partitions
from sensors.drift import COMPARED_PER_TICK
from sensors.live_partitions_verdict import ASKED_PER_TICK

BOUND, MOST_QUERIES = 2.0, 3
LEARNED_PER_TICK = min(COMPARED_PER_TICK, ASKED_PER_TICK)
FILLERS = 2
BARE = "SELECT database, table, partition_id, count(), sum(rows) FROM system.parts WHERE active GROUP BY database, table, partition_id"


class CountingServer(Server):
    """A connection that counts what it is asked."""

    asked = 0

    def rows(self, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
        CountingServer.asked += 1
        return super().rows(*args, **kwargs)

    def command(self, *args: Any, **kwargs: Any) -> str:
        CountingServer.asked += 1
        return super().command(*args, **kwargs)

    def text(self, *args: Any, **kwargs: Any) -> str:
        CountingServer.asked += 1
        return super().text(*args, **kwargs)


class CountingResource(ClickHouseResource):
    """The resource of the sensors, with a connection that counts."""

    def connect(self, **log_comment: str) -> Server:
        return CountingServer(Endpoint(os.environ["CHMV_CLICKHOUSE_URL"]), log_comment=log_comment)


@dataclass
class Measured:
    """One sensor: its ticks."""

    sensor: dg.SensorDefinition
    seconds: list[float] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    cursor: str | None = None
    said: str = ""
    takes: bool = True  # whether it asks ClickHouse at all


def ddl_of(tables: int) -> list[str]:
    """Statements: pairs of a source and a target with a view between them."""
    made: list[str] = []
    for number in range(tables // 2):
        source, target = f"wide.source_{number:04d}", f"wide.target_{number:04d}"
        made.append(
            f"CREATE TABLE {source} (at DateTime('UTC'), arrived DateTime64(6, 'UTC') DEFAULT now64(6), k UInt32, v UInt64) "
            "ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY k"
        )
        made.append(
            f"CREATE TABLE {target} (day Date, k UInt32, v UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, k)"
        )
        made.append(
            f"CREATE MATERIALIZED VIEW wide.view_{number:04d} TO {target} AS SELECT toDate(at) AS day, k, sum(v) AS v FROM {source} GROUP BY day, k"
        )
    return made


def write_pipeline(folder: Path, tables: int, late_overlap: float) -> Pipeline:
    """The folder that declares them, with arrival columns, so that every sensor has something to look at."""
    folder.mkdir()
    (folder / "wide.sql").write_text(";\n".join(ddl_of(tables)) + ";\n", encoding="utf-8")
    sources = "".join(
        f"  wide.source_{number:04d}: {{event_time: at, arrival: arrived}}\n" for number in range(tables // 2)
    )
    settings = f'version: 1\ndefault_database: wide\nstart: "2026-08-01"\nthresholds: {{late_overlap: {late_overlap:g}}}\nsources:\n{sources}'
    (folder / "chmv.yaml").write_text(settings, encoding="utf-8")
    return load_pipeline(folder, cache=folder.parent / "cache").require_sound()


def fill(server: Server, tables: int, partitions: int, progress: Callable[[int], None]) -> None:
    """Create and fill: one INSERT per source, its view fills the target; two connections take turns."""
    server.command("CREATE DATABASE wide")
    statements = ddl_of(tables)
    numbers = range(tables // 2)
    with ThreadPoolExecutor(FILLERS) as pool:
        shares = [
            pool.submit(fill_some, server.endpoint, statements, numbers[at::FILLERS], partitions, progress)
            for at in range(FILLERS)
        ]
        for share in as_completed(shares):
            share.result()
    open_journal(server).prepare()
    server.command(
        f"INSERT INTO {GUARDS.sql} (target, partition_id, max_block, table_uuid, version) "
        "SELECT concat(p.database, '.', p.table), p.partition_id, max(p.max_block_number), toString(any(t.uuid)), 1 FROM system.parts AS p "
        "INNER JOIN system.tables AS t ON t.database = p.database AND t.name = p.table "
        "WHERE p.active AND p.database = 'wide' AND p.table LIKE 'target%' GROUP BY p.database, p.table, p.partition_id"
    )


def fill_some(
    endpoint: Endpoint,
    statements: Sequence[str],
    numbers: Sequence[int],
    partitions: int,
    progress: Callable[[int], None],
) -> None:
    """Some of the pairs, on a connection of its own."""
    settings = {"max_partitions_per_insert_block": 0, "async_insert": 0, "max_threads": 1, "max_insert_threads": 1}
    with Server(endpoint) as server:
        for number in numbers:
            for statement in statements[3 * number : 3 * number + 3]:
                server.command(statement)
            server.command(
                f"INSERT INTO wide.source_{number:04d} (at, arrived, k, v) SELECT toDateTime('2026-08-01 12:00:00', 'UTC') + number * 86400, "
                f"toDateTime64('2026-08-01 12:00:01', 6, 'UTC') + number * 86400, number, 1 FROM numbers({partitions})",
                settings=settings,
            )
            progress(2)


def discover(pipeline: Pipeline) -> list[dg.SensorDefinition]:
    """The sensors of the location. Those over runs are not ticks of ours."""
    found = sensors.build_sensors(pipeline, tuple(build_props(pipeline, date(2026, 8, 1))), running=False)
    return [one for one in found if not isinstance(one, dg.RunStatusSensorDefinition)]


def tick(measured: Measured, instance: dg.DagsterInstance, resources: Mapping[str, Any]) -> tuple[float, int]:
    """Evaluate once; gives seconds and queries."""
    wanted = {key: value for key, value in resources.items() if key in measured.sensor.required_resource_keys}
    measured.takes = bool(wanted)
    before, started = CountingServer.asked, time.perf_counter()
    with dg.build_sensor_context(
        instance=instance, cursor=measured.cursor, resources=wanted, sensor_name=measured.sensor.name
    ) as context:
        result = measured.sensor(context)
    taken = time.perf_counter() - started, CountingServer.asked - before
    if isinstance(result, dg.SensorResult):
        measured.cursor = result.cursor or measured.cursor
        requests, reason = result.run_requests or [], result.skip_reason
        measured.said = f"{len(requests)} runs asked for" if requests else str(reason.skip_message if reason else "")
    elif isinstance(result, dg.SkipReason):
        measured.said = str(result.skip_message)
    return taken


@click.command()
@click.option("--tables", default=1_000, show_default=True, help="Half sources, half targets.")
@click.option("--partitions", default=100, show_default=True, help="Of each table, one part each.")
@click.option("--rounds", default=7, show_default=True, help="Ticks of every sensor that are counted.")
@click.option(
    "--rest",
    default=10.0,
    show_default=True,
    help="Seconds between filling and measuring.",
)
@click.option(
    "--late-overlap",
    default=3_600.0,
    show_default=True,
    help="Seconds for which a part counts as new.",
)
@click.option("--quick", is_flag=True, help="40 tables, 10 partitions, 3 rounds.")
@json_option
def main(
    tables: int, partitions: int, rounds: int, rest: float, late_overlap: float, quick: bool, json_file: Path | None
) -> None:
    """Measure every sensor's tick against the bare query."""
    record = Record("sensors", "A tick of each sensor against the bare query over system.parts", quick)
    logging.disable(logging.INFO)
    if quick:
        tables, partitions, rounds, rest = 40, 10, 3, 1.0
    with tempfile.TemporaryDirectory(prefix="chmv-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        pipeline = write_pipeline(folder / "ddl", tables, late_overlap)
        info = start_engine(EngineOptions(data_dir=folder / "engine"))
        try:
            endpoint = endpoint_of(info, {})
            os.environ["CHMV_CLICKHOUSE_URL"] = endpoint.url
            with Server(endpoint) as server, click.progressbar(length=tables, label="filling", file=sys.stderr) as bar:
                started = time.monotonic()
                fill(server, tables, partitions, bar.update)
                click.echo(f"\nfilled in {time.monotonic() - started:.0f} s", err=True)
                time.sleep(rest)
                parts = int(server.rows("SELECT count() FROM system.parts WHERE active AND database = 'wide'")[0][0])
                bare, measured = measure(server, pipeline, rounds)
            report(measured, bare, tables, parts)
            keep(measured, bare, f"{tables:,} tables, {parts:,} parts", record)
            record.machine["versions"]["clickhouse"] = info.version
            record.write(json_file)
        finally:
            stop_engine(info.data_dir)


def measure(server: Server, pipeline: Pipeline, rounds: int) -> tuple[dict[str, list[float]], list[Measured]]:
    """Ticks and the bare query by turns; the first round is the cold one."""
    bare: dict[str, list[float]] = {"fetched": [], "on the server": []}
    measured = [Measured(one) for one in discover(pipeline)]
    resources = {"clickhouse": CountingResource()}
    with patch.object(live_partitions, "fetch_told", _all_told), dg.DagsterInstance.ephemeral() as instance:
        for turn in range(rounds + 1):
            for one in measured:
                if turn == 1:
                    for _ in range(len(pipeline.catalog.objects) // LEARNED_PER_TICK + 1):
                        one.queries.append(tick(one, instance, resources)[1])
                seconds, queries = tick(one, instance, resources)
                one.seconds.append(seconds)
                one.queries.append(queries)
            for side, sql in (("fetched", BARE), ("on the server", f"SELECT count() FROM ({BARE})")):
                started = time.perf_counter()
                server.rows(sql)
                bare[side].append(time.perf_counter() - started)
    return bare, measured


def _all_told(_instance: object, places: Collection[Place], _translator: object) -> dict[Place, Told]:
    return {place: Told(event=1, version=None) for place in places}


def report(measured: list[Measured], bare: dict[str, list[float]], tables: int, parts: int) -> None:
    """Print the table."""
    console = Console(width=max(120, Console().width))
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    fetched, counted = median(bare["fetched"][1:]), median(bare["on the server"][1:])
    title = f"{tables:,} tables, {parts:,} parts; bare query {1000 * fetched:.0f} ms with its rows, {1000 * counted:.0f} ms on the server (medians)"
    table = Table(
        title=title, caption=f"load average {load}; wanted: at most {MOST_QUERIES} queries, ratio at most {BOUND:g}"
    )
    for heading in ("sensor", "queries", "first tick ms", "tick ms", "ratio", "to the server's", "said"):
        table.add_column(
            heading, justify="left" if heading in ("sensor", "said") else "right", no_wrap=heading == "sensor"
        )
    for one in sorted(measured, key=lambda one: -median(one.seconds[1:])):
        mine = median(one.seconds[1:])
        ratio = f"{mine / fetched:.2f}" + (" !" if mine / fetched > BOUND else "")
        queries = f"{max(one.queries)}" + (" !" if max(one.queries) > MOST_QUERIES else "")
        table.add_row(
            one.sensor.name, queries if one.takes else "none", f"{1000 * one.seconds[0]:.0f}", f"{1000 * mine:.0f}", ratio,
            f"{mine / counted:.2f}", one.said[:120],
        )  # fmt: skip
    console.print(table)


def keep(measured: list[Measured], bare: dict[str, list[float]], size: str, record: Record) -> None:
    """The same as a record."""
    fetched = median(bare["fetched"][1:])
    rows = []
    for one in sorted(measured, key=lambda one: -median(one.seconds[1:])):
        mine = median(one.seconds[1:])
        if one.takes:
            record.ratio(f"tick of {one.sensor.name} ÷ bare query", mine / fetched, f"≤ {BOUND:g}")
        first = f"{1000 * one.seconds[0]:.0f}"
        rows.append((one.sensor.name, max(one.queries) if one.takes else "none", first, f"{1000 * mine:.0f}"))
    record.table(f"{size}; bare query {1000 * fetched:.0f} ms", ("sensor", "queries", "first tick ms", "tick ms"), rows)


if __name__ == "__main__":
    main()
