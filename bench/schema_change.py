"""A changed aggregate under live writers, by dbt-clickhouse and by chmv: rows lost and doubled, seconds, and what readers and writers notice.

    python -m bench.schema_change                    2 million rows over 5 days, 3 writers, 1 reader
    python -m bench.schema_change --rows 10000000
    python -m bench.schema_change --quick            smaller, to see that it works

One engine, a database for each side, the same tables, rows and change: `sum(amount)` becomes `sum(amount * 2)` in a view into a SummingMergeTree
target, history included. Each side is what a person types, so the seconds include the start of every process.

dbt-clickhouse documents two ways ("Materialized Views" in ClickHouse's documentation of dbt), and both are measured:
- explicit target, for who does not want readers to see an empty table ("Full refresh with explicit targets", option 2): "If you need to update the sql
  of the MVs first, you can set in them `catchup=False` and then do a `dbt run` […] on the MVs", then `dbt run --full-refresh` on the target with
  `repopulate_from_mvs_on_full_refresh=True`. In beta.
- implicit target, the default and called stable: one `dbt run --full-refresh`.
Of both the same page says, under "Behavior during active ingestion", that the "MV is blind during recreation" and recommends "Pause the ingestion during
dbt operations if possible". Here it is not paused: that is the question. The exit code tells only whether chmv's side is exact.

Every insert has a key of its own in the target, so that a lost insert cannot be made up by a doubled one.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # so that `python bench/schema_change.py` works as well

from bench.environments import DBT, clean_environment, install, run
from bench.record import Record, json_option
from chmv_assets.core.errors import ServerError
from chmv_assets.core.gate import REFUSED_CODES
from resources.clickhouse import Endpoint, Server, endpoint_of
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

FIRST_DAY, DAYS, KEYS = "2026-11-11", 5, 5_000  # keys of the history in each day
HOT = "2026-11-15 12:00:00"  # writers write into the last day
WRITERS, WRITER_ROWS, PAUSE_SECONDS, POLL_SECONDS = 3, 20, 0.02, 0.01
PATIENCE_SECONDS = 60
FIRST_LIVE = 1_000_000_000  # ids and keys of writers start here, by writer
OLD, NEW = "sum(amount)", "sum(amount * 2)"
DEDUPLICATE = "non_replicated_deduplication_window = 10000"  # so that who sends again does not double

SOURCE = f"""
CREATE TABLE {{database}}.payments (id UInt64, batch UInt64, ts DateTime('UTC'), amount UInt32)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id SETTINGS {DEDUPLICATE};
"""
TARGET = f"""
CREATE TABLE {{database}}.totals (day Date, batch UInt64, payments UInt64, paid UInt64, weighed UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, batch) SETTINGS {DEDUPLICATE};
"""
QUERY = "SELECT toDate(ts) AS day, batch, count() AS payments, sum(amount) AS paid, {weighed} AS weighed FROM {source} GROUP BY day, batch"
VIEW = "CREATE MATERIALIZED VIEW {database}.totals_mv TO {database}.totals AS {query};\n"

DBT_TARGET = (
    "engine='SummingMergeTree()', order_by='(day, batch)', partition_by='toYYYYMMDD(day)', "
    "settings={'non_replicated_deduplication_window': 10000}"
)
DBT_EMPTY = "SELECT toDate(0) AS day, toUInt64(0) AS batch, toUInt64(0) AS payments, toUInt64(0) AS paid, toUInt64(0) AS weighed WHERE 0"


def query(weighed: str, source: str) -> str:
    return QUERY.format(weighed=weighed, source=source)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look of the reader."""

    at: float
    rows: int | None  # none: an error
    mixed: bool  # sums of both queries in one answer


@dataclass
class Outcome:
    """What one side did."""

    load: float = 0.0
    seconds: float = 0.0
    sent: int = 0
    refusals: int = 0
    errors: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    wrong_keys: int = 0
    missing_in_source: int = 0

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.wrong_keys or self.missing_in_source or self.errors)

    def seen(self, is_bad: Callable[[Sample, int], bool]) -> float:
        """Milliseconds from a bad look to the next one, together; a look is judged by itself and the most rows seen before."""
        most, total = 0, 0.0
        for one, following in itertools.pairwise(self.samples):
            total += (following.at - one.at) if is_bad(one, most) else 0.0
            most = max(most, one.rows or 0)
        return 1000 * total


# --- the two tools ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """A tool's way: what makes the objects, and what changes them."""

    name: str
    database: str
    create: Callable[[], None]
    change: Callable[[], None]


def chmv_side(server: Server, endpoint: Endpoint, folder: Path) -> Side:
    """`chmv plan` and `chmv apply`."""
    database, ddl, plan = "by_chmv", folder / "ddl", folder / "plan.json"
    environment = os.environ | {
        "CHMV_CLICKHOUSE_URL": endpoint.url, "CHMV_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    chmv = [sys.executable, "-c", "from chmv_assets.cli.main import main; main()"]

    def deploy(weighed: str) -> None:
        view = VIEW.format(database=database, query=query(weighed, f"{database}.payments"))
        ddl.mkdir(exist_ok=True)
        (ddl / "totals.sql").write_text((SOURCE + TARGET).format(database=database) + view, encoding="utf-8")
        started = time.perf_counter()
        run([*chmv, "plan", "--ddl", str(ddl), "--out", str(plan)], environment, folder, wanted=(2,))
        planned = time.perf_counter() - started
        said = json.loads(run([*chmv, "apply", str(plan), "--allow-rewrite", "--json"], environment, folder))
        if weighed == NEW:
            click.echo(
                f"chmv: plan {planned:.1f} s, apply {said['seconds']} s of which the gate was shut {said['gate_seconds']} s"
            )

    server.command(f"CREATE DATABASE {database}")
    return Side("chmv", database, lambda: deploy(OLD), lambda: deploy(NEW))


def dbt_side(server: Server, info: EngineInfo, folder: Path, dbt: Path, explicit: bool) -> Side:
    """A dbt project, with an explicit target or with an implicit one."""
    database = "by_dbt_explicit" if explicit else "by_dbt_implicit"
    models = folder / "models"
    models.mkdir(parents=True)
    (folder / "dbt_project.yml").write_text(
        "name: bench\nversion: '1.0'\nprofile: bench\nmodel-paths: [models]\n", encoding="utf-8"
    )
    (folder / "profiles.yml").write_text(
        "bench:\n  target: bench\n  outputs:\n    bench:\n      type: clickhouse\n      driver: http\n      host: 127.0.0.1\n"
        f"      port: {info.http_port}\n      user: {info.user}\n      schema: {database}\n      threads: 1\n",
        encoding="utf-8",
    )
    (models / "sources.yml").write_text(
        f"sources:\n  - name: raw\n    schema: {database}\n    tables:\n      - name: payments\n", encoding="utf-8"
    )
    environment = clean_environment()

    def write(weighed: str) -> None:
        sql = query(weighed, "{{ source('raw', 'payments') }}")
        if explicit:
            target = f"{{{{ config(materialized='table', repopulate_from_mvs_on_full_refresh=True, {DBT_TARGET}) }}}}\n{DBT_EMPTY}\n"
            view = "{{ config(materialized='materialized_view', catchup=False) }}\n{{ materialization_target_table(ref('totals')) }}\n"
            (models / "totals_mv.sql").write_text(f"{view}{sql}\n", encoding="utf-8")
        else:
            target = f"{{{{ config(materialized='materialized_view', {DBT_TARGET}) }}}}\n{sql}\n"
        (models / "totals.sql").write_text(target, encoding="utf-8")

    def dbt_run(*arguments: str) -> None:
        run([str(dbt), "--no-use-colors", "run", "--profiles-dir", ".", *arguments], environment, folder)

    def create() -> None:
        server.command(SOURCE.format(database=database).rstrip(";\n"))
        write(OLD)
        dbt_run()

    def change() -> None:
        write(NEW)
        if explicit:
            dbt_run("--select", "totals_mv")
            dbt_run("--full-refresh", "--select", "totals")
        else:
            dbt_run("--full-refresh")

    server.command(f"CREATE DATABASE {database}")
    name = "dbt, explicit target" if explicit else "dbt, implicit target"
    return Side(name, database, create, change)


# --- writers and the reader ------------------------------------------------------------------------------------------


def write(endpoint: Endpoint, database: str, number: int, stop: Any, results: Any) -> None:
    """One writer: inserts until it is stopped and sends again what was refused; then tells how that went."""
    waits: list[float] = []
    errors: list[str] = []
    refusals = 0
    first = FIRST_LIVE * (number + 1)
    try:
        with Server(endpoint) as server:
            for turn in itertools.count():
                if stop.wait(PAUSE_SECONDS):
                    break
                ids = range(first + turn * WRITER_ROWS, first + (turn + 1) * WRITER_ROWS)
                values = ", ".join(f"({one}, {first + turn}, '{HOT}', {one % 997 + 1})" for one in ids)
                started = time.perf_counter()
                sql = f"INSERT INTO {database}.payments (id, batch, ts, amount) VALUES {values}"
                refusals += send(server, sql, f"{first + turn}", errors)
                waits.append(time.perf_counter() - started)
    except Exception as error:  # told instead of a queue that stays empty
        errors.append(f"{type(error).__name__}: {error}")
    results.put((refusals, errors, waits))


def send(server: Server, sql: str, token: str, errors: list[str]) -> int:
    """Insert, again and again; gives how often it was refused by a gate, other errors are kept."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    refusals = 0
    while True:
        try:
            server.command(sql, settings={"insert_deduplication_token": token, "async_insert": 0})
            return refusals
        except ServerError as error:
            if time.monotonic() > deadline:
                raise
            if error.code in REFUSED_CODES:
                refusals += 1
            else:
                errors.append(str(error))
            time.sleep(0.02)


def read(endpoint: Endpoint, database: str, stop: threading.Event, samples: list[Sample]) -> None:
    """The reader: what a dashboard asks, again and again."""
    with Server(endpoint) as server:
        while not stop.wait(POLL_SECONDS):
            at = time.perf_counter()
            try:
                rows, paid, weighed = server.rows(
                    f"SELECT sum(payments), sum(paid), sum(weighed) FROM {database}.totals"
                )[0]
                samples.append(Sample(at, int(rows), weighed not in (paid, 2 * paid)))
            except ServerError:
                samples.append(Sample(at, None, False))


@contextmanager
def traffic(endpoint: Endpoint, database: str, outcome: Outcome) -> Iterator[None]:
    """Writers, each in a process of its own, and a reader for the length of the block."""
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    writers = [
        context.Process(target=write, args=(endpoint, database, number, stop, results), daemon=True)
        for number in range(WRITERS)
    ]
    enough = threading.Event()
    reader = threading.Thread(target=read, args=(endpoint, database, enough, outcome.samples), daemon=True)
    for process in writers:
        process.start()
    reader.start()
    try:
        yield
    finally:
        stop.set()
        said = [results.get(timeout=120) for _ in writers]
        for process in writers:
            process.join(60)
        enough.set()
        reader.join(60)
    for refusals, errors, waits in said:
        outcome.refusals += refusals
        outcome.errors += errors
        outcome.waits += waits
    outcome.sent = WRITER_ROWS * len(outcome.waits)


# --- one side --------------------------------------------------------------------------------------------------------


def measure(server: Server, endpoint: Endpoint, side: Side, rows: int, idle_seconds: float) -> Outcome:
    """Make the objects, load the history through the view, change it while writers write, and compare in the end."""
    side.create()
    server.command(
        f"INSERT INTO {side.database}.payments (id, batch, ts, amount) SELECT number, intHash64(number) % {KEYS}, "
        f"toDateTime('{FIRST_DAY} 00:00:00', 'UTC') + intHash32(number) % {DAYS * 86_400}, number % 997 + 1 FROM numbers({rows})"
    )
    while server.rows(f"SELECT count() FROM system.merges WHERE database = '{side.database}'")[0][0]:
        time.sleep(0.2)
    outcome = Outcome(load=os.getloadavg()[0])
    with traffic(endpoint, side.database, outcome):
        deadline = time.monotonic() + 60
        while server.rows(f"SELECT sum(payments) FROM {side.database}.totals")[0][0] <= rows:  # processes start
            if time.monotonic() > deadline:
                raise click.ClickException(
                    f"{side.name}: found no row of a writer in {side.database}.totals but wanted some."
                )
            time.sleep(0.1)
        time.sleep(idle_seconds)
        started = time.perf_counter()
        side.change()
        outcome.seconds = time.perf_counter() - started
        time.sleep(idle_seconds)
    compare(server, side.database, rows, outcome)
    server.command(f"DROP DATABASE {side.database} SYNC")
    return outcome


def compare(server: Server, database: str, rows: int, outcome: Outcome) -> None:
    """The target against the new query over its source, key by key."""
    wanted = query(NEW, f"{database}.payments")
    found = f"SELECT day, batch, sum(payments) AS payments, sum(paid) AS paid, sum(weighed) AS weighed FROM {database}.totals GROUP BY day, batch"
    outcome.lost, outcome.doubled, outcome.wrong_keys = (
        int(value)
        for value in server.rows(
            "SELECT sum(greatest(0, more)), sum(greatest(0, -more)), countIf(more != 0 OR wrong) FROM (SELECT day, batch, "
            "sum(sign * toInt64(payments)) AS more, sum(sign * toInt64(paid)) != 0 OR sum(sign * toInt64(weighed)) != 0 AS wrong FROM "
            f"(SELECT *, 1 AS sign FROM ({wanted}) UNION ALL SELECT *, -1 AS sign FROM ({found})) GROUP BY day, batch)"
        )[0]
    )
    held, ids = server.rows(f"SELECT count(), uniqExact(id) FROM {database}.payments")[0]
    outcome.missing_in_source = abs(rows + outcome.sent - int(held)) + int(held) - int(ids)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--rows", type=click.IntRange(min=1000), default=2_000_000, show_default=True, help="Rows of history.")
@click.option("--quick", is_flag=True, help="Smaller.")
@json_option
def main(rows: int, quick: bool, json_file: Path | None) -> None:
    rows, idle_seconds = (100_000, 0.5) if quick else (rows, 2.0)
    record = Record("schema_change", "A changed aggregate under live writers", quick)
    outcomes, version = measure_all(rows, idle_seconds)
    report(outcomes, rows, version, record)
    record.write(json_file)
    tell_whether_exact(outcomes["chmv"])


def measure_all(rows: int, idle_seconds: float) -> tuple[dict[str, Outcome], str]:
    """All sides on one engine, and its version."""
    dbt = install(DBT, "dbt")
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(
        prefix="chmv-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as name:
        folder = Path(name)
        info = start_engine(EngineOptions(data_dir=folder / "engine"))
        try:
            endpoint = endpoint_of(info)
            with Server(endpoint) as server:
                for made in ("explicit", "implicit", "chmv"):
                    (folder / made).mkdir()
                sides = (
                    dbt_side(server, info, folder / "explicit", dbt, explicit=True),
                    dbt_side(server, info, folder / "implicit", dbt, explicit=False),
                    chmv_side(server, endpoint, folder / "chmv"),
                )
                for side in sides:
                    outcomes[side.name] = measure(server, endpoint, side, rows, idle_seconds)
        finally:
            stop_engine(info.data_dir)
    return outcomes, info.version


def report(outcomes: dict[str, Outcome], rows: int, version: str, record: Record) -> None:
    """Print the table and keep it."""
    console = Console(width=max(110, Console().width))
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    table = Table(
        title=f"{OLD} becomes {NEW} under {WRITERS} writers, {rows:,} rows of history",
        caption=f"ClickHouse {version}, {', '.join(DBT)}; load average {load}",
    )
    table.add_column("")
    for side in outcomes:
        table.add_column(side, justify="right")
    figures: dict[str, Callable[[Outcome], str]] = {
        "rows lost": lambda one: f"{one.lost:,}",
        "rows doubled": lambda one: f"{one.doubled:,}",
        "keys that differ in the end": lambda one: f"{one.wrong_keys:,}",
        "seconds, processes included": lambda one: f"{one.seconds:.1f}",
        "reader: less than the history, or an error, ms": lambda one: (
            f"{one.seen(lambda look, _: look.rows is None or look.rows < rows):.0f}"
        ),
        "reader: less than it saw before, ms": lambda one: (
            f"{one.seen(lambda look, most: look.rows is not None and look.rows < most):.0f}"
        ),
        "reader: both queries' sums in one answer, ms": lambda one: f"{one.seen(lambda look, _: look.mixed):.0f}",
        "writers: refused and sent again": lambda one: f"{one.refusals:,}",
        "writers: other errors": lambda one: f"{len(one.errors):,}",
        "writers: longest insert, ms": lambda one: f"{1000 * max(one.waits):.0f}",
        "writers: usual insert, ms": lambda one: f"{1000 * median(one.waits):.0f}",
        "reader: longest between two looks, ms": lambda one: (
            f"{1000 * max(after.at - look.at for look, after in itertools.pairwise(one.samples)):.0f}"
        ),
        "load average before": lambda one: f"{one.load:.1f}",
        "rows sent meanwhile": lambda one: f"{one.sent:,}",
    }
    cells = [(name, *(figure(one) for one in outcomes.values())) for name, figure in figures.items()]
    for row in cells:
        table.add_row(*row)
    console.print(table)
    for side, outcome in outcomes.items():
        if side != "chmv":
            record.ratio(f"seconds of the change, {side} ÷ chmv", outcome.seconds / outcomes["chmv"].seconds)
    record.table(f"{OLD} becomes {NEW} under {WRITERS} writers, {rows:,} rows of history", ("", *outcomes), cells)
    record.machine["versions"] |= {"clickhouse": version} | dict(one.split("==") for one in DBT)
    for side, outcome in outcomes.items():
        for error in sorted(set(outcome.errors))[:3]:
            console.print(f"{side}: {error}", style="yellow", markup=False)


def tell_whether_exact(ours: Outcome) -> None:
    """Exit 1 if chmv's side is not exact."""
    if not ours.exact:
        Console().print(
            f"chmv: {ours.lost} rows lost, {ours.doubled} doubled, {ours.wrong_keys} keys and {ours.missing_in_source} rows of the source differ, "
            f"{len(ours.errors)} errors, but wanted none",
            style="red",
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
