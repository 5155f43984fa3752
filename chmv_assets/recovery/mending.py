"""Putting a view back into its place: there, attached, hooked, with the declared query. Each step looks again before it acts.

Invariants: after `mend_view` the view is what is declared, or an error says what it is instead; while a rebuild of its target lives
it is left alone. Rows that it missed are not its business: `views` rebuilds their windows afterwards, always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from chmv_assets.core.errors import RecoveryFailed, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.rebuild_journal import lease_name
from chmv_assets.core.render_create import statement_of
from chmv_assets.live_views import find_changed
from chmv_assets.recovery.site import RecoverySite
from resources.health import LiveView
from resources.inner_tables import fetch_real_names
from resources.journal.lease import keep_lease
from resources.rebuild.recovery import recover_targets

MAX_STEPS = 4  # attached, hooked, queried; more means that somebody works against us
HOLD_SECONDS = 45.0  # a dead rebuild's lease has ended by then
_THERE_ALREADY = 57
_NOWHERE = "no such database"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a view stands: nothing, or what is wrong in a word."""

    damage: str = ""
    differences: tuple[str, ...] = ()


def look_at(site: RecoverySite, view: Object) -> Standing:
    """Read how a view stands now."""
    catalog = site.pipeline.catalog
    trigger = catalog.trigger_of(view.name) if view.kind == "materialized_view" else None
    real = fetch_real_names(site.server, catalog, [trigger])[trigger] if trigger is not None else None
    rows = site.server.rows(
        "SELECT database, name, create_table_query, as_select, arrayZip(dependencies_database, dependencies_table) FROM system.tables "
        "WHERE (database, name) IN {names:Array(Tuple(String, String))}",
        {"names": [(name.database, name.table) for name in (view.name, real) if name is not None]},
    )
    found = {QName(str(row[0]), str(row[1])): row for row in rows}
    if view.name not in found:
        return Standing("dropped")
    _, _, sql, select, _ = found[view.name]
    if real is not None and real in found and view.name not in {QName(*pair) for pair in found[real][4]}:
        return Standing("unhooked")
    live = LiveView(name=view.name, sql=str(sql), select=str(select))
    differences = find_changed(site.server, catalog, [live]).get(view.name, ())
    return Standing("changed", tuple(differences)) if differences else Standing()


def mend_view(site: RecoverySite, view: Object) -> bool:
    """Make a view what is declared; gives whether anything had to be done."""
    if not look_at(site, view).damage:
        return False
    with _hold_target(site, view) as check:
        return _mend(site, view, check)


def hook(site: RecoverySite, view: Object) -> None:
    """Let inserts fire a view that looks right."""
    with _hold_target(site, view):
        _hook(site, view)


@contextmanager
def _hold_target(site: RecoverySite, view: Object) -> Iterator[Callable[[], None]]:
    """Keep rebuilds away from a view's target for the length of a block.

    A fence has narrowed the view's query on purpose: to give it back while rows wait behind the fence would double them. One that died is led to its end first.
    """
    if view.target is None:
        yield lambda: None
        return
    with keep_lease(site.journal, lease_name(view.target), wait_seconds=HOLD_SECONDS, log=site.log) as lease:
        recover_targets(site.executor, site.journal, [view.target])
        yield lease.check


def _mend(site: RecoverySite, view: Object, check: Callable[[], None]) -> bool:
    for step in range(MAX_STEPS):
        check()
        standing = look_at(site, view)
        if not standing.damage:
            return step > 0
        if standing.damage == "dropped":
            _bring_back(site, view)
        elif standing.damage == "unhooked":
            _hook(site, view)
            site.did(f"hooked {view.name} again: inserts fire it")
        else:
            _restore_query(site, view, standing)
    standing = look_at(site, view)
    if standing.damage:
        raise RecoveryFailed(
            f"view {view.name}: found it {standing.damage} after {MAX_STEPS} steps but wanted it as declared. Somebody may be changing it, or the "
            "declared text cannot be told from the live one. Compare them with `chmv check`."
        )
    return True


def _bring_back(site: RecoverySite, view: Object) -> None:
    """Attach what is only detached, else create what is declared."""
    try:
        site.executor.run_ddl(f"attach {view.name}", f"ATTACH TABLE {view.name.sql}")
        site.did(f"attached {view.name}")
        return
    except ServerError as error:
        if error.code == _THERE_ALREADY:  # another repair was quicker
            return
    if create_declared(site, view):
        _hook(site, view)


def _hook(site: RecoverySite, view: Object) -> None:
    """Let inserts fire a view that is there. Rows that go past it meanwhile are rebuilt, as all since the outage began.

    If its source was renamed away after a MODIFY QUERY, 26.7 keeps the hook by the view's UUID, and a view that is created under its name is listed as hooked
    but never fired (docs/measured.md). Another MODIFY QUERY clears that. It also gives the view other columns than those that were declared by hand, and lets
    the server know it by its UUID, so that retries of older inserts would be written twice: so it is made once more.
    """
    if view.kind != "materialized_view":
        return
    _modify_query(site, view)
    if has_inner_table(site, view):  # which would go with it; such a view keeps its columns
        site.executor.run_ddl(f"detach {view.name}", f"DETACH TABLE IF EXISTS {view.name.sql} SYNC")
        site.executor.run_ddl(f"attach {view.name}", f"ATTACH TABLE {view.name.sql}")
    else:
        _make_anew(site, view)


def has_inner_table(site: RecoverySite, view: Object) -> bool:
    """A view without TO takes its table with it."""
    target = site.pipeline.catalog.objects.get(view.target) if view.target is not None else None
    return target is not None and target.kind == "inner_table"


def create_declared(site: RecoverySite, made: Object) -> bool:
    """Create what is declared; false if another repair was quicker."""
    try:
        site.executor.run_ddl(f"create {made.name}", declared_statement(made), session_of(made))
    except ServerError as error:
        if error.code != _THERE_ALREADY:
            raise
        return False
    site.did(f"created {made.name} as declared at {made.place}")
    return True


def is_made_anew(standing: Standing) -> bool:
    """Whether a view that stands so is created again: only its query can be altered."""
    return standing.damage == "dropped" or (standing.damage == "changed" and standing.differences != ("query",))


def _restore_query(site: RecoverySite, view: Object, standing: Standing) -> None:
    if not is_made_anew(standing):
        _modify_query(site, view)
        site.did(f"gave {view.name} back its declared query")
        return
    _make_anew(site, view)
    _hook(site, view)
    site.did(f"created {view.name} anew, since {', '.join(standing.differences)} cannot be altered")


def _make_anew(site: RecoverySite, view: Object) -> None:
    site.executor.run_ddl(f"drop {view.name}", f"DROP TABLE IF EXISTS {view.name.sql} SYNC")
    site.executor.run_ddl(f"create {view.name}", declared_statement(view), session_of(view))


def _modify_query(site: RecoverySite, view: Object) -> None:
    sql = f"ALTER TABLE {view.name.sql} MODIFY QUERY {_qualified_query(site, view)}"
    site.executor.run_ddl(f"give {view.name} its query", sql, view.name.database)


def _qualified_query(site: RecoverySite, view: Object) -> str:
    """The declared query for MODIFY QUERY, which takes unqualified names for those of the view's own database, whatever the session (26.7).

    Where the folder means others, the server says which: it qualifies the names in what it keeps of a plain view.
    """
    if session_of(view) == view.name.database or _is_qualified(view.select):
        return view.select
    probe = QName(OWN_DATABASE, f"query.{view.name.database}.{view.name.table}.{site.journal.versions.next()}")
    try:
        site.executor.run_ddl(f"create {probe}", f"CREATE VIEW {probe.sql} AS {view.select}", session_of(view))
        sql = "SELECT as_select FROM system.tables WHERE database = {d:String} AND name = {t:String}"
        return str(site.server.rows(sql, {"d": probe.database, "t": probe.table})[0][0])
    finally:
        with suppress(ServerError):
            site.executor.run_ddl(f"drop {probe}", f"DROP TABLE IF EXISTS {probe.sql} SYNC")


def _is_qualified(select: str) -> bool:
    """Whether a query says of every table in which database it is, as far as it can be read in full."""
    from chmv_assets.core.select_reader import read_select  # brings sqlglot, which loading the location must not

    read = read_select(select, _NOWHERE, fires=True)
    return read.reader == "full" and all(reference.name.database != _NOWHERE for reference in read.references)


def declared_statement(made: Object) -> str:
    """The CREATE statement as it is written, or what it comes to with all that the folder says after it."""
    return statement_of(made, session_of(made))


def session_of(made: Object) -> str:
    """The database to which unqualified names in a declaration belong."""
    return made.session_database or made.name.database
