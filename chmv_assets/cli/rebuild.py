"""`chmv rebuild`: replace windows of a target by what its views give, while ingestion runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option, window_option
from chmv_assets.cli.output import console, hush, print_json, say, table, told
from chmv_assets.core.errors import ChmvError, RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.settings_values import FEEDS, PROTOCOLS, FeedChoice, Protocol
from chmv_assets.core.window_text import name_window, parse_window
from chmv_assets.core.windows import Window, periods
from chmv_assets.pipeline import Pipeline, load_pipeline

if TYPE_CHECKING:
    from resources.rebuild import Published, Rebuilder

Windows = Sequence[Window | None]
Publish = Callable[[Window | None], "Published"]
Name = Callable[[Window | None], str]
Explain = Callable[[Window | None], "tuple[Protocol, str, Sequence[object]]"]


@click.command("rebuild")
@click.argument("target", metavar="TARGET")
@window_option("Which windows", "Needed, or --all, if TARGET has time partitions.")
@click.option("--all", "every", is_flag=True, help="Every window that the target or a source has rows of.")
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    help="How to keep writers apart; otherwise what chmv.yaml says, which is auto unless declared.",
)
@click.option(
    "--feed",
    type=click.Choice(FEEDS),
    default="auto",
    show_default=True,
    help="pushdown: compute from the source. replay: from its landing files, through Spark. auto: replay what the source has lost.",
)
@click.option(
    "--downstream", is_flag=True, help="Also rebuild every target that is computed from TARGET, behind one gate."
)
@click.option(
    "--allow-empty", is_flag=True, help="Delete a window for which the views give nothing; refused without this."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, window by window, and do nothing.")
@json_option
@ddl_option
@told
def rebuild_command(
    target: str,
    window_text: str | None,
    every: bool,
    protocol: Protocol | None,
    feed: FeedChoice,
    downstream: bool,
    allow_empty: bool,
    dry_run: bool,
    as_json: bool,
    ddl: Path | None,
) -> None:
    """Rebuild windows of TARGET from its sources, newest first, while writers write and readers read.

    Old data serves until each window is swapped in. `auto` looks at each window and chooses a protocol; `--dry-run` says which, why,
    and step by step what it does. docs/rebuild.md compares them.

    Windows that are done stay done, whatever happens to the next. Exit codes: 0 all windows rebuilt; 1 one could not be, those after it
    were not tried; 2 the command line is wrong; 130 or 143 stopped by Ctrl-C or SIGTERM, which leaves nothing behind. After kill -9
    the next rebuild clears up. `chmv rebuilds` shows what runs, what is unverified and what was done.

    \b
    Example:
      chmv rebuild shop.revenue_daily --window 2026-11-14
      chmv rebuild shop.traffic_hourly --window 2026-11-14T06..2026-11-14T09 --dry-run
      chmv rebuild shop.revenue_daily --window 2026-10..2026-11 --protocol gated --json
      chmv rebuild shop.events_enriched --window 2026-08 --feed replay
    """
    from chmv_assets.rebuilders import open_rebuilder
    from resources.clickhouse import Server, endpoint_from_environment

    if every and window_text:
        raise click.UsageError("--all and --window exclude each other.")
    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    node = pipeline.catalog.get(target)
    wanted: Protocol = protocol or pipeline.settings.policy(node.name).protocol
    name = partial(name_window, zone=pipeline.settings.timezone)
    given = None if every else windows_of(pipeline, node, window_text, wanted)
    with (
        Server(endpoint_from_environment()) as server,
        open_rebuilder(pipeline, server, say, trace=hush, allow_empty=allow_empty) as rebuilder,
    ):
        windows = _every_window(rebuilder, pipeline, node, wanted) if given is None else given
        if dry_run:
            explain = partial(rebuilder.explain, node, protocol=wanted, feed=feed, downstream=downstream)
            _explain(explain, node, windows, name, as_json)
        else:
            _rebuild(partial(_publish, rebuilder, node, wanted, feed, downstream), node, windows, name, as_json)


def _publish(
    rebuilder: Rebuilder, node: Object, protocol: Protocol, feed: FeedChoice, downstream: bool, window: Window | None
) -> Published:
    if downstream:
        return rebuilder.publish_chain(node, window, protocol=protocol, feed=feed)
    return rebuilder.publish(node, window, protocol, feed=feed)


def windows_of(pipeline: Pipeline, node: Object, text: str | None, protocol: Protocol = "auto") -> Windows:
    """The target's own periods that a window touches, newest first; one None for a target that is rebuilt as a whole."""
    scheme = pipeline.catalog.scheme(node.name)
    if scheme is None or protocol == "whole":
        if text:
            why = "It has no time partitions" if scheme is None else "The protocol `whole` takes all windows at once"
            raise RebuildRefused(
                f"target {node.name}: found --window but wanted none. {why}. Leave --window out."
            )  # fmt: skip
        return [None]
    if not text:
        raise RebuildRefused(
            f"target {node.name}: found no --window but wanted one. It is partitioned by {scheme.unit}. "
            "Say which, for example `--window 2026-11-14`, or `--all`."
        )
    zone = pipeline.settings.timezone
    return list(reversed(list(periods(parse_window(text, zone), scheme.unit, zone, scheme.week_mode))))


def _every_window(rebuilder: Rebuilder, pipeline: Pipeline, node: Object, protocol: Protocol) -> Windows:
    """All windows of which anybody has rows, newest first."""
    from resources.reconcile_windows import fetch_windows

    if protocol == "whole":
        return [None]
    server = rebuilder.executor.server
    return list(reversed(fetch_windows(server, pipeline.catalog, node, None, pipeline.settings.timezone)))


def _explain(explain: Explain, node: Object, windows: Windows, name: Name, as_json: bool) -> None:
    plans = [(window, *explain(window)) for window in windows]
    if as_json:
        document = [
            {"window": name(window), "protocol": chosen, "why": why, "steps": [str(step) for step in steps]}
            for window, chosen, why, steps in plans
        ]
        print_json({"target": str(node.name), "plans": document})
        return
    out = console()
    for window, chosen, why, steps in plans:
        out.print(f"{node.name} {name(window)}: {chosen}, because {why}", style="bold", highlight=False, markup=False)
        for number, step in enumerate(steps, start=1):
            out.print(f"  {number:>2}. {step}", highlight=False, markup=False)


def _rebuild(publish: Publish, node: Object, windows: Windows, name: Name, as_json: bool) -> None:
    """Window by window; what was done is printed whatever happens."""
    done: list[tuple[str, Published]] = []
    error = ""
    caught: list[int] = []
    try:
        with _interruptible(caught):
            for number, window in enumerate(windows, start=1):
                done.append((name(window), publish(window)))
                say(_line(node, *done[-1], number, len(windows)))
    except KeyboardInterrupt:
        by = signal.Signals(caught[-1]).name if caught else "SIGINT"
        error = f"stopped by {by}; what the window under way had left (gate, locks, scratches) is cleared away"
        say(f"{node.name}: {error}")
        raise click.exceptions.Exit(128 + (caught[-1] if caught else signal.SIGINT)) from None
    except ChmvError as failed:
        error = str(failed)
        raise
    finally:
        left = [name(window) for window in windows[len(done) :]]
        if as_json:
            windows_done = [_document(window, one) for window, one in done]
            rest = {"left": left, "error": error} if left else {}
            print_json({"target": str(node.name), "windows": windows_done, **rest})
        else:
            _print(node, done, left)


@contextmanager
def _interruptible(caught: list[int]) -> Iterator[None]:
    """Let SIGTERM stop the work as Ctrl-C does: cleanly. Only the first signal; the way back is short and not to be cut off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) == 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(node: Object, window: str, one: Published, number: int, count: int) -> str:
    return (
        f"{node.name} {window}: {one.protocol}, {one.rows_before} → {one.rows_after} rows, {one.seconds:.1f} s "
        f"({number} of {count})"
    )


def _document(window: str, one: Published) -> dict[str, object]:
    return {
        "window": window, "protocol": one.protocol, "why": one.why, "partitions": list(one.partitions),
        "rows_before": one.rows_before, "rows_after": one.rows_after, "tries": one.tries,
        "gate_seconds": round(one.gate_seconds, 3), "seconds": round(one.seconds, 3),
        "downstream": [str(name) for name in one.downstream],
    }  # fmt: skip


def _print(node: Object, done: Sequence[tuple[str, Published]], left: Sequence[str]) -> None:
    """The table of what was done, and what was not."""
    out = console()
    if done:
        columns = ("window", "protocol", "rows before", "rows after", "tries", "gate s", "seconds", "why")
        rows = [
            (
                window, one.protocol, one.rows_before, one.rows_after, one.tries, round(one.gate_seconds, 2),
                round(one.seconds, 2), one.why,
            )
            for window, one in done
        ]  # fmt: skip
        behind = sorted({str(name) for _, one in done for name in one.downstream})
        also = f", with {', '.join(behind)}" if behind else ""
        out.print(table(f"{node.name}: {_windows(len(done))} rebuilt{also}", columns, rows))
    elif not left:
        out.print(
            f"{node.name}: neither it nor its sources hold any rows, so there is nothing to rebuild.", highlight=False
        )
    if left and len(left) + len(done) > 1:
        span = left[0] if len(left) == 1 else f"{left[0]} back to {left[-1]}"
        out.print(f"{_windows(len(left))} not rebuilt: {span}", style="yellow", highlight=False)


def _windows(count: int) -> str:
    return f"{count} window{'' if count == 1 else 's'}"
