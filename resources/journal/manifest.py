"""The manifest on the server: which landing files a source has taken, and what was quarantined of a batch."""

from __future__ import annotations

from collections.abc import Mapping

from chmv_assets.core.landing import Batch
from chmv_assets.core.manifest import count_quarantined, note_files, read_taken, taken_paths
from chmv_assets.core.names import QName
from resources.journal.store import Journal


def read_taken_files(journal: Journal, source: QName) -> Mapping[str, str]:
    """Checksum → path of every content that the source has taken."""
    journal.prepare()
    statement = read_taken(source, journal.cluster)
    return taken_paths(journal.server.rows(statement.sql, statement.parameters, statement.settings))


def read_taken_batches(journal: Journal, source: QName) -> Mapping[str, tuple[str, str]]:
    """Checksum → path and batch of every content that the source has taken."""
    journal.prepare()
    statement = read_taken(source, journal.cluster)
    rows = journal.server.rows(statement.sql, statement.parameters, statement.settings)
    return {str(checksum): (str(path), str(batch)) for checksum, path, batch in rows}


def take_files(journal: Journal, source: QName, batch: Batch) -> None:
    """Note a batch's files before its first row is read; the first batch to take a content keeps it."""
    journal.prepare()
    journal.run(note_files(source, batch, journal.versions.next(), journal.cluster))


def read_quarantined(journal: Journal, source: QName, batch: str) -> Mapping[str, int]:
    """Reason → bad rows of a batch."""
    journal.prepare()
    statement = count_quarantined(source, batch, journal.cluster)
    rows = journal.server.rows(statement.sql, statement.parameters, statement.settings)
    return {str(reason): int(count) for reason, count in rows}
