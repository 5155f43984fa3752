"""Ask the server what `core.capabilities` decides by. Writes nothing; the queries and the judgement are the core's."""

from __future__ import annotations

from typing import Any

from chmv_assets.core.capabilities import (
    Capability,
    decode_capability,
    read_defaults,
    read_known_settings,
    read_tables,
)
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import Statement
from resources.clickhouse import Server


def probe_capability(server: Server, source: QName) -> Capability:
    """Whether a source and everything behind it deduplicate; `require()` the answer before the first insert."""

    def rows(statement: Statement) -> list[tuple[Any, ...]]:
        return server.rows(statement.sql, statement.parameters, statement.settings)

    return decode_capability(
        source,
        server.version,
        tables=rows(read_tables()),
        defaults=rows(read_defaults()),
        known_settings=rows(read_known_settings()),
    )
