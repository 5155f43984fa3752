"""Building a location makes hundreds of thousands of objects that live as long as the process.

Python's cycle collector would walk all of them again and again, while they are made and while Dagster turns them into jobs and
a snapshot, and find nothing: a third of the time at 2,000 objects. Nothing here knows what is built.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = (
    10_000  # Python looks after every 700; Dagster makes a million that stay when it builds jobs and the snapshot
)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switch the cycle collector off for a while; it is left as it was found."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_built() -> None:
    """Exempt all objects that there are from collection, and let the collector look less often at what comes after them.

    For the end of a module that Dagster loads once, not for functions: what is garbage by now is never found.
    """
    gc.freeze()
    first, *older = gc.get_threshold()
    if first:  # zero: someone has switched it off
        gc.set_threshold(max(first, _NEW_OBJECTS), *older)
