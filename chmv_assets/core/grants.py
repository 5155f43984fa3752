"""Least privilege: what the accounts of a pipeline need on the server, and nothing else. Pure; made of the graph.

    reader    serving views and what stands behind them (they read with the rights of who asks), targets
    ingester  sources with a landing, the journal of batches, staging, the server's tables that tell how full it is
    recovery  everything else that chmv does: observe, rebuild, recover, snapshots, routes, deploy, pull, drift, sensors

This is the one place that says what each part needs; tests/integration/security/test_privileges.py runs every part under each account on a server
that asks for all of it (`access_control_improvements`), and takes away one grant after another to see that none is idle. A view with a definer runs with
that account's rights. One that says nothing gets a definer where the server is configured so (`ignore_empty_sql_security_in_create_view_query` false); on
others it reads with the rights of who inserts. We go by the DDL and assume the latter. Nobody needs a right on targets in order to insert into a source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from xml.sax.saxutils import escape

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.graph import neighbours, reachable
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.serving import (
    SERVING_DATABASE,
    SNAPSHOT_DATABASE,
    serving_names,
    serving_targets,
    snapshot_name,
    twin_name,
)
from chmv_assets.core.serving_journal import GUARDS

Account = Literal["reader", "ingester", "recovery"]
ACCOUNTS: tuple[Account, ...] = get_args(Account)
_NOT_ON_THE_SERVER = ("external", "function")
# What a source of another system asks for when a table or a function of it is made or read (GRANT … ON *.*).
_OUTSIDE = {
    "s3": "S3", "s3queue": "S3", "gcs": "S3", "oss": "S3", "cosn": "S3", "iceberg": "S3", "deltalake": "S3", "hudi": "S3", "s3cluster": "S3",
    "mysql": "MYSQL", "postgresql": "POSTGRES", "mongodb": "MONGO", "redis": "REDIS", "url": "URL", "file": "FILE", "hdfs": "HDFS",
    "azureblobstorage": "AZURE", "azurequeue": "AZURE", "kafka": "KAFKA", "rabbitmq": "RABBITMQ", "nats": "NATS", "odbc": "ODBC", "jdbc": "JDBC",
    "sqlite": "SQLITE", "remote": "REMOTE", "remotesecure": "REMOTE", "cluster": "REMOTE", "clusterallreplicas": "REMOTE", "distributed": "REMOTE",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Grant:
    """Privileges on one thing, and which part of the system needs them."""

    on: str  # as SQL: `db`.`t`, `db`.*, `db`.`prefix`*, *.*, or a name for TABLE ENGINE and SET DEFINER
    privileges: tuple[str, ...]
    why: str

    @property
    def sql(self) -> str:
        """Without the account: how a users file takes it.

        >>> Grant(on="`d`.`t`", privileges=("SELECT", "INSERT"), why="").sql
        'GRANT SELECT, INSERT ON `d`.`t`'
        """
        return f"GRANT {', '.join(self.privileges)} ON {self.on}"


def build_grants(
    catalog: Catalog, account: Account, landings: Collection[QName] = (), cluster: str = ""
) -> tuple[Grant, ...]:
    """Everything an account needs; `landings` are the sources that files are ingested into."""
    made = {"reader": _reader, "recovery": _recovery}
    found = _ingester(catalog, landings) if account == "ingester" else made[account](catalog)
    return (*found, *(_cluster(account) if cluster else ()))


def _grant(on: str, why: str, *privileges: str) -> Grant:
    return Grant(on=on, privileges=privileges, why=why)


def _whole(database: str) -> str:
    return f"{quote_identifier(database)}.*"


def _prefix(database: str, start: str) -> str:
    """All tables whose names begin so (ClickHouse 24.10 and later)."""
    return f"{quote_identifier(database)}.{quote_identifier(start)}*"


def _own(table: str) -> str:
    return QName(OWN_DATABASE, table).sql


def _system(tables: Iterable[str], why: str) -> list[Grant]:
    return [_grant(f"system.{table}", why, "SELECT") for table in tables]


def _engines(names: Iterable[str], why: str) -> list[Grant]:
    return [_grant(quote_identifier(name), why, "TABLE ENGINE") for name in sorted(set(names))]


# --- reader ---------------------------------------------------------------------------------------------------------------------


def _reader(catalog: Catalog) -> list[Grant]:
    targets = [made.name for made in serving_targets(catalog)]
    views = serving_names(targets)
    found = [_grant(views[name].sql, "readers open the serving view", "SELECT") for name in targets]
    for name in targets:
        found.append(_grant(name.sql, "the serving view reads its target with the reader's rights", "SELECT"))
        found.append(_grant(snapshot_name(name).sql, "and its snapshot, where a partition was lost", "SELECT"))
        found.append(_grant(twin_name(name).sql, "and an empty table of its shape", "SELECT"))
    if targets:
        found.append(_grant(GUARDS.sql, "which partitions the snapshot stands in for", "SELECT"))
    plain = [made for made in _declared(catalog) if made.kind == "view"]
    for view in plain:  # a plain view reads with the rights of who asks
        found.append(_grant(view.name.sql, "a declared view", "SELECT"))
        for name in (one.name for one in view.references):
            if catalog.objects[name].kind == "dictionary":
                found.append(_grant(name.sql, f"read by the view {view.name}", "dictGet"))
            elif catalog.objects[name].kind not in _NOT_ON_THE_SERVER:
                found.append(_grant(name.sql, f"read by the view {view.name}", "SELECT"))
    return _once(found)


# --- ingester -------------------------------------------------------------------------------------------------------------------


def _ingester(catalog: Catalog, landings: Collection[QName]) -> list[Grant]:
    why = "a batch is committed and counted"
    found = [_grant(name.sql, why, "SELECT", "INSERT") for name in sorted(landings)]
    below = {name for source in landings for name in _downstream(catalog, source)}
    views = [catalog.objects[name] for name in sorted(below) if catalog.objects[name].kind == "materialized_view"]
    found += [grant for view in views if not _has_own_rights(view) for grant in _lookups(catalog, view)]
    read = {grant.on for grant in found}
    for name in sorted(below):
        if name.sql not in read:  # a view that it did not see would leave the view's target out of the question
            found.append(_grant(name.sql, "is it there, does it deduplicate, how full is it", "SHOW TABLES"))
    found += [
        _grant(_own("schema_versions"), "which journal it is", "SELECT"),
        _grant(_own("diversions"), "whether commits are held back", "SELECT"),
        _grant(_own("tunings"), "how many inserts side by side the tuner permits", "SELECT"),
        *(_grant(_own(one), "the journal of batches", "SELECT", "INSERT") for one in ("batches", "watermarks", "landing_files", "quarantine")),
        _grant(_prefix(OWN_DATABASE, "lock."), "locks are tables", "CREATE TABLE", "DROP TABLE"),
        _grant(
            _prefix(OWN_DATABASE, "stage."), "a batch waits there for its commit", "SELECT", "INSERT", "CREATE TABLE", "DROP TABLE"
        ),
        *_engines(("Null", "MergeTree"), "locks and staging"),
        *_system(("parts", "merge_tree_settings", "metrics"), "how full the server is, what is committed"),
    ]  # fmt: skip
    return _once(found)


def _has_own_rights(view: Object) -> bool:
    """Whether a view says whose rights count; one that does not reads with the rights of who inserts, its trigger too (26.7)."""
    return "DEFINER" in view.security.upper() or "NONE" in view.security.upper()


def _lookups(catalog: Catalog, view: Object) -> list[Grant]:
    why = f"{view.name} has no SQL SECURITY: it reads with the rights of who inserts"
    found = []
    for one in view.references:
        kind = catalog.objects[one.name].kind
        if kind not in _NOT_ON_THE_SERVER:
            found.append(_grant(one.name.sql, why, "dictGet" if kind == "dictionary" else "SELECT"))
    return found


def _downstream(catalog: Catalog, source: QName) -> set[QName]:
    """Views and tables that an insert reaches."""
    _, down = neighbours(catalog.edges, ("trigger", "writes"))
    return reachable(source, down)


# --- recovery -------------------------------------------------------------------------------------------------------------------

_SYSTEM_TABLES = (
    "parts", "part_log", "processes", "query_log", "query_views_log", "merges", "metrics", "mutations", "replication_queue", "view_refreshes",
    "detached_tables", "merge_tree_settings", "server_settings", "disks", "storage_policies", "distribution_queue", "grants",
)  # fmt: skip


def _recovery(catalog: Catalog) -> list[Grant]:
    declared = _declared(catalog)
    found: list[Grant] = []
    for database in sorted({made.name.database for made in declared}):
        found += _of_database(database, [made for made in declared if made.name.database == database])
    outside = {name for made in catalog.objects.values() for name in _outside(made)}
    found += [_grant("*.*", "tables of other systems", name) for name in sorted(outside)]
    found += [
        _grant(_whole(OWN_DATABASE), "journal, locks, scratches", "SELECT", "INSERT", "CREATE DATABASE", "CREATE TABLE", "CREATE VIEW"),
        _grant(_whole(OWN_DATABASE), "scratches are filled, cut and dropped", "ALTER DELETE", "DROP TABLE", "DROP VIEW", "SYSTEM MERGES"),
        _grant(_whole(OWN_DATABASE), "shadows move their partitions, archives of replays have no TTL", "ALTER MOVE PARTITION", "ALTER TTL"),
        _grant(_whole(SNAPSHOT_DATABASE), "snapshots", "SELECT", "INSERT", "ALTER DELETE", "CREATE DATABASE", "CREATE TABLE", "DROP TABLE"),
        _grant(
            _whole(SERVING_DATABASE), "serving views are exchanged in one statement", "SELECT", "INSERT", "CREATE DATABASE", "CREATE TABLE",
            "CREATE VIEW", "DROP TABLE", "DROP VIEW",
        ),
        _grant("*.*", "fences wait for what is queued, sensors for what is logged", "SYSTEM FLUSH ASYNC INSERT QUEUE", "SYSTEM FLUSH LOGS"),
        _grant("*.*", "a target that was dropped comes back", "UNDROP TABLE"),
        *_engines({"Null", "MergeTree", "ReplacingMergeTree", *_used_engines(declared)}, "tables of the pipeline, journal and locks"),
        *_system(_SYSTEM_TABLES, "sensors, rebuilds and comparisons look at it"),
    ]  # fmt: skip
    return _once(found)


def _of_database(database: str, objects: Sequence[Object]) -> list[Grant]:
    """Rights on all of a database: a deployment makes tables whose names nobody knows yet."""
    on = _whole(database)
    kinds = {made.kind for made in objects}
    found = [
        _grant(on, "views read and write with these rights, rebuilds and comparisons read", "SELECT", "INSERT"),
        _grant(on, "what is declared is made and replaced", "CREATE DATABASE", "CREATE TABLE", "DROP TABLE"),
        _grant(on, "partitions are replaced", "ALTER DELETE"),
        _grant(on, "writers are held back for a moment", "ALTER ADD CONSTRAINT", "ALTER DROP CONSTRAINT"),
        _grant(on, "parts stay as they are while they are copied; partitions are merged", "SYSTEM MERGES", "OPTIMIZE"),
        _grant(on, "deployments", "ALTER COLUMN", "ALTER INDEX", "ALTER PROJECTION", "ALTER SETTINGS", "ALTER TTL", "ALTER MODIFY COMMENT"),
    ]  # fmt: skip
    if kinds & {"view", *VIEW_KINDS}:
        found.append(_grant(on, "views are made, exchanged, detached", "CREATE VIEW", "DROP VIEW"))
    if "materialized_view" in kinds:
        found.append(_grant(on, "a view gets its declared query again", "ALTER VIEW MODIFY QUERY"))
    if "refreshable_view" in kinds:
        found.append(_grant(on, "views are refreshed", "SYSTEM VIEWS", "ALTER VIEW MODIFY REFRESH"))
    if "dictionary" in kinds:
        found.append(_grant(on, "dictionaries", "CREATE DICTIONARY", "DROP DICTIONARY", "dictGet"))
    if "distributed" in kinds:
        found.append(_grant(on, "fences wait for what a Distributed table holds back", "SYSTEM FLUSH DISTRIBUTED"))
    for made in objects:
        if definer := _definer(made):
            found.append(
                _grant(quote_identifier(definer), f"{made.name} runs with that account's rights", "SET DEFINER")
            )
    return found


def _definer(made: Object) -> str:
    """The account that a view declares, unless it is whoever creates it."""
    words = made.security.replace("=", " = ").split()
    if "=" not in words[:-1]:
        return ""
    name = words[words.index("=") + 1].strip("`'\"")
    return "" if name.upper() == "CURRENT_USER" else name


def _used_engines(objects: Iterable[Object]) -> set[str]:
    return {made.engine for made in objects if made.engine and made.kind not in ("view", "dictionary")} - {
        "MaterializedView"
    }


def _outside(made: Object) -> Iterable[str]:
    name = made.engine if made.kind != "function" else made.name.table.partition("(")[0]
    return [_OUTSIDE[name.lower()]] if name.lower() in _OUTSIDE else []


# --- all ------------------------------------------------------------------------------------------------------------------------


def _cluster(account: Account) -> list[Grant]:
    if account == "reader":
        return []
    found = [
        _grant("*.*", "statements for every replica", "CLUSTER"),
        *_system(("replicas", "clusters"), "is there a quorum"),
    ]
    if account == "recovery":
        found.append(_grant("*.*", "the other replicas are asked, and waited for", "REMOTE", "SYSTEM SYNC REPLICA"))
    return found


def _declared(catalog: Catalog) -> list[Object]:
    return [made for _, made in sorted(catalog.objects.items()) if made.kind not in _NOT_ON_THE_SERVER]


def _once(grants: Iterable[Grant]) -> list[Grant]:
    """Without those that an earlier one gives already."""
    held: dict[str, set[str]] = {}
    found: list[Grant] = []
    for grant in grants:
        new = tuple(one for one in grant.privileges if one not in held.setdefault(grant.on, set()))
        held[grant.on] |= set(new)
        if new:
            found.append(Grant(on=grant.on, privileges=new, why=grant.why))
    return found


def render_sql(account: Account, user: str, grants: Sequence[Grant]) -> str:
    """Statements for an account that exists."""
    head = [
        f"-- {account}: {len(grants)} grants for {user!r}, generated by `chmv grants`. Create the account first, for example",
        f"-- CREATE USER IF NOT EXISTS {quote_identifier(user)} IDENTIFIED WITH sha256_password BY '…' HOST ...;",
    ]
    return "\n".join([*head, *(f"{one.sql} TO {quote_identifier(user)}; -- {one.why}" for one in grants)]) + "\n"


def render_users_xml(accounts: Sequence[tuple[Account, str, Sequence[Grant]]]) -> str:
    """A file for `users.d`; its accounts are locked until a hash of a password is put in, for nothing is known to have this one."""
    lines = ["<clickhouse>", "  <!-- Generated by `chmv grants`. Put the SHA-256 of each password in. -->", "  <users>"]
    for account, user, grants in accounts:
        lines += [
            f"    <{user}> <!-- {account} -->",
            f"      <password_sha256_hex>{'0' * 64}</password_sha256_hex>",
            "      <networks><ip>::/0</ip></networks>",
            "      <profile>default</profile>",
            "      <quota>default</quota>",
            "      <grants>",
            *(f"        <query>{escape(one.sql)}</query>" for one in grants),
            "      </grants>",
            f"    </{user}>",
        ]
    return "\n".join([*lines, "  </users>", "</clickhouse>"]) + "\n"
