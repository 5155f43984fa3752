"""What comparisons with the server have in common: how many texts one query can ask for, and how much is remembered of earlier ones.

Used by `live_views` and `drift`, which decide what is compared. Brings no sqlglot: loading the location imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.names import QName

_SIZE = 20_000
_SHARE_BYTES = (
    48 * 1024
)  # the server refuses a field of more than 128 KiB (http_max_field_value_size), and escapes may double it
Key = tuple[QName, str, str]  # the object, its declaration, its live text
Verdict = TypeVar("Verdict")


def make_room(known: dict[Key, Verdict], used: Iterable[Key]) -> None:
    """Forget what is not used, once there is too much."""
    if len(known) > _SIZE:
        kept = {key: known[key] for key in used if key in known}
        known.clear()
        known.update(kept)


def in_shares(catalog: Catalog, names: Sequence[QName]) -> Iterator[Sequence[QName]]:
    """The objects in lots whose declared texts the server takes as one value; one object at least."""
    share: list[QName] = []
    size = 0
    for name in names:
        length = len(catalog.objects[name].sql.encode("utf-8", "surrogatepass"))
        if share and size + length > _SHARE_BYTES:
            yield share
            share, size = [], 0
        share.append(name)
        size += length
    if share:
        yield share
