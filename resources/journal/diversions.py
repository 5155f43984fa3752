"""Diversions in the journal: read how a source stands, note that it changed."""

from __future__ import annotations

from collections.abc import Iterable

from chmv_assets.core.diversions import (
    Diversion,
    DiversionStatus,
    decode_diversion,
    read_diversions,
    write_diversion,
)
from chmv_assets.core.names import QName
from resources.clickhouse import Server
from resources.journal.store import Journal


def fetch_diversions(server: Server, cluster: str = "", sources: Iterable[QName] = ()) -> dict[QName, Diversion]:
    """How sources stand, by source; none without a journal. One query; creates nothing."""
    statement = read_diversions(cluster, sources)
    rows = server.fetch_if_there(statement)
    return {found.source: found for found in map(decode_diversion, rows)}


def read_diversion(journal: Journal, source: QName) -> Diversion | None:
    """How one source stands."""
    return fetch_diversions(journal.server, journal.cluster, [source]).get(source)


def note_diversion(
    journal: Journal, source: QName, status: DiversionStatus, reason: str, since_ms: int | None = None
) -> Diversion:
    """Move a source to a status; `since_ms` begins a new diversion, without it the present one goes on."""
    journal.prepare()
    before = read_diversion(journal, source)
    begun = since_ms if since_ms is not None else (before.since_ms if before else 0)
    after = Diversion(
        source=source,
        status=status,
        reason=reason,
        since_ms=begun,
        owner=journal.owner,
        version=journal.versions.next(above=before.version if before else 0),
    )
    journal.run(write_diversion(after, journal.cluster))
    return after
