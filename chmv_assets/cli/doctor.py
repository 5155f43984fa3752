"""`chmv doctor`: is the server fit for this pipeline? For people before production and for CI; it only reads.

With `--config-d` it writes files for the operator into a folder of his choice; nothing is ever applied to the server.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.markup import escape

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, print_json, table, told
from chmv_assets.core.doctor import RULES, SEVERITIES, Ailment, Facts, examine
from chmv_assets.core.errors import ChmvError
from chmv_assets.pipeline import load_pipeline

FIT, FOUND, CANNOT_LOOK = 0, 1, 3
_STYLES = {"error": "red", "warn": "yellow", "advice": "cyan"}
_TITLES = {"error": "errors", "warn": "warnings", "advice": "advice"}


@click.command("doctor")
@click.option("--strict", is_flag=True, help="Warnings count too: exit code 1.")
@click.option(
    "--config-d",
    "config_dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write config.d and users.d files with the advised server settings below DIR. They are never applied.",
)
@json_option
@ddl_option
@told
def doctor_command(strict: bool, config_dir: Path | None, as_json: bool, ddl: Path | None) -> None:
    """Look at the server and at the pipeline on it: versions, pools, limits, keys, retention, disks, quorum, profile, privileges, clocks.

    Each finding says what was measured, what is wanted and why, and the statement or the piece of configuration that mends it.
    Exit codes: 0 nothing above advice; 1 errors (with --strict also warnings); 2 the command line is wrong; 3 could not look.

    \b
    Example:
      chmv doctor --ddl ./ddl
      chmv doctor --strict --json | jq '.findings[] | select(.severity != "advice")'
      chmv doctor --config-d ./server     files for the operator: pool sizes, part limits, profiles
    """
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.doctor import read_facts

    try:
        pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
        with Server(endpoint_from_environment()) as server:
            facts = read_facts(server, pipeline.catalog, pipeline.settings)
    except ChmvError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(CANNOT_LOOK) from error
    found = examine(facts)
    written = _write_config(facts, config_dir) if config_dir is not None else ()
    if as_json:
        print_json(_document(facts, found, written))
    else:
        print_findings(facts, found, written)
    raise SystemExit(exit_code(found, strict=strict))


def exit_code(found: tuple[Ailment, ...], *, strict: bool) -> int:
    """What CI is told."""
    counted = ("error", "warn") if strict else ("error",)
    return FOUND if any(one.severity in counted for one in found) else FIT


def objects_looked_at(facts: Facts) -> int:
    """Declared objects, disks, and the server with its user."""
    return len(facts.catalog.objects) + len(facts.disks) + 1


def _write_config(facts: Facts, folder: Path) -> tuple[Path, ...]:
    from chmv_assets.core.doctor.config_d import render_config_d

    written: list[Path] = []
    try:
        for name, text in render_config_d(facts).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        click.echo(
            f"Error: folder {folder}: could not be written ({error}) but wanted a writable folder. Name another.",
            err=True,
        )
        raise SystemExit(CANNOT_LOOK) from error
    return tuple(written)


def _document(facts: Facts, found: tuple[Ailment, ...], written: tuple[Path, ...]) -> dict[str, object]:
    counted = Counter(one.severity for one in found)
    return {
        "server": {"version": facts.version, "user": facts.user},
        "rules": len(RULES),
        "objects": objects_looked_at(facts),
        "counts": {severity: counted[severity] for severity in SEVERITIES},
        "findings": [one.document() for one in found],
        "written": [str(path) for path in written],
    }


def print_findings(facts: Facts, found: tuple[Ailment, ...], written: tuple[Path, ...]) -> None:
    """Findings grouped by severity, then what was looked at."""
    out = console()
    for severity in SEVERITIES:
        of = [one for one in found if one.severity == severity]
        if not of:
            continue
        rows = [
            [
                f"[{_STYLES[severity]}]{one.rule}[/]",
                escape(one.subject),
                escape(one.measured),
                escape(one.wanted),
                escape(one.why),
            ]
            for one in of
        ]
        out.print(table(f"{_TITLES[severity]}: {len(of)}", ("rule", "subject", "measured", "wanted", "why"), rows))
        for one in of:  # outside of the table, so that they can be copied
            click.echo(f"# {one.rule}, {one.subject}")
            for line in one.fix:
                click.echo(f"{line}")
        click.echo()
    for path in written:
        click.echo(f"Wrote {path}")
    looked = f"{len(RULES)} rules looked at {objects_looked_at(facts)} objects"
    if not found:
        out.print(f"{looked}: nothing to mend.", style="bold green", highlight=False)
        return
    counted = Counter(one.severity for one in found)
    told_counts = ", ".join(f"{counted[severity]} {_TITLES[severity]}" for severity in SEVERITIES if counted[severity])
    fit = not counted["error"] and not counted["warn"]
    out.print(f"{looked}: {told_counts}.", style="bold green" if fit else "bold", highlight=False)
