"""Whether a new view will work, tried before anything is changed: its SELECT over a clone of its source, into a clone of its target.

The clones have no rows of their own (Null) and are dropped at once. What a view reads besides its source is read as it is now; if some of that is
only made by the same plan, the trial is left out and said to be.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.deploy.alters import render_column
from chmv_assets.core.deploy.changes import Plan, Switch
from chmv_assets.core.errors import DeployRefused, RebuildRefused, ServerError
from chmv_assets.core.model import Column, Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.normal_form import columns_in
from chmv_assets.core.rebuild import SCRATCH_DATABASE
from resources.clickhouse import Server
from resources.executor import Executor
from resources.introspect import describe_select, fetch_existing
from resources.lanes import run_in_lanes

SAMPLE_ROWS = 1000
TRIAL_PREFIX = "trial."
_FILES = {"_path": "String", "_file": "String", "_size": "Nullable(UInt64)", "_time": "Nullable(DateTime)"}
_VIRTUAL = {
    "kafka": {
        "_topic": "LowCardinality(String)", "_key": "String", "_offset": "UInt64", "_timestamp": "Nullable(DateTime)",
        "_timestamp_ms": "Nullable(DateTime64(3))", "_partition": "UInt64", "_headers.name": "Array(String)", "_headers.value": "Array(String)",
        "_raw_message": "String", "_error": "String",
    },
    "rabbitmq": {
        "_exchange_name": "String", "_channel_id": "String", "_delivery_tag": "UInt64", "_redelivered": "UInt8", "_message_id": "String",
        "_timestamp": "UInt64", "_raw_message": "String", "_error": "String",
    },
    "nats": {"_subject": "String", "_raw_message": "String", "_error": "String"},
    "filelog": {"_filename": "LowCardinality(String)", "_offset": "UInt64", "_raw_record": "String", "_error": "String"},
    "s3queue": _FILES,
    "azurequeue": _FILES,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What all trials of a plan have in common."""

    catalog: Catalog
    made: frozenset[QName]  # by the plan
    databases: frozenset[str]  # that are there
    there: frozenset[QName]  # sources that are


def check_views(executor: Executor, catalog: Catalog, plan: Plan, lanes: int = 1) -> None:
    """Try every view that a plan creates or changes, several at a time; all complaints at once."""
    switches = [switch for cutover in plan.cutovers for switch in cutover.switches if switch.after]
    if not switches:
        return
    sources = [source for switch in switches if (source := catalog.trigger_of(switch.view)) is not None]
    around = _Around(
        catalog=catalog,
        made=frozenset(one.name for one in plan.changes if one.action in ("create", "replace")),
        databases=frozenset(str(name) for (name,) in executor.server.rows("SELECT name FROM system.databases")),
        there=frozenset(fetch_existing(executor.server, sources)),
    )

    def check(server: Server, switch: Switch) -> list[str]:
        return list(_check(replace(executor, server=server, real_names={}), around, switch))

    complaints = [one for found in run_in_lanes(executor.server, lanes, switches, check) for one in found]
    if complaints:
        raise DeployRefused("\n".join(complaints) + "\nNothing was changed. Correct the folder and plan again.")


def drop_trials(executor: Executor) -> None:
    """Remove the clones of somebody who died."""
    rows = executor.server.rows(
        "SELECT name FROM system.tables WHERE database = {d:String} AND startsWith(name, {p:String}) ORDER BY engine != 'MaterializedView'",
        {"d": SCRATCH_DATABASE, "p": TRIAL_PREFIX},
    )
    for (name,) in rows:
        executor.drop_table(QName(SCRATCH_DATABASE, str(name)))


def _check(executor: Executor, around: _Around, switch: Switch) -> Iterator[str]:
    catalog = around.catalog
    view = catalog.objects[switch.view]
    trigger = catalog.trigger_of(view.name)
    source = catalog.objects.get(trigger) if trigger is not None else None
    target = catalog.objects.get(view.target) if view.target is not None else None
    if source is None or target is None:
        yield f"view {view.name}: found no declared source or target but wanted both. Declare them."
        return
    awaited = sorted(str(one.name) for one in view.references if one.name in around.made and one.name != source.name)
    if target.kind == "inner_table":
        executor.log(f"{view.name}: not tried, since it makes its own table")
        return
    if awaited:
        executor.log(f"{view.name}: not tried, since {', '.join(awaited)} only comes with this plan")
        return
    try:
        session = switch.session if switch.session in around.databases else ""  # only the plan makes it
        with _clones(executor, view, source, target, session) as (select, entry):
            yield from _fit(view, target, describe_select(executor.server, select, session))
            if source.name in around.there and source.engine.endswith("MergeTree"):
                _send_sample(executor, source, entry)
    except ServerError as error:
        yield f"view {view.name}: the server refuses it over a clone of {source.name}: {error}."
    except RebuildRefused as error:
        executor.log(f"{view.name}: not tried. {error}")


@contextmanager
def _clones(
    executor: Executor, view: Object, source: Object, target: Object, session: str
) -> Iterator[tuple[str, QName]]:
    """A Null source, a Null target and the view between; gives the view's SELECT over the clone, and the clone."""
    from chmv_assets.core.retarget import retarget  # brings sqlglot, which loading the location must not

    trial = secrets.token_hex(4)
    entry, end, between = (
        QName(SCRATCH_DATABASE, f"{TRIAL_PREFIX}{trial}.{part}") for part in ("source", "target", "view")
    )
    select = retarget(view, source.name, entry)
    try:
        executor.run_ddl(f"trial of {view.name}", _null_table(entry, (*source.columns, *_virtual(source))), session)
        executor.run_ddl(f"trial of {view.name}", _null_table(end, target.columns), session)
        sql = f"CREATE MATERIALIZED VIEW {between.sql} TO {end.sql} AS {select}"
        executor.run_ddl(f"trial of {view.name}", sql, session)
        yield select, entry
    finally:
        for name in (between, end, entry):
            executor.drop_table(name)


def _virtual(source: Object) -> tuple[Column, ...]:
    """What a queue gives beside its columns; a Null table does not have them by itself."""
    known = {column.name for column in source.columns}
    found = _VIRTUAL.get(source.engine.lower(), {}) if source.kind == "queue" else {}
    return tuple(Column(name=name, type=kind) for name, kind in found.items() if name not in known)


def _null_table(name: QName, columns: tuple[Column, ...]) -> str:
    bare = ", ".join(
        render_column(Column(name=one.name, type=one.type, default_kind=one.default_kind, default=one.default))
        for one in columns
    )
    return f"CREATE TABLE {name.sql} ({bare}) ENGINE = Null"


def _fit(view: Object, target: Object, outputs: list[tuple[str, str]]) -> Iterator[str]:
    """The server casts, drops and fills in silence what does not fit; a person should know."""
    given = {name for name, _ in outputs}
    stored = {column.name: column for column in target.columns}
    for name in sorted(given - set(stored)):
        yield (
            f"view {view.name}: gives {name}, which {target.name} does not have, but wanted a column for it. The server would drop it in silence. "
            "Add the column to the target, or take it out of the view."
        )
    keys = columns_in(f"{target.order_by} {target.partition_by}")
    for name, column in stored.items():
        if name in keys and name not in given and not column.default_kind:
            yield (
                f"view {view.name}: does not give {name}, a key of {target.name}, but wanted it. All rows would get the type's default. Select it."
            )


def _send_sample(executor: Executor, source: Object, entry: QName) -> None:
    """Some rows of the live source through the trial."""
    live = {
        str(name)
        for (name,) in executor.server.rows(
            "SELECT name FROM system.columns WHERE database = {d:String} AND table = {t:String} AND default_kind NOT IN ('ALIAS', 'MATERIALIZED', 'EPHEMERAL')",
            {"d": source.name.database, "t": source.name.table},
        )
    }
    names = [
        one.name
        for one in source.columns
        if one.name in live and one.default_kind not in ("ALIAS", "MATERIALIZED", "EPHEMERAL")
    ]
    if names:
        listed = ", ".join(map(quote_identifier, names))
        executor.insert_select(
            entry,
            f"INSERT INTO {entry.sql} ({listed}) SELECT {listed} FROM {source.name.sql} LIMIT {SAMPLE_ROWS}",
            source.name,
            "",
        )
