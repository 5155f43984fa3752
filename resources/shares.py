"""What a target stores and what each of its views gives of it: the two sides of a comparison, read from the server.

For reconciliation, and for deployments before they publish. How they are compared is in `core.reconcile`.
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed, render_share
from chmv_assets.core.reconcile import Share, StoredColumn
from resources.clickhouse import Server
from resources.introspect import describe_select
from resources.rebuild.workbench import Workbench


def fetch_stored_columns(server: Server, name: QName) -> list[StoredColumn]:
    """The columns of a table in their order; none if it is not there."""
    rows = server.rows(
        "SELECT name, type, default_kind, default_expression FROM system.columns "
        "WHERE database = {d:String} AND table = {t:String} ORDER BY position",
        {"d": name.database, "t": name.table},
    )
    return [StoredColumn(name=column, type=kind, default_kind=word, default=text) for column, kind, word, text in rows]


def build_shares(bench: Workbench, feeds: Sequence[Feed], columns: Sequence[StoredColumn]) -> list[Share]:
    """What each view gives of the columns that are stored as written."""
    held = [column.name for column in columns if column.default_kind not in ("MATERIALIZED", "ALIAS")]
    shares = []
    for feed in feeds:
        outputs = describe_select(bench.executor.server, feed.select, bench.session(feed.view))
        shares.append(
            Share(
                view=feed.view, facts=bench.catalog.facts.get(feed.view.name), source=feed.source,
                select=render_share(feed, outputs, held, bench.timezone), outputs=tuple(one for one in outputs if one[0] in held),
            )
        )  # fmt: skip
    return shares
