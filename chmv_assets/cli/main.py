"""The `chmv` command: names the subcommands and where they live; each is imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from chmv_assets import __version__

_COMMANDS = {
    "check": "chmv_assets.cli.catalog:check_command",
    "graph": "chmv_assets.cli.catalog:graph_command",
    "pull": "chmv_assets.cli.pull:pull_command",
    "drift": "chmv_assets.cli.drift:drift_command",
    "engine": "chmv_assets.cli.engine:engine_group",
    "demo": "chmv_assets.cli.demo:demo_command",
    "ingest": "chmv_assets.cli.ingest:ingest_command",
    "rebuild": "chmv_assets.cli.rebuild:rebuild_command",
    "reconcile": "chmv_assets.cli.reconcile:reconcile_command",
    "watermarks": "chmv_assets.cli.journal:watermarks_command",
    "batches": "chmv_assets.cli.journal:batches_command",
    "rebuilds": "chmv_assets.cli.journal:rebuilds_command",
    "plan": "chmv_assets.cli.deploy:plan_command",
    "apply": "chmv_assets.cli.deploy:apply_command",
    "rollback": "chmv_assets.cli.deploy:rollback_command",
    "deploys": "chmv_assets.cli.deploy:deploys_command",
    "recover": "chmv_assets.cli.recover:recover_command",
    "status": "chmv_assets.cli.status:status_command",
    "thresholds": "chmv_assets.cli.status:thresholds_command",
}


class LazyGroup(click.Group):
    """A group whose commands are loaded on demand: `chmv check` must not wait for Dagster to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: Any = getattr(importlib.import_module(module), attribute)
        return command  # type: ignore[no-any-return]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
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


if __name__ == "__main__":
    main()
