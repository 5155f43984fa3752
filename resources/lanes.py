"""Work side by side on one server: so many connections, each opened once and lent to whoever is free.

The driver greets the server on every connection (version, time zone, settings), which costs more than most statements; and a connection is not
for sharing between threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TypeVar

from resources.clickhouse import Server

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_lanes(
    server: Server, lanes: int, items: Sequence[Item], work: Callable[[Server, Item], Result]
) -> list[Result]:
    """What `work` gives for each item, in their order. The first failure is raised when all have ended."""
    count = min(lanes, len(items))
    if count <= 1:
        return [work(server, item) for item in items]
    free: SimpleQueue[Server] = SimpleQueue()

    def do(item: Item) -> Result:
        lent = free.get()
        try:
            return work(lent, item)
        finally:
            free.put(lent)

    with ExitStack() as stack:
        for _ in range(count):
            free.put(stack.enter_context(Server(server.endpoint)))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=count))
        running = [pool.submit(do, item) for item in items]
        try:
            wait(running)
        finally:  # who is interrupted begins nothing more
            pool.shutdown(wait=True, cancel_futures=True)
        return [one.result() for one in running]
