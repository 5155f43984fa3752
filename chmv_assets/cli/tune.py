"""`chmv tune`: look at insert pressure, say what the tuner would do and why, do it, or take everything back."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, print_json, table, told
from chmv_assets.pipeline import load_pipeline

if TYPE_CHECKING:
    from chmv_assets.core.tuner import Decision, Sample
    from chmv_assets.core.tunings import Tuning

_LOOKS = 30  # in a window
_SHOWN = 20


@click.command("tune")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--watch", "seconds", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS",
    help="Sample for so long before deciding. The tuner decides by averages of tuner_window (300 s), so less decides nothing.",
)  # fmt: skip
@click.option(
    "--rollback",
    is_flag=True,
    help="Put every tuned setting of the folder's tables back to what it was, and do nothing else.",
)
@ddl_option
@json_option
@told
def tune_command(dry_run: bool, seconds: float, rollback: bool, ddl: Path | None, as_json: bool) -> None:
    """Tune tables under an insert storm: sample, decide, act, watch for a minute, take back what over-corrects.

    By hand it acts whatever `tuner` in chmv.yaml says (that is for the sensor); --dry-run changes nothing. Without --watch the numbers of this
    moment are shown and tunings are ended that are due, such as those of a tuner that died. Exit code 1 if it could not be done.

    \b
    Example:
      chmv tune --dry-run --watch 300
      chmv tune --watch 300
      chmv tune --rollback
      chmv tune --dry-run --json | jq '.samples[-1].pool_share'
    """
    from chmv_assets.core.tuner import decide
    from chmv_assets.tunables import own_tunings, tunables_of
    from chmv_assets.tuning import Tuner
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.executor import Executor
    from resources.journal import open_journal
    from resources.tuner import TuningStore
    from resources.tuning_reads import read_sample

    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    limits, tunables = pipeline.settings.limits, tunables_of(pipeline)
    log: list[str] = []
    with Server(endpoint_from_environment()) as server:
        journal = open_journal(server)
        store = TuningStore(Executor(server, log=lambda _line: None, cluster=journal.cluster), journal)
        tuner = Tuner(store, limits, [one.table for one in tunables], log.append)
        if rollback:
            before = [one for one in own_tunings(pipeline, store.read()) if one.is_active]
            ended = [] if dry_run else tuner.roll_back(before, "`chmv tune --rollback`")
            _tell_rollback(before, ended, dry_run=dry_run, as_json=as_json)
            return
        samples = [read_sample(server, tuner.tables, time.time())]
        deadline = samples[0].at + seconds
        while time.time() < deadline:
            time.sleep(min(limits.tuner_window / _LOOKS, max(0.05, deadline - time.time())))
            samples.append(read_sample(server, tuner.tables, time.time()))
        decision = decide(samples, own_tunings(pipeline, store.read()), tunables, now=samples[-1].at, limits=limits)
        done: list[Tuning] = []
        if not dry_run:
            done = tuner.end(decision.backs)
            applied = tuner.act(decision.actions)
            done += [*applied, *tuner.watch(applied)]
        active = [one for one in own_tunings(pipeline, store.read()) if one.is_active]
    if as_json:
        print_json(_document(samples, decision, done, active, dry_run=dry_run))
    else:
        _print(samples, decision, log, active, dry_run=dry_run)


def _document(
    samples: list[Sample], decision: Decision, done: list[Tuning], active: list[Tuning], *, dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "samples": [
            {
                "at": one.at, "pool_tasks": one.pool_tasks, "pool_size": one.pool_size, "pool_share": one.pool_share, "inserts": one.inserts,
                "delayed": one.delayed, "rejected": one.rejected,
                "tables": {str(name): asdict(reading) for name, reading in one.readings.items()},
            }
            for one in samples
        ],
        "told": list(decision.told),
        "actions": [{**asdict(one), "subject": str(one.subject)} for one in decision.actions],
        "taken_back": [
            {"tuning": one.tuning.tuning, "kind": one.kind, "reason": one.reason, "settle": one.settle} for one in decision.backs
        ],
        "done": [_tuning(one) for one in done],
        "active": [_tuning(one) for one in active],
    }  # fmt: skip


def _tuning(one: Tuning) -> dict[str, Any]:
    return {**asdict(one), "subject": str(one.subject)}


def _print(samples: list[Sample], decision: Decision, log: list[str], active: list[Tuning], *, dry_run: bool) -> None:
    out = console()
    last = samples[-1]
    fullest = sorted(last.readings.items(), key=lambda item: -item[1].parts / max(item[1].parts_to_delay, 1))
    rows = [[str(name), r.parts, r.parts_to_delay, r.parts_to_throw, r.max_delay] for name, r in fullest[:_SHOWN]]
    out.print(table(f"fullest partitions: {len(rows)} of {len(fullest)} tables", ("table", "parts", "delayed from", "refused from", "longest delay, s"), rows))  # fmt: skip
    for line in decision.told:
        out.print(line, highlight=False, markup=False)
    orders = decision.orders
    for line in [f"would do: {one}" for one in orders] if dry_run else log:
        out.print(line, highlight=False, markup=False)
    if not orders:
        out.print("Nothing to do.", style="bold green", highlight=False)
    for one in active:
        out.print(f"tuned by chmv, {one.status}: {one.change()}", highlight=False, markup=False)


def _tell_rollback(before: list[Tuning], ended: list[Tuning], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": dry_run, "active": [_tuning(one) for one in before], "done": [_tuning(one) for one in ended]})  # fmt: skip
        return
    for one in before[::-1] if dry_run else ended:
        out = f"would take back: {one.change()}" if dry_run else f"{one.status}: {one.change()}"
        console().print(out, highlight=False, markup=False)
    if not before:
        console().print("Nothing is tuned.", style="bold green", highlight=False)
