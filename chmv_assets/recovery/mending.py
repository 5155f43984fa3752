"""Putting a view back into its place: there, attached, hooked, with the declared query. Each step looks again before it acts.

Invariant: after `mend_view` the view is what is declared, or an error says what it is instead. Rows that it missed are not its
business: `views` rebuilds their windows afterwards, always.
"""

from __future__ import annotations

from dataclasses import dataclass

from chmv_assets.core.errors import RecoveryFailed, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.live_views import find_changed
from chmv_assets.recovery.site import RecoverySite
from resources.health import LiveView
from resources.inner_tables import fetch_real_names

MAX_STEPS = 4  # attached, hooked, queried; more means that somebody works against us
_THERE_ALREADY = 57


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
    standing = Standing()
    for step in range(MAX_STEPS):
        standing = look_at(site, view)
        if not standing.damage:
            return step > 0
        if standing.damage == "dropped":
            _bring_back(site, view)
        elif standing.damage == "unhooked":
            site.executor.run_ddl(f"detach {view.name}", f"DETACH TABLE IF EXISTS {view.name.sql} SYNC")
            site.executor.run_ddl(f"attach {view.name}", f"ATTACH TABLE {view.name.sql}")
            site.did(f"detached and attached {view.name}: inserts fire it again")
        else:
            _restore_query(site, view, standing.differences)
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
    create_declared(site, view)


def create_declared(site: RecoverySite, made: Object) -> None:
    """Create what is declared, unless another repair was quicker."""
    try:
        site.executor.run_ddl(f"create {made.name}", made.sql, session_of(made))
        site.did(f"created {made.name} as declared at {made.place}")
    except ServerError as error:
        if error.code != _THERE_ALREADY:
            raise


def _restore_query(site: RecoverySite, view: Object, differences: tuple[str, ...]) -> None:
    if differences == ("query",):
        sql = f"ALTER TABLE {view.name.sql} MODIFY QUERY {view.select}"
        site.executor.run_ddl(f"restore query of {view.name}", sql, session_of(view))
        site.did(f"gave {view.name} back its declared query")
        return
    site.executor.run_ddl(f"drop {view.name}", f"DROP TABLE IF EXISTS {view.name.sql} SYNC")
    site.executor.run_ddl(f"create {view.name}", view.sql, session_of(view))
    site.did(f"created {view.name} anew, since {', '.join(differences)} cannot be altered")


def session_of(made: Object) -> str:
    """The database to which unqualified names in a declaration belong."""
    return made.session_database or made.name.database
