"""`chmv ingest`: load landing files into a source, exactly once, and say row by row what became of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option, window_option
from chmv_assets.cli.output import console, print_json, say, table, told
from chmv_assets.core.landing import LandingRefused
from chmv_assets.core.model import Object
from chmv_assets.core.settings import Landing
from chmv_assets.core.window_text import parse_window
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.landing_root import resolve_root

if TYPE_CHECKING:
    from chmv_assets.ingest import IngestReport


@click.command("ingest")
@click.argument("source", metavar="SOURCE")
@click.argument("path", required=False, metavar="[PATH]")
@ddl_option
@click.option(
    "--format", "form", type=click.Choice(["parquet", "jsonl", "csv"]), help="Format of the files, over chmv.yaml."
)
@window_option("Only new files that have rows in this time")
@json_option
@told
def ingest_command(
    source: str, path: str | None, ddl: Path | None, form: str | None, window_text: str | None, as_json: bool
) -> None:
    """Load new landing files into SOURCE, exactly once however often it is called.

    PATH is a folder or an object-store URL; without it the `landing` of SOURCE in chmv.yaml counts. Known and duplicate files are
    passed over by their content, bad rows go to chmv.quarantine with the reason, late rows are counted. What a crashed ingest
    left behind is finished first. A file is loaded whole, so --window may bring rows around it.

    Exit code 1 if a batch could not be loaded as declared, or an earlier one not be finished. A file that cannot be read is named and left
    for the next time; that alone is exit code 0 (--json: files.unreadable).

    \b
    Example:
      chmv ingest shop.events
      chmv ingest shop.events --window 2026-11-14..2026-11-15
      chmv ingest shop.events ./landing/events --format jsonl --json
    """
    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    node = pipeline.catalog.get(source)
    landing = _landing(pipeline, node, path, form)
    window = parse_window(window_text, pipeline.settings.timezone) if window_text else None
    report = _run(pipeline, node, landing, window)
    if as_json:
        print_json(_document(report))
    else:
        _print(report, node)
    if report.unfinished:
        raise SystemExit(1)


def _landing(pipeline: Pipeline, node: Object, path: str | None, form: str | None) -> Landing:
    """The declared landing at its place, with what the command line says instead."""
    declared = pipeline.settings.policy(node.name).landing
    if declared is None and path is None:
        raise LandingRefused(
            f"source {node.name}: found no landing in chmv.yaml and no PATH but wanted one. There is nothing to read. "
            f"Declare `landing: {{path: …, format: …}}` for it, or call `chmv ingest {node.name} PATH`."
        )
    landing = declared or Landing(path=path or "")
    root = path if path is not None else resolve_root(landing.path, pipeline.ddl_dir, os.environ)
    landing = replace(landing, path=root if "://" in root else str(Path(root).absolute()))
    return replace(landing, format=form) if form else landing  # type: ignore[arg-type]


def _run(pipeline: Pipeline, node: Object, landing: Landing, window: Window | None) -> IngestReport:
    from chmv_assets.ingest import Ingester
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import open_journal
    from resources.spark_session import LazySession, options_from_environment

    session = LazySession(options_from_environment())
    try:
        with Server(endpoint_from_environment()) as server:
            ingester = Ingester(
                pipeline=pipeline,
                source=node,
                landing=landing,
                journal=open_journal(server),
                spark=session.session,
                log=say,
            )
            return ingester.run(landing.path, window)
    finally:
        session.stop()


def _document(report: IngestReport) -> dict[str, object]:
    summary = report.summary
    return {
        "files": {"loaded": summary.files, "known": summary.files_known, "duplicate": summary.files_duplicate,
                  "unreadable": [{"file": file, "why": why} for file, why in report.unreadable]},
        "rows": {"read": summary.rows_read, "on_time": summary.rows_on_time, "late": summary.rows_late,
                 "quarantined": summary.rows_quarantined},
        "reasons": dict(report.reasons),
        "batches": list(report.batches),
        "resumed": list(report.resumed),
        "held": list(report.held),
        "unfinished": [{"batch": batch, "why": why} for batch, why in report.unfinished],
        "windows": [
            {"hour": hour.start.isoformat(), "rows": hour.rows, "late": hour.late, "lateness": list(hour.histogram)}
            for hour in report.hours
        ],
        "seconds": round(report.seconds, 3),
    }  # fmt: skip


def _print(report: IngestReport, node: Object) -> None:
    out = console()
    summary = report.summary
    rows = [
        ("loaded on time", summary.rows_on_time),
        ("loaded late", summary.rows_late),
        *((f"quarantined: {reason}", count) for reason, count in report.reasons.items()),
        ("sum = read from files", summary.rows_read),
    ]
    out.print(table(f"{node.name}: {summary.files} new files", ("rows", "count"), rows))
    files = [
        f"{summary.files_known} known",
        f"{summary.files_duplicate} duplicate",
        f"{len(report.unreadable)} unreadable",
    ]
    out.print(
        f"Other files: {', '.join(files)}. Batches: {len(report.batches)} new, {len(report.resumed)} resumed.",
        highlight=False,
    )
    if report.held:
        out.print(f"diverted: {len(report.held)} batches wait in staging", style="yellow", highlight=False)
    for _, why in report.unfinished:
        out.print(why, style="red", highlight=False, markup=False)
    for _, why in report.unreadable:
        out.print(why, style="yellow", highlight=False, markup=False)
    if not summary.files and not report.resumed:
        out.print("Nothing new to load.", style="dim")
