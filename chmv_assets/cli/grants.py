"""`chmv grants`: what the accounts of a pipeline need on the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click

from chmv_assets.cli.catalog import ddl_folder, ddl_option
from chmv_assets.cli.options import json_option
from chmv_assets.cli.output import print_json, told
from chmv_assets.core.grants import ACCOUNTS, Account, Grant, build_grants, render_sql, render_users_xml
from chmv_assets.core.names import QName
from chmv_assets.pipeline import Pipeline, load_pipeline

_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*\Z", re.ASCII)


@click.command("grants")
@ddl_option
@click.option(
    "--role",
    "roles",
    type=click.Choice(ACCOUNTS),
    multiple=True,
    help="Only this account; may be repeated.  [default: all]",
)
@click.option(
    "--user", "users", multiple=True, metavar="NAME", help="The account's name, one per --role.  [default: chmv_<role>]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["sql", "users_xml"]),
    default="sql",
    show_default=True,
    help="Statements, or a file for users.d.",
)
@json_option
@told
def grants_command(ddl: Path | None, roles: tuple[str, ...], users: tuple[str, ...], form: str, as_json: bool) -> None:
    """Print what a reader, an ingester and a recovery account need for this folder's pipeline: exactly that.

    Nothing is granted and no server is asked. `reader` opens serving views and targets, `ingester` loads landing files (`chmv ingest`), `recovery` is
    for everything else: Dagster's runs and sensors, rebuild, recover, deploy. Names that begin with a prefix (`lock.`*) need ClickHouse 24.10.

    \b
    Example:
      chmv grants --ddl ./ddl --role reader --user dashboards
      chmv grants --ddl ./ddl --format users_xml > /etc/clickhouse-server/users.d/chmv.xml
    """
    from resources.journal import cluster_from_environment

    chosen = cast("tuple[Account, ...]", roles or ACCOUNTS)
    if users and len(users) != len(chosen):
        raise click.UsageError(f"Give one --user for each --role: found {len(users)} but wanted {len(chosen)}.")
    names = users or tuple(f"chmv_{role}" for role in chosen)
    if form == "users_xml" and not as_json:
        for odd in (name for name in names if not _XML_NAME.match(name)):
            raise click.UsageError(
                f"--user {odd}: an account in a users file is an XML element. Use letters, digits, `_`, `.` and `-`."
            )
    pipeline = load_pipeline(ddl_folder(ddl, asks_server=False)).require_sound()
    cluster = cluster_from_environment()
    made = [
        (role, name, build_grants(pipeline.catalog, role, landing_sources(pipeline), cluster))
        for role, name in zip(chosen, names, strict=True)
    ]
    if as_json:
        print_json({"accounts": [_document(*one) for one in made]})
    elif form == "users_xml":
        click.echo(render_users_xml(made), nl=False)
    else:
        click.echo("\n".join(render_sql(*one) for one in made), nl=False)


def landing_sources(pipeline: Pipeline) -> tuple[QName, ...]:
    """Sources that files are ingested into."""
    names = pipeline.catalog.objects
    return tuple(name for name in names if pipeline.settings.policy(name).landing is not None)


def _document(role: Account, user: str, grants: Sequence[Grant]) -> dict[str, object]:
    listed = [{"privileges": list(one.privileges), "on": one.on, "why": one.why} for one in grants]
    return {"role": role, "user": user, "grants": listed}
