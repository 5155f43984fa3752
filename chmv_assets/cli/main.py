"""The `chmv` command: names the subcommands and where they live; each is imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from chmv_assets import __version__
from chmv_assets.cli.groups import EXIT_CODES, OF_THEIR_OWN, CommandGroup, with_exit_codes

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
    "tune": "chmv_assets.cli.tune:tune_command",
    "status": "chmv_assets.cli.status:status_command",
    "thresholds": "chmv_assets.cli.status:thresholds_command",
    "metrics": "chmv_assets.cli.metrics:metrics_command",
    "doctor": "chmv_assets.cli.doctor:doctor_command",
    "grants": "chmv_assets.cli.grants:grants_command",
}


_TASKS = {
    "Begin": {
        "demo": "everything at once: a real ClickHouse, DDL, data, the Dagster UI",
        "engine": "the ClickHouse that chmv brings: start, stop, status, install",
        "pull": "write a live server's objects into a DDL folder",
    },
    "Look": {
        "check": "all defects and lints of a DDL folder, with file and line",
        "graph": "how data flows: JSON, DOT, Mermaid, or a page with statuses",
        "drift": "is the server what the folder declares?",
        "doctor": "is the server fit for this pipeline?",
        "status": "every target: ACTIVE, DEGRADED or STALE, and why",
        "metrics": "what Prometheus sees",
        "grants": "least privilege: what each account needs on the server",
        "thresholds": "at which numbers sensors, guardrails and the doctor act, and why",
    },
    "Bring data in": {
        "ingest": "load landing files into a source, exactly once",
        "batches": "what became of each batch",
        "watermarks": "how far each window of each target is known to be right",
    },
    "Repair": {
        "reconcile": "does a target equal what its views' queries give?",
        "rebuild": "replace windows of a target by what its views give, while writers write",
        "rebuilds": "rebuilds that run, are unverified, or were done",
        "recover": "repair a view or a target now, as the sensors do",
        "tune": "slow writers in an insert storm, watch, take it back",
    },
    "Change": {
        "plan": "what differs between folder and server, what it takes, at what risk",
        "apply": "carry out a plan under live writers",
        "rollback": "take a deployment back, finished or not",
        "deploys": "what was deployed, and what is kept aside",
    },
}


class LazyGroup(CommandGroup):
    """A group whose commands are loaded on demand: `chmv check` must not wait for Dagster to import."""

    tasks = _TASKS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: Any = getattr(importlib.import_module(module), attribute)
        return with_exit_codes(command)


@click.group(
    cls=LazyGroup,
    epilog=f"{EXIT_CODES} {OF_THEIR_OWN}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
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
