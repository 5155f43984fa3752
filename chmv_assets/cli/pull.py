"""`chmv pull`: a live server's objects as a DDL folder, again and again, without losing an edit."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, print_json, told
from chmv_assets.core.errors import UnknownDatabase, UnknownObject
from chmv_assets.core.pull_plan import WRITTEN, Step

if TYPE_CHECKING:
    from chmv_assets.pull import PullReport

_QUIET = ("unchanged", "declared")
_STYLES = {"conflict": "bold red", "gone": "yellow", "edited": "yellow", "deleted": "yellow"}


@click.command("pull")
@click.option(
    "--ddl",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder to write; made if it is not there.  [default: $CHMV_DDL_DIR]",
)
@click.option(
    "--database",
    "databases",
    multiple=True,
    metavar="NAME",
    help="Only this database; may be repeated.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--force", is_flag=True, help="Where an edit is in the way, the server's statement replaces it.")
@click.option(
    "--accept",
    multiple=True,
    metavar="OBJECT",
    help="Only this object: the server's statement replaces the folder's, wherever it stands; may be repeated.",
)
@json_option
@told
def pull_command(
    ddl: Path | None, databases: tuple[str, ...], dry_run: bool, force: bool, accept: tuple[str, ...], as_json: bool
) -> None:
    """Write the server's databases, tables, views and dictionaries into a DDL folder, and a chmv.yaml with what can be inferred.

    Run it again at any time: a file that is as pull wrote it follows the server, with a diff; one that you edited is never touched
    without --force or --accept; what is gone from the server is reported and kept. Hand-written folders work too: only what they do
    not declare is added.

    Exit codes: 0 written, or nothing to do; 1 edits are in the way (their diffs are shown; everything else was written); 2 the command line
    is wrong. The server is only read. docs/adopt.md has the layout.

    \b
    Example:
      chmv pull --ddl ./ddl
      chmv pull --ddl ./ddl --database shop --dry-run
      chmv pull --ddl ./ddl --accept shop.traffic_hourly_mv
    """
    folder = ddl or (Path(os.environ["CHMV_DDL_DIR"]) if os.environ.get("CHMV_DDL_DIR") else None)
    if folder is None:
        raise click.UsageError("Say into which folder: --ddl DIR, or CHMV_DDL_DIR.")
    if force and accept:
        raise click.UsageError("--force is for everything, --accept for one object: take one of them.")
    from chmv_assets.pull import pull
    from resources.clickhouse import Server, endpoint_from_environment

    with Server(endpoint_from_environment()) as server:
        try:
            report = pull(server, folder, databases, force=force, accept=accept, dry_run=dry_run)
        except (UnknownDatabase, UnknownObject) as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        print_json(_document(report, dry_run))
    else:
        _print(report, dry_run)
    if report.conflicts:
        raise SystemExit(1)


def _document(report: PullReport, dry_run: bool) -> dict[str, Any]:
    return {
        "folder": str(report.folder),
        "dry_run": dry_run,
        "written": len(report.written),
        "conflicts": len(report.conflicts),
        "files": [
            {"path": s.path, "object": s.subject, "action": s.action, "note": s.note or None, "diff": s.diff or None}
            for s in report.steps
        ],
        "left_out": [{"name": one.subject, "why": one.why} for one in report.left_out],
        "hidden_secrets": list(report.hidden),
        "not_equal": [
            {"object": str(name), "state": verdict.state, "differences": [str(d) for d in verdict.differences]}
            for name, verdict in report.verdicts
        ],
        "sound": not report.findings,
        "findings": [str(finding) for finding in report.findings],
        "notes": list(report.notes),
    }


def _print(report: PullReport, dry_run: bool) -> None:
    out = console()
    for step in report.steps:
        if step.action not in _QUIET and (step.diff or step.note or step.action in WRITTEN):
            _print_step(step, out)
    for subject in report.hidden:
        out.print(
            f"secret   {subject}: the server hides one, its statement cannot be run as it stands",
            style="yellow", highlight=False, markup=False,
        )  # fmt: skip
    for one in report.left_out:
        out.print(f"left out {one.subject}: {one.why}", highlight=False, markup=False)
    for name, verdict in report.verdicts:
        told_ = "; ".join(str(difference) for difference in verdict.differences)
        out.print(f"{verdict.state} {name} {told_}".rstrip(), style="yellow", highlight=False, markup=False)
    for finding in report.findings:
        out.print(f"not sound: {finding}", style="bold red", highlight=False, markup=False)
    for note in report.notes:
        out.print(note, highlight=False, markup=False)
    counted = Counter(step.action for step in report.steps)
    shown = ", ".join(f"{count} {action}" for action, count in sorted(counted.items())) or "nothing"
    out.print(f"{report.folder}: {shown}{'; dry run, nothing was written' if dry_run else ''}.", highlight=False)
    if report.conflicts:
        out.print(
            "Edits are in the way of what the server has. Take the server's statement with --accept OBJECT (all: --force), "
            "or bring the server to the folder.",
            style="bold red", highlight=False,
        )  # fmt: skip


def _print_step(step: Step, out: Any) -> None:
    where = f"{step.path} ({step.subject})" if step.subject not in ("", step.path) else step.path
    moved = f" from {step.removes}" if step.removes else ""
    note = f": {step.note}" if step.note else ""
    out.print(f"{step.action:<8} {where}{moved}{note}", style=_STYLES.get(step.action), highlight=False, markup=False)
    if step.diff:
        click.echo(step.diff, nl=False)
