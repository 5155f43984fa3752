"""A rebuilder for a pipeline on a server: the one place where it gets its clock, its log and its way to replay landing files.

Invariant: Spark starts with the first window that is replayed, once, and ends with the rebuilder; a session that the process has
already (a run that ingests too) is used and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.executor import Executor, recovery_bounds
from resources.journal import cluster_from_environment, open_journal
from resources.rebuild import Rebuilder

if TYPE_CHECKING:
    from chmv_assets.replay import Replayer


@contextmanager
def open_rebuilder(
    pipeline: Pipeline,
    server: Server,
    log: Callable[[str], None],
    origin: str = "",
    *,
    trace: Callable[[str], None] | None = None,
    allow_empty: bool = False,
) -> Iterator[Rebuilder]:
    """A rebuilder for a block of code; it can replay if any source declares a landing.

    With `allow_empty` it may delete windows for which the views give nothing any more, whatever the settings say.
    """
    has_landing = any(settings.landing is not None for _, settings in pipeline.settings.sources)
    started: list[Replayer] = []
    with ExitStack() as stack:

        def replay(source: Object, window: Window | None, archive: QName) -> int:
            if not started:
                started.append(_start_replayer(stack, pipeline, server, log))
            return started[0](source, window, archive)

        yield Rebuilder(
            Executor(
                server,
                log=log,
                trace=trace,
                bounds=recovery_bounds(pipeline.settings.limits),
                cluster=cluster_from_environment(),
            ),
            pipeline.catalog,
            pipeline.settings.timezone,
            lambda: datetime.now(timezone.utc),
            replay=replay if has_landing else None,
            origin=origin,
            may_empty=lambda target: allow_empty or pipeline.settings.policy(target).allow_empty,
        )


def _start_replayer(stack: ExitStack, pipeline: Pipeline, server: Server, log: Callable[[str], None]) -> Replayer:
    """Imports of Spark are here, so that nobody else pays for them."""
    from chmv_assets.replay import Replayer
    from resources.spark_session import LazySession, options_from_environment

    lazy = LazySession(options_from_environment())
    stack.callback(lazy.stop)
    return Replayer(pipeline, open_journal(server), lazy.session, log)
