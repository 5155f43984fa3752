"""Every part of the system as a function of an account, what became of it under each, and which privileges that took."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from privilege_site import DAILY, DAY, HITS, INSERT, TITLED, WINDOW, DeniedError, PrivilegeSite, SeesLessError

from chmv_assets.core.batches import ATTEMPT_COLUMN, TASK_COLUMN, Slice, render_create_staging, staging_name
from chmv_assets.core.errors import ServerError
from chmv_assets.core.grants import ACCOUNTS, Account, Grant
from chmv_assets.core.landing import Batch, LandingFile
from chmv_assets.core.manifest import QUARANTINE
from chmv_assets.core.names import QName
from chmv_assets.core.serving import serving_names, serving_targets
from chmv_assets.drift import read_drift
from resources.backlog import read_backlog
from resources.clickhouse import Server
from resources.executor import Executor
from resources.forwarders import fetch_undelivered
from resources.freshness import FreshnessReader
from resources.health import fetch_health
from resources.introspect import fetch_free_bytes
from resources.journal import Journal, finish_batch
from resources.journal.manifest import hold_landing, read_quarantined, read_taken_files, take_files
from resources.late_rows import read_late_rows
from resources.observe import observe_windows
from resources.pressure import read_pressure
from resources.serving import Router
from sensors.late_data import late_sources

Part = Callable[[PrivilegeSite, Account], object]


def run(site: PrivilegeSite, account: Account, *statements: str) -> None:
    with site.server(account) as server:
        for sql in statements:
            server.command(sql)


def select(sql: str) -> Part:
    def part(site: PrivilegeSite, account: Account) -> object:
        with site.server(account) as server:
            rows = server.rows(sql)
            assert rows, sql
            return rows

    return part


def chmv(*arguments: str, codes: Sequence[int] = (0,)) -> Part:
    return lambda site, account: site.chmv(account, *arguments, codes=codes)


def deploy(site: PrivilegeSite, account: Account) -> None:
    plan = site.folder / "plan.json"
    plan.unlink(missing_ok=True)
    site.chmv(account, "plan", "--out", str(plan), codes=(0, 2))
    site.chmv(account, "apply", str(plan), "--allow-rewrite", "--allow-destructive")


def deploy_everything(site: PrivilegeSite, account: Account) -> None:
    deploy(site, account)
    site.admin("INSERT INTO guarded.pages VALUES ('0', 'zero'), ('1', 'one')")
    site.admin("SYSTEM RELOAD DICTIONARY guarded.pages_dict")


def deploy_a_change(site: PrivilegeSite, account: Account) -> None:
    """Online alters of every kind, a view that is exchanged behind a gate, a plain view and a dictionary that are replaced, a table that goes."""
    path = site.folder / "ddl" / "all.sql"
    text = path.read_text()
    projection = "INDEX i ms TYPE minmax, PROJECTION p (SELECT page, count() GROUP BY page))"
    for before, after in (
        ("ms UInt32, arrived", "ms UInt32, note String COMMENT 'x', arrived"),
        ("DEFAULT now64(3))", f"DEFAULT now64(3), {projection}"),
        ("ORDER BY at SETTINGS", "ORDER BY at SETTINGS merge_with_ttl_timeout = 9999,"),
        ("ORDER BY month SETTINGS", "ORDER BY month TTL month + INTERVAL 50 YEAR SETTINGS"),
        ("sum(ms) AS ms FROM guarded.hits", "sum(ms + 0) AS ms FROM guarded.hits"),
        ("AS SELECT day, sum(hits) AS hits FROM", "AS SELECT day, sum(hits) AS hits, 1 AS one FROM"),
        ("LIFETIME(0)", "LIFETIME(MIN 0 MAX 1000000)"),
        ("EVERY 1 YEAR", "EVERY 2 YEAR"),
        ("ReplacingMergeTree ORDER BY page", "ReplacingMergeTree ORDER BY page COMMENT 'pages'"),
    ):
        assert before in text, before
        text = text.replace(before, after, 1)
    kept = path.read_text()
    path.write_text(text)
    try:
        deploy(site, account)
    except BaseException:
        path.write_text(kept)
        raise


def commit_a_batch(site: PrivilegeSite, account: Account) -> None:
    """What an ingest does on the server, without Spark: look, take files, stage, commit, count, mark."""
    site.batches += 1
    batch = f"batch{site.batches}"
    with site.server(account) as server:
        journal = Journal(server, owner=account)
        read_pressure(server, [HITS, DAILY, TITLED])
        with hold_landing(journal, HITS):
            take_files(
                journal, HITS, [Batch(id=batch, files=(LandingFile(path=f"{batch}.jsonl", bytes=1, checksum=batch),))]
            )
        journal.note_batch(HITS, batch, "planned")
        columns = [("at", "DateTime('UTC')"), ("page", "LowCardinality(String)"), ("ms", "UInt32")]
        server.command(render_create_staging(HITS, batch, columns, account))
        names = f"at, page, ms, {TASK_COLUMN}, {ATTEMPT_COLUMN}"
        server.command(
            f"INSERT INTO {staging_name(HITS, batch).sql} ({names}) SELECT toDateTime('{DAY} 11:00:00', 'UTC'), 'x', 1, 0, 'one' FROM numbers(10)"
        )
        journal.note_batch(HITS, batch, "staged", slices=[Slice(0, "one", 10)])
        finish_batch(journal, HITS, batch)
        server.command(
            f"INSERT INTO {QUARANTINE.sql} (source, batch_id, file, reason, row) SELECT 'guarded.hits', 'x', 'x', 'x', 'x'"
        )
        assert read_quarantined(journal, HITS, batch) is not None
        journal.move_watermarks(
            HITS, {DAILY: {WINDOW: lambda mark, version: replace(mark, version=version, batch_id=batch)}}
        )
        assert read_taken_files(journal, HITS)


def observe(site: PrivilegeSite, account: Account) -> None:
    catalog = site.pipeline.catalog
    with site.server(account) as server:
        policy = site.pipeline.settings.policy(HITS)
        (seen,) = observe_windows(server, catalog, catalog.objects[HITS], [WINDOW], "UTC", policy)
        assert seen.rows


def read_landing(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        read_taken_files(Journal(server), HITS)


def read_serving(site: PrivilegeSite, account: Account) -> None:
    """As many rows as are there: merge() leaves out, without a word, tables that an account may not read."""
    names = serving_names(made.name for made in serving_targets(site.pipeline.catalog))
    with site.server(account) as server, site.server(None) as admin:
        for view in names.values():
            sql = f"SELECT count() FROM {view.sql}"
            if server.rows(sql) != admin.rows(sql):
                raise SeesLessError


def read_serving_of_lost_targets(site: PrivilegeSite, account: Account) -> None:
    names = [made.name for made in serving_targets(site.pipeline.catalog)]
    pairs = [(name.sql, QName(name.database, f"{name.table}_away").sql) for name in names]
    site.admin(f"RENAME TABLE {', '.join(f'{here} TO {away}' for here, away in pairs)}")
    try:
        read_serving(site, account)
    finally:
        site.admin(f"RENAME TABLE {', '.join(f'{away} TO {here}' for here, away in pairs)}")


def use_own_tables(site: PrivilegeSite, account: Account) -> None:
    """Statements that need live writers, Spark or other engines to come about by themselves, as the code sends them."""
    with site.server(account) as server:
        assert fetch_free_bytes(server, DAILY)
        assert fetch_undelivered(server, [DAILY]) == ()
        Executor(server, log=lambda _line: None).flush_async_inserts()
        shadow, archive = QName("chmv", "shadow.test"), QName("chmv", "replay.test")
        for sql in (
            f"CREATE TABLE {shadow.sql} AS {DAILY.sql}",
            f"INSERT INTO {shadow.sql} SELECT '2026-11-11', 'x', 1, 1",
            f"ALTER TABLE {shadow.sql} MOVE PARTITION ID '20261111' TO TABLE {DAILY.sql}",
            f"CREATE TABLE {archive.sql} (at DateTime) ENGINE = MergeTree ORDER BY at TTL at + INTERVAL 9 YEAR",
            f"ALTER TABLE {archive.sql} REMOVE TTL",
            f"DROP TABLE {shadow.sql} SYNC",
            f"ALTER TABLE {DAILY.sql} DROP PARTITION ID '20261111'",
            f"DROP TABLE {archive.sql} SYNC",
        ):
            server.command(sql)


def sense_backlog(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        assert read_backlog(server, [HITS, DAILY, TITLED]).pool_size


def sense_late_rows(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        assert read_late_rows(server, late_sources(site.pipeline), 1, 60.0).sources_read


def sense_health(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        health = fetch_health(server, ["guarded"], int(time.time() * 1000) - 60_000)
        known = health.detached is not None and health.failures is not None
        if QName("guarded", "daily_mv") not in health.views or not known:
            raise SeesLessError


def sense_freshness(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        FreshnessReader({QName("guarded", "top_mv"): 60.0}).read(server, int(time.time() * 1000))


def sense_drift(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        found = read_drift(server, site.pipeline.catalog)
        assert all(one.state == "equal" for one in found.comparisons.values()), found


def router(site: PrivilegeSite, server: Server) -> Router:
    return Router(server, Journal(server), site.pipeline.catalog, 3600.0)


def snapshot(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        assert any(one.complete for one in router(site, server).refresh_snapshots())


def route(site: PrivilegeSite, account: Account) -> None:
    with site.server(account) as server:
        for where in ("snapshot", "primary"):
            router(site, server).switch(DAILY, where, "a test", "none")  # type: ignore[arg-type]


def rebuild(protocol: str, *more: str) -> Part:
    return chmv("rebuild", "guarded.daily", *(more or ("--window", DAY)), "--protocol", protocol)


def damaged(sql: str, part: Part) -> Part:
    """A part after something was broken by somebody who may."""

    def both(site: PrivilegeSite, account: Account) -> object:
        site.admin(sql)
        return part(site, account)

    return both


def pull(site: PrivilegeSite, account: Account) -> None:
    folder = site.folder / f"pulled_{account}"
    shutil.rmtree(folder, ignore_errors=True)
    site.chmv(account, "pull", "--ddl", str(folder), "--database", "guarded")
    if len(list(folder.rglob("*.sql"))) < len([one for one in site.pipeline.catalog.objects.values() if one.sql]):
        raise SeesLessError


WINDOWED = ("--window", DAY)
EVERYBODY: frozenset[Account] = frozenset(ACCOUNTS)
RECOVERY: frozenset[Account] = frozenset(("recovery",))
WRITERS: frozenset[Account] = frozenset(("ingester", "recovery"))
READERS: frozenset[Account] = frozenset(("reader", "recovery"))
PARTS: tuple[tuple[str, Part, frozenset[Account]], ...] = (
    ("deploy from nothing", deploy_everything, RECOVERY),
    ("insert rows", lambda site, account: run(site, account, INSERT), WRITERS),
    ("commit a batch", commit_a_batch, WRITERS),
    ("chmv batches", chmv("batches"), WRITERS),
    ("chmv watermarks", chmv("watermarks"), WRITERS),
    ("observe a source", observe, WRITERS),
    ("landing sensor reads", read_landing, WRITERS),
    ("snapshot", snapshot, RECOVERY),
    ("route", route, RECOVERY),
    ("read the serving views", read_serving, READERS),
    ("read them, targets gone", read_serving_of_lost_targets, READERS),
    ("read a target", select("SELECT sum(hits) FROM guarded.daily"), READERS),
    ("read a declared view", select("SELECT sum(hits) FROM guarded.overview"), READERS),
    ("read a source", select("SELECT count() FROM guarded.hits"), WRITERS),
    ("read the journal", select("SELECT count() FROM chmv.rebuilds"), RECOVERY),
    ("merge_backlog sensor reads", sense_backlog, RECOVERY),
    ("late_data sensor reads", sense_late_rows, WRITERS),
    ("view_health sensor reads", sense_health, RECOVERY),
    ("freshness sensor reads", sense_freshness, RECOVERY),
    ("drift sensor reads", sense_drift, RECOVERY),
    ("chmv status", chmv("status"), RECOVERY),
    ("chmv drift", chmv("drift"), RECOVERY),
    ("chmv deploys", chmv("deploys"), RECOVERY),
    ("chmv pull", pull, RECOVERY),
    ("chmv graph --runtime", chmv("graph", "--runtime", "--format", "json"), RECOVERY),
    ("own tables", use_own_tables, RECOVERY),
    ("rebuild, closed", rebuild("closed"), RECOVERY),
    ("rebuild, gated", rebuild("gated"), RECOVERY),
    ("rebuild, owned", rebuild("owned"), RECOVERY),
    ("rebuild, fenced", rebuild("fenced"), RECOVERY),
    ("rebuild, all windows", rebuild("auto", "--all"), RECOVERY),
    ("reconcile", chmv("reconcile", "guarded.daily"), RECOVERY),
    ("merge a partition", lambda site, account: run(site, account, "OPTIMIZE TABLE guarded.daily PARTITION ID '20261110' FINAL"), RECOVERY),
    ("recover a dropped view", damaged("DROP VIEW IF EXISTS guarded.daily_mv SYNC", chmv("recover", "guarded.daily_mv")), RECOVERY),
    ("recover a detached view", damaged("DETACH TABLE IF EXISTS guarded.titled_mv SYNC", chmv("recover", "guarded.titled_mv")), RECOVERY),
    (
        "recover a changed view",
        damaged(
            "ALTER TABLE guarded.titled_mv MODIFY QUERY SELECT at, 'x' AS title FROM guarded.hits", chmv("recover", "guarded.titled_mv")
        ),
        RECOVERY,
    ),
    ("isolate a view", chmv("recover", "guarded.titled_mv", "--damage", "isolate", codes=(0, 1)), RECOVERY),
    ("probe an isolated view", chmv("recover", "guarded.titled_mv", "--damage", "probe"), RECOVERY),
    ("recover a dropped target", damaged("DROP TABLE IF EXISTS guarded.titled", chmv("recover", "guarded.titled")), RECOVERY),
    ("refresh a view", chmv("recover", "guarded.top_mv", "--damage", "refresh failed"), RECOVERY),
    ("deploy a change", deploy_a_change, RECOVERY),
    ("chmv rollback", chmv("rollback", "--allow-rewrite", "--allow-destructive"), RECOVERY),
)  # fmt: skip


# The server shows an account the objects that it may use, and says nothing of the others.
SEES_LESS = {
    ("chmv pull", "ingester"),
    ("view_health sensor reads", "ingester"),
    ("chmv graph --runtime", "ingester"),
    ("chmv graph --runtime", "reader"),
}


def outcome(site: PrivilegeSite, part: Part, account: Account) -> str:
    """`works`, or `refused` with a message that says what to do; anything else is raised."""
    try:
        part(site, account)
    except DeniedError as denied:
        told = str(denied)
    except ServerError as denied:
        if denied.code != 497:
            raise
        told = str(denied)
    except SeesLessError:
        return "sees less"
    else:
        return "works"
    assert "chmv grants --role" in told, told
    return "refused"


def matrix(site: PrivilegeSite, *, slow: bool) -> Iterable[tuple[str, Account, str, str]]:
    """Part, account, wanted, found; who is to be refused comes first, so that nothing is changed by him."""
    for name, part, allowed in PARTS:
        if name in SLOW and not slow:
            continue
        for account in sorted(ACCOUNTS, key=lambda one: one in allowed):
            wanted = "works" if account in allowed else "sees less" if (name, account) in SEES_LESS else "refused"
            try:
                found = outcome(site, part, account)
            except Exception as error:  # all of the table is worth seeing
                found = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            yield name, account, wanted, found


SLOW = frozenset(
    (
        "rebuild, fenced",
        "recover a detached view",
        "recover a changed view",
        "isolate a view",
        "probe an isolated view",
        "rebuild, all windows",
    )
)


def used_privileges(site: PrivilegeSite, account: Account) -> set[tuple[str, str]]:
    """What the server says that queries of an account have used: privilege, and what it is on."""
    with site.server(None) as server:
        server.command("SYSTEM FLUSH LOGS query_log")
        rows = server.rows(
            "SELECT DISTINCT arrayJoin(used_privileges) FROM system.query_log WHERE user = {user:String} AND type != 'QueryStart'",
            {"user": f"chmv_{account}"},
        )
    found: set[tuple[str, str]] = set()
    for (text,) in rows:
        privileges, _, on = str(text).rpartition(" ON ")
        found |= {(one, on) for one in re.split(r", (?=[A-Z])", re.sub(r"\([^()]*\)", "", privileges))}
    return found


def is_used(privilege: str, grant: Grant, used: set[tuple[str, str]]) -> bool:
    """Whether some query has used a privilege of a grant."""
    on = grant.on.replace("`", "")
    start = on.rstrip("*") if on.endswith("*") else ""
    for name, where in used:
        place = where.replace("`", "")
        same = place == on or on == "*.*" or bool(start and place.startswith(start))
        if same and (name == privilege or name in _MEMBERS.get(privilege, ())):
            return True
    return False


_MEMBERS = {
    "ALTER COLUMN": ("ALTER ADD COLUMN", "ALTER DROP COLUMN", "ALTER MODIFY COLUMN", "ALTER COMMENT COLUMN"),
    "ALTER INDEX": ("ALTER ADD INDEX", "ALTER DROP INDEX"),
    "ALTER PROJECTION": ("ALTER ADD PROJECTION", "ALTER DROP PROJECTION"),
    "SYSTEM MERGES": ("SYSTEM STOP MERGES",),
}
