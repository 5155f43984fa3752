"""Reading what became of everything: ids, targets against their queries, what is still open, what was left behind. Writes nothing, but see `merges_go_on`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chmv_assets.core.deploy.deploy_journal import KEPT_PREFIX
from chmv_assets.core.errors import ChmvError, ServerError
from chmv_assets.core.gate import read_gates
from chmv_assets.core.locks import KEEP_GENERATIONS
from chmv_assets.core.model import Object
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.deploy import make_plan
from chmv_assets.live import build_live_catalog, find_disagreements
from chmv_assets.recovery.routes import open_router
from chmv_assets.recovery.site import RecoverySite
from resources.clickhouse import Server
from resources.journal import Journal
from resources.reconcile import Reconciler
from resources.reconcile_windows import fetch_windows
from resources.serving import Router
from resources.status import read_status
from soak.scene import LEDGERS, Scene
from soak.verdict import Account, Compared, count_ids

ABORTED = 236
_BACKGROUND = ("snapshot_job",)


def targets_of(scene: Scene) -> list[Object]:
    """All declared tables that a view writes."""
    catalog = scene.site.pipeline.catalog
    names = {one.target for one in catalog.objects.values() if one.kind == "materialized_view" and one.target}
    return [catalog.objects[name] for name in sorted(names)]


def count_rows(scene: Scene) -> tuple[Account, ...]:
    """Every id of every source, there and in the target that counts ids."""
    found = []
    for source, ledger in LEDGERS.items():
        sent, doubt = scene.expected(source), scene.in_doubt(source)
        for table, sql in ((source, "count()"), (ledger, "sum(n)")):
            rows = scene.site.rows(f"SELECT id, toInt64({sql}) FROM shop.{table} GROUP BY id")
            found.append(count_ids(f"shop.{table}", {int(one): int(n) for one, n in rows}, sent, doubt))
    return tuple(found)


def compare_targets(scene: Scene) -> tuple[Compared, ...]:
    """Every window of every target against its views' queries."""
    pipeline, compared = scene.site.pipeline, []
    with scene.site.server() as server:
        reconciler = Reconciler(server, pipeline.catalog, pipeline.settings.timezone)
        for node in targets_of(scene):
            windows = fetch_windows(server, pipeline.catalog, node, None, pipeline.settings.timezone)
            verdicts = [reconciler.run(node, window) for window in windows]
            wrong = tuple(f"{one.window}: {one.sentence()}" for one in verdicts if one.status != "equal")
            keys = sum(one.keys for one in verdicts)
            compared.append(Compared(target=str(node.name), windows=len(windows), keys=keys, wrong=wrong))
    return tuple(compared)


@contextmanager
def _router(scene: Scene) -> Iterator[Router]:
    with scene.site.server() as server:
        yield open_router(RecoverySite(scene.site.pipeline, server, Journal(server), lambda _line: None))


def read_not_active(scene: Scene) -> tuple[str, ...]:
    with _router(scene) as router:
        found = read_status(router, scene.site.pipeline.settings)
    return tuple(f"{one.facts.target} {one.status}: {'; '.join(one.why)}" for one in found if one.status != "ACTIVE")


def read_open(scene: Scene) -> tuple[str, ...]:
    """What waits for a repair, a run or somebody: the soak is not settled before that is empty."""
    found = list(read_not_active(scene))
    with scene.site.server() as server:
        plan = make_plan(server, scene.site.pipeline)
        found += [f"drift: {one.name} {one.why}" for one in plan.changes]
        live, objects = build_live_catalog(server, ["shop"])
        found += [f"hook: {one}" for one in find_disagreements(live, objects)]
        found += [f"repair {name} {status}" for name, status in server.rows("SELECT recovery, status FROM chmv.recoveries FINAL WHERE status = 'running'")]  # fmt: skip
        found += [f"rebuild {target} {status}" for target, status in server.rows("SELECT target, status FROM chmv.rebuilds FINAL WHERE status = 'running'")]  # fmt: skip
    found += [f"run of {job} {status}" for job, status in scene.runs_under_way() if job not in _BACKGROUND]
    if scene.landed:
        there = int(scene.site.rows(f"SELECT count() FROM shop.events WHERE id >= {min(scene.landed)}")[0][0])
        if there < len(scene.landed):
            found.append(f"landing: {there} of {len(scene.landed)} rows are in")
    return tuple(found)


def read_left(server: Server, tables: list[str]) -> tuple[str, ...]:
    """What somebody has left on the server: tables of ours, held locks, gates, stopped merges, journal rows that never end."""
    own = server.rows(
        "SELECT name FROM system.tables WHERE database = {d:String} AND position(name, '.') > 0 AND NOT startsWith(name, 'lock.') ORDER BY name",
        {"d": OWN_DATABASE},
    )
    left = [f"{'table that was put aside' if str(name).startswith(KEPT_PREFIX) else 'table'} {name}" for (name,) in own]
    left += [
        f"gate {constraint} on {database}.{table}" for database, table, constraint, *_ in server.rows(read_gates())
    ]
    left += [f"lock {name} held by {owner}" for name, owner in server.rows(
        "SELECT JSONExtractString(last, 'lock'), JSONExtractString(last, 'owner') AS owner FROM (SELECT argMax(comment, name) AS last FROM system.tables "
        "WHERE database = {d:String} AND startsWith(name, 'lock.') GROUP BY substring(name, 1, length(name) - position(reverse(name), '.'))) "
        "WHERE owner != '' AND JSONExtractInt(last, 'expires_us') > toUnixTimestamp64Micro(now64(6))",
        {"d": OWN_DATABASE},
    )]  # fmt: skip
    left += [f"{count} generations of lock {name}" for name, count in server.rows(
        "SELECT any(JSONExtractString(comment, 'lock')), count() FROM system.tables WHERE database = {d:String} AND startsWith(name, 'lock.') "
        "GROUP BY substring(name, 1, length(name) - position(reverse(name), '.')) HAVING count() > {most:UInt32}",
        {"d": OWN_DATABASE, "most": 2 * KEEP_GENERATIONS},
    )]  # fmt: skip
    for table, key in (("rebuilds", "target"), ("deploys", "deploy_id"), ("recoveries", "recovery")):
        rows = server.rows_if_there(f"SELECT {key}, status FROM chmv.{table} FINAL WHERE status = 'running'")
        left += [f"chmv.{table} {name} {status}" for name, status in rows]
    # By database: the server cannot tell for all of them at once (26.7, code 48 for its default one).
    for database in sorted({name.partition(".")[0] for name in tables}):
        away = server.rows("SELECT table FROM system.detached_tables WHERE database = {d:String}", {"d": database})
        left += [f"{database}.{table} is detached" for (table,) in away]
    left += [f"merges of {name} are stopped" for name in tables if not merges_go_on(server, name)]
    return tuple(left)


def merges_go_on(server: Server, table: str) -> bool:
    """Whether a table merges; no system table tells, an OPTIMIZE does. The only thing here that writes."""
    try:
        server.command(f"OPTIMIZE TABLE {table} FINAL")
    except ServerError as error:
        if error.code == ABORTED:
            return False
        raise
    return True


def find_open(scene: Scene) -> tuple[str, ...]:
    """What is open, or why that cannot be told."""
    try:
        return read_open(scene)
    except (ChmvError, OSError, ValueError) as error:
        return (f"no answer: {str(error)[:200]}",)
