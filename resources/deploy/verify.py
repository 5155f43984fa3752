"""Comparing what a cutover has computed with its views' queries over the very same parts of their sources, before anything is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from chmv_assets.core.errors import DeployRefused, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_map
from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.rebuild import Feed, with_parts
from chmv_assets.core.reconcile import build_comparison
from chmv_assets.core.reconcile_sql import decode_counts, render_counts
from resources.rebuild.workbench import Workbench
from resources.reconcile import BOUNDS
from resources.shares import build_shares, fetch_stored_columns

_TOO_SLOW = 159


def verify_scratch(
    bench: Workbench,
    target: Object,
    scratch: QName,
    feeds: Sequence[Feed],
    parts: Mapping[QName, Sequence[str]],
    seconds: float | None = None,
) -> str:
    """Raise if a scratch does not hold what its views give over these parts, of sources that are not named over all; gives what was found, in words.

    What takes longer than `seconds` is given up.
    """
    server = bench.executor.server
    columns = fetch_stored_columns(server, scratch)
    shares = build_shares(bench, feeds, columns)
    try:
        comparison = build_comparison(replace(target, name=scratch), columns, shares, "")
    except CannotCompare as error:
        return f"not compared: {error}"
    sessions = {bench.session(feed.view) for feed in feeds}
    if len(sessions) > 1:
        return "not compared: unqualified names of its views belong to different databases"
    filters = {f"{name.database}.{name.table}": with_parts("", some) for name, some in parts.items()}
    settings = {**BOUNDS, **({"additional_table_filters": quote_map(filters)} if filters else {})}
    if seconds is not None:
        settings["max_execution_time"] = max(1, int(seconds))
    if any(sessions):
        settings["database"] = next(iter(sessions))
    try:
        counts = decode_counts(comparison, server.rows(render_counts(comparison), settings=settings)[0])
    except ServerError as error:
        if seconds is None or error.code != _TOO_SLOW:
            raise
        return f"not compared: it takes longer than {seconds:.0f} s"
    if not counts.is_equal:
        raise DeployRefused(
            f"target {target.name}: of {counts.keys} keys {counts.deficit} lack something, {counts.excess} have too much and {counts.changed} other values "
            "but wanted what its new views give over the same rows. Something that they look up may have changed meanwhile. Nothing was published. "
            "Run it again."
        )
    return f"{counts.keys} keys are equal"
