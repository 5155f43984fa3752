"""The group of an object: its own, or that of its target, or of what feeds it. Dagster's graph and the page of `chmv graph` show the same."""

from __future__ import annotations

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import VIEW_KINDS
from chmv_assets.core.names import QName
from chmv_assets.core.settings import Settings


def group_of(catalog: Catalog, settings: Settings, name: QName) -> str:
    """The name of the group; the database where no setting says anything."""
    node = catalog.objects[name]
    near = [name]
    near += [node.target] if node.kind in VIEW_KINDS and node.target else []
    near += [edge.source for edge in catalog.edges_into(name) if edge.kind == "feeds"]
    groups = (settings.policy(one).group for one in near)
    return next((group for group in groups if group is not None), name.database)
