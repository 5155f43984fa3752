"""The manifest on the server: which landing files a source has taken, and what was quarantined of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from chmv_assets.core.errors import JournalRefused
from chmv_assets.core.landing import Batch
from chmv_assets.core.manifest import TakenFile, count_quarantined, decode_taken, note_files, read_taken
from chmv_assets.core.names import QName
from resources.journal.store import Journal

_LEASE_SECONDS = 10.0  # one read, one insert; whoever dies in between is not waited for any longer


def read_taken_files(journal: Journal, source: QName) -> list[TakenFile]:
    """Every content that the source has taken."""
    journal.prepare()
    statement = read_taken(source, journal.cluster)
    return [decode_taken(row) for row in journal.server.fetch(statement)]


def take_files(journal: Journal, source: QName, batches: Sequence[Batch]) -> int:
    """Note the files of new batches before their first row is read; gives the version under which they are taken.

    Call it inside `hold_landing`, with batches that were planned from what is taken inside it too. Refuses if another ingest has
    taken one of the files meanwhile: its lease had ended, or ours.
    """
    version = journal.versions.next()
    if not batches:
        return version
    journal.run(note_files(source, batches, version, journal.cluster))
    owners = {one.checksum: one.batch for one in read_taken_files(journal, source)}
    lost = [file for batch in batches for file in batch.files if owners.get(file.checksum) != batch.id]
    if lost:
        raise JournalRefused(
            f"file {lost[0].path}: found it taken by batch {owners.get(lost[0].checksum)} of another ingest but wanted it free "
            f"({len(lost)} file(s)). Loading it here too would double its rows. Run again: what is left is loaded then."
        )
    return version


@contextmanager
def hold_landing(journal: Journal, source: QName) -> Iterator[None]:
    """Between reading what is taken and taking more, nobody else may: one content belongs to one batch."""
    journal.prepare()
    lock = f"landing {source}"
    with journal.locks.hold(
        lock, journal.owner, lease_seconds=_LEASE_SECONDS, wait_seconds=1.5 * _LEASE_SECONDS
    ) as held:
        yield
        journal.locks.check(held)


def read_quarantined(journal: Journal, source: QName, batch: str) -> Mapping[str, int]:
    """Reason → bad rows of a batch."""
    journal.prepare()
    statement = count_quarantined(source, batch, journal.cluster)
    rows = journal.server.fetch(statement)
    return {str(reason): int(count) for reason, count in rows}
