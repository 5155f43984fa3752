"""Drift by replica: what another replica of a cluster has otherwise than declared is said of the object, with the replica's name.

Most of the time every replica says what this one says: then its texts are equal, and nothing is compared twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from chmv_assets.core.compare import Comparison, Difference
from chmv_assets.core.names import QName
from resources.introspect import LiveObject
from resources.vocabulary import Replica

Texts = Callable[[Sequence[LiveObject]], Mapping[QName, str]]  # what an object is on one replica
Judge = Callable[[Sequence[LiveObject], Sequence[QName]], Mapping[QName, Comparison]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Comparisons that speak for all replicas, and replicas that said nothing."""

    comparisons: Mapping[QName, Comparison]
    silent: tuple[str, ...] = ()


def fold_replicas(
    replicas: Iterable[Replica],
    here: Mapping[QName, str],
    comparisons: Mapping[QName, Comparison],
    texts: Texts,
    judge: Judge,
) -> Folded:
    """Add to each object what another replica has otherwise; `here` are the texts of the server that we speak to."""
    found = dict(comparisons)
    silent: list[str] = []
    for one in replicas:
        if one.objects is None:
            silent.append(one.host)
            continue
        there = texts(one.objects)
        odd = [name for name in comparisons if name in there and there[name] != here.get(name)]
        verdicts = judge(one.objects, odd) if odd else {}
        for name in comparisons:
            if name not in there and name in here:
                found[name] = _add(found[name], [Difference(f"replica {one.host}", "there", "missing")])
            elif name in verdicts and verdicts[name].state != "equal":
                listed = verdicts[name].differences or (Difference("text", "declared", verdicts[name].state),)
                found[name] = _add(found[name], [replace(d, what=f"{d.what} on replica {one.host}") for d in listed])
    return Folded(comparisons=found, silent=tuple(silent))


def _add(one: Comparison, differences: Sequence[Difference]) -> Comparison:
    listed = (*one.differences, *differences)
    return (
        replace(one, differences=listed)
        if one.state == "missing"
        else replace(one, state="changed", differences=listed)
    )
