"""`chmv reconcile`: does a target hold what its views give? Only reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option, window_option
from chmv_assets.cli.output import console, print_json, table
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Object
from chmv_assets.core.window_text import name_window, parse_window
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline, load_pipeline

if TYPE_CHECKING:
    from resources.clickhouse import Server
    from resources.reconcile import Reconciled

_COLOURS = {"equal": "green", "different": "red", "cannot tell": "yellow"}
_EXIT_CODES = {"equal": 0, "different": 1, "cannot tell": 3}
_MAX_SHOWN_SAMPLES = 20


class _Untold(click.ClickException):
    """An error that leaves the question open; exit code 1 would say that something differs."""

    exit_code = _EXIT_CODES["cannot tell"]


@click.command("reconcile")
@click.argument("target", metavar="TARGET")
@ddl_option
@window_option("Only partitions in this time", "Without it: all that there are.")
@click.option(
    "--with",
    "second",
    type=click.Choice(["spark"]),
    help="Ask for a second opinion: Spark computes the windows from the source's rows by itself.",
)
@json_option
def reconcile_command(
    target: str, ddl: Path | None, window_text: str | None, second: str | None, as_json: bool
) -> None:
    """Compare TARGET with what its views give over their sources now, partition by partition.

    Deficit are keys that are missing or smaller in the target, excess keys that should not be there or are larger; both may be said of
    one key. What cannot be compared is named with the reason. Nothing is changed. Exit code 0 if all is equal, 1 if something differs, 3 if
    it cannot be told, for some partition or at all. A second opinion that differs makes it 1; one that cannot be had changes nothing.

    \b
    Example:
      chmv reconcile shop.revenue_daily
      chmv reconcile shop.revenue_daily --window 2026-11-01..2026-11-07
      chmv reconcile shop.revenue_daily --window 2026-11-01 --with spark
      chmv reconcile shop.orders_latest --json | jq '.windows[] | select(.status != "equal")'
    """
    try:
        pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
        node = _require_target(pipeline, pipeline.catalog.get(target))
        window = parse_window(window_text, pipeline.settings.timezone) if window_text else None
        found, opinions = _run(pipeline, node, window, with_spark=second == "spark")
    except ChmvError as error:
        raise _Untold(str(error)) from error
    if as_json:
        windows = [_document(one) for one in found]
        answer: dict[str, object] = {"target": str(node.name), "status": _overall(found), "windows": windows}
        if opinions is not None:
            answer["spark"] = {"status": _overall(opinions), "windows": [_document(one) for one in opinions]}
        print_json(answer)
    else:
        _print(node, found, pipeline.settings.timezone)
        if opinions is not None:
            _print(node, opinions, pipeline.settings.timezone, by="Spark over their sources")
    differs = opinions is not None and _overall(opinions) == "different"
    raise SystemExit(_EXIT_CODES["different" if differs else _overall(found)])


def _require_target(pipeline: Pipeline, node: Object) -> Object:
    """What views write into; anything else has nothing that it could be compared with."""
    if pipeline.catalog.views_into(node.name):
        return node
    what = node.kind.replace("_", " ")
    if node.target is not None:
        raise ChmvError(
            f"{what} {node.name}: found a view but wanted the target that it writes. What all of its views give is compared there. Name {node.target}."
        )
    raise ChmvError(
        f"{what} {node.name}: found no view that writes into it but wanted a target. There is nothing to compare it with. `chmv graph` shows targets."
    )


def _overall(found: Sequence[Reconciled]) -> str:
    statuses = {one.status for one in found}
    return "different" if "different" in statuses else "cannot tell" if "cannot tell" in statuses else "equal"


def _run(
    pipeline: Pipeline, node: Object, window: Window | None, *, with_spark: bool
) -> tuple[list[Reconciled], list[Reconciled] | None]:
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.introspect import fetch_existing
    from resources.journal import cluster_from_environment
    from resources.reconcile import Reconciler
    from resources.reconcile_windows import fetch_windows

    with Server(endpoint_from_environment()) as server:
        if node.kind == "table" and not fetch_existing(server, [node.name]):
            raise ChmvError(
                f"target {node.name}: is declared but not on the server. Nothing can be compared. `chmv plan` shows what is missing."
            )
        windows = fetch_windows(server, pipeline.catalog, node, window, pipeline.settings.timezone)
        catalog, zone, cluster = pipeline.catalog, pipeline.settings.timezone, cluster_from_environment()
        reconciler = Reconciler(server, catalog, zone, cluster=cluster)
        with _progress(node, windows) as steps:
            found = [reconciler.run(node, one) for one in steps]
        return found, _ask_spark(pipeline, server, cluster, node, windows) if with_spark else None


def _ask_spark(
    pipeline: Pipeline, server: Server, cluster: str, node: Object, windows: Sequence[Window | None]
) -> list[Reconciled]:
    from chmv_assets.second_opinion import SecondOpinion
    from resources.spark_session import LazySession, options_from_environment

    lazy = LazySession(options_from_environment())
    try:
        opinion = SecondOpinion(pipeline, server, lazy.session, cluster)
        with _progress(node, windows) as steps:
            return [opinion.run(node, one) for one in steps]
    finally:
        lazy.stop()


@contextmanager
def _progress(node: Object, windows: Sequence[Window | None]) -> Iterator[Iterator[Window | None]]:
    """Show how far it is, on a terminal only."""
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield iter(progress.track(windows, description=f"comparing {node.name}"))


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _document(one: Reconciled) -> dict[str, object]:
    counts = one.counts
    return {
        "window_start": _time(one.window.start) if one.window else None,
        "window_end": _time(one.window.end) if one.window else None,
        "status": one.status,
        "verdict": one.sentence(),
        "keys": one.keys,
        "deficit": {"keys": one.deficit, "missing": counts.missing, "smaller": counts.smaller} if counts else None,
        "excess": {"keys": one.excess, "extra": counts.extra, "larger": counts.larger} if counts else None,
        "changed": one.changed if counts else None,
        "undecided": counts.undecided if counts else None,
        "sums": [
            {"column": s.column, "lacking": str(s.lacking), "too_much": str(s.too_much)} for s in (counts.sums if counts else ())
        ],
        "compared": list(one.compared),
        "not_compared": [{"column": left.column, "reason": left.reason} for left in one.left_out],
        "notes": list(one.notes),
        "samples": [
            {"kind": s.kind, "key": dict(s.key), "expected": dict(s.expected) or None, "actual": dict(s.actual) or None}
            for s in one.samples
        ],
        "tries": one.tries,
        "seconds": round(one.seconds, 3),
    }  # fmt: skip


def _print(node: Object, found: Sequence[Reconciled], zone: str, by: str = "its views") -> None:
    out = console()
    empty = [one for one in found if one.status == "equal" and not one.keys]
    shown = [one for one in found if one not in empty] or found[:1]
    columns = ("window", "status", "keys", "deficit", "excess", "changed", "seconds")
    rows = [
        (
            name_window(one.window, zone), f"[{_COLOURS[one.status]}]{one.status}[/]", one.keys, one.deficit, one.excess, one.changed,
            round(one.seconds, 2),
        )
        for one in shown
    ]  # fmt: skip
    if not found:
        out.print(f"{node.name}: neither it nor its sources hold a row.", highlight=False)
        return
    out.print(table(f"{escape(str(node.name))} against {by}", columns, rows))
    if empty and shown != empty[:1]:
        out.print(f"{len(empty)} window(s) without rows on either side are not shown.", style="dim", highlight=False)
    by_sentence: dict[str, list[Reconciled]] = {}
    for one in (one for one in found if one.status != "equal"):
        by_sentence.setdefault(one.sentence(), []).append(one)
    for sentence, alike in by_sentence.items():
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        line = f"{name_window(alike[0].window, zone)}{others}: {sentence}."
        out.print(line, style=_COLOURS[alike[0].status], highlight=False, markup=False)
    _print_samples([one for one in found if one.samples], zone)
    for line in dict.fromkeys(
        f"Not compared: {left.column} – {left.reason}." for one in found for left in one.left_out
    ):
        out.print(line, style="dim", highlight=False, markup=False)
    for line in dict.fromkeys(f"Note: {note}." for one in found for note in one.notes):
        out.print(line, style="dim", highlight=False, markup=False)


def _print_samples(found: Sequence[Reconciled], zone: str) -> None:
    rows = [
        (name_window(one.window, zone), s.kind, *(escape(_pairs(part)) for part in (s.key, s.expected, s.actual)))
        for one in found
        for s in one.samples
    ]
    if rows:
        title = "Keys that differ" + (f" (the first {_MAX_SHOWN_SAMPLES})" if len(rows) > _MAX_SHOWN_SAMPLES else "")
        columns = ("window", "kind", "key", "expected", "in the target")
        console().print(table(title, columns, rows[:_MAX_SHOWN_SAMPLES]))


def _pairs(values: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values)
