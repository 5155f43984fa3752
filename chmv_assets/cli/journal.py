"""`chmv watermarks` and `chmv batches`: what the journal says. Both only read."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from chmv_assets.cli.output import console, print_json, table, told

if TYPE_CHECKING:
    from resources.journal import Journal

_STATUSES = {
    "sealed": "green",
    "committed": "green",
    "stale": "red",
    "failed": "red",
    "reopened": "yellow",
    "staged": "yellow",
}
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


def _journal() -> Journal:
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import CLUSTER_VARIABLE, Journal

    return Journal(Server(endpoint_from_environment()), cluster=os.environ.get(CLUSTER_VARIABLE, ""))


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None


def _coloured(status: str) -> str:
    return f"[{_STATUSES[status]}]{status}[/]" if status in _STATUSES else status


@click.command("watermarks")
@click.option("--source", metavar="NAME", help="Only windows fed by this source, as database.table.")
@click.option("--target", metavar="NAME", help="Only windows of this target, as database.table.")
@json_option
@told
def watermarks_command(source: str | None, target: str | None, as_json: bool) -> None:
    """Show how far each window of each target is known to be right.

    open: nothing in it yet; processed: rows are in; sealed: reconciled and past the lateness tolerance; reopened: late rows
    came after that; stale: late rows came for a view that cannot take them, a rebuild is due.

    \b
    Example:
      chmv watermarks --target shop.revenue_daily
      chmv watermarks --json | jq '.watermarks[] | select(.status == "stale")'
    """
    journal = _journal()
    with journal.server:
        marks = [
            mark
            for mark in journal.read_watermarks()
            if source in (None, str(mark.source_id)) and target in (None, str(mark.target_table))
        ]
    if as_json:
        print_json(
            {
                "watermarks": [
                    {
                        "source": str(mark.source_id),
                        "target": str(mark.target_table),
                        "window_start": _time(mark.window_start),
                        "window_end": _time(mark.window_end),
                        "status": mark.status,
                        "last_processed": _time(mark.last_processed_ts),
                        "last_arrival": _time(mark.last_arrival_ts),
                        "batch": mark.batch_id,
                        "version": mark.version,
                    }
                    for mark in marks
                ]
            }
        )
    elif not marks:
        console().print("No watermarks yet. `chmv ingest SOURCE PATH` brings rows in and sets them.", highlight=False)
    else:
        columns = ("source", "target", "window", "until", "status", "processed up to", "last arrival", "batch")
        rows = [
            (
                escape(str(mark.source_id)), escape(str(mark.target_table)), _time(mark.window_start), _time(mark.window_end),
                _coloured(mark.status),
                _time(mark.last_processed_ts), _time(mark.last_arrival_ts), escape(mark.batch_id),
            )
            for mark in marks
        ]  # fmt: skip
        console().print(table(f"{len(marks)} watermark(s)", columns, rows))


@click.command("batches")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many, newest first."
)
@json_option
@told
def batches_command(limit: int, as_json: bool) -> None:
    """Show batches: which are planned, staged (waiting for their commit), committed or failed.

    A staged batch whose driver died is finished by the next ingest; nothing of it is lost or doubled.

    \b
    Example:
      chmv batches --limit 20
      chmv batches --json | jq '.batches[] | select(.status == "staged")'
    """
    journal = _journal()
    with journal.server:
        records = journal.read_batches(limit)
    if as_json:
        print_json(
            {
                "batches": [
                    {
                        "batch": record.batch,
                        "source": str(record.source),
                        "status": record.status,
                        "slices": len(record.slices),
                        "rows": record.rows,
                        "owner": record.owner,
                        "detail": record.detail,
                        "version": record.version,
                    }
                    for record in records
                ]
            }
        )
    elif not records:
        console().print("No batches yet. `chmv ingest SOURCE PATH` sends the first one.", highlight=False)
    else:
        columns = ("batch", "source", "status", "slices", "rows", "owner", "detail")
        rows = [
            (
                escape(one.batch),
                escape(str(one.source)),
                _coloured(one.status),
                len(one.slices),
                one.rows,
                escape(one.owner),
                escape(one.detail),
            )
            for one in records
        ]
        console().print(table(f"{len(records)} batch(es)", columns, rows))
