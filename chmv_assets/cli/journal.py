"""`chmv watermarks`, `chmv batches` and `chmv rebuilds`: what the journal says. All only read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, print_json, table, told
from chmv_assets.core.deficits import load_window
from chmv_assets.core.window_text import render_window

if TYPE_CHECKING:
    from resources.journal import Journal

_STATUSES = {
    "sealed": "green",
    "committed": "green",
    "stale": "red",
    "failed": "red",
    "reopened": "yellow",
    "staged": "yellow",
    "published": "green",
    "unverified": "red",
    "running": "yellow",
}
_WATERMARK_COLUMNS = {
    "source": "source", "target": "target", "window": "window_start", "until": "window_end", "status": "status",
    "processed up to": "last_processed", "last arrival": "last_arrival", "batch": "batch",
}  # fmt: skip
_BATCH_COLUMNS = {name: name for name in ("batch", "source", "status", "slices", "rows", "owner", "detail")}
_REBUILD_COLUMNS = {
    "target": "target", "window (UTC)": "window", "protocol": "protocol", "status": "status", "step": "step", "since": "updated",
    "by": "owner", "lock held by": "holder", "detail": "detail",
}  # fmt: skip


def _journal() -> Journal:
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import open_journal

    return open_journal(Server(endpoint_from_environment()))


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None


def _nothing(name: str, hint: str, *filters: tuple[str | None, Iterable[str]]) -> str:
    """What to say when there is nothing to show: a filter (asked for, known names) that knows its name not is no empty journal."""
    for asked, known in filters:
        names = set(known)
        if asked is not None and names and asked not in names:
            near = difflib.get_close_matches(asked, names, n=3, cutoff=0.5)
            return f"No {name} of {asked}." + (f" Did you mean {' or '.join(near)}?" if near else "")
    return f"No {name} yet. {hint}."


def _tell(
    name: str, documents: Sequence[Mapping[str, object]], columns: Mapping[str, str], nothing: str, *, as_json: bool
) -> None:
    """Print records as JSON, or some of their fields (title → field) as a table."""
    if as_json:
        print_json({name: documents})
    elif not documents:
        console().print(nothing, highlight=False, markup=False)
    else:
        rows = [[_cell(field, document[field]) for field in columns.values()] for document in documents]
        console().print(table(f"{name}: {len(documents)}", tuple(columns), rows))


def _cell(field: str, value: object) -> object:
    if field == "status":
        return f"[{_STATUSES[str(value)]}]{value}[/]" if value in _STATUSES else value
    if field == "window":
        value = _span(str(value))
    return escape(value) if isinstance(value, str) else value


def _span(key: str) -> str:
    """A window as people write it; what else a rebuild was of (all of a target, a cutover) as it is."""
    return render_window(load_window(key)) if "/" in key else key


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
        noted = journal.read_watermarks()
        marks = [
            mark for mark in noted if source in (None, str(mark.source_id)) and target in (None, str(mark.target_table))
        ]
    documents = [
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
    _tell(
        "watermarks",
        documents,
        _WATERMARK_COLUMNS,
        _nothing(
            "watermarks",
            "`chmv ingest SOURCE PATH` brings rows in and sets them",
            (target, (str(mark.target_table) for mark in noted)),
            (source, (str(mark.source_id) for mark in noted)),
        ),
        as_json=as_json,
    )


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
    documents = [
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
    nothing = _nothing("batches", "`chmv ingest SOURCE PATH` sends the first one")
    _tell("batches", documents, _BATCH_COLUMNS, nothing, as_json=as_json)


@click.command("rebuilds")
@click.option("--target", metavar="NAME", help="Only rebuilds of this target, as database.table.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="How many, what runs and is unverified first, then the newest.",
)
@json_option
@told
def rebuilds_command(target: str | None, limit: int, as_json: bool) -> None:
    """Show rebuilds: those that run, windows left unverified, and the last ones that ended.

    running: under way, or its process has died and the next rebuild clears up (holder tells: nobody holds the lock of a dead one).
    unverified: swapped in, but its process died before it had compared; `chmv reconcile` tells whether rows are missing, and a rebuild
    of the window clears it. published: done. rolled_back: not done, nothing left behind.

    \b
    Example:
      chmv rebuilds
      chmv rebuilds --target shop.revenue_daily --json | jq '.rebuilds[] | select(.status == "unverified")'
    """
    from chmv_assets.core.rebuild_journal import lease_name

    journal = _journal()
    with journal.server:
        records = journal.read_rebuilds(limit, target=target or "")
        running = {one.target for one in records if one.status == "running"}
        known = [str(one.target) for one in journal.read_rebuilds(limit, target="")] if target and not records else []
        holders = {name: journal.locks.holder(lease_name(name)) for name in running}
    documents = [
        {
            "rebuild": one.rebuild_id,
            "target": str(one.target),
            "window": one.window,
            "protocol": one.protocol,
            "status": one.status,
            "step": f"{one.step + 1} of {len(one.steps)}: {one.steps[one.step].kind}"
            if one.step < len(one.steps)
            else "",
            "updated": _time(one.updated_at),
            "owner": one.owner,
            "holder": holders.get(one.target, "") if one.status == "running" else "",
            "detail": one.detail,
        }
        for one in records
    ]
    nothing = "`chmv rebuild TARGET --window A..B`, or a target that is materialized in Dagster, makes the first one"
    _tell("rebuilds", documents, _REBUILD_COLUMNS, _nothing("rebuilds", nothing, (target, known)), as_json=as_json)
