"""`chmv metrics`: what Prometheus would see, once as text or as an endpoint of its own. Only reads."""

from __future__ import annotations

from pathlib import Path

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.output import told
from chmv_assets.core.errors import EngineError
from chmv_assets.pipeline import load_pipeline

_PORT = click.IntRange(0, 65_535)


@click.command("metrics")
@ddl_option
@click.option("--once", is_flag=True, help="Print the metrics once and end; that is what happens without --port, too.")
@click.option("--port", type=_PORT, help="Serve them at http://HOST:PORT/metrics until Ctrl-C; 0 takes a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; there is no password.")
@told
def metrics_command(ddl: Path | None, once: bool, port: int | None, host: str) -> None:
    """Print the metrics in Prometheus' text format, or serve them apart from Dagster.

    The code location serves the same by itself if CHMV_METRICS_PORT is set. Exit code 1 if the server did not answer (chmv_up 0).

    \b
    Example:
      chmv metrics | grep chmv_target_behind_seconds
      chmv metrics --port 9464
    """
    from resources.metrics import MetricsCollector
    from resources.metrics_endpoint import PATH, open_endpoint, render

    if once and port is not None:
        raise click.UsageError("--once and --port exclude each other")
    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    collector = MetricsCollector(pipeline.catalog, pipeline.settings)
    if port is None:
        click.echo(render(collector), nl=False)
        if not collector.is_up:
            raise click.exceptions.Exit(1)
        return
    try:
        server = open_endpoint(collector, host, port)
    except OSError as error:
        raise EngineError(
            f"port {port} of {host}: cannot be listened on ({error.strerror}) but wanted for metrics. Stop what runs there, or choose another --port."
        ) from error
    click.echo(f"Metrics at http://{host}:{server.server_address[1]}{PATH}; Ctrl-C ends it.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return
    finally:
        server.server_close()
