"""Which live views do not compute what is declared. Compared by meaning, once per text: a tick does not parse 2,000 views again.

Differences that do not change rows (comments, schedules of refreshes, settings) do not count here; `chmv check` shows them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.names import QName
from chmv_assets.live_memory import Key, in_shares, make_room
from resources.clickhouse import Server
from resources.health import LiveView
from resources.introspect import LiveObject

COUNTS = frozenset({"query", "target", "KIND"})
Verdicts = dict[Key, tuple[str, ...]]
_known: Verdicts = {}


def text_digest(view: LiveView) -> str:
    """The live text, in a few letters."""
    return hashlib.sha256(view.sql.encode()).hexdigest()[:12]


def find_changed(
    server: Server,
    catalog: Catalog,
    views: Sequence[LiveView],
    known: Verdicts | None = None,
    *,
    one_query: bool = False,
) -> dict[QName, tuple[str, ...]]:
    """Views that differ, with what does. Texts that were seen before cost nothing; all others are compared now, or (with `one_query`) as many
    of them as one query can ask for, and the rest by the next calls.
    """
    cache = _known if known is None else known
    keys = {
        view.name: (view.name, catalog.objects[view.name].digest, text_digest(view))
        for view in views
        if view.name in catalog.objects
    }
    fresh = [view for view in views if view.name in keys and keys[view.name] not in cache]
    if one_query:
        fresh = fresh[: len(next(in_shares(catalog, [view.name for view in fresh]), ()))]
    if fresh:
        make_room(cache, keys.values())
        _compare(server, catalog, fresh, keys, cache)
    return {name: cache[key] for name, key in keys.items() if cache.get(key)}


def _compare(
    server: Server,
    catalog: Catalog,
    views: Sequence[LiveView],
    keys: dict[QName, Key],
    cache: Verdicts,
) -> None:
    from chmv_assets.live import compare_with_live  # brings sqlglot, which loading the location must not

    objects = [
        LiveObject(name=view.name, engine="MaterializedView", sql=view.sql, select=view.select, hooked_views=())
        for view in views
    ]
    verdicts = compare_with_live(catalog, objects, server, [view.name for view in views])
    for view in views:
        found = verdicts.get(view.name)
        differences = found.differences if found is not None and found.state == "changed" else ()
        cache[keys[view.name]] = tuple(one.what for one in differences if one.what in COUNTS)
