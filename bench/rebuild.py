"""What an exact rebuild costs over the bare INSERT SELECT that promises nothing, and what writers notice of it, in one run.

    python -m bench.rebuild                     a hot and a cold day of 10 million rows each, 90 small days
    python -m bench.rebuild --rows 2000000 --rounds 9
    python -m bench.rebuild --quick             seconds, to see that it works

Two views read the same source: a light one (count and sum, 0.6 s for 10 million rows here) and one with states, as in the demo (distinct
users, a quantile). What an exact rebuild costs is mostly constant, some 40 short statements, so the light view shows it at its worst.
Hot: two writers, processes of their own, insert 50 rows at a time into the day meanwhile, and send again what the gate refuses; the
bare side runs under the same writers. Sides take turns and change who begins, so that other load hits them alike. Before each rebuild its partition is
doubled, so that only a rebuild makes it right. The bounds to keep: gated and closed at most 1.25 of the bare insert. A range is
90 windows in one process against one `chmv rebuild` process per window, of which a few are timed and the rest is reckoned.
The exit code tells only whether the targets equal their query in the end: a benchmark does not judge.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/rebuild.py` works as well

from bench.record import Record, json_option
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.errors import ServerError
from chmv_assets.core.gate import REFUSED_CODES
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from resources.clickhouse import Endpoint, Server, endpoint_of
from resources.engine import EngineOptions, start_engine, stop_engine
from resources.executor import Executor
from resources.rebuild import Published, Rebuilder

BOUND = 1.25
HOT, COLD, RANGE_START = date(2026, 11, 15), date(2026, 10, 1), date(2026, 1, 1)
COUNTRIES, BUCKETS = 20, 5_000  # their product: rows of a day in the target
WRITERS, WRITER_ROWS, PAUSE_SECONDS = 2, 50, 0.02
TIMED_PROCESSES = 6


@dataclass(frozen=True, slots=True)
class View:
    """A view and its target."""

    target: QName
    query: str
    finished: str  # columns of the target as numbers


LIGHT = View(
    QName("bank", "daily"),
    f"SELECT toDate(ts) AS day, country, user_id % {BUCKETS} AS bucket, count() AS payments, sum(amount) AS amount "
    "FROM bank.payments GROUP BY day, country, bucket",
    "sum(payments), sum(amount)",
)
STATES = View(
    QName("bank", "audience"),
    "SELECT toDate(ts) AS day, country, toHour(ts) AS hour, countState() AS payments, uniqState(user_id) AS users, "
    "quantilesTDigestState(0.5, 0.99)(amount) AS amounts FROM bank.payments GROUP BY day, country, hour",
    "countMerge(payments), uniqMerge(users)",
)
DDL = f"""
CREATE TABLE bank.payments (user_id UInt64, ts DateTime('UTC'), amount UInt32, country LowCardinality(String))
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY (user_id, ts)
SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE bank.daily (day Date, country LowCardinality(String), bucket UInt64, payments UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country, bucket)
SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW bank.daily_mv TO bank.daily AS {LIGHT.query};
CREATE TABLE bank.audience (day Date, country LowCardinality(String), hour UInt8, payments AggregateFunction(count),
  users AggregateFunction(uniq, UInt64), amounts AggregateFunction(quantilesTDigest(0.5, 0.99), UInt32))
ENGINE = AggregatingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country, hour)
SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW bank.audience_mv TO bank.audience AS {STATES.query};
"""


@dataclass
class Bench:
    """One server with one pipeline."""

    server: Server
    endpoint: Endpoint
    catalog: Catalog
    rows: int
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # phase → seconds
    refusals: int = 0
    phases: list[tuple[float, str]] = field(default_factory=list)  # since when, by the wall clock

    def load(self, day: date, rows: int) -> None:
        """Rows of a day, made on the server; users and hours without order."""
        self.server.command(
            "INSERT INTO bank.payments SELECT intHash64(number) % 1000000, "
            f"toDateTime('{day} 00:00:00', 'UTC') + intHash32(number) % 86400, number % 997 + 1, "
            f"concat('C', toString(intHash32(number + 7) % {COUNTRIES})) FROM numbers({rows})"
        )

    def rest(self) -> None:
        """Wait until the merges of what was loaded are done."""
        while self.server.rows("SELECT count() FROM system.merges WHERE database = 'bank'")[0][0]:
            time.sleep(0.2)

    def enter(self, phase: str) -> None:
        """What the writers' inserts from now on count for."""
        self.phases.append((time.time(), phase))

    def double(self, day: date, view: View = LIGHT) -> None:
        """Damage a day of the target."""
        self.server.command(f"INSERT INTO {view.target.sql} SELECT * FROM {view.target.sql} WHERE day = '{day}'")

    def insert_bare(self, day: date, view: View = LIGHT) -> float:
        """The alternative: the same rows into an empty table, and no swap."""
        self.server.command(f"CREATE TABLE bank.bare AS {view.target.sql}")
        started = time.perf_counter()
        self.server.command(
            "INSERT INTO bank.bare "
            + view.query.replace(
                " GROUP BY",
                f" WHERE ts >= toDateTime('{day} 00:00:00', 'UTC') AND ts < toDateTime('{day + timedelta(days=1)} 00:00:00', 'UTC') GROUP BY",
            )
        )
        seconds = time.perf_counter() - started
        self.server.command("DROP TABLE bank.bare SYNC")
        return seconds

    def rebuilder(self) -> Rebuilder:
        executor = Executor(self.server, log=lambda _line: None)
        return Rebuilder(executor, self.catalog, "UTC", lambda: datetime.now(timezone.utc))

    def rebuild(
        self, day: date, protocol: Protocol, steps: dict[str, list[float]], view: View = LIGHT
    ) -> tuple[float, Published]:
        """One window by a rebuilder of its own, as a run does it; `steps` gets the seconds of each."""
        before = started = time.perf_counter()
        taken: dict[str, float] = defaultdict(float)

        def on_step(_number: int, step: Step) -> None:
            nonlocal before
            taken[step.kind] += time.perf_counter() - before
            before = time.perf_counter()

        published = self.rebuilder().publish(self.catalog.objects[view.target], window(day), protocol, on_step)
        for kind, seconds in taken.items():
            steps[kind].append(seconds)
        return time.perf_counter() - started, published

    @contextmanager
    def writers(self) -> Iterator[None]:
        """Writers of the hot day for the length of the block, each in a process of its own."""
        context = multiprocessing.get_context("spawn")
        stop, results = context.Event(), context.Queue()
        made = [
            context.Process(target=write, args=(self.endpoint, number, stop, results), daemon=True)
            for number in range(WRITERS)
        ]
        for process in made:
            process.start()
        try:
            yield
        finally:
            stop.set()
            said = [results.get(timeout=60) for _ in made]
            for process in made:
                process.join(60)
        for broken, refusals, taken in said:
            if broken:
                raise RuntimeError(broken)
            self.refusals += refusals
            for started, seconds in taken:
                phase = next((name for since, name in reversed(self.phases) if since <= started), "between")
                self.latencies[phase].append(seconds)

    def differences(self) -> int:
        """Groups of the target that are not what the view's query gives now, in all days."""
        total = 0
        days = [day for (day,) in self.server.rows("SELECT DISTINCT toDate(ts) FROM bank.payments")]
        for view, day in itertools.product((LIGHT, STATES), days):
            key = "bucket" if view is LIGHT else "hour"
            sides = [
                f"SELECT day, country, {key}, {view.finished} FROM {table} WHERE day = '{day}' GROUP BY day, country, {key}"
                for table in (f"({view.query})", view.target.sql)
            ]
            total += int(
                self.server.rows(
                    f"SELECT (SELECT count() FROM ({sides[0]} EXCEPT {sides[1]})) + (SELECT count() FROM ({sides[1]} EXCEPT {sides[0]}))"
                )[0][0]
            )
        return total


def write(endpoint: Endpoint, number: int, stop: Any, results: Any) -> None:
    """One writer: inserts until it is stopped, then tells when each began and how long it took, refusals included."""
    chance = random.Random(number)
    first = int(datetime(HOT.year, HOT.month, HOT.day, tzinfo=timezone.utc).timestamp())
    taken: list[tuple[float, float]] = []
    refusals = 0
    try:
        with Server(endpoint) as server:
            for turn in itertools.count():
                if stop.wait(PAUSE_SECONDS):
                    break
                values = ", ".join(
                    f"({chance.randrange(1_000_000)}, {first + chance.randrange(86_400)}, {chance.randrange(1, 998)}, 'C1')"
                    for _ in range(WRITER_ROWS)
                )
                began, started = time.time(), time.perf_counter()
                refusals += send(server, f"INSERT INTO bank.payments VALUES {values}", f"{os.getpid()}-{turn}")
                taken.append((began, time.perf_counter() - started))
    except Exception as error:
        results.put((f"{type(error).__name__}: {error}", 0, []))
        return
    results.put(("", refusals, taken))


def send(server: Server, sql: str, token: str) -> int:
    """Insert, again and again while the gate refuses it; gives how often it did."""
    for refusals in itertools.count():
        try:
            server.command(sql, settings={"insert_deduplication_token": token, "async_insert": 0})
        except ServerError as error:
            if error.code not in REFUSED_CODES:
                raise
            time.sleep(0.02)
        else:
            return refusals
    raise AssertionError("unreachable: counting does not end")


def window(day: date) -> Window:
    start = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return Window(start, start + timedelta(days=1))


@dataclass
class Measured:
    """Seconds of every turn."""

    turns: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gates: list[float] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def ratio(self, ours: str, bare: str) -> float:
        """Turn by turn: load that comes and goes hits both sides of a turn."""
        return median(mine / theirs for mine, theirs in zip(self.turns[ours], self.turns[bare], strict=True))


def measure_hot(bench: Bench, measured: Measured, rounds: int, idle_seconds: float, view: View) -> None:
    """Gated and bare under writers, by turns."""

    def bare() -> None:
        bench.enter("bare insert")
        measured.turns[f"bare, hot, {view.target.table}"].append(bench.insert_bare(HOT, view))

    def gated() -> None:
        bench.double(HOT, view)
        bench.enter("gated rebuild")
        seconds, published = bench.rebuild(HOT, "gated", measured.steps, view)
        measured.turns[f"gated, hot, {view.target.table}"].append(seconds)
        measured.gates.append(published.gate_seconds)
        measured.tries.append(published.tries)

    with bench.writers():
        time.sleep(1.0)  # processes start
        for turn in range(rounds):
            bench.enter("idle")
            time.sleep(idle_seconds)
            sides: list[Callable[[], None]] = [bare, gated]
            for side in sides if turn % 2 else reversed(sides):
                side()
                bench.enter("between")
                time.sleep(0.5)


def measure_cold(bench: Bench, measured: Measured, rounds: int, view: View) -> None:
    """Closed and bare on a day that nobody writes to, by turns."""
    for turn in range(rounds):
        for side in ("bare", "closed") if turn % 2 else ("closed", "bare"):
            if side == "bare":
                measured.turns[f"bare, cold, {view.target.table}"].append(bench.insert_bare(COLD, view))
                continue
            bench.double(COLD, view)
            seconds, _ = bench.rebuild(COLD, "closed", defaultdict(list), view)
            measured.turns[f"closed, cold, {view.target.table}"].append(seconds)


def measure_range(bench: Bench, measured: Measured, days: list[date], folder: Path) -> int:
    """A range in one process, and a few of its windows in a process each; gives how many of those were timed."""
    timed = days[: min(TIMED_PROCESSES, len(days))]
    (folder / "ddl").mkdir()
    (folder / "ddl" / "bank.sql").write_text(DDL, encoding="utf-8")
    environment = os.environ | {"CHMV_CLICKHOUSE_URL": bench.endpoint.url, "CHMV_CACHE_DIR": str(folder / "cache")}
    command = [str(Path(sys.executable).with_name("chmv")), "rebuild", str(LIGHT.target), "--protocol", "closed"]
    command += ["--ddl", str(folder / "ddl"), "--window"]
    for number, day in enumerate((timed[0], *timed)):  # the first one fills the catalog's cache and is not counted
        bench.double(day)
        started = time.perf_counter()
        subprocess.run([*command, f"{day}"], env=environment, check=True, capture_output=True)
        if number:
            measured.turns["window, own process"].append(time.perf_counter() - started)
    for day in days:
        bench.double(day)
    rebuilder = bench.rebuilder()
    started = time.perf_counter()
    for day in reversed(days):
        rebuilder.publish(bench.catalog.objects[LIGHT.target], window(day), "closed")
    measured.turns["range, one process"].append(time.perf_counter() - started)
    measured.turns["range, bare inserts"].append(sum(bench.insert_bare(day) for day in days))
    return len(timed)


def measure_whole(bench: Bench, measured: Measured) -> None:
    """All windows in one publication, against one insert of everything."""
    many = {"max_partitions_per_insert_block": 0}
    bench.double(COLD)
    started = time.perf_counter()
    published = bench.rebuilder().publish(bench.catalog.objects[LIGHT.target], None, "whole")
    measured.turns["whole target"].append(time.perf_counter() - started)
    measured.turns["gate, whole target"].append(published.gate_seconds)
    bench.server.command(f"CREATE TABLE bank.bare AS {LIGHT.target.sql}")
    started = time.perf_counter()
    bench.server.command(f"INSERT INTO bank.bare {LIGHT.query}", settings=many)
    measured.turns["whole target, bare"].append(time.perf_counter() - started)
    bench.server.command("DROP TABLE bank.bare SYNC")


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--rows", type=click.IntRange(min=1000), default=10_000_000, show_default=True, help="Rows of a day.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Turns; the median counts.")
@click.option("--windows", type=click.IntRange(min=1), default=90, show_default=True, help="Days of the range.")
@click.option("--window-rows", default=100_000, show_default=True, help="Rows of each of them.")
@click.option("--quick", is_flag=True, help="Small and once.")
@json_option
def main(rows: int, rounds: int, windows: int, window_rows: int, quick: bool, json_file: Path | None) -> None:
    record = Record("rebuild", "An exact rebuild against the bare INSERT SELECT", quick)
    if quick:
        rows, rounds, windows, window_rows = 200_000, 1, 6, 10_000
    days = [RANGE_START + timedelta(days=at) for at in range(windows)]
    with tempfile.TemporaryDirectory(prefix="chmv-bench-", dir=_fast_folder()) as name:
        folder = Path(name)
        info = start_engine(EngineOptions(data_dir=folder / "engine"))
        try:
            with Server(endpoint_of(info)) as server:
                bench = prepare(server, endpoint_of(info), rows)
                for day in days:
                    bench.load(day, window_rows)
                bench.rest()
                measured = Measured()
                for view in (LIGHT, STATES):
                    measure_hot(bench, measured, rounds, 0.5 if quick else 3.0, view)
                    measure_cold(bench, measured, rounds, view)
                timed = measure_range(bench, measured, days, folder)
                measure_whole(bench, measured)
                report(bench, measured, windows, timed)
                keep(bench, measured, windows, record)
                record.machine["versions"]["clickhouse"] = info.version
                record.write(json_file)
                tell_whether_exact(bench)
        finally:
            stop_engine(info.data_dir)


def prepare(server: Server, endpoint: Endpoint, rows: int) -> Bench:
    """The tables, the two large days, and one rebuild that makes chmv's own tables and is not counted."""
    server.command("CREATE DATABASE bank")
    for statement in DDL.split(";\n"):
        if statement.strip():
            server.command(statement)
    bench = Bench(server, endpoint, build_catalog([SourceFile(path="bank.sql", text=DDL)]).require_sound(), rows)
    for day in (HOT, COLD):
        bench.load(day, rows)
    bench.load(date(2025, 12, 1), 1000)
    bench.rebuild(date(2025, 12, 1), "gated", defaultdict(list))
    return bench


def _fast_folder() -> str | None:
    """Memory if there is any: disks differ, the work does not."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def report(bench: Bench, measured: Measured, windows: int, timed: int) -> None:
    """Print the tables."""
    console = Console(width=max(110, Console().width))
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    table = Table(title=f"{bench.rows:,} rows in a day, seconds (median)", caption=f"load average {load}")
    for heading in ("rebuild", "seconds", "bare INSERT SELECT", "ratio", "wanted", "turns"):
        table.add_column(heading, justify="left" if heading in ("rebuild", "turns") else "right")
    sides = itertools.product((LIGHT, STATES), (("gated, hot", "bare, hot"), ("closed, cold", "bare, cold")))
    for view, (ours, bare) in sides:
        ours, bare = f"{ours}, {view.target.table}", f"{bare}, {view.target.table}"
        mine, theirs = measured.turns[ours], measured.turns[bare]
        table.add_row(
            ours, f"{median(mine):.2f}", f"{median(theirs):.2f}", f"{measured.ratio(ours, bare):.2f}", f"≤ {BOUND}",
            f"{[round(one, 2) for one in mine]} / {[round(one, 2) for one in theirs]}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"gate shut for {median(measured.gates):.2f} s (longest {max(measured.gates):.2f}), tries {measured.tries}; "
        "seconds by step: " + ", ".join(f"{kind} {median(taken):.2f}" for kind, taken in measured.steps.items()),
        soft_wrap=True,
    )
    console.print(latency_table(bench))
    one, each = measured.turns["range, one process"][0], median(measured.turns["window, own process"])
    bare_range = measured.turns["range, bare inserts"][0]
    console.print(
        f"{windows} windows: {one:.1f} s in one process ({one / windows:.2f} s each), {each * windows:.1f} s in a process each "
        f"({each:.2f} s each, reckoned from {timed} that were timed): {each * windows / one:.1f} × as long; "
        f"bare inserts {bare_range:.1f} s, ratio {one / bare_range:.2f}",
        soft_wrap=True,
    )
    whole, at_once = measured.turns["whole target"][0], measured.turns["whole target, bare"][0]
    console.print(
        f"the whole target, {windows + 3} windows in one publication: {whole:.1f} s, gate {measured.turns['gate, whole target'][0]:.2f} s; "
        f"one bare insert of everything {at_once:.1f} s, ratio {whole / at_once:.2f}",
        soft_wrap=True,
    )


def keep(bench: Bench, measured: Measured, windows: int, record: Record) -> None:
    """The same as a record."""
    rows = []
    for view, (ours, bare) in itertools.product(
        (LIGHT, STATES), (("gated, hot", "bare, hot"), ("closed, cold", "bare, cold"))
    ):
        ours, bare = f"{ours}, {view.target.table}", f"{bare}, {view.target.table}"
        record.ratio(f"{ours} ÷ bare INSERT SELECT", measured.ratio(ours, bare), f"≤ {BOUND}")
        rows.append((ours, f"{median(measured.turns[ours]):.2f}", f"{median(measured.turns[bare]):.2f}"))
    one, each = measured.turns["range, one process"][0], median(measured.turns["window, own process"])
    record.ratio(f"{windows} windows: a process each ÷ one process", each * windows / one)
    whole, at_once = measured.turns["whole target"][0], measured.turns["whole target, bare"][0]
    record.ratio(f"the whole target, {windows + 3} windows ÷ one bare insert", whole / at_once)
    record.table(f"{bench.rows:,} rows in a day, median", ("rebuild", "s", "bare s"), rows)
    idle = _figures(bench.latencies["idle"])
    for phase in ("bare insert", "gated rebuild"):
        for name, mine, rest in zip(("p50", "p99"), _figures(bench.latencies[phase]), idle, strict=False):
            record.ratio(f"writers' insert during a {phase} ÷ idle, {name}", mine / rest)
    record.raw |= {"turns": dict(measured.turns), "gates": measured.gates}


def tell_whether_exact(bench: Bench) -> None:
    """Exit 1 if a target is not what its query gives."""
    wrong = bench.differences()
    if wrong:
        Console().print(f"bank: {wrong} groups differ from the view's query but wanted none", style="red")
        sys.exit(1)


def latency_table(bench: Bench) -> Table:
    """What the writers saw, refusals and sending again included."""
    table = Table(title=f"insert latency of {WRITERS} writers in ms; {bench.refusals} refusals were sent again")
    for heading in ("meanwhile", "inserts", "p50", "p99", "max", "p50 ÷ idle", "p99 ÷ idle", "max ÷ idle"):
        table.add_column(heading, justify="left" if heading == "meanwhile" else "right")
    idle = _figures(bench.latencies["idle"])
    for phase in ("idle", "bare insert", "gated rebuild"):
        figures = _figures(bench.latencies[phase])
        ratios = [f"{mine / theirs:.1f}" for mine, theirs in zip(figures, idle, strict=True)]
        table.add_row(phase, str(len(bench.latencies[phase])), *(f"{1000 * one:.0f}" for one in figures), *ratios)
    return table


def _figures(seconds: list[float]) -> tuple[float, float, float]:
    """p50, p99 and the longest."""
    if len(seconds) < 2:
        return median(seconds or [0.001]), max(seconds, default=0.001), max(seconds, default=0.001)
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98], max(seconds)


if __name__ == "__main__":
    main()
