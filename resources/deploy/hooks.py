"""After a view was made: does the server fire it?"""

from __future__ import annotations

from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.names import QName
from resources.rebuild.workbench import Workbench


def require_hook(bench: Workbench, view: QName) -> None:
    """Raise unless the server fires a view on the table that it should."""
    trigger = bench.catalog.trigger_of(view)
    if trigger is None:
        return
    rows = bench.executor.server.rows(
        "SELECT has(arrayZip(dependencies_database, dependencies_table), ({vd:String}, {vt:String})) FROM system.tables "
        "WHERE database = {d:String} AND name = {t:String}",
        {"vd": view.database, "vt": view.table, "d": trigger.database, "t": trigger.table},
    )
    if not rows or not rows[0][0]:
        raise DeployRefused(
            f"view {view}: found no hook of it on {trigger} after it was created but wanted one. Inserts would not fire it. What was changed is taken back."
        )
