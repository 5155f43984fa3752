"""Ask the server what `core.capabilities` decides by. Writes nothing; the queries and the judgement are the core's."""

from __future__ import annotations

from chmv_assets.core.capabilities import (
    Capability,
    decode_capability,
    read_defaults,
    read_known_settings,
    read_tables,
)
from chmv_assets.core.names import QName
from resources.clickhouse import Server


def probe_capability(server: Server, source: QName) -> Capability:
    """Whether a source and everything behind it deduplicate; `require()` the answer before the first insert."""
    return decode_capability(
        source,
        server.version,
        tables=server.fetch(read_tables()),
        defaults=server.fetch(read_defaults()),
        known_settings=server.fetch(read_known_settings()),
    )
