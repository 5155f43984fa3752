"""`chmv rebuild`: replace windows of a target by what its views give, while ingestion runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.output import console, print_json, table, told
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.settings_values import PROTOCOLS, Protocol
from chmv_assets.core.window_text import parse_window
from chmv_assets.core.windows import Window, periods
from chmv_assets.pipeline import Pipeline, load_pipeline

if TYPE_CHECKING:
    from resources.rebuild import Published, Rebuilder
    from resources.rebuild.rebuilder import FeedChoice

Windows = Sequence[Window | None]


@click.command("rebuild")
@click.argument("target", metavar="TARGET")
@click.option("--window", "window_text", metavar="A..B", help="Months, days or hours, both ends included. Needed unless TARGET has no time partitions.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Every window that the target or a source has rows of.")
@click.option(
    "--protocol", type=click.Choice(PROTOCOLS), help="How to keep writers apart; over chmv.yaml, default auto."
)
@click.option(
    "--feed",
    type=click.Choice(["auto", "pushdown", "replay"]),
    default="auto",
    show_default=True,
    help="Compute from the source, or replay its landing files through Spark; auto replays what the source has lost.",
)
@click.option(
    "--downstream", is_flag=True, help="Also rebuild every target that is computed from TARGET, behind one gate."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, window by window, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@ddl_option
@told
def rebuild_command(
    target: str,
    window_text: str | None,
    every: bool,
    protocol: Protocol | None,
    feed: FeedChoice,
    downstream: bool,
    dry_run: bool,
    as_json: bool,
    ddl: Path | None,
) -> None:
    """Rebuild windows of TARGET from its sources, newest first, while writers write and readers read.

    Old data serves until each window is swapped in. `closed` never stops writers and needs a quiet window; `gated` refuses inserts
    for a moment (code 469, writers send again) and is exact on a hot one; `auto` looks and chooses. A rebuild that dies leaves
    nothing behind: the next one clears up. Exit code 1 if a window could not be rebuilt; what was done before stays.

    \b
    Example:
      chmv rebuild shop.revenue_daily --window 2026-11-14
      chmv rebuild shop.traffic_hourly --window 2026-11-14T06..2026-11-14T09 --dry-run
      chmv rebuild shop.revenue_daily --window 2026-10..2026-11 --protocol gated --json
      chmv rebuild shop.events_enriched --window 2026-08 --feed replay
    """
    from chmv_assets.rebuilders import make_rebuilder
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.reconcile_windows import fetch_windows

    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    node = pipeline.catalog.get(target)
    windows = [] if every else windows_of(pipeline, node, window_text)
    wanted: Protocol = protocol or pipeline.settings.policy(node.name).protocol
    with Server(endpoint_from_environment()) as server:
        rebuilder = make_rebuilder(pipeline, server, lambda _line: None)
        if every:
            found = fetch_windows(server, pipeline.catalog, node, None, pipeline.settings.timezone)
            windows = list(reversed(found))
        if dry_run:
            _explain(rebuilder, node, windows, wanted, as_json)
        else:
            publish = partial(_publish, rebuilder, node, wanted, feed, downstream)
            _rebuild(publish, node, windows, as_json)


def _publish(
    rebuilder: Rebuilder, node: Object, protocol: Protocol, feed: FeedChoice, downstream: bool, window: Window | None
) -> Published:
    if not downstream:
        return rebuilder.publish(node, window, protocol, feed=feed)
    if protocol not in ("auto", "gated") or feed == "replay":
        raise RebuildRefused(
            f"target {node.name}: found --downstream with {protocol if protocol not in ('auto', 'gated') else 'a replay'} but wanted the "
            "gated protocol. A chain is rebuilt behind one gate. Leave the other option out."
        )
    return rebuilder.publish_chain(node, window)


def windows_of(pipeline: Pipeline, node: Object, text: str | None) -> Windows:
    """The target's own periods that a window touches, newest first; one None for a target without time partitions."""
    scheme = pipeline.catalog.scheme(node.name)
    if scheme is None:
        if text:
            raise RebuildRefused(
                f"target {node.name}: found --window but wanted none. It has no time partitions, so it can be rebuilt only as a whole. "
                "Leave --window out."
            )
        return [None]
    if not text:
        raise RebuildRefused(
            f"target {node.name}: found no --window but wanted one. It is partitioned by {scheme.unit}. "
            "Say which, for example `--window 2026-11-14`, or `--all`."
        )
    zone = pipeline.settings.timezone
    return list(reversed(list(periods(parse_window(text, zone), scheme.unit, zone, scheme.week_mode))))


def _explain(rebuilder: Rebuilder, node: Object, windows: Windows, protocol: Protocol, as_json: bool) -> None:
    plans = [(window, *rebuilder.explain(node, window, protocol)) for window in windows]
    if as_json:
        document = [
            {"window": _name(window), "protocol": chosen, "why": why, "steps": [str(step) for step in steps]}
            for window, chosen, why, steps in plans
        ]
        print_json({"target": str(node.name), "plans": document})
        return
    out = console()
    for window, chosen, why, steps in plans:
        out.print(f"{node.name} {_name(window)}: {chosen}, because {why}", style="bold", highlight=False)
        for number, step in enumerate(steps, start=1):
            out.print(f"  {number:>2}. {step}", highlight=False, markup=False)


def _rebuild(publish: Callable[[Window | None], Published], node: Object, windows: Windows, as_json: bool) -> None:
    done: list[tuple[Window | None, Published]] = []
    try:
        for number, window in enumerate(windows, start=1):
            published = publish(window)
            done.append((window, published))
            click.echo(
                f"{node.name} {_name(window)}: {published.protocol}, {published.rows_before} → {published.rows_after} rows, "
                f"{published.seconds:.1f} s ({number} of {len(windows)})",
                err=True,
            )
    finally:
        if as_json:
            print_json({"target": str(node.name), "windows": [_document(window, one) for window, one in done]})
        elif done:
            _print(node, done)


def _document(window: Window | None, one: Published) -> dict[str, object]:
    return {
        "window": _name(window), "protocol": one.protocol, "why": one.why, "partitions": list(one.partitions),
        "rows_before": one.rows_before, "rows_after": one.rows_after, "tries": one.tries,
        "gate_seconds": round(one.gate_seconds, 3), "seconds": round(one.seconds, 3),
        "downstream": [str(name) for name in one.downstream],
    }  # fmt: skip


def _print(node: Object, done: Sequence[tuple[Window | None, Published]]) -> None:
    columns = ("window", "protocol", "rows before", "rows after", "tries", "gate s", "seconds", "why")
    rows = [
        (
            _name(window), one.protocol, one.rows_before, one.rows_after, one.tries, round(one.gate_seconds, 2),
            round(one.seconds, 2), one.why,
        )
        for window, one in done
    ]  # fmt: skip
    console().print(table(f"{node.name}: {len(done)} windows rebuilt", columns, rows))


def _name(window: Window | None) -> str:
    return f"{window.start:%Y-%m-%dT%H:%M}/{window.end:%Y-%m-%dT%H:%M}" if window is not None else "whole"
