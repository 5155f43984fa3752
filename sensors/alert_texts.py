"""Alerts as documents: `event`, `location`, `subject`, `text` (as Slack wants it), `url` and what else is known. What cannot be told one by one
is told together, so that nothing is dropped. Pure; `alerts` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import dagster as dg

from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName
from resources.webhook import ui_link
from sensors.evaluations import Evaluated

ALERTS_PER_TICK = 4  # each may take eleven seconds, and a tick has 60; the last one tells of all that are left
_MAX_CHARACTERS = 500
_NAMED = 10
FOUND_BY = "chmv/found_by"  # metadata of an evaluation whose finder alerts by itself

Alert = dict[str, Any]
T = TypeVar("T")


def run_alert(run: dg.DagsterRun, error: str) -> Alert:
    """A run that failed."""
    subject = subject_of(run)
    again = run.tags.get("dagster/will_retry") == "true"
    name = "the materialization" if run.job_name.startswith("__") else run.job_name
    text = f"{name} of {subject} failed" if subject != run.job_name else f"{run.job_name} failed"
    return {
        **_of_run("run_failure", run, subject),
        "text": _slack(f"{text}{', it is tried again' if again else ''}: {error}" if error else text),
        "error": error,
        "will_retry": again,
    }


def _isolation_alert(run: dg.DagsterRun) -> Alert:
    """A view that was taken out, so that the rest goes on."""
    subject = subject_of(run)
    text = f"{subject} is isolated: it cannot be repaired by itself ({run.tags.get('chmv/damage', 'unknown damage')}). Readers are served from the snapshot."
    return {**_of_run("view_isolated", run, subject), "text": _slack(text)}


def _of_run(event: str, run: dg.DagsterRun, subject: str) -> Alert:
    evidence = {name.partition("/")[2]: value for name, value in run.tags.items() if name.startswith("chmv/")}
    return {
        "event": event,
        "location": _location_of(run),
        "subject": subject,
        "url": ui_link(f"/runs/{run.run_id}"),
        "run_id": run.run_id,
        "job": run.job_name,
        "tags": evidence,
    }


def _location_of(run: dg.DagsterRun) -> str:
    origin = run.remote_job_origin
    return origin.repository_origin.code_location_origin.location_name if origin else ""


def subject_of(run: dg.DagsterRun) -> str:
    """What a run was about: what a sensor named, the assets, or the job."""
    for tag in ("chmv/subject", "chmv/source"):
        if tag in run.tags:
            return run.tags[tag]
    chosen = sorted(".".join(key.path) for key in run.asset_selection or ())
    if chosen:
        partition = run.tags.get("dagster/partition")
        named = ", ".join(chosen[:3]) + (f" and {len(chosen) - 3} more" if len(chosen) > 3 else "")
        return f"{named} {partition}" if partition else named
    return run.job_name


def isolation_alerts(runs: Sequence[dg.DagsterRun]) -> list[Alert]:
    """One alert per view that was isolated."""
    return _capped(
        runs, _isolation_alert, "view_isolated", "views are isolated", subject_of, _location_of(runs[0]) if runs else ""
    )


def check_alerts(failed: Sequence[Evaluated], location: str) -> list[Alert]:
    """One alert per failed check."""
    return _capped(
        failed, lambda one: _check_alert(one, location), "check_failure", "checks failed", _check_name, location
    )


def _capped(
    found: Sequence[T], alert: Callable[[T], Alert], event: str, what: str, name: Callable[[T], str], location: str
) -> list[Alert]:
    single = found if len(found) <= ALERTS_PER_TICK else found[: ALERTS_PER_TICK - 1]
    alerts = [alert(one) for one in single]
    if names := [name(one) for one in found[len(single) :]]:
        text = f"{len(names)} more {what}: {', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''}"
        subject = f"{len(names)} {what.partition(' ')[0]}"
        alerts.append({"event": event, "location": location, "subject": subject, "text": _slack(text), "url": ui_link("/assets"), what.partition(" ")[0]: names[:100]})  # fmt: skip
    return alerts


def _check_name(one: Evaluated) -> str:
    return f"{'.'.join(one.evaluation.asset_key.path)}:{one.evaluation.check_name}"


def _check_alert(one: Evaluated, location: str) -> Alert:
    check = one.evaluation
    subject = ".".join(check.asset_key.path)
    why = shorten(check.description or "")
    page = "/".join(quote(part, safe="") for part in check.asset_key.path)
    return {
        "event": "check_failure",
        "location": location,
        "subject": subject,
        "text": _slack(f"check {check.check_name} of {subject} failed" + (f": {why}" if why else "")),
        "url": ui_link(f"/assets/{page}?view=checks&checkDetail={quote(check.check_name, safe='')}"),
        "check": check.check_name,
        "severity": check.severity.value,
        "partition": check.partition,
        "description": why,
        "run_id": one.run_id,
    }


def drift_alert(drifted: Sequence[tuple[QName, Comparison]], undeclared: Sequence[QName], location: str) -> Alert:
    """What is on the server and in the folder differs: all of it in one."""
    names = [*(str(name) for name, _ in drifted), *map(str, undeclared)]
    parts = [f"{name} {one.state}" for name, one in drifted[:_NAMED]] + (["…"] if len(drifted) > _NAMED else [])
    if undeclared:
        some = [str(name) for name in undeclared]
        parts.append(f"not declared: {', '.join(some[:_NAMED])}{', …' if len(some) > _NAMED else ''}")
    text = f"drift: {'; '.join(parts)}. `chmv drift` shows what differs, `chmv plan` what would repair it."
    return {
        "event": "drift",
        "location": location,
        "subject": names[0] if len(names) == 1 else f"{len(names)} objects",
        "text": _slack(text),
        "url": ui_link("/assets"),
        "drifted": [
            {"name": str(name), "state": one.state, "differs": [found.what for found in one.differences]}
            for name, one in drifted[:100]
        ],
        "undeclared": [str(name) for name in undeclared[:100]],
    }


def shorten(text: str) -> str:
    """One line of bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"


def _slack(text: str) -> str:
    """Slack reads `<…>` as a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
