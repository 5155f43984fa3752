"""Shares of views: scratches that several processes may want at once. None is filled twice, published half, or taken for empty."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rebuild_cases import CASES
from rebuild_oracle import Pipe, day

from chmv_assets.core.errors import RebuildDisturbed
from chmv_assets.core.names import QName
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.rebuild.swap import swap

WINDOW = day("2026-07-05")


class Slow(Executor):
    """Stops right after it has filled a scratch, until it may go on."""

    filled: threading.Event
    go_on: threading.Event

    def insert_select(self, *args: Any, **options: Any) -> None:
        super().insert_select(*args, **options)
        self.filled.set()
        assert self.go_on.wait(60)


def slow_executor(server: Server) -> Slow:
    executor = Slow(server, log=lambda _line: None)
    executor.filled, executor.go_on = threading.Event(), threading.Event()
    return executor


def test_who_fills_a_share_is_waited_for(
    make: Callable[..., Pipe], engine: EngineInfo, left_over: Callable[[], list[str]]
) -> None:
    """Two runs materialize the same view and window: without a lock both would fill the scratch, and rows be doubled."""
    pipe = make(CASES["additive"], "share_twice")
    view = pipe.catalog.objects[pipe.name("mv")]
    with Server(Endpoint(engine.url)) as first, Server(Endpoint(engine.url)) as second, ThreadPoolExecutor(2) as pool:
        slow = slow_executor(first)
        one = pool.submit(pipe.rebuilder(slow).build_scratch, view, WINDOW)
        assert slow.filled.wait(60)
        two = pool.submit(pipe.rebuilder(Executor(second, log=pipe.logged.append)).build_scratch, view, WINDOW)
        threading.Event().wait(0.5)
        assert not two.done()
        slow.go_on.set()
        assert (one.result(60).reused, two.result(60).reused) == (False, True)
        assert one.result().rows == two.result().rows
    assert pipe.publish(WINDOW).shares_reused == 1
    assert pipe.rows(pipe.name("target")) == pipe.truth() and left_over() == []


@pytest.mark.parametrize("protocol", ["closed", "gated"])
def test_rebuild_does_not_touch_a_share_that_is_being_filled(
    make: Callable[..., Pipe], engine: EngineInfo, left_over: Callable[[], list[str]], protocol: Any
) -> None:
    pipe = make(CASES["additive"], f"share_busy_{protocol}")
    pipe.protocol = protocol
    view = pipe.catalog.objects[pipe.name("mv")]
    pipe.damage("double", ["20260705"])
    with Server(Endpoint(engine.url)) as first, ThreadPoolExecutor(1) as pool:
        slow = slow_executor(first)
        filling = pool.submit(pipe.rebuilder(slow).build_scratch, view, WINDOW)
        assert slow.filled.wait(60)
        assert pipe.publish(WINDOW).shares_reused == 0
        assert pipe.rows(pipe.name("target")) == pipe.truth()
        slow.go_on.set()
        assert filling.result(60).rows > 0
    pipe.damage("delete", ["20260705"])
    pipe.protocol = "closed"
    assert pipe.publish(WINDOW).shares_reused == 1, "the share was left to who filled it, whole"
    assert pipe.rows(pipe.name("target")) == pipe.truth() and left_over() == []


def test_lost_scratch_is_not_taken_for_an_emptied_window(make: Callable[..., Pipe]) -> None:
    """The source holds rows of the window, so views that give none would empty it; a scratch that is gone is not that."""
    pipe = make(CASES["additive"], "share_gone")
    before = pipe.checksums()
    with pytest.raises(RebuildDisturbed, match=r"scratch\.gone.* is gone but wanted it as it was filled"):
        swap(pipe.rebuilder(), pipe.catalog.objects[pipe.name("target")], WINDOW, [QName("chmv", "scratch.gone")])
    assert pipe.checksums() == before
