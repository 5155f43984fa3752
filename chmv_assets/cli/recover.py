"""`chmv recover`: the repair that a sensor would ask for, in this process and now."""

from __future__ import annotations

import time
from pathlib import Path

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option, window_option
from chmv_assets.cli.output import console, hush, print_json, say, told
from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.recovery import Ask, Outcome, RecoveryRecord
from chmv_assets.core.settings_values import read_positive_duration
from chmv_assets.core.window_text import parse_window
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline, load_pipeline

# What each does is told in `chmv_assets.recovery.views`.
VIEW_DAMAGES = ("rows missed", "throws", "isolate", "probe", "refresh failed")
TARGET_DAMAGES = ("rows missed", "target dropped", "deficit")
_SINCE = "1h"
DAMAGES = tuple(dict.fromkeys((*VIEW_DAMAGES, *TARGET_DAMAGES)))


@click.command("recover")
@click.argument("subject", metavar="SUBJECT")
@click.option("--since", help=f"Of a view: how long it may have missed rows: 90s, 15m, 1h, 2d.  [default: {_SINCE}]")
@window_option("Of a target: which windows to rebuild and compare", "Otherwise all of which its sources hold rows.")
@click.option("--damage", type=click.Choice(DAMAGES), help="What to repair; otherwise what is found by looking.")
@json_option
@ddl_option
@told
def recover_command(
    subject: str, since: str | None, window_text: str | None, damage: str | None, as_json: bool, ddl: Path | None
) -> None:
    """Repair a view or a target as `recovery_job` does: look at it, mend it, rebuild what it missed, compare.

    A view is made, attached, hooked or given its declared query again where that is needed; then the windows in which rows arrived
    since `--since` are rebuilt, downstream included. A target that is missing is undropped or made anew and filled. The
    journal notes it; `chmv status` shows it.

    Exit codes: 0 repaired; 1 not repaired, or the view was isolated; 2 the command line is wrong.

    \b
    Example:
      chmv recover shop.traffic_hourly_mv --since 2h
      chmv recover shop.revenue_daily --window 2026-11-14..2026-11-15
    """
    from chmv_assets.recovery.site import RecoverySite
    from chmv_assets.recovery_job import carry_out, handler_of
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import open_journal

    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    ask = build_ask(pipeline, pipeline.catalog.get(subject), since, window_text, damage, int(time.time() * 1000))
    with Server(endpoint_from_environment()) as server:
        site = RecoverySite(pipeline, server, open_journal(server), say, trace=hush)
        outcome, record = carry_out(site, ask, handler_of(ask.kind))
    if as_json:
        print_json(_document(outcome, record))
    else:
        _print(outcome, record)
    if outcome.status != "repaired":
        raise SystemExit(1)


def build_ask(
    pipeline: Pipeline, made: Object, since: str | None, window_text: str | None, damage: str | None, now_ms: int
) -> Ask:
    """What a sensor would have asked for; pure."""
    is_view = made.kind in VIEW_KINDS
    fitting = VIEW_DAMAGES if is_view else TARGET_DAMAGES
    if damage is not None and damage not in fitting:
        kind = "view" if is_view else "target"
        raise RecoveryFailed(
            f"{kind} {made.name}: found --damage {damage!r} but wanted one of {', '.join(fitting)}. A {kind} has no other repair. Nothing was done."
        )
    if not is_view and not pipeline.catalog.views_into(made.name):
        raise RecoveryFailed(
            f"table {made.name}: found no view that writes into it but wanted a view or a target. Nothing can be computed again. "
            "Name the view that you miss rows of."
        )
    if is_view and window_text:
        raise RecoveryFailed(
            f"view {made.name}: found --window but wanted --since. What a view missed is found by when rows arrived. "
            f"For windows name its target: `chmv recover {made.target or 'TARGET'} --window …`."
        )
    if not is_view and since:
        raise RecoveryFailed(
            f"target {made.name}: found --since but wanted --window. A target is computed again by windows. "
            "For what a view has missed lately name the view."
        )
    windows: tuple[Window, ...] = (parse_window(window_text, pipeline.settings.timezone),) if window_text else ()
    chosen = damage or ("deficit" if windows else "rows missed")
    return Ask(
        kind="view", subject=made.name, damage=chosen, evidence=f"by hand at {now_ms}", windows=windows, detected_ms=now_ms,
        since_ms=now_ms - _seconds(since or _SINCE) * 1000 if is_view else None, seen={"asked by": "chmv recover"},
    )  # fmt: skip


def _seconds(text: str) -> int:
    try:
        return read_positive_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error


def _document(outcome: Outcome, record: RecoveryRecord) -> dict[str, object]:
    return {
        "subject": str(record.subject), "damage": record.damage, "status": outcome.status, "tier": outcome.tier,
        "steps": list(outcome.steps), "before": dict(outcome.before), "after": dict(outcome.after),
        "windows_rebuilt": len(outcome.rebuilt), "windows_equal": outcome.reconciled,
        "seconds": round((record.ended_ms - record.started_ms) / 1000, 3),
    }  # fmt: skip


def _print(outcome: Outcome, record: RecoveryRecord) -> None:
    seconds = (record.ended_ms - record.started_ms) / 1000
    out = console()
    for number, step in enumerate(outcome.steps, start=1):
        out.print(f"{number:>3}. {step}", highlight=False, markup=False)
    out.print(
        f"{record.subject}: {outcome.status}, tier {outcome.tier}, {len(outcome.rebuilt)} window(s) rebuilt, {outcome.reconciled} equal, {seconds:.1f} s",
        style="bold", highlight=False, markup=False,
    )  # fmt: skip
