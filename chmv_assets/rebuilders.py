"""A rebuilder for a pipeline on a server: the one place where it gets its clock, its log and its way to replay landing files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild import Rebuilder


def make_rebuilder(pipeline: Pipeline, server: Server, log: Callable[[str], None]) -> Rebuilder:
    """It can replay if any source declares a landing; Spark starts only if it does."""
    has_landing = any(settings.landing is not None for _, settings in pipeline.settings.sources)

    def replay(source: Object, window: Window | None, archive: QName) -> int:
        from chmv_assets.replay import Replayer
        from resources.spark_session import open_session

        with open_session() as spark:
            return Replayer(pipeline, Journal(server), lambda: spark, log)(source, window, archive)

    return Rebuilder(
        Executor(server, log=log),
        pipeline.catalog,
        pipeline.settings.timezone,
        lambda: datetime.now(timezone.utc),
        replay=replay if has_landing else None,
    )
