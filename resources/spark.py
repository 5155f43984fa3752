"""The Dagster face of the Spark session; apart from it, so that commands need not import Dagster.

Stands beside dagster-pyspark's `LazyPySparkResource` with the same two properties: importing that one costs every process
of the location the import of pyspark, and it never stops a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field, PrivateAttr

from resources.spark_session import LazySession, options_from_environment

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SparkResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Spark for one run: no session before the first use, one from then on, stopped with the run.

    CHMV_SPARK_MASTER, CHMV_SPARK_REMOTE and CHMV_SPARK_CONF say where and how; without them Spark runs in this process.
    """

    spark_config: dict[str, str] = Field(
        default={},
        description="Entries of Spark's configuration; CHMV_SPARK_CONF wins over them. No secrets: Dagster shows them.",
    )
    _lazy: LazySession | None = PrivateAttr(default=None)

    @property
    def spark_session(self) -> SparkSession:
        """The session; the first use starts it."""
        if self._lazy is None:
            self._lazy = LazySession(options_from_environment(defaults=self.spark_config))
        return self._lazy.session()

    @property
    def spark_context(self) -> SparkContext:
        """The context of the session; Spark Connect has none."""
        return self.spark_session.sparkContext

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """End the session with the run."""
        self.stop()

    def stop(self) -> None:
        """End the session, if one was started."""
        if self._lazy is not None:
            self._lazy.stop()
