"""The `chmv` command: puts the groups together, nothing else."""

from __future__ import annotations

import click

from chmv_assets import __version__
from chmv_assets.cli.catalog import check_command, graph_command
from chmv_assets.cli.demo import demo_command
from chmv_assets.cli.engine import engine_group


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="chmv")
def main() -> None:
    """ClickHouse materialized-view pipelines in Dagster: rebuilt under live ingestion, nothing lost, nothing doubled.

    \b
    Example:
      chmv check --ddl ./ddl          is the DDL sound?
      chmv graph --format mermaid     how does data flow?
      chmv engine start               a real ClickHouse, nothing to install
      chmv demo                       everything at once, with the Dagster UI
    """


main.add_command(check_command)
main.add_command(graph_command)
main.add_command(engine_group)
main.add_command(demo_command)
