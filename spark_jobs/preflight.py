"""Before the first row: does a source take batches exactly once? Asked over Spark's own connection.

Nothing is written; the queries and the judgement are the core's. (`resources.capabilities` asks the same with another client:
Spark's processes see only the core.)
"""

from __future__ import annotations

from clickhouse_connect.driver.client import Client

from chmv_assets.core.capabilities import (
    Capability,
    decode_capability,
    read_defaults,
    read_known_settings,
    read_tables,
)
from chmv_assets.core.names import QName
from spark_jobs.connection import fetch_rows


def fetch_capability(client: Client, source: QName) -> Capability:
    """Whether a source and all that an insert into it reaches deduplicate; `require()` it before the first insert."""
    return decode_capability(
        source,
        str(client.server_version),
        tables=fetch_rows(client, read_tables()),
        defaults=fetch_rows(client, read_defaults()),
        known_settings=fetch_rows(client, read_known_settings()),
    )
