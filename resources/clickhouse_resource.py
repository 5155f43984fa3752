"""The Dagster face of the client; apart from it, so that commands and Spark need not import Dagster."""

from __future__ import annotations

import dagster as dg

from resources.clickhouse import Server, endpoint_from_environment


class ClickHouseResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The server that the pipeline runs on; CHMV_CLICKHOUSE_* in the environment, else the embedded one.

    It has no fields on purpose: run configuration is stored and shown by Dagster, so an address or a password there would
    travel. Every process reads its own environment.
    """

    def connect(self, **log_comment: str) -> Server:
        """Open a connection; what is passed shows up in the server's query log."""
        return Server(endpoint_from_environment(), log_comment=log_comment)
