"""`chmv plan`, `chmv apply`, `chmv rollback`, `chmv deploys`: changing the server to what the folder declares, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import console, hush, print_json, say, table, told
from chmv_assets.pipeline import load_pipeline

if TYPE_CHECKING:
    from chmv_assets.core.deploy.changes import Plan
    from resources.deploy import Applied, Progress

_WIDE, _AROUND = 160, 5  # letters of a line; words around what differs
_STYLES = {"safe": "green", "rewrites data": "yellow", "destructive": "bold red", "manual": "bold magenta"}
allow_options = (
    click.option("--allow-rewrite", is_flag=True, help="Permit changes that rewrite data."),
    click.option(
        "--allow-destructive",
        is_flag=True,
        help="Permit changes that delete or put aside something, and those that rewrite data.",
    ),
)


@click.command("plan")
@ddl_option
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the plan here, for `chmv apply FILE`.",
)
@click.option("--steps", is_flag=True, help="Also print every step of every cutover.")
@json_option
@told
def plan_command(ddl: Path | None, out: Path | None, steps: bool, as_json: bool) -> None:
    """Compare the folder with the server and print what `chmv apply` would do, with its risk and what it touches.

    Each change is safe, rewrites data, is destructive, or is left to people (manual), with the reason. Nothing is changed. Exit codes: 0 the server is
    what the folder declares; 1 the folder has defects or the server cannot be reached; 2 there are changes; 3 something could not be compared.

    \b
    Example:
      chmv plan --ddl ./ddl
      chmv plan --ddl ./ddl --out plan.json || [ $? -eq 2 ]     # under set -e
      chmv apply plan.json --allow-rewrite
    """
    from chmv_assets.core.deploy.codec import encode_plan, plan_document
    from chmv_assets.core.deploy.sealing import seal_plan, without_slots
    from chmv_assets.deploy import make_plan
    from resources.clickhouse import Server, endpoint_from_environment

    pipeline = load_pipeline(ddl_folder(ddl)).require_sound()
    with Server(endpoint_from_environment()) as server:
        plan = make_plan(server, pipeline)
    if out is not None:
        out.write_text(encode_plan(plan), encoding="utf-8")
    if as_json:
        print_json(plan_document(plan))
    else:
        _print_plan(without_slots(seal_plan(plan)), steps=steps)
        if out is not None:
            say(_how_to_apply(plan, out))
    if plan.changes or plan.untold:
        raise SystemExit(2 if plan.changes else 3)


def _how_to_apply(plan: Plan, out: Path) -> str:
    if plan.risk == "manual":
        return f"Written to {out}. It cannot be applied as it is: what is `manual` is left to people."
    permission = {"rewrites data": " --allow-rewrite", "destructive": " --allow-destructive"}.get(plan.risk, "")
    return f"Written to {out}. Apply it with `chmv apply {out}{permission}`."


def _print_plan(plan: Plan, *, steps: bool = False) -> None:
    out = console()
    for one in plan.untold:
        out.print(f"{one.name}: cannot tell, {one.why}.", style="yellow", highlight=False, markup=False)
    if plan.is_empty and not plan.cutovers:
        out.print(
            f"Nothing to do: {len(plan.owned)} objects are what the folder declares.", style="green", highlight=False
        )
        return
    if plan.is_empty:
        out.print(
            "No object differs. Targets that a deployment may have left half done are computed anew.", highlight=False
        )
    for change in plan.changes:
        out.print(f"{change.risk:>13}  ", style=_STYLES[change.risk], end="", highlight=False)
        out.print(f"{change.name} ({change.kind.replace('_', ' ')}): {change.why}", highlight=False, markup=False)
        for difference in change.differences:
            out.print(f"{'':15}{difference.what}", style="dim", highlight=False, markup=False)
            live, declared = narrow_down(difference.live, difference.declared)
            if live:
                out.print(f"{'':15}- {live}", style="red", highlight=False, markup=False)
            if declared:
                out.print(f"{'':15}+ {declared}", style="green", highlight=False, markup=False)
        for sql in (*change.early, *change.late):
            out.print(f"{'':15}{_one_line(sql)}", style="cyan", highlight=False, markup=False)
    _print_cutovers(plan, steps)
    if plan.impacts:
        rows = [(str(one.name), one.how, one.partitions or "", one.rows or "", _size(one.size)) for one in plan.touched]
        out.print(table("what it touches", ("object", "how", "partitions", "rows", "size"), rows))
    out.print(
        f"Plan {plan.plan_id}: {_count(len(plan.changes), 'change')}, {_count(len(plan.cutovers), 'cutover')}, risk: {plan.risk}.",
        highlight=False,
    )


def _print_cutovers(plan: Plan, steps: bool) -> None:
    if not plan.cutovers:
        return
    from chmv_assets.core.deploy.cutover_plan import is_fresh

    out, created = console(), plan.created()
    rows = [
        (
            at,
            ", ".join(map(str, one.targets)) or "none",
            ", ".join(str(s.view) for s in one.switches) or "none",
            "none: nothing to compute" if is_fresh(created, one) else ", ".join(map(str, one.roots)),
        )
        for at, one in enumerate(plan.cutovers, start=1)
    ]
    out.print(
        table(
            "cutovers, each behind one gate where there are writers",
            ("", "targets", "views", "writers that wait a moment"),
            rows,
        )
    )
    if steps:
        from chmv_assets.core.deploy.cutover_plan import plan_fresh
        from chmv_assets.deploy import catalog_of
        from resources.deploy.cutover import explain_cutover

        catalog = catalog_of(plan)
        for at, one in enumerate(plan.cutovers, start=1):
            shown = plan_fresh(one) if is_fresh(created, one) else explain_cutover(catalog, one)
            for number, step in enumerate(shown, start=1):
                out.print(f"  {at}.{number:<3} {step}", highlight=False, markup=False)


def narrow_down(live: str, declared: str) -> tuple[str, str]:
    """Two texts as far as they differ, with a few words around that.

    >>> narrow_down("SELECT " + "a, " * 90 + "x FROM t", "SELECT " + "a, " * 90 + "y FROM t")
    ('… a, a, a, a, a, x FROM t', '… a, a, a, a, a, y FROM t')
    """
    old, new = live.split(), declared.split()
    if max(len(" ".join(old)), len(" ".join(new))) <= _WIDE or not old or not new:
        return _one_line(live), _one_line(declared)
    same = _common(old, new)
    tail = _common(old[same:][::-1], new[same:][::-1])
    start = max(0, same - _AROUND)
    sides = []
    for words in (old, new):
        end = min(len(words), len(words) - tail + _AROUND)
        shown = " ".join(words[start:end])
        sides.append(_one_line(f"{'… ' if start else ''}{shown}{' …' if end < len(words) else ''}"))
    return sides[0], sides[1]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))


def _one_line(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _WIDE else f"{shown[: _WIDE - 1]}…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if size else ""
        value /= 1024
    return f"{value:.1f} TiB"


@click.command("apply")
@click.argument(
    "plan_path", metavar="[PLAN]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@ddl_option
@click.option("--resume", is_flag=True, help="Go on with the deployment that somebody began and did not end.")
@click.option(
    "--soak-hours",
    type=click.FloatRange(min=0),
    default=168.0,
    show_default=True,
    help="What earlier deployments put aside is dropped if they ended longer ago.",
)
@allow_options[0]
@allow_options[1]
@json_option
@told
def apply_command(
    plan_path: Path | None,
    ddl: Path | None,
    resume: bool,
    soak_hours: float,
    allow_rewrite: bool,
    allow_destructive: bool,
    as_json: bool,
) -> None:
    """Carry out PLAN, as `chmv plan --out` has written it: exactly that, and only if the server has not moved since.

    New views are tried first over a clone of their source. Targets are computed and compared while writers write; then writers wait for a moment (code 469,
    they send again) in which tables and views are exchanged. A plan holds no secrets: where its statements need some, they are read from the DDL folder. Every unit is in the journal: after a crash `--resume` goes on, `chmv rollback` goes back.

    Exit codes: 0 done; 1 refused or failed, the message says what stands; 2 usage.

    \b
    Example:
      chmv apply plan.json --allow-rewrite
      chmv apply --resume
    """
    from chmv_assets.core.deploy.changes import allowed_risks
    from chmv_assets.core.deploy.codec import decode_plan
    from chmv_assets.deploy import open_applier
    from resources.clickhouse import Server, endpoint_from_environment

    if resume == (plan_path is not None):
        raise click.UsageError("Give a PLAN, or --resume, and not both.")
    plan = decode_plan(plan_path.read_text(encoding="utf-8")) if plan_path is not None else None
    folder = ddl_folder(ddl)
    with Server(endpoint_from_environment()) as server:
        applier = open_applier(server, say, _tell, folder, trace=hush)
        allowed = allowed_risks(rewrite=allow_rewrite, destructive=allow_destructive)
        applied = applier.apply(plan, allowed) if plan is not None else applier.resume()
        _print_applied(applied, as_json)  # it is done, whatever becomes of what older ones have put aside
        for name in applier.store.sweep(applier.executor, soak_hours * 3600, applied.deploy_id):
            say(f"dropped {name}, its soak time is over")


def _tell(progress: Progress) -> None:
    if progress.step:
        say(f"    {progress.step}" if not progress.side_by_side else f"    {progress.title}: {progress.step}")
    elif progress.done < progress.of:
        say(f"{progress.begun} of {progress.of}: {progress.title}")


def _print_applied(applied: Applied, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "deploy_id": applied.deploy_id, "plan_id": applied.plan_id, "units": applied.units,
                "gate_seconds": round(applied.gate_seconds, 3), "seconds": round(applied.seconds, 3),
                "kept": [str(name) for name in applied.kept],
            }
        )  # fmt: skip
        return
    kept = f" Kept aside: {_count(len(applied.kept), 'table')} of before." if applied.kept else ""
    console().print(
        f"Deployment {applied.deploy_id} done: {_count(applied.units, 'unit')} in {applied.seconds:.1f} s, writers waited {applied.gate_seconds:.2f} s.{kept} "
        f"Take it back with `chmv rollback {applied.deploy_id}`.",
        highlight=False,
    )


@click.command("rollback")
@click.argument("deploy", metavar="[DEPLOYMENT]", required=False, default="")
@click.option("--dry-run", is_flag=True, help="Print the plan that takes it back, and do nothing.")
@allow_options[0]
@allow_options[1]
@json_option
@told
def rollback_command(deploy: str, dry_run: bool, allow_rewrite: bool, allow_destructive: bool, as_json: bool) -> None:
    """Take DEPLOYMENT back, finished or not: the objects of before, their targets computed with the queries of before.

    Rows that arrived since are in them: it is a deployment like any other, towards the texts that the journal kept. Tables that were put aside come back with
    their rows, as long as their soak time is not over.

    Without an id: the newest in the journal of this server, also if it was made of another folder. Where several folders are deployed to one server, name
    it (`chmv deploys`). What the deployment has created is put aside, which needs --allow-destructive.

    \b
    Example:
      chmv rollback --dry-run
      chmv rollback 3f2a9c01 --allow-rewrite
    """
    from chmv_assets.core.deploy.changes import allowed_risks
    from chmv_assets.core.deploy.codec import plan_document
    from chmv_assets.core.deploy.sealing import seal_plan, without_slots
    from chmv_assets.deploy import make_rollback, open_applier
    from resources.clickhouse import Server, endpoint_from_environment

    with Server(endpoint_from_environment()) as server:
        plan = make_rollback(server, deploy)
        if dry_run:
            if as_json:
                print_json(plan_document(plan))
            else:
                _print_plan(without_slots(seal_plan(plan)))
            return
        applier = open_applier(server, say, _tell, trace=hush)
        applied = applier.apply(plan, allowed_risks(rewrite=allow_rewrite, destructive=allow_destructive))
    _print_applied(applied, as_json)


@click.command("deploys")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many.")
@json_option
@told
def deploys_command(limit: int, as_json: bool) -> None:
    """List deployments, the newest first: what was changed, how far it came, what it keeps aside.

    \b
    Example:
      chmv deploys
    """
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.deploy import DeployStore
    from resources.journal import open_journal

    with Server(endpoint_from_environment()) as server:
        store = DeployStore(open_journal(server))
        records = store.read(limit)
        plans = store.plans([one.deploy_id for one in records]) if records else {}
        kept = store.kept() if records else []
    document = [
        {
            "deploy_id": one.deploy_id, "plan_id": one.plan_id, "status": one.status, "step": one.step, "at": str(one.updated_at or ""),
            "changes": [str(change.name) for change in plans[one.deploy_id].changes] if one.deploy_id in plans else [],
            "kept": [str(name) for name, deploy in kept if deploy == one.deploy_id], "detail": one.detail, "owner": one.owner,
        }
        for one in records
    ]  # fmt: skip
    if as_json:
        print_json({"deploys": document})
        return
    if not document:
        console().print(
            "No deployments yet. `chmv plan --out plan.json`, then `chmv apply plan.json`.", highlight=False
        )
        return
    rows = [
        (one["deploy_id"], one["status"], one["step"], one["at"], _few(one["changes"]), len(_strings(one["kept"])), one["detail"])
        for one in document
    ]  # fmt: skip
    console().print(table("deployments", ("id", "status", "units done", "at", "changes", "kept", "detail"), rows))


def _strings(value: object) -> Sequence[str]:
    return value if isinstance(value, list) else ()


def _few(value: object) -> str:
    names = _strings(value)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
