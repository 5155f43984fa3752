"""The journal's schema as numbered migrations. Pure text; `resources.journal` applies them.

Invariant: a migration that was released is never edited, only followed by another; every statement may run twice. The
table `chmv.schema_versions` knows which have run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chmv_assets.core.batches import BATCHES
from chmv_assets.core.deploy.deploy_journal import DEPLOYS, render_create_plans
from chmv_assets.core.diversions import DIVERSIONS
from chmv_assets.core.manifest import render_create_landing_files, render_create_quarantine
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.outages import OUTAGES
from chmv_assets.core.own_tables import (
    OWN_DATABASE,
    Statement,
    on_cluster,
    read_settings,
    render_own_table,
    write_settings,
)
from chmv_assets.core.rebuild_journal import REBUILDS
from chmv_assets.core.recovery import RECOVERIES
from chmv_assets.core.serving_journal import ROUTES, render_create_guards
from chmv_assets.core.tunings import TUNINGS
from chmv_assets.core.watermarks import render_create_watermarks

SCHEMA_VERSIONS = QName(OWN_DATABASE, "schema_versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema; `render` takes the cluster's name or nothing."""

    number: int
    title: str
    render: Callable[[str], tuple[str, ...]]


MIGRATIONS: tuple[Migration, ...] = (
    Migration(number=1, title="batches", render=lambda cluster: (BATCHES.render_create(cluster),)),
    Migration(number=2, title="watermarks", render=lambda cluster: (render_create_watermarks(cluster),)),
    Migration(
        number=3,
        title="landing files and quarantine",
        render=lambda cluster: (render_create_landing_files(cluster), render_create_quarantine(cluster)),
    ),
    Migration(number=4, title="rebuilds", render=lambda cluster: (REBUILDS.render_create(cluster),)),
    Migration(number=5, title="recoveries", render=lambda cluster: (RECOVERIES.render_create(cluster),)),
    Migration(
        number=6,
        title="guards and routes",
        render=lambda cluster: (render_create_guards(cluster), ROUTES.render_create(cluster)),
    ),
    Migration(number=7, title="outages", render=lambda cluster: (OUTAGES.render_create(cluster),)),
    Migration(number=8, title="diversions", render=lambda cluster: (DIVERSIONS.render_create(cluster),)),
    Migration(number=9, title="deploys", render=lambda cluster: (DEPLOYS.render_create(cluster),)),
    Migration(number=10, title="plans", render=render_create_plans),
    Migration(number=11, title="tunings", render=lambda cluster: (TUNINGS.render_create(cluster),)),
)
SCHEMA_VERSION = MIGRATIONS[-1].number


def render_foundation(cluster: str = "") -> tuple[str, ...]:
    """What must be there before the first migration: the database and the table of versions."""
    columns = (
        "number UInt32",
        "title String",
        "version UInt64",
        "applied_at DateTime64(6, 'UTC') DEFAULT now64(6, 'UTC')",
    )
    return (
        f"CREATE DATABASE IF NOT EXISTS {quote_identifier(OWN_DATABASE)}{on_cluster(cluster)}",
        render_own_table(SCHEMA_VERSIONS, columns, ("number",), cluster),
    )


def pending_migrations(applied: set[int]) -> tuple[Migration, ...]:
    """Those that have not run yet, in order."""
    return tuple(one for one in MIGRATIONS if one.number not in applied)


def read_applied(cluster: str = "") -> Statement:
    sql = f"SELECT DISTINCT number FROM {SCHEMA_VERSIONS.sql}"
    return Statement(sql=sql, parameters={}, settings=read_settings(cluster))


def write_applied(migration: Migration, cluster: str = "") -> Statement:
    sql = f"INSERT INTO {SCHEMA_VERSIONS.sql} (number, title, version) SELECT {{number:UInt32}}, {{title:String}}, 1"
    values = {"number": migration.number, "title": migration.title}
    return Statement(sql=sql, parameters=values, settings=write_settings(cluster))


def read_replicas() -> str:
    """How many replicas of each own table there are and are alive, and whether this one takes writes; see `core.quorum`.

    One row per table; a table that is not replicated is not in the answer, nor are locks and tables that are kept aside (they have a dot in their name).
    """
    return (
        "SELECT table, max(total_replicas), min(active_replicas), max(is_readonly) "
        f"FROM system.replicas WHERE database = {quote_string(OWN_DATABASE)} AND position(table, '.') = 0 GROUP BY table ORDER BY table"
    )
