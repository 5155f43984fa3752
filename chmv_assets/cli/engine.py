"""`chmv engine`: start, stop, look at and install the ClickHouse server that chmv uses.

Thin: options in, text or JSON out; every decision is in `resources.engine`. With --json standard output holds exactly
one JSON object, everything for people goes to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from chmv_assets.cli.groups import CommandGroup
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import told
from resources.engine import (
    EngineInfo,
    EngineOptions,
    default_data_dir,
    describe_engine,
    install_engine,
    start_engine,
    stop_engine,
)
from resources.engine.lifecycle import describe_external
from resources.engine.packages import this_package
from resources.engine.probe import external_engine
from resources.engine.report import show_progress

NOT_RUNNING_EXIT_CODE = 3  # what `systemctl status` uses for the same answer

_data = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Data folder of the server.  [default: $CHMV_DATA_DIR, else .chmv/engine here]",
)
_port = click.IntRange(0, 65535)
_http_port = click.option(
    "--http-port", type=_port, default=0, metavar="N", help="Port for HTTP; 0 takes any free one.  [default: 0]"
)
_tcp_port = click.option(
    "--tcp-port",
    type=_port,
    default=0,
    metavar="N",
    help="Port for the native protocol; 0 takes any free one.  [default: 0]",
)


@click.group("engine", cls=CommandGroup)
def engine_group() -> None:
    """The ClickHouse server that chmv uses.

    With CHMV_CLICKHOUSE_URL set, that server is used and there is nothing to start. Else a `clickhouse` binary on PATH
    is started, or an embedded ClickHouse that is fetched once with npm (CHMV_ENGINE=embedded always takes this one).

    \b
    Example:
      chmv engine start
      chmv engine status --json
      chmv engine stop
    """


@engine_group.command("start")
@_data
@_http_port
@_tcp_port
@json_option
@told
def start_command(data: Path | None, http_port: int, tcp_port: int, as_json: bool) -> None:
    """Start the server, or show the one that runs already.

    It runs on after this command, on 127.0.0.1 only. The first start fetches the embedded ClickHouse (about 180 MB).

    \b
    Example:
      chmv engine start --data ./data --http-port 8123 --tcp-port 9000
    """
    if external := describe_external():
        _show(external, "external: nothing to start", as_json)
        return
    options = EngineOptions(data_dir=data or default_data_dir(), http_port=http_port, tcp_port=tcp_port)
    info = start_engine(options)
    _show(info, "started" if info.started else "already running", as_json)
    for asked, got, option in ((http_port, info.http_port, "--http-port"), (tcp_port, info.tcp_port, "--tcp-port")):
        if asked and asked != got:
            click.echo(f"Note: it keeps port {got}; {option} {asked} counts after `chmv engine stop`.", err=True)


@engine_group.command("stop")
@_data
@json_option
@told
def stop_command(data: Path | None, as_json: bool) -> None:
    """Stop the server; its data stays.

    Running queries get 5 seconds to end. A server that does not end within 20 seconds is killed, which loses no
    inserted rows.

    \b
    Example:
      chmv engine stop --data ./data
    """
    if external := external_engine():
        _say({"result": "external", "url": external.url}, f"{external.url} is external: nothing to stop.", as_json)
        return
    outcome = stop_engine(data)
    text = {
        "stopped": f"Stopped (process {outcome.pid}).",
        "killed": f"Killed (process {outcome.pid}): it did not end within 20 seconds. Inserted rows are safe.",
        "not_running": f"Not running on {data or default_data_dir()}.",
    }[outcome.result]
    _say({"result": outcome.result, "pid": outcome.pid}, text, as_json)


@engine_group.command("status")
@_data
@json_option
@click.pass_context
@told
def status_command(context: click.Context, data: Path | None, as_json: bool) -> None:
    """Show the server; exit code 3 when none runs.

    \b
    Example:
      chmv engine status
    """
    info = describe_engine(data)
    if info is not None:
        _show(info, "running", as_json)
        return
    folder = (data or default_data_dir()).absolute()
    facts = {"state": "not running", "data_dir": str(folder)}
    _say(facts, f"Not running on {folder}. Start it with `chmv engine start`.", as_json)
    context.exit(NOT_RUNNING_EXIT_CODE)


@engine_group.command("install")
@json_option
@told
def install_command(as_json: bool) -> None:
    """Fetch the embedded ClickHouse into the cache, if it is not there.

    The cache is $CHMV_CACHE_DIR, else $XDG_CACHE_HOME/chmv, else ~/.cache/chmv.

    \b
    Example:
      chmv engine install
    """
    with show_progress() as report:
        library = install_engine(report=report)
    _say({"library": str(library), "version": this_package().version}, f"Installed: {library}", as_json)


def _show(info: EngineInfo, state: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"state": state, **info.as_json()}))
        return
    table = Table(show_header=False, box=None)
    table.add_row("state", state)
    for name, value in info.as_json().items():
        if name != "started" and value not in (None, ""):
            table.add_row(name.replace("_", " "), str(value))
    Console(soft_wrap=True).print(table, markup=False, highlight=False)


def _say(facts: Mapping[str, object], text: str, as_json: bool) -> None:
    click.echo(json.dumps(dict(facts)) if as_json else text)
