"""When a fence would be exact, and when it is refused: rules over the catalog and over rights. Every refusal names the way that remains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.fence import find_arrival
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.rebuild_plan import can_prebuild

Grant = tuple[str, str, str | None, str | None, bool]  # who, access, database, table (None: all), taken away
_ORDERLESS = ("plain", "summing", "aggregating")  # families whose result does not depend on when a row came in


def refused(subject: str, found: str, wanted: str, why: str = "Rows could go two ways or none") -> RebuildRefused:
    """A refusal of the fenced protocol."""
    return RebuildRefused(f"{subject}: found {found} but wanted {wanted}. {why}. Use `--protocol gated`.")


def downstream_views(catalog: Catalog, tables: Sequence[QName]) -> tuple[Object, ...]:
    """Views that inserts into these tables fire, in order of their names."""
    fired = {view.name: view for table in tables for view in catalog.fired_by(table)}
    return tuple(fired[name] for name in sorted(fired) if fired[name].kind == "materialized_view")


def check_layers(catalog: Catalog, views: Sequence[Object], targets: Sequence[Object], cluster: str) -> None:
    """Refuse what a fence cannot hold apart: chains above, other clocks, results that depend on blocks or on order."""
    if cluster:
        raise refused(
            f"target {targets[0].name}", f"a cluster ({cluster})", "one server", "Its servers have clocks of their own"
        )
    for view in views:
        _check_view(catalog, view)
    for view in downstream_views(catalog, [target.name for target in targets]):
        node = catalog.objects.get(view.target) if view.target is not None else None
        if node is None or node.kind == "inner_table":
            raise refused(
                f"view {view.name}",
                "a hidden inner table",
                "a target with a name",
                "Rows that wait could not be moved into it",
            )
    for target in targets:
        _check_target(target)


def _check_view(catalog: Catalog, view: Object) -> None:
    trigger = catalog.trigger_of(view.name)
    source = catalog.objects.get(trigger) if trigger is not None else None
    if source is None or catalog.views_into(source.name):
        found = f"its source {trigger} is written by other views"
        raise refused(f"view {view.name}", found, "a source in which rows first arrive", "Arrival times end there")
    if source.engine != "MergeTree":
        why = "Late rows are found by counting, and replicas have clocks of their own"
        raise refused(f"source {source.name}", source.engine or source.kind, "a plain MergeTree table", why)
    if find_arrival(source) is None:
        wanted = "a column DateTime64 with DEFAULT now64(…) or MATERIALIZED now64(…)"
        raise refused(f"source {source.name}", "no arrival column", wanted, "Rows are told apart by when they came")
    if not can_prebuild(catalog, view):
        found = f"class {catalog.facts[view.name].view_class} ({catalog.facts[view.name].why})"
        raise refused(
            f"view {view.name}",
            found,
            "one whose results over parts add up",
            "Rows that waited are computed on their own",
        )


def _check_target(target: Object) -> None:
    if target.kind == "inner_table":
        raise refused(
            f"target {target.name}", "a hidden inner table", "one with a name (TO)", "Its name may change meanwhile"
        )
    kind = family(target.engine)
    versioned = kind == "replacing" and bool(target.engine_args.strip("() "))
    if target.engine.startswith(("Replicated", "Shared")) or not (kind in _ORDERLESS or versioned):
        wanted = "MergeTree, SummingMergeTree, AggregatingMergeTree or ReplacingMergeTree with a version, on one server"
        why = "Rows that waited come in after younger ones"
        raise refused(f"target {target.name}", target.engine or target.kind, wanted, why)


def check_rights(
    definers: Mapping[QName, str | None], sources: Sequence[QName], grants: Sequence[Grant], we: str
) -> None:
    """Refuse if an insert would fail because somebody may not read the fence: a view's definer, or the writer where it has none.

    Rights that come together through several roles are not put together; then it is refused although it would do.
    """
    readers = {who for who, *rest in grants if _covers(rest, "SELECT", OWN_DATABASE, None)}
    readers -= {who for who, _, database, _, gone in grants if gone and database in (None, OWN_DATABASE)}
    for view, definer in definers.items():
        if definer and definer != we and definer not in readers:
            raise refused(
                f"view {view}", f"definer {definer}", f"one with SELECT on {OWN_DATABASE}.*", "Every insert would fail"
            )
    if all(definer is not None for definer in definers.values()):
        return
    writers = {
        who for who, *rest in grants for source in sources if _covers(rest, "INSERT", source.database, source.table)
    }
    for who in sorted(writers - readers):
        view = next(view for view, definer in definers.items() if definer is None)
        raise refused(
            f"view {view}", f"no SQL SECURITY, and {who} who may insert", f"a definer, or SELECT on {OWN_DATABASE}.* for {who}",
            "The fence would be read with the writer's rights and the insert fail",
        )  # fmt: skip


def _covers(grant: Sequence[object], access: str, database: str, table: str | None) -> bool:
    kind, in_database, in_table, gone = grant
    fits = in_table is None or (table is not None and in_table == table)
    return not gone and kind in ("ALL", access) and in_database in (None, database) and fits
