"""`chmv drift`: is what is on the server what the folder declares? For people and for CI; it only reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, print_json, table, told
from chmv_assets.core.errors import ChmvError
from chmv_assets.pipeline import Pipeline, load_pipeline

if TYPE_CHECKING:
    from chmv_assets.core.compare import Comparison
    from chmv_assets.drift import Drift

NONE, DRIFTED, CANNOT_TELL = 0, 1, 3
_STYLES = {"changed": "red", "missing": "red", "cannot tell": "yellow"}
_SHOWN = 300  # characters of one side of a difference
_NEXT = "`chmv plan` shows what would repair it; `chmv pull --accept NAME` adopts what is on the server."


@click.command("drift")
@click.option("--undeclared", is_flag=True, help="Objects that only the server has count as drift too.")
@json_option
@ddl_option
@told
def drift_command(undeclared: bool, as_json: bool, ddl: Path | None) -> None:
    """Compare what the folder declares with the server: every object is equal, changed, missing, or cannot be told.

    Objects that stand in a database of the folder but are not declared are listed; with --undeclared they count. Exit codes: 0 no drift;
    1 drift (changed or missing objects, with --undeclared also those); 2 the command line is wrong; 3 cannot tell (no drift was found, but
    an object, or the server or the folder as a whole, could not be compared).

    \b
    Example:
      chmv drift --ddl ./ddl
      chmv drift --ddl ./ddl --undeclared || exit 1
      chmv drift --json | jq '.objects[] | select(.state != "equal")'
    """
    from chmv_assets.drift import read_drift
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import cluster_from_environment

    try:
        pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
        with Server(endpoint_from_environment()) as server:
            found = read_drift(server, pipeline.catalog, cluster=cluster_from_environment())
    except ChmvError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(CANNOT_TELL) from error
    code = exit_code(found, undeclared=undeclared)
    if as_json:
        print_json(_document(pipeline, found, code))
    else:
        _print(found, code)
    raise SystemExit(code)


def exit_code(found: Drift, *, undeclared: bool) -> int:
    """What CI is told; drift that is certain comes before what cannot be told."""
    states = {one.state for one in found.comparisons.values()}
    if states & {"changed", "missing"} or (undeclared and found.undeclared):
        return DRIFTED
    return CANNOT_TELL if "cannot tell" in states or found.silent else NONE


def _document(pipeline: Pipeline, found: Drift, code: int) -> dict[str, Any]:
    objects = pipeline.catalog.objects
    return {
        "drift": code == DRIFTED,
        "objects": [
            {
                "name": str(name),
                "state": one.state,
                "file": objects[name].place.file,
                "line": objects[name].place.line,
                "rebuild_running": name in found.held,
                "tuned": [{"what": d.what, "declared": d.declared, "live": d.live} for d in one.tuned],
                "differences": [{"what": d.what, "declared": d.declared, "live": d.live} for d in one.differences],
            }
            for name, one in found.comparisons.items()
        ],
        "silent_replicas": list(found.silent),
        "undeclared": [
            {"name": str(one.name), "engine": one.engine, "referred": one.referred} for one in found.undeclared
        ],
    }


def _print(found: Drift, code: int) -> None:
    out = console()
    rows = [
        row for name, one in found.comparisons.items() if one.state != "equal" for row in _rows(str(name), one)
    ]  # fmt: skip
    rows += [
        [escape(str(one.name)), "undeclared", "referred to by the DDL" if one.referred else "", "nothing", one.engine]
        for one in found.undeclared
    ]
    if rows:
        out.print(table("drift", ("object", "state", "differs", "declared", "live"), rows))
    states = Counter(one.state for one in found.comparisons.values())
    counted = ", ".join(f"{states[s]} {s}" for s in ("equal", "changed", "missing", "cannot tell") if states[s])
    out.print(
        f"{len(found.comparisons)} objects declared ({counted or 'none'}), {len(found.undeclared)} not declared.",
        highlight=False,
    )
    if busy := sorted(str(name) for name in found.held if found.comparisons.get(name) is not None):
        out.print(f"A rebuild works on {', '.join(busy)}; they may look different meanwhile.", highlight=False)
    if found.silent:
        out.print(f"Not compared, since they do not answer: {', '.join(found.silent)}.", highlight=False, markup=False)
    if tuned := [f"{name} ({d.what}: {d.live})" for name, one in found.comparisons.items() for d in one.tuned]:
        out.print(f"Tuned by chmv for a while, no drift: {', '.join(tuned)}.", highlight=False, markup=False)
    if code == NONE:
        besides = " Objects that are not declared count with --undeclared." if found.undeclared else ""
        out.print(f"No drift.{besides}", style="bold green", highlight=False)
    else:
        out.print(_NEXT, highlight=False, markup=False)


def _rows(name: str, one: Comparison) -> list[list[object]]:
    state = f"[{_STYLES[one.state]}]{one.state}[/]"
    if not one.differences:
        return [[escape(name), state, "", "", ""]]
    return [
        [
            escape(name) if at == 0 else "", state if at == 0 else "", escape(d.what),
            escape(_short(d.declared)), escape(_short(d.live)),
        ]
        for at, d in enumerate(one.differences)
    ]  # fmt: skip


def _short(text: str) -> str:
    line = " ".join(text.split())
    return (line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…") or "nothing"
