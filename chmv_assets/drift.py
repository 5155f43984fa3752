"""Drift: what the folder declares against what is on the server, both ways. It reads and never repairs.

One query, another one if something differs, and those of the comparison only for texts that were not compared before: what was equal once is
equal as long as neither side changes. Undeclared is what stands in a database that the folder declares objects in, and that nobody of ours has made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.rebuild_journal import SQL_REBUILDING
from chmv_assets.core.serving import SERVING_DATABASE, SNAPSHOT_DATABASE
from chmv_assets.live_memory import Key, in_shares, make_room
from chmv_assets.replica_drift import Folded, fold_replicas
from resources.clickhouse import Server
from resources.introspect import LiveObject, fetch_objects
from resources.vocabulary import fetch_replica_objects

_OURS = (SERVING_DATABASE, SNAPSHOT_DATABASE)
Known = dict[Key, Comparison]
_known: Known = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeclared:
    """An object that only the server has."""

    name: QName
    engine: str
    referred: bool  # whether something declared refers to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Both sides, compared."""

    comparisons: Mapping[QName, Comparison]  # of every declared object, in order of names
    undeclared: tuple[Undeclared, ...] = ()
    held: frozenset[QName] = field(
        default_factory=frozenset
    )  # a rebuild works on them: what they look like now does not count
    compared: int = 0  # how many were not known from before
    waiting: int = 0  # how many are not known yet: they are in no comparison, and held
    silent: tuple[str, ...] = ()  # replicas of the cluster that did not answer


def read_drift(
    server: Server, catalog: Catalog, known: Known | None = None, limit: int | None = None, cluster: str = ""
) -> Drift:
    """Compare everything declared with the server, and with every replica of its cluster; with a limit, so many at most and no more than one query
    can ask for: the next calls go on.
    """
    names = sorted(catalog.declared())
    databases = sorted({name.database for name in names})
    if not databases:
        return Drift(comparisons={})
    live = fetch_objects(server, databases)
    cache = _known if known is None else known
    keys = {name: _key(catalog, name, text) for name, text in _live_texts(live).items() if name in catalog.objects}
    fresh = [name for name in names if name in keys and keys[name] not in cache]
    asked = fresh if limit is None else next(in_shares(catalog, fresh[:limit]), [])
    waiting = frozenset(fresh).difference(asked)
    fresh = list(asked)
    if fresh:
        _compare(server, catalog, live, fresh, keys, cache)
    missing = Comparison("missing")
    folded = Folded(
        comparisons={name: cache[keys[name]] if name in keys else missing for name in names if name not in waiting}
    )
    if cluster:
        folded = _fold(server, catalog, live, folded.comparisons, cluster, cache)
    calm = all(verdict.state == "equal" for verdict in folded.comparisons.values())
    return Drift(
        comparisons=folded.comparisons,
        silent=folded.silent,
        undeclared=find_undeclared(catalog, live),
        held=waiting if calm else _held(catalog, _fetch_rebuilding(server)) | waiting,
        compared=len(fresh),
        waiting=len(waiting),
    )


def _fold(
    server: Server,
    catalog: Catalog,
    live: Sequence[LiveObject],
    comparisons: Mapping[QName, Comparison],
    cluster: str,
    cache: Known,
) -> Folded:
    """The same with what the other replicas say; one query, and those of the comparison for texts that only another replica has."""
    triggers = {edge.source for edge in catalog.edges if edge.kind == "trigger" and edge.dest in comparisons}
    wanted = {*comparisons, *triggers}

    def judge(objects: Sequence[LiveObject], names: Sequence[QName]) -> Mapping[QName, Comparison]:
        texts = _live_texts(objects)
        keys = {name: _key(catalog, name, texts[name]) for name in names}
        if fresh := [name for name in names if keys[name] not in cache]:
            _compare(server, catalog, objects, fresh, keys, cache)
        return {name: cache[keys[name]] for name in names}

    here = _live_texts([one for one in live if one.name in wanted])
    return fold_replicas(fetch_replica_objects(server, wanted, cluster), here, comparisons, _live_texts, judge)


def find_undeclared(catalog: Catalog, live: Sequence[LiveObject]) -> tuple[Undeclared, ...]:
    """What stands among the declared objects but is not declared."""
    owned = catalog.declared().keys()
    databases = {name.database for name in owned} - set(_OURS)
    return tuple(
        Undeclared(name=one.name, engine=one.engine, referred=one.name in catalog.objects)
        for one in live
        if one.name.database in databases and one.name not in owned and not one.is_hidden
    )


def _live_texts(live: Sequence[LiveObject]) -> dict[QName, str]:
    """What an object is on the server: its text, and what fires it."""
    hooks: dict[QName, list[str]] = {}
    for one in live:
        for view in one.hooked_views:
            hooks.setdefault(view, []).append(str(one.name))
    return {one.name: "\0".join([one.sql, *sorted(hooks.get(one.name, ()))]) for one in live}


def _key(catalog: Catalog, name: QName, text: str) -> Key:
    return name, catalog.objects[name].digest, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _compare(
    server: Server,
    catalog: Catalog,
    live: Sequence[LiveObject],
    names: Sequence[QName],
    keys: Mapping[QName, Key],
    cache: Known,
) -> None:
    from chmv_assets.live import compare_with_live  # brings sqlglot, which loading the location must not

    make_room(cache, keys.values())
    for some in in_shares(catalog, names):
        found = compare_with_live(catalog, live, server, some)
        for name in some:
            cache[keys[name]] = found.get(name, Comparison("cannot tell"))


def _fetch_rebuilding(server: Server) -> frozenset[QName]:
    """Targets of rebuilds that run."""
    rows = server.rows_if_there(SQL_REBUILDING)
    return frozenset(parse_qname(str(target), "default") for (target,) in rows)


def _held(catalog: Catalog, rebuilding: frozenset[QName]) -> frozenset[QName]:
    """The targets, their views, and the tables that fire these (gates stand there)."""
    found: set[QName] = set()
    for target in rebuilding & set(catalog.objects):
        views = [view.name for view in catalog.views_into(target)]
        found |= {target, *views, *(source for view in views if (source := catalog.trigger_of(view)) is not None)}
    return frozenset(found)
