"""From a DDL folder and a server to a plan, and from a plan to its appliance. The thin shell around `core.deploy` and `resources.deploy`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.cluster import find_unnamed, spread
from chmv_assets.core.deploy.changes import Change, Plan, Untold
from chmv_assets.core.deploy.deploy_journal import kept_name
from chmv_assets.core.deploy.impact import Held
from chmv_assets.core.deploy.planner import Sides, build_plan, fingerprint, scope_of
from chmv_assets.core.deploy.sealing import is_sealed, reveal_plan, without_slots
from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.gate import without_gates
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.render_create import statement_of
from chmv_assets.core.secrets import HIDDEN
from chmv_assets.live import build_live_catalog, compare_replicas, compare_with_live
from chmv_assets.pipeline import Pipeline, read_sources
from resources.clickhouse import Server
from resources.deploy import Applier, DeployStore, Progress
from resources.deploy.forgotten import Memory
from resources.executor import Executor
from resources.introspect import LiveObject, fetch_objects, fetch_writing_databases
from resources.journal import cluster_from_environment, open_journal
from resources.topology import fetch_topology


def make_plan(server: Server, pipeline: Pipeline) -> Plan:
    """What it takes to make the server what the folder declares."""
    pipeline.require_sound()
    if why := find_unnamed(pipeline.catalog.objects.values(), cluster_from_environment()):
        raise DeployRefused(why)
    owned = DeployStore(open_journal(server)).owned_before(pipeline.catalog.declared())
    return _plan(server, pipeline.catalog, owned, read_sources(pipeline.ddl_dir), pipeline.settings.timezone)


def _plan(
    server: Server,
    declared: Catalog,
    owned_before: Sequence[QName],
    folder: Sequence[tuple[str, str]],
    zone: str,
    rolls_back: str = "",
    doubtful: Sequence[QName] = (),
) -> Plan:
    scope = scope_of(declared, owned_before)
    databases = {name.database for name in scope}
    live, objects = build_live_catalog(server, sorted(databases | fetch_writing_databases(server, databases)))
    texts = {one.name: without_gates(one.sql) for one in objects}
    names = list(declared.declared())
    comparisons = compare_with_live(declared, objects, server, names)
    sides = Sides(
        declared=declared, live=live, comparisons=comparisons,
        texts=texts, held=_held(server, objects), owned_before=tuple(owned_before),
        databases=frozenset(str(name) for (name,) in server.rows("SELECT name FROM system.databases")),
    )  # fmt: skip
    made_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    build = partial(build_plan, made_at=made_at, folder=folder, timezone=zone, rolls_back=rolls_back, doubtful=doubtful)
    plan = build(sides)
    if targets := plan.computed():
        memory = Memory.read(server, declared, live, targets, zone)
        plan = build(replace(sides, forgotten=memory.forgotten(targets)))
    return _tell_replicas(server, declared, names, plan)


def _tell_replicas(server: Server, declared: Catalog, names: Sequence[QName], plan: Plan) -> Plan:
    """On a cluster: its statements are for every replica, and what another one has otherwise than this server is named."""
    cluster = cluster_from_environment()
    if not cluster:
        return plan
    spreading = fetch_topology(server, cluster).self_spreading
    changes = tuple(
        replace(
            one,
            early=tuple(spread(sql, cluster, spreading, one.session) for sql in one.early),
            late=tuple(spread(sql, cluster, spreading, one.session) for sql in one.late),
        )
        for one in plan.changes
    )
    known = {change.name for change in plan.changes}
    untold = [
        Untold(
            name=name,
            why=f"{verdict.state} on replica {host}: {', '.join(one.what for one in verdict.differences) or 'no answer'}",
        )
        for host, verdicts in compare_replicas(server, declared, names, cluster).items()
        for name, verdict in verdicts.items()
        if verdict.state != "equal" and name not in known
    ]
    return replace(plan, changes=changes, untold=(*plan.untold, *untold))


def _held(server: Server, objects: Sequence[LiveObject]) -> dict[QName, Held]:
    """What the tables hold, with one query."""
    rows = server.rows(
        "SELECT database, table, uniqExact(partition_id), sum(rows), sum(bytes_on_disk) FROM system.parts "
        "WHERE active AND database IN {databases:Array(String)} GROUP BY database, table",
        {"databases": sorted({one.name.database for one in objects})},
    )
    return {QName(str(d), str(t)): Held(int(count), int(total), int(size)) for d, t, count, total, size in rows}


def catalog_of(plan: Plan) -> Catalog:
    """What a plan declares."""
    files = [SourceFile(path=path, text=text) for path, text in plan.folder]
    return build_catalog(files, default_database=plan.database).require_sound()


def live_fingerprint(server: Server, plan: Plan) -> str:
    """The state of what a plan is about, now."""
    objects = fetch_objects(server, sorted({name.database for name in plan.scope}))
    texts = {one.name: without_gates(one.sql) for one in objects}
    return fingerprint({name: texts.get(name, "") for name in plan.scope})


def reveal(plan: Plan, ddl_dir: Path | None) -> Plan:
    """A plan with its secrets, which stand in the folder alone; refused if the folder is not the one that the plan was made of."""
    if not is_sealed(plan):
        return plan
    if ddl_dir is None:
        raise DeployRefused(
            f"plan {plan.plan_id}: found no DDL folder but wanted the one it was made of. Its statements need secrets, and a plan holds none. Point --ddl "
            "(or CHMV_DDL_DIR) at the folder."
        )
    revealed = reveal_plan(plan, read_sources(ddl_dir))
    declared = fingerprint({name: made.digest for name, made in catalog_of(revealed).declared().items()})
    if declared != plan.declared:
        raise DeployRefused(
            f"plan {plan.plan_id}: found other secrets in {ddl_dir} but wanted those that it was made with. What was reviewed is not what would happen. "
            "Plan again."
        )
    return revealed


def open_applier(
    server: Server,
    log: Callable[[str], None],
    on_progress: Callable[[Progress], None] = lambda _progress: None,
    ddl_dir: Path | None = None,
    trace: Callable[[str], None] | None = None,
) -> Applier:
    """An applier on a server and its journal; `ddl_dir` is where secrets are read that a plan needs."""
    return Applier(
        Executor(server, log=log, trace=trace, cluster=cluster_from_environment()), open_journal(server), catalog_of,
        lambda plan: live_fingerprint(server, plan), on_progress, lambda plan: reveal(plan, ddl_dir),
    )  # fmt: skip


def make_rollback(server: Server, deploy: str = "") -> Plan:
    """The plan that takes a deployment back: the texts of before are what is declared; of views, those that were declared, whatever stood there by hand."""
    store = DeployStore(open_journal(server))
    record = store.find(deploy) if deploy else next(iter(store.read(1, statuses=("running", "done", "failed"))), None)
    if record is None:
        raise DeployRefused(
            "deployment: found none in the journal but wanted one to take back. `chmv deploys` lists them."
        )
    record = store.taken_back_by(record)
    plan = without_slots(store.plan_of(record))
    before = store.plan_before(record, plan.owned)
    mended = _mended(plan, before)
    changed = {change.name: change for change in plan.changes if change.action != "none" and change.name not in mended}
    views = _views_before(without_slots(before), changed) if before is not None else {}
    folder = _folder_before(plan, changed, views)
    files = [SourceFile(path=path, text=text) for path, text in folder]
    declared = build_catalog(files, default_database=plan.database).require_sound()
    gone = [change.name for change in changed.values() if not change.before and change.name not in views]
    # Who died behind a gate may have published rows of the new queries while all texts are still those of before.
    half_done = [plan] if record.status != "done" else []
    half_done += store.plans([one.deploy_id for one in store.attempts_at(record.deploy_id)]).values()
    doubtful = sorted(
        {name for one in half_done for cutover in one.cutovers for name in cutover.targets} & set(declared.objects)
    )
    back = _plan(server, declared, gone, folder, plan.timezone, rolls_back=record.deploy_id, doubtful=doubtful)
    kept = {name for name, _ in store.kept()}
    return replace(back, changes=tuple(_from_kept(change, record.deploy_id, kept) for change in back.changes))


def _from_kept(change: Change, deploy_id: str, kept: Collection[QName]) -> Change:
    """A table that was put aside comes back with its rows."""
    aside = kept_name(deploy_id, change.name)
    if change.action != "create" or aside not in kept:
        return change
    back = spread(f"RENAME TABLE {aside.sql} TO {change.name.sql}", cluster_from_environment())
    return replace(change, why="it was put aside", early=(back,))


def _mended(plan: Plan, before: Plan | None) -> set[QName]:
    """Objects that were declared just so before: the plan changed back what somebody had done by hand, and nobody wants that again.

    Its target would be computed anew from all of the source by a query that never was meant to be.
    """
    return set() if before is None else {name for name, _ in set(plan.digests) & set(before.digests)}


def _views_before(before: Plan, names: Collection[QName]) -> dict[QName, str]:
    """The statements of views as the deployment before declared them. For the same reason what somebody had made of a view by hand does not come back."""
    declared = catalog_of(before)
    made = {name: declared.objects[name] for name in names if name in declared.objects}
    texts = {name: _statement(one, before.database) for name, one in made.items() if one.kind in VIEW_KINDS}
    return {name: text for name, text in texts.items() if HIDDEN not in text}


def _folder_before(
    plan: Plan, changed: Mapping[QName, Change], views: Mapping[QName, str]
) -> tuple[tuple[str, str], ...]:
    """The objects of a plan as they were: changed ones by the text of before, all others as they are declared."""
    declared = catalog_of(plan)
    found: dict[QName, str] = {}
    for name, made in declared.declared().items():
        if name not in changed:
            found[name] = _statement(made, plan.database)
        elif name not in views and changed[name].before:
            found[name] = _in_database(changed[name].before, made.session_database)
    found |= {
        name: change.before for name, change in changed.items() if name not in declared.objects and change.before
    } | dict(views)
    return tuple((f"{at:05d}_{name}.sql", text) for at, (name, text) in enumerate(found.items()))


def _statement(made: Object, database: str) -> str:
    return _in_database(statement_of(made, database), made.session_database)


def _in_database(text: str, database: str) -> str:
    return f"USE {quote_identifier(database)};\n{text}" if database else text
