"""`chmv check` and `chmv graph`: what the DDL folder (or the live server) says."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, json_text, print_json, told
from chmv_assets.cli.picture import Picture, write_out
from chmv_assets.cli.runtime import read_runtime
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Finding
from chmv_assets.core.render import graph_document
from chmv_assets.core.settings import Settings
from chmv_assets.pipeline import DEMO_DDL, load_pipeline

if TYPE_CHECKING:
    from chmv_assets.live import Disagreement

_MAX_HOURS = 24 * 31  # query logs are not read without an end
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_DEMO_MEANT = (
    "Warning: neither --ddl nor CHMV_DDL_DIR is set, so the demo's DDL is meant, on the server of CHMV_CLICKHOUSE_URL."
)

ddl_option = click.option(
    "--ddl",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of .sql files and chmv.yaml.  [default: $CHMV_DDL_DIR, else the demo]",
)
live_option = click.option("--live", is_flag=True, help="Read the server's objects instead of the folder.")
databases_option = click.option(
    "--database", "databases", multiple=True, metavar="NAME", help="With --live: only this database; may be repeated."
)


def ddl_folder(ddl: Path | None, *, asks_server: bool = True) -> Path:
    """The folder that a command works on; a server that was named is hardly meant to hold the demo."""
    said = ddl or os.environ.get("CHMV_DDL_DIR")
    if not said and asks_server and os.environ.get("CHMV_CLICKHOUSE_URL"):
        click.echo(_DEMO_MEANT, err=True)
    return Path(said or DEMO_DDL)


def _title(folder: Path) -> str:
    """What a folder is called; `ddl` alone says nothing."""
    return "chmv demo" if folder == DEMO_DDL else "/".join(folder.resolve().parts[-2:])


def _load(
    ddl: Path | None, live: bool, databases: tuple[str, ...], *, asks_server: bool = False
) -> tuple[Catalog, tuple[Disagreement, ...]]:
    if not live:
        return load_pipeline(ddl_folder(ddl, asks_server=asks_server)).catalog, ()
    from chmv_assets.live import build_live_catalog, find_disagreements
    from resources.clickhouse import Server, endpoint_from_environment

    with Server(endpoint_from_environment()) as server:
        catalog, objects = build_live_catalog(server, databases)
    return catalog, find_disagreements(catalog, objects)


@click.command("check")
@ddl_option
@live_option
@databases_option
@json_option
@click.option("--strict", is_flag=True, help="Warnings count as defects too.")
@click.option("--notes", is_flag=True, help="Show notes as well.")
@told
def check_command(
    ddl: Path | None, live: bool, databases: tuple[str, ...], as_json: bool, strict: bool, notes: bool
) -> None:
    """Check a DDL folder: all defects at once, with file and line, and lints.

    Exit code 0: sound; 1: defects (with --strict also warnings). With --live, also where the server's hooks
    disagree with what its DDL says.

    \b
    Example:
      chmv check --ddl ./ddl
      chmv check --ddl ./ddl --json | jq '.findings[] | select(.severity == "error")'
    """
    catalog, disagreements = _load(ddl, live, databases)
    findings = [*catalog.findings, *(_as_finding(d) for d in disagreements)]
    failing = [f for f in findings if f.severity == "error" or (strict and f.severity == "warning")]
    if as_json:
        print_json(
            {
                "sound": not failing,
                "objects": len(catalog.objects),
                "edges": len(catalog.edges),
                "findings": [_finding_document(f) for f in findings],
            }
        )
    else:
        _print_findings(findings, catalog, failing=bool(failing), notes=notes)
    if failing:
        raise SystemExit(1)


def _as_finding(disagreement: Disagreement) -> Finding:
    return Finding(
        code="hook-disagreement",
        severity="error",
        message=f"{disagreement}. Re-create the view from its DDL, or correct the DDL.",
        subject=str(disagreement.edge.dest),
    )


def _finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "subject": finding.subject or None,
        "file": finding.place.file if finding.place else None,
        "line": finding.place.line if finding.place else None,
    }


def _print_findings(findings: list[Finding], catalog: Catalog, *, failing: bool, notes: bool) -> None:
    out = console()
    for finding in findings:
        if finding.severity == "note" and not notes:
            continue
        where = f"{finding.place}: " if finding.place else ""
        out.print(f"{where}", style="bold", end="", highlight=False, markup=False)
        out.print(f"{finding.severity} ", style=_STYLES[finding.severity], end="", highlight=False)
        out.print(f"[{finding.code}] {finding.message}", highlight=False, markup=False)
    kinds = Counter(made.kind for made in catalog.objects.values())
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    severities = Counter(finding.severity for finding in findings)
    shown = ", ".join(f"{severities[s]} {s}(s)" for s in ("error", "warning", "note"))
    out.print(
        f"{len(catalog.objects)} objects ({counted or 'none'}), {len(catalog.edges)} edges; {shown}.", highlight=False
    )
    out.print(
        "Not sound: fix the errors above." if failing else "Sound.", style="bold red" if failing else "bold green"
    )


@click.command("graph")
@ddl_option
@live_option
@databases_option
@click.option("--runtime", is_flag=True, help="Also what the server's query logs saw of it, and what they saw besides.")
@click.option(
    "--since",
    "hours",
    type=click.FloatRange(min=0, min_open=True, max=_MAX_HOURS),
    default=24,
    show_default=True,
    metavar="HOURS",
    help="With --runtime and --live-status: how far to look back in the server's logs.",
)
@click.option(
    "--live-status", is_flag=True, help="Pictures only: ask the server for the status of nodes and the rows of edges."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "dot", "mermaid", "html", "table"]),
    help="[default: json, with --runtime table]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write there instead of printing.",
)
@click.option(
    "--title", default="", metavar="TEXT", help="With --format html: the page's title.  [default: the folder's name]"
)
@told
def graph_command(
    ddl: Path | None, live: bool, databases: tuple[str, ...], runtime: bool, hours: float, live_status: bool,
    form: str | None, output: Path | None, title: str,
) -> None:  # fmt: skip
    """Print the graph: every table, view and dictionary, and how data flows between them.

    The JSON is a documented, stable schema (docs/graph.md). With --live it comes from the server, and where the server's
    own hooks disagree with the parsed graph is reported on standard error and under `disagreements`. With --runtime each edge is
    held against query_log and query_views_log: seen or never seen, and what flowed that nobody declared (dashed in pictures).

    --format html is one page that needs nothing else: pan, zoom, search, and every object's DDL and state. With --live-status
    pictures have the colours of ACTIVE, DEGRADED and STALE and edges as wide as their rows.

    \b
    Example:
      chmv graph --ddl ./ddl --format html --live-status -o graph.html
      chmv graph --ddl ./ddl --format dot | dot -Tsvg > graph.svg
      chmv graph --live --format mermaid
      chmv graph --runtime --since 168
    """
    if form == "table" and not runtime:
        raise click.UsageError("--format table is for --runtime.")
    form = form or ("table" if runtime else "json")
    if live_status and form not in ("dot", "mermaid", "html"):
        raise click.UsageError("--live-status is for --format html, dot and mermaid.")
    if output and form == "table":
        raise click.UsageError("--output is for --format json, html, dot and mermaid.")
    if runtime and form == "html":
        raise click.UsageError("--runtime is for --format json, table, dot and mermaid; the page takes --live-status.")
    catalog, disagreements = _load(ddl, live, databases, asks_server=live_status or runtime)
    for error in catalog.errors:
        click.echo(str(error), err=True)
    for disagreement in disagreements:
        click.echo(f"hooks disagree: {disagreement}", err=True)
    seen = read_runtime(catalog, hours) if runtime else None
    if form == "json":
        document = graph_document(catalog)
        if live:
            document["disagreements"] = [
                {"from": str(d.edge.source), "to": str(d.edge.dest), "known_to": d.known_to} for d in disagreements
            ]
        if seen is not None:
            document["runtime"] = seen.document()
        write_out(json_text(document), output)
    elif form == "table" and seen is not None:
        seen.print()
    else:
        folder = ddl_folder(ddl, asks_server=False)
        told_where = not live or ddl is not None or "CHMV_DDL_DIR" in os.environ
        settings = load_pipeline(folder).settings if told_where else Settings()
        picture = Picture(catalog, settings, hours if live_status else None, title or _title(folder))
        write_out(picture.render(form, seen.dashed() if seen is not None else ()), output)
    if catalog.errors:
        raise SystemExit(1)
