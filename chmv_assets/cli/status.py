"""`chmv status` and `chmv thresholds`: how every target stands, and at which numbers sensors act. Both only read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, print_json, table, told
from chmv_assets.core.recovery import moment
from chmv_assets.core.thresholds import THRESHOLDS
from chmv_assets.pipeline import load_pipeline

if TYPE_CHECKING:
    from resources.status import TargetStatus

_STYLES = {"ACTIVE": "green", "DEGRADED": "yellow", "STALE": "red"}


@click.command("status")
@ddl_option
@json_option
@told
def status_command(ddl: Path | None, as_json: bool) -> None:
    """Show for every target whether its readers get what they should.

    ACTIVE: all is well. DEGRADED: something is open (a repair runs, a view is out, a lost partition is read from the snapshot), readers get
    right numbers or will within the SLA. STALE: readers are on the snapshot, or something is open for longer than the SLA.

    The exit code is 0 whatever the statuses are, 1 if the server could not be asked; scripts ask --json.

    \b
    Example:
      chmv status
      chmv status --json | jq '.targets[] | select(.status != "ACTIVE")'
    """
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import open_journal
    from resources.serving import Router
    from resources.status import read_status

    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    with Server(endpoint_from_environment()) as server:
        limit = pipeline.settings.limits.snapshot_max_age
        found = read_status(Router(server, open_journal(server), pipeline.catalog, limit), pipeline.settings)
    if as_json:
        print_json({"targets": [_document(one) for one in found]})
    elif not found:
        console().print("No targets: no view of this folder writes into a MergeTree table.", highlight=False)
    else:
        columns = ("target", "status", "route", "snapshot age", "open", "repairs running", "last repair", "why")
        console().print(table(f"targets: {len(found)}", columns, [_row(one) for one in found]))


def _document(one: TargetStatus) -> dict[str, object]:
    facts, last = one.facts, one.last_repair
    return {
        "target": str(facts.target),
        "status": one.status,
        "why": list(one.why),
        "serving_view": str(one.view),
        "route": facts.route,
        "route_reason": facts.route_reason,
        "snapshot_age_seconds": facts.snapshot_age_seconds,
        "lost_partitions": list(one.lost),
        "outages": [{"what": what, "seconds": age} for what, age in facts.outages],
        "stale_seconds": facts.stale_seconds,
        "repairs_running": list(facts.repairs_running),
        "last_repair": None
        if last is None
        else {
            "subject": str(last.subject),
            "damage": last.damage,
            "status": last.status,
            "tier": last.tier,
            "started": moment(last.started_ms).isoformat(),
            "seconds_from_detection": last.seconds_to_detect_and_repair,
        },
        "sla_seconds": facts.sla_seconds,
    }


def _row(one: TargetStatus) -> list[object]:
    facts, last = one.facts, one.last_repair
    age = "none" if facts.snapshot_age_seconds is None else f"{facts.snapshot_age_seconds:.0f} s"
    told_last = "" if last is None else f"{last.damage}: {last.status} {moment(last.started_ms):%Y-%m-%d %H:%M:%S}Z"
    return [
        escape(str(facts.target)), f"[{_STYLES[one.status]}]{one.status}[/]", facts.route, age, len(facts.outages) + facts.lost,
        escape(", ".join(facts.repairs_running)), escape(told_last), escape("; ".join(one.why)),
    ]  # fmt: skip


@click.command("thresholds")
@ddl_option
@json_option
@told
def thresholds_command(ddl: Path | None, as_json: bool) -> None:
    """Show the numbers at which sensors, guardrails and the doctor speak up, act and calm down, and why each default is what it is.

    `thresholds:` in chmv.yaml overrides them.

    \b
    Example:
      chmv thresholds
      chmv thresholds --json | jq '.thresholds[] | select(.value != .default)'
    """
    limits = load_pipeline(ddl_folder(ddl, asks_server=False)).require_sound().settings.limits
    documents = [
        {
            "name": one.name,
            "value": getattr(limits, one.name),
            "default": one.default,
            "unit": one.unit,
            "reason": one.reason,
        }
        for one in THRESHOLDS
    ]
    if as_json:
        print_json({"thresholds": documents})
        return
    rows = [[one["name"], f"{one['value']:g}", f"{one['default']:g}", one["unit"], one["reason"]] for one in documents]
    console().print(table(f"thresholds: {len(documents)}", ("name", "value", "default", "unit", "reason"), rows))
