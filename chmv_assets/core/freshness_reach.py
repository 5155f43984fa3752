"""Which targets something holds back, and when refreshes are due. Pure; for whoever turns lags into targets: the freshness sensor and the metrics endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.freshness import period_seconds
from chmv_assets.core.names import QName

Reach = Callable[[QName], Sequence[QName]]


def build_reach(catalog: Catalog) -> Reach:
    """Which targets with readers an object holds back: a view its target, a table what is computed from it, and so on down."""
    fed: dict[QName, list[QName]] = {}
    for edge in catalog.edges:
        target = catalog.objects[edge.dest].target
        if edge.kind == "trigger" and target is not None:
            fed.setdefault(edge.source, []).append(target)
    written = {edge.dest for edge in catalog.edges if edge.kind == "writes"}
    known: dict[QName, tuple[QName, ...]] = {}

    def reach(subject: QName) -> tuple[QName, ...]:
        if subject not in known:
            made = catalog.objects.get(subject)
            waiting = [made.target or subject] if made is not None else []
            found: list[QName] = []
            while waiting:
                table = waiting.pop()
                if table not in found:
                    found.append(table)
                    waiting += fed.get(table, ())
            known[subject] = tuple(
                sorted(one for one in found if one in written and catalog.objects[one].kind != "inner_table")
            )
        return known[subject]

    return reach


def refresh_periods(catalog: Catalog) -> Mapping[QName, float]:
    """How often each declared refreshable view should be refreshed; without those whose schedule cannot be read."""
    declared = {
        name: period_seconds(made.refresh.schedule)
        for name, made in catalog.objects.items()
        if made.kind == "refreshable_view" and made.refresh is not None
    }
    return {name: seconds for name, seconds in declared.items() if seconds is not None}
