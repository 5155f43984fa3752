"""Something that is said again and again while a block runs, by a thread and over a connection of its own: leases, repairs that are alive.

Invariant: nothing is said after the block has ended, and what fails to be said fails in silence. Who listens judges by the time that has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from chmv_assets.core.errors import ChmvError
from resources.clickhouse import Endpoint, Server


@contextmanager
def heartbeat(endpoint: Endpoint, every_seconds: float, say: Callable[[Server], object]) -> Iterator[None]:
    """For the length of a block, `say` every so many seconds; the first time after the first of them."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(every_seconds):
            with suppress(ChmvError), Server(endpoint) as server:
                say(server)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
