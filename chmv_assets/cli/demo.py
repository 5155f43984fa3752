"""`chmv demo`: everything at once on this machine, and all of it gone again at Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import click
import dagster as dg
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from chmv_assets import demo
from chmv_assets.cli.output import console, table, told
from chmv_assets.core.errors import ChmvError, EngineError
from chmv_assets.core.picture.link import GRAPH_VARIABLE
from chmv_assets.start import START_VARIABLE
from resources.clickhouse import Server, endpoint_of
from resources.dagster_ui import LOOPBACK, DagsterUi, prepare_home
from resources.engine import EngineInfo, EngineOptions, connection_env, start_engine, stop_engine
from resources.engine.report import show_progress
from resources.graph_endpoint import PATH as GRAPH_PATH
from resources.landing_root import ROOT_VARIABLE
from resources.metrics_endpoint import HOST_VARIABLE, PATH, PORT_VARIABLE
from resources.toolchain import find_java
from sensors import SENSORS_VARIABLE

WORKSPACE = Path(__file__).parents[2] / "workspace.yaml"
_METRICS_PORT = 9464
_SUMMARY_QUERY = """{assetNodes{assetKey{path} groupName isMaterializable kinds
 partitionStats{numPartitions numMaterialized}
 assetChecksOrError{... on AssetChecks{checks{name executionForLatestMaterialization{status}}}}}}"""


@click.command("demo")
@click.option("--headless", is_flag=True, help="Do it all, print a summary table, stop, exit 0.")
@click.option(
    "--rows", type=click.IntRange(1_000, 100_000_000), default=100_000, show_default=True, help="Events to load."
)
@click.option(
    "--days", type=click.IntRange(1, 60), default=10, show_default=True, help="Days before today that they cover."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=3000,
    show_default=True,
    help="Port of the Dagster UI; 0 takes a free one.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".chmv"),
    show_default=True,
    help="Folder for data and state.",
)
@click.option("--fresh", is_flag=True, help="Throw the state of an earlier demo away first.")
@told
def demo_command(headless: bool, rows: int, days: int, port: int, state: Path, fresh: bool) -> None:
    """Bring the demo up: a real ClickHouse, its DDL and data, and the Dagster UI with its daemon.

    Runs until Ctrl-C, which stops all of it cleanly; the data stays for the next time.

    \b
    Example:
      chmv demo
      chmv demo --headless --rows 1000000
    """
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # a polite end is a Ctrl-C; a shell's background job ignores SIGINT, and
        signal.signal(number, signal.default_int_handler)  # Dagster gives SIGTERM whatever SIGINT has
    out = console()
    state = state.resolve()
    engine_dir = state / "engine"
    if fresh and state.exists():
        stop_engine(engine_dir)
        shutil.rmtree(state)
    java = find_java()
    out.print(f"Java for Spark: {java}", style="dim", highlight=False)
    port = _free_port(port)
    try:
        engine = _start_engine(out, engine_dir)
        os.environ.update(connection_env(engine))
        home = prepare_home(state / "dagster")
        os.environ["DAGSTER_HOME"] = str(home)
        window = demo.choose_window(state, rows=rows, days=days, now=datetime.now(timezone.utc))
        os.environ[START_VARIABLE] = window.start.date().isoformat()
        os.environ[ROOT_VARIABLE] = str(state)
        os.environ[PORT_VARIABLE] = os.environ.get(PORT_VARIABLE) or str(_metrics_port())
        os.environ.setdefault(GRAPH_VARIABLE, f"http://127.0.0.1:{os.environ[PORT_VARIABLE]}{GRAPH_PATH}")
        os.environ[SENSORS_VARIABLE] = "off" if headless else "on"  # headless ingests at once, a person may watch
        with dg.DagsterInstance.get() as instance:
            demo.fail_orphans(instance)  # nothing of this instance can run yet
        ui = DagsterUi(home=home, workspace=WORKSPACE, port=port, environ=os.environ)
        try:
            ui.start()  # it loads while the data does
            _fill(out, engine, window, ingest=headless)
            with _step(out, "Page of the graph") as done, Server(endpoint_of(engine)) as server:
                done(str(demo.write_graph(server, state)))
            with _step(out, "Dagster UI and daemon") as done:
                ui.wait()
                done(ui.url)
            if headless:
                _print_summary(out, ui)
                with Server(endpoint_of(engine)) as server:
                    found = demo.count_statuses(server)
                out.print("Targets: " + ", ".join(f"{n} {status}" for status, n in sorted(found.items())) + ".", highlight=False)  # fmt: skip
            else:
                _show_where(out, ui, engine, state)
                _wait_for_interrupt(ui)
        finally:
            with _step(out, "Stopping Dagster") as done:
                ui.stop()
                done("stopped")
    finally:
        outcome = stop_engine(engine_dir)
        out.print(f"Engine {outcome.result}.", style="dim")


def _start_engine(out: Console, folder: Path) -> EngineInfo:
    with show_progress() as report:
        info = start_engine(EngineOptions(data_dir=folder), report=report)
    out.print(f"[green]✓[/] ClickHouse {info.version} at {info.url} ({info.kind})", highlight=False)
    return info


def _fill(out: Console, engine: EngineInfo, window: demo.DemoWindow, *, ingest: bool) -> None:
    with Server(endpoint_of(engine)) as server, dg.DagsterInstance.get() as instance:
        with _step(out, "DDL") as done:
            done(f"{demo.apply_ddl(server)} statements")
        with _step(out, "Data") as done:
            rows = demo.load_data(server, window)
            done(", ".join(f"{count:,} {name}" for name, count in rows.items()))
        if ingest:
            with _step(out, "Landing files through Spark") as done:
                files = demo.write_landing(server, window)
                landed = demo.ingest_landing(instance, window, new_files=files)
                done(f"{files} new files, rows: " + ", ".join(f"{count:,} {name}" for name, count in landed.items()))
            with _step(out, "Windows that got late rows") as done:  # what late_data_sensor does when sensors are on
                done(f"{demo.repair_late(instance, server, window)} rebuilt")
        with _step(out, "Live partitions told to Dagster") as done:
            done(f"{demo.tell_dagster(instance, server, window)} new")
        with _step(out, "First runs") as done:
            results = demo.first_runs(instance, window)
            done(", ".join(f"{name} {'ok' if ok else 'FAILED'}" for name, ok in results.items()))
        if not all(results.values()):
            raise EngineError(
                "demo: a first run failed. Its log is in the Dagster UI and in .chmv/dagster. Run with --fresh to start over."
            )
        if not ingest:  # last, so that the sensor's runs do not meet the first rebuild
            with _step(out, "Landing files") as done:
                files = demo.write_landing(server, window)
                done(f"{files} new, landing_sensor will ingest them" if files else "none new")


@contextmanager
def _step(out: Console, title: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, then one line with the result and the seconds."""
    started = time.monotonic()
    result: list[str] = []
    progress = Progress(
        SpinnerColumn(),
        TextColumn(title),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
    with progress:
        progress.add_task(title, total=None)
        yield result.append
    out.print(f"[green]✓[/] {title}: {' '.join(result)} [dim]({time.monotonic() - started:.1f} s)[/]", highlight=False)


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise EngineError(
                f"port {port}: in use but wanted for the Dagster UI. Stop what runs there, or choose another with --port."
            ) from error
        return int(probe.getsockname()[1])


def _print_summary(out: Console, ui: DagsterUi) -> None:
    nodes = ui.graphql(_SUMMARY_QUERY)["data"]["assetNodes"]
    rows = []
    totals = [0, 0, 0, 0]
    for node in sorted(nodes, key=lambda node: node["assetKey"]["path"]):
        stats = node["partitionStats"]
        checks = node["assetChecksOrError"].get("checks", [])
        passed = sum(
            (check["executionForLatestMaterialization"] or {}).get("status") == "SUCCEEDED" for check in checks
        )
        kind = next((kind for kind in node["kinds"] if kind != "clickhouse"), "")
        shown = f"{stats['numMaterialized']} / {stats['numPartitions']}" if stats else "–"
        rows.append(
            (
                ".".join(node["assetKey"]["path"]),
                kind,
                node["groupName"],
                shown,
                f"{passed} / {len(checks)}" if checks else "–",
            )
        )
        totals[0] += stats["numMaterialized"] if stats else 0
        totals[1] += stats["numPartitions"] if stats else 0
        totals[2] += passed
        totals[3] += len(checks)
    out.print(table("The demo in Dagster", ("asset", "kind", "group", "partitions filled", "checks passed"), rows))
    out.print(
        f"{len(nodes)} assets, {totals[0]} of {totals[1]} partitions filled, {totals[2]} of {totals[3]} checks passed.",
        highlight=False,
    )
    if totals[2] != totals[3]:
        raise ChmvError("demo: not every check passed. Open the UI (`make demo`) and look at the asset's Checks tab.")


def _metrics_port() -> int:
    """Where Prometheus would look for us, or any port that is free."""
    try:
        return _free_port(_METRICS_PORT)
    except EngineError:
        return _free_port(0)


def _show_where(out: Console, ui: DagsterUi, engine: EngineInfo, state: Path) -> None:
    metrics = f"http://{os.environ.get(HOST_VARIABLE) or LOOPBACK}:{os.environ[PORT_VARIABLE]}{PATH}"
    out.print()
    out.print(f"  The asset graph     {ui.url}/asset-groups", highlight=False)
    out.print(f"  One target          {ui.url}/assets/shop/revenue_daily?view=partitions", highlight=False)
    out.print(f"  Landing files       {ui.url}/locations/chmv/sensors/landing_sensor", highlight=False)
    out.print(f"  One view's lineage  {ui.url}/assets/shop/traffic_hourly_mv?view=lineage", highlight=False)
    out.print(f"  ClickHouse (HTTP)   {engine.url}/play", highlight=False)
    out.print(f"  Metrics             {metrics}", highlight=False)
    out.print(f"  The graph as a page {os.environ[GRAPH_VARIABLE]}", highlight=False, soft_wrap=True)
    out.print(f"\n  Ctrl-C stops everything; the data stays in {state} for the next time.", style="dim", soft_wrap=True)


def _wait_for_interrupt(ui: DagsterUi) -> None:
    try:
        while ui.alive():
            time.sleep(1)
    except KeyboardInterrupt:
        click.echo(file=sys.stderr)
        return
    raise EngineError(f"Dagster: a process ended by itself. Its log: {ui.log_file}")
